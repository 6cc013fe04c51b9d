/** What the end of a connection asks for, and how long to wait before the next one. */

/**
 * What to do after a connection has ended:
 *
 * - `now`: reconnect (codes 4000 to 4099);
 * - `later`: reconnect after a delay (4100 to 4199, and whatever ends without a word);
 * - `credentials`: reconnect with another token (4200 to 4299);
 * - `never`: do not return, the same would happen again (4300 to 4399).
 */
export type Advice = 'now' | 'later' | 'credentials' | 'never';

/**
 * What the range of a close code asks for; a code outside the ranges counts as `later`.
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
 * Delays between attempts: random up to a step that doubles, from `minMs` to `maxMs`, and never shorter than what the
 * server asked for.
 *
 * A crowd of clients that lost the same server must not come back in the same instant: so a delay that nobody asked for
 * is random as a whole, and one that the server asked for has up to half a step on top.
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
   * A connection has ended that was open for so long. Only one that lasted longer than the next delay could be starts
   * the steps anew: to do so at every welcome would hammer a server that welcomes and closes at once.
   */
  handleLasted(lastedMs: number): void {
    if (lastedMs >= this.#stepMs) {
      this.#stepMs = this.#minMs;
    }
  }
}

/**
 * An hour: a server that asks for more is asked again after that.
 *
 * @internal
 */
export const ASKED_MS_MAX = 3_600_000;
