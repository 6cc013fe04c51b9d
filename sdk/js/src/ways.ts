/** Chooses the transport of the next attempt. */

/** A transport to the server. */
export type TransportKind = 'websocket' | 'sse';

/**
 * Chooses among the transports, the best one first.
 *
 * The client leaves the first transport only with evidence: it failed `failuresMax` times in a row,
 * and the server answered a plain request right after the last failure. A server that does not
 * answer is away; that says nothing about transports. The client leaves another transport for the
 * next one after `failuresMax` failures. If the first transport has worked before, the client
 * returns to it after one failure, or after the end of a connection.
 *
 * @internal
 */
export class Ways {
  readonly #kinds: readonly TransportKind[];
  readonly #failuresMax: number;
  #index = 0;
  #failures = 0;
  #hasFirstWorked = false;

  constructor(kinds: readonly TransportKind[], failuresMax: number) {
    this.#kinds = kinds;
    this.#failuresMax = failuresMax;
  }

  current(): TransportKind {
    return this.#kinds[this.#index] ?? 'websocket';
  }

  /** Whether WebSocket is the first choice, and another transport is used. */
  isAwayFromWebSocket(): boolean {
    return this.#index !== 0 && this.#kinds[0] === 'websocket';
  }

  /** Whether the first transport has worked, here or in another tab. */
  hasFirstWorked(): boolean {
    return this.#hasFirstWorked;
  }

  handleOpened(): void {
    this.#failures = 0;
    this.#hasFirstWorked ||= this.#index === 0;
  }

  /** A connection that had been open has ended. */
  handleClosed(): void {
    if (this.#hasFirstWorked) {
      this.#goTo(0);
    }
  }

  /**
   * A connection could not be opened. Returns whether the choice depends on a plain request to the
   * server. Then the caller reports its result by {@link Ways.handleAnswered} or {@link
   * Ways.handleUnanswered}.
   */
  handleNotOpened(): boolean {
    this.#failures += 1;
    if (this.#index === 0) {
      return this.#kinds.length > 1 && this.#failures >= this.#failuresMax;
    }
    if (this.#hasFirstWorked) {
      this.#goTo(0);
    } else if (this.#failures >= this.#failuresMax) {
      this.#goTo(this.#index + 1);
    }
    return false;
  }

  /** The server answers, so the first transport is blocked. */
  handleAnswered(): void {
    this.#goTo(1);
  }

  /** The server is away: the failures say nothing about the transport. */
  handleUnanswered(): void {
    this.#failures = 0;
  }

  /** The first transport works in another tab. */
  handleFirstWorksElsewhere(): void {
    this.#hasFirstWorked = true;
  }

  /** The first transport can be opened again. */
  handleFirstPasses(): void {
    this.#goTo(0);
  }

  #goTo(index: number): void {
    this.#failures = 0;
    this.#index = index % this.#kinds.length;
  }
}
