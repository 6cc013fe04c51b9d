/** How far this client has seen the topics that it is in or has asked for. */

import type { Position, Wanted } from './wire.js';

/**
 * A topic that is wanted. Its number tells it from an earlier wish for the same topic that was called off.
 *
 * @internal
 */
export interface Wish extends Wanted {
  readonly wish: number;
}

/** What an answer to a wish to be in a topic means. */
export interface Entered {
  /** Of the topic as it is now; an answer to what was called off is not. */
  readonly isCurrent: boolean;
  /** The position asked for. */
  readonly asked: Position | undefined;
  /** Whether something between the position asked for and the one told is lost. */
  readonly hasLost: boolean;
}

/** What to do with a message. */
export type Verdict = 'new' | 'duplicate' | 'stray';

/**
 * The topics, each with the position up to which it has been seen.
 *
 * Shape: an entry a topic, whatever the connection; what only one connection knows is forgotten by
 * {@link Positions.handleConnecting}.
 *
 * @internal
 */
export class Positions {
  readonly #places = new Map<string, Place>();
  /** Topics left, and how often, for which the server has not answered: what it says of them is of the time before. */
  readonly #leaving = new Map<string, number>();

  /** Wishes so far. */
  #wishes = 0;

  /** What a next connection asks for to go on from here. */
  wanted(): Wish[] {
    return [...this.#places].map(([topic, { at, wish }]) => ({ topic, position: at, wish }));
  }

  /** Whether the topic is wanted and the server has not answered. */
  isAwaited(topic: string): boolean {
    return this.#places.get(topic)?.isIn === false && !this.#leaving.has(topic);
  }

  at(topic: string): Position | undefined {
    return this.#places.get(topic)?.at;
  }

  /** Somebody wants to be in the topic. Nothing changes if it is wanted already. */
  want(topic: string, position: Position | undefined): void {
    if (!this.#places.has(topic)) {
      this.#wishes += 1;
      this.#places.set(topic, { at: position, asked: position, isIn: false, wish: this.#wishes });
    }
  }

  /** Nobody wants to be in the topic any more. */
  drop(topic: string): void {
    this.#places.delete(topic);
  }

  /** The server is told that the topic is left, and will answer. */
  handleLeaving(topic: string): void {
    this.#leaving.set(topic, (this.#leaving.get(topic) ?? 0) + 1);
  }

  /** The topic is asked for again on a connection that is no longer in it. */
  handleAskedAgain(topic: string): void {
    const place = this.#places.get(topic);
    if (place !== undefined) {
      place.isIn = false;
      place.asked = place.at;
    }
  }

  /** A connection begins: it asks for what is wanted, and owes no answers of the one before. */
  handleConnecting(): void {
    this.#leaving.clear();
    for (const topic of this.#places.keys()) {
      this.handleAskedAgain(topic);
    }
  }

  /**
   * The connection is in the topic. What was missed comes after this: until it has been seen, the earlier position stays.
   */
  handleSubscribed(topic: string, told: Position | undefined, recovered: boolean): Entered {
    const place = this.#places.get(topic);
    if (place === undefined || this.#leaving.has(topic)) {
      return { isCurrent: false, asked: undefined, hasLost: false };
    }
    const { at, asked } = place;
    const isSameEpoch = at !== undefined && at.epoch === told?.epoch;
    const hasLost =
      !place.isIn && !recovered && asked !== undefined && !(isSameEpoch && at.offset === told.offset);
    if (!((place.isIn || recovered) && isSameEpoch)) {
      place.at = told;
    }
    place.isIn = true;
    return { isCurrent: true, asked, hasLost };
  }

  /** The answer to a wish to leave, or the server's own wish; whether it concerns the topic as it is wanted now. */
  handleUnsubscribed(topic: string, reason: string): boolean {
    const leaving = this.#leaving.get(topic);
    if (leaving === undefined) {
      return reason !== '' && this.#places.has(topic);
    }
    if (reason === '') {
      if (leaving === 1) {
        this.#leaving.delete(topic);
      } else {
        this.#leaving.set(topic, leaving - 1);
      }
    }
    return false;
  }

  /** A message came: what to do with it. A new one counts as seen from now on. */
  handleMessage(topic: string, offset: bigint): Verdict {
    const place = this.#places.get(topic);
    if (place === undefined || !place.isIn || this.#leaving.has(topic)) {
      return topic === '' ? 'new' : 'stray';
    }
    if (place.at === undefined) {
      return 'new';
    }
    if (offset <= place.at.offset) {
      return 'duplicate';
    }
    place.at = { epoch: place.at.epoch, offset };
    return 'new';
  }
}

interface Place {
  /** The last message seen, or what was asked for as long as the server has not answered. */
  at: Position | undefined;
  /** What the connection has asked for. */
  asked: Position | undefined;
  /** Whether the server has answered: only then does a message say anything about `at`. */
  isIn: boolean;
  readonly wish: number;
}
