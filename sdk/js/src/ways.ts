/** Which transport to try next. */

/** A way to the server. */
export type TransportKind = 'websocket' | 'sse';

/**
 * Chooses among the transports, the best one first.
 *
 * The first transport gives way only to evidence: it failed `failuresMax` times in a row, and right after the last
 * failure the server answered a plain request. A server that does not answer is away, and says nothing about transports.
 * Another transport gives way to the next one after `failuresMax` failures; to the first one, where that has worked
 * before, after one failure or after the end of its connection.
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
   * A connection could not be opened. Returns whether the choice depends on a plain request to the server: then
   * {@link Ways.handleAnswered} or {@link Ways.handleUnanswered} says how that ended.
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

  /** The server answers, so it is the first transport that does not pass. */
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
