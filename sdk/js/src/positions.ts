/** The position of the client in each topic that it has or wants. */

import type { Position, Wanted } from './wire.js';

/**
 * A wanted topic. Its number distinguishes it from an earlier, cancelled wish for the same topic.
 *
 * @internal
 */
export interface Wish extends Wanted {
  readonly wish: number;
}

/** What an answer to a wish to be in a topic means, or the server's word that it goes on elsewhere. */
export interface Entered {
  /** Whether the answer belongs to the current wish, not to a cancelled one. */
  readonly isCurrent: boolean;
  /** The position asked for; in a running subscription the last one seen. */
  readonly asked: Position | undefined;
  /** Whether something between that position and the one told is lost. */
  readonly hasLost: boolean;
}

/** The decision about a message. */
export type Verdict = 'new' | 'duplicate' | 'stray';

/**
 * The topics, each with the position up to which the client has seen it.
 *
 * Shape: an entry per topic, which outlives connections. {@link Positions.handleConnecting} removes
 * what belongs to one connection only.
 *
 * @internal
 */
export class Positions {
  readonly #places = new Map<string, Place>();
  /**
   * Topics that the client has left, with the number of unanswered `Unsubscribe`. Until then,
   * messages about such a topic concern the earlier subscription.
   */
  readonly #leaving = new Map<string, number>();

  /** The number of wishes so far. */
  #wishes = 0;

  /** The topics and positions with which the next connection continues. */
  wanted(): Wish[] {
    return [...this.#places].map(([topic, { at, presence, wish }]) => ({
      topic,
      position: at,
      presence,
      wish,
    }));
  }

  /** Whether the topic is wanted and the server has not answered yet. */
  isAwaited(topic: string): boolean {
    return this.#places.get(topic)?.isIn === false && !this.#leaving.has(topic);
  }

  /** Whether the connection is in the topic as it is wanted now. */
  isIn(topic: string): boolean {
    return this.#places.get(topic)?.isIn === true && !this.#leaving.has(topic);
  }

  /** Whether it is to be told who enters and who leaves. */
  wantsPresence(topic: string): boolean {
    return this.#places.get(topic)?.presence ?? false;
  }

  at(topic: string): Position | undefined {
    return this.#places.get(topic)?.at;
  }

  /** Somebody wants to be in the topic. Nothing changes if it is wanted already. */
  want(topic: string, position: Position | undefined, presence = false): void {
    if (!this.#places.has(topic)) {
      this.#wishes += 1;
      const wish = this.#wishes;
      this.#places.set(topic, { at: position, asked: position, isIn: false, presence, wish });
    }
  }

  /** The program no longer wants the topic. */
  drop(topic: string): void {
    this.#places.delete(topic);
  }

  /** The client sends `Unsubscribe`; the server will answer. */
  handleLeaving(topic: string): void {
    this.#leaving.set(topic, (this.#leaving.get(topic) ?? 0) + 1);
  }

  /** The client subscribes again on a connection that is no longer subscribed. */
  handleAskedAgain(topic: string): void {
    const place = this.#places.get(topic);
    if (place !== undefined) {
      place.isIn = false;
      place.asked = place.at;
    }
  }

  /**
   * A connection begins: it asks for all wanted topics. No answers from the previous connection
   * will come.
   */
  handleConnecting(): void {
    this.#leaving.clear();
    for (const topic of this.#places.keys()) {
      this.handleAskedAgain(topic);
    }
  }

  /**
   * The connection is in the topic. What was missed comes after this: until it has been seen, the earlier position stays.
   * In a running subscription another epoch says that messages may be lost, and a later position in the same epoch says
   * that those until there are; otherwise it repeats what is known.
   */
  handleSubscribed(topic: string, told: Position | undefined, recovered: boolean): Entered {
    const place = this.#places.get(topic);
    if (place === undefined || this.#leaving.has(topic)) {
      return { isCurrent: false, asked: undefined, hasLost: false };
    }
    const { at, isIn } = place;
    const asked = isIn ? at : place.asked;
    const isSameEpoch = at !== undefined && at.epoch === told?.epoch;
    const isKnown = isSameEpoch && (isIn ? at.offset >= told.offset : at.offset === told.offset);
    const hasLost = !recovered && asked !== undefined && !isKnown;
    if (!isSameEpoch || !(recovered || (isIn && isKnown))) {
      place.at = told;
    }
    place.isIn = true;
    return { isCurrent: true, asked, hasLost };
  }

  /**
   * The answer to `Unsubscribe`, or the server's own decision. Returns whether it concerns the
   * current wish for the topic.
   */
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

  /** A message has come. Returns what to do with it. A new one counts as seen from now on. */
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
  /** The position of the last message seen; before the server's answer, the requested position. */
  at: Position | undefined;
  /** The position that the connection requested. */
  asked: Position | undefined;
  /** Whether the server has answered. Only then messages change `at`. */
  isIn: boolean;
  readonly presence: boolean;
  readonly wish: number;
}
