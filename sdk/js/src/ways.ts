/** Which transport to try next. */

/** A way to the server. */
export type TransportKind = 'websocket' | 'sse';

/**
 * Chooses among the transports, the best one first.
 *
 * A transport that could not be opened several times in a row gives way to the next one, and the last one to the first.
 * One that works is kept; but where the first one has worked before, it failed because the server was away and not
 * because something on the way refuses it, so it is tried first again.
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

  handleOpened(): void {
    this.#failures = 0;
    this.#hasFirstWorked ||= this.#index === 0;
  }

  /** A connection that had been open has ended. */
  handleClosed(): void {
    if (this.#hasFirstWorked) {
      this.#index = 0;
    }
  }

  handleNotOpened(): void {
    this.#failures += 1;
    if (this.#failures >= this.#failuresMax) {
      this.#failures = 0;
      this.#index = (this.#index + 1) % this.#kinds.length;
    }
  }
}
