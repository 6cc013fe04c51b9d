/** The time from `connect` to `close`. */

import type { WeirError } from './errors.js';

/**
 * The time from a call of `connect` until the end of all attempts.
 *
 * @internal
 */
export class Run {
  /** Resolves when a connection is open for the first time; rejects if there will be none. */
  readonly opened: Promise<void>;
  #resolve!: () => void;
  #reject!: (error: WeirError) => void;
  #hasOpened = false;
  readonly #stopping = new AbortController();
  readonly #sleepers = new Map<ReturnType<typeof setTimeout>, () => void>();

  constructor() {
    this.opened = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // A program that does not wait for it learns of failures by events.
    this.opened.catch(() => {});
  }

  /** Aborted when the run is stopped. */
  get stopping(): AbortSignal {
    return this.#stopping.signal;
  }

  isStopped(): boolean {
    return this.#stopping.signal.aborted;
  }

  /** Whether a connection has been open in this run. */
  hasOpened(): boolean {
    return this.#hasOpened;
  }

  handleOpened(): void {
    this.#hasOpened = true;
    this.#resolve();
  }

  stop(error: WeirError): void {
    this.#stopping.abort();
    this.#reject(error);
    for (const [timer, wake] of this.#sleepers) {
      clearTimeout(timer);
      wake();
    }
    this.#sleepers.clear();
  }

  /** Waits for a time, or until the run is stopped. */
  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      if (this.isStopped()) {
        // Nothing would clear the timer.
        resolve();
        return;
      }
      const timer = setTimeout(() => {
        this.#sleepers.delete(timer);
        resolve();
      }, ms);
      this.#sleepers.set(timer, resolve);
    });
  }
}
