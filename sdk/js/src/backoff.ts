/** Advice after the end of a connection, and the delays before the next one. */

/**
 * The next step after a connection has ended:
 *
 * - `now`: reconnect (codes 4000 to 4099);
 * - `later`: reconnect after a delay (4100 to 4199, and every end without a code);
 * - `credentials`: reconnect with another token (4200 to 4299);
 * - `never`: do not reconnect, because the same would happen again (4300 to 4399).
 */
export type Advice = 'now' | 'later' | 'credentials' | 'never';

/**
 * The advice of a close code, by its range. A code outside the ranges means `later`.
 *
 * @internal
 */
export function adviceOf(code: number): Advice {
  switch (Math.floor(code / 100)) {
    case 40:
      return 'now';
    case 42:
      return 'credentials';
    case 43:
      return 'never';
    default:
      return 'later';
  }
}

/**
 * Delays between attempts. They are random up to a step that doubles, from `minMs` to `maxMs`, and
 * never shorter than the delay that the server asked for.
 *
 * Clients that lost the same server must not all come back in the same instant. So a delay is
 * random as a whole, and a delay that the server asked for gets up to half a step on top.
 *
 * @internal
 */
export class Backoff {
  readonly #minMs: number;
  readonly #maxMs: number;
  readonly #random: () => number;
  #stepMs: number;

  constructor(minMs: number, maxMs: number, random: () => number = Math.random) {
    this.#minMs = minMs;
    this.#maxMs = Math.max(minMs, maxMs);
    this.#random = random;
    this.#stepMs = minMs;
  }

  /** The next delay. */
  next(askedMs?: number): number {
    const stepMs = this.#stepMs;
    this.#stepMs = Math.min(stepMs * 2, this.#maxMs);
    if (askedMs === undefined) {
      return this.#random() * stepMs;
    }
    return Math.min(askedMs, ASKED_MS_MAX) + (this.#random() * stepMs) / 2;
  }

  /**
   * A connection has ended after `lastedMs`. The steps start anew only if it lasted longer than the
   * next delay can be. A reset at every welcome would flood a server that welcomes and closes at
   * once.
   */
  handleLasted(lastedMs: number): void {
    if (lastedMs >= this.#stepMs) {
      this.#stepMs = this.#minMs;
    }
  }
}

/**
 * An hour. If a server asks for a longer delay, the client tries again after an hour.
 *
 * @internal
 */
export const ASKED_MS_MAX = 3_600_000;
