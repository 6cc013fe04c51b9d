/** A client's subscription to a topic. */

import { WeirError } from './errors.js';
import { Emitter } from './events.js';
import type { Member, Message, Position } from './wire.js';

/** The connection is subscribed: every message after a position reaches it. */
export interface Subscribed {
  /** The topic's name. */
  readonly topic: string;
  /** The position from which the topic continues. */
  readonly position: Position | undefined;
  /**
   * Whether all messages after the requested position follow. Also false if no position was
   * requested.
   */
  readonly recovered: boolean;
}

/** The server has ended a topic. */
export interface Unsubscribed {
  /** The topic's name. */
  readonly topic: string;
  /**
   * The reason. After `fell_behind` (a resume could not keep up) the client subscribes again by
   * itself.
   */
  readonly reason: string;
}

/**
 * Messages of a topic are lost: its epoch is over, as after a restart of the server, or not all of what was missed is kept
 * any more. In a cluster this may come while the connection stays.
 */
export interface NotRecovered {
  /** The topic's name. */
  readonly topic: string;
  /** The position that was asked for, or the last one seen. */
  readonly asked: Position;
  /**
   * The position from which the topic continues. If the epochs are equal, the messages between the
   * two positions are lost.
   */
  readonly position: Position | undefined;
}

/**
 * Connections that have entered a topic, and connections that have left it, since the event before.
 * It comes for topics that are wanted with `presence`.
 *
 * It does not name the connections that were there before: ask the server for the list after each
 * `subscribed`, and after an event with `missed`. Keep a set: the list may contain a connection
 * whose event follows.
 */
export interface Presence {
  /** The topic's name. */
  readonly topic: string;
  /** Connections that have entered. */
  readonly joined: readonly Member[];
  /** Connections that have left. */
  readonly left: readonly Member[];
  /** Events may be missing before this one: ask for the list again. */
  readonly missed: boolean;
}

/** What a subscription tells, by the names for {@link Subscription.on}. */
export interface SubscriptionEvents {
  /** A message. Messages come in order, each one once. */
  message: Message;
  /** The topic continues from a position: after the first answer, and after each reconnect. */
  subscribed: Subscribed;
  /** Messages are lost. */
  notRecovered: NotRecovered;
  /** Connections have entered or left. */
  presence: Presence;
  /** The server has ended the topic. */
  unsubscribed: Unsubscribed;
  /** The server refuses the topic. Only after `busy` the client tries again. */
  error: WeirError;
}

/** A subscription to a topic. It outlives connections. */
export class Subscription {
  /** The topic's name. */
  readonly topic: string;
  /**
   * Resolves when the client is subscribed for the first time.
   *
   * Rejects with a {@link WeirError} if the server refuses or ends the subscription, and with
   * `closed` if the program ends it before.
   */
  readonly ready: Promise<void>;
  readonly #owner: SubscriptionOwner;
  readonly #events = new Emitter<SubscriptionEvents>();
  #resolve!: () => void;
  #reject!: (error: WeirError) => void;

  /** @internal */
  constructor(topic: string, owner: SubscriptionOwner) {
    this.topic = topic;
    this.#owner = owner;
    this.ready = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // A program that does not wait for it learns of failures by events.
    this.ready.catch(() => {});
  }

  /**
   * The position of the last message seen; `undefined` before the first answer, unless a position
   * was given.
   */
  get position(): Position | undefined {
    return this.#owner.position(this);
  }

  /** Adds a handler for an event. Returns a function that removes it. */
  on<Name extends keyof SubscriptionEvents>(
    name: Name,
    handler: (event: SubscriptionEvents[Name]) => void,
  ): () => void {
    return this.#events.on(name, handler);
  }

  /** Unsubscribes. From now on no handler is called, not even for messages on their way. */
  unsubscribe(): void {
    this.#owner.unsubscribe(this);
  }

  /** @internal */
  emit<Name extends keyof SubscriptionEvents>(name: Name, event: SubscriptionEvents[Name]): void {
    if (name === 'subscribed') {
      this.#resolve();
    }
    this.#events.emit(name, event);
  }

  /** @internal */
  handleGivenUp(error: WeirError): void {
    this.#reject(error);
  }
}

/**
 * The client of a subscription: it knows the positions and talks to the server.
 *
 * @internal
 */
export interface SubscriptionOwner {
  position(subscription: Subscription): Position | undefined;
  unsubscribe(subscription: Subscription): void;
}
