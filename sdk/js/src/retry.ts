/** The way back to WebSocket, while a client is connected over another transport. */

import { Backoff } from './backoff.js';

/**
 * Tries WebSocket again and again, beside a connection over another transport.
 *
 * States: idle → waiting → trying → waiting, and from each of them → idle. One attempt at a time.
 * Where WebSocket has worked before, here or in another tab, delays are random up to a step that doubles from 1 s to
 * 1 min. Where it never has, they are 1 min plus a random part of up to 7.5 min.
 *
 * @internal
 */
export class WebSocketRetry {
  readonly #begin: () => Attempt | undefined;
  readonly #handlePasses: () => void;
  #backoff = rarely();
  #isEager = false;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #dueAt = 0;
  #attempt: Attempt | undefined;

  /**
   * @param begin begins an attempt; returns `undefined` if an attempt is useless now.
   * @param handlePasses called when an attempt has succeeded; then no attempt is planned.
   */
  constructor(begin: () => Attempt | undefined, handlePasses: () => void) {
    this.#begin = begin;
    this.#handlePasses = handlePasses;
  }

  /** Begins, unless it has begun already. `isEager`: WebSocket has worked before. */
  start(isEager: boolean): void {
    if (isEager && !this.#isEager) {
      this.#isEager = true;
      this.#backoff = eagerly();
    }
    if (this.#timer === undefined && this.#attempt === undefined) {
      this.#wait(this.#delayMs());
    }
  }

  /** WebSocket works in another tab: the next attempt comes within a second. */
  hurry(): void {
    this.start(true);
    const delayMs = Math.random() * EAGER_MS_MIN;
    if (this.#timer !== undefined && this.#dueAt - performance.now() > delayMs) {
      clearTimeout(this.#timer);
      this.#wait(delayMs);
    }
  }

  /**
   * Stops the attempts. The delays keep their step, because a successful attempt is no connection
   * yet.
   */
  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#attempt?.cancel();
    this.#attempt = undefined;
  }

  /**
   * A welcome came over WebSocket: stops the attempts. The next start begins with the shortest
   * step.
   */
  reset(): void {
    this.stop();
    this.#isEager = false;
    this.#backoff = rarely();
  }

  #delayMs(): number {
    return this.#isEager ? this.#backoff.next() : this.#backoff.next(RARE_MS_MIN);
  }

  #wait(delayMs: number): void {
    this.#dueAt = performance.now() + delayMs;
    this.#timer = setTimeout(() => void this.#run(), delayMs);
  }

  async #run(): Promise<void> {
    this.#timer = undefined;
    const attempt = this.#begin();
    if (attempt === undefined) {
      this.#wait(this.#delayMs());
      return;
    }
    this.#attempt = attempt;
    const passes = await attempt.passes;
    if (this.#attempt !== attempt) {
      // Stopped meanwhile.
      return;
    }
    this.#attempt = undefined;
    if (passes) {
      this.#handlePasses();
    } else {
      this.#wait(this.#delayMs());
    }
  }
}

/**
 * An attempt under way.
 *
 * @internal
 */
export interface Attempt {
  /** Resolves once: whether WebSocket passes. Never rejects. */
  readonly passes: Promise<boolean>;
  /** Cancels the attempt; it counts as failed. */
  cancel(): void;
}

function eagerly(): Backoff {
  return new Backoff(EAGER_MS_MIN, EAGER_MS_MAX);
}

function rarely(): Backoff {
  return new Backoff(RARE_MS_MIN, RARE_MS_MAX);
}

/** An apparently blocked WebSocket may have been an outage that ended at that moment. */
const EAGER_MS_MIN = 1_000;

/** A laptop that moves to another network is back on WebSocket within a minute. */
const EAGER_MS_MAX = 60_000;

/**
 * A network that blocks WebSocket usually stays that way, and the browser's console shows each
 * failure.
 */
const RARE_MS_MIN = 60_000;
const RARE_MS_MAX = 900_000;
