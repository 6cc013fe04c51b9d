/** A topic that a client wants to be in. */

import { WeirError } from './errors.js';
import { Emitter } from './events.js';
import type { Message, Position } from './wire.js';

/** The connection is in a topic: everything after a position reaches it. */
export interface Subscribed {
  /** The topic's name. */
  readonly topic: string;
  /** From where it goes on. */
  readonly position: Position | undefined;
  /** Whether all that was missed since the position asked for follows. False also where none was asked for. */
  readonly recovered: boolean;
}

/** The server has ended a topic. */
export interface Unsubscribed {
  /** The topic's name. */
  readonly topic: string;
  /** Why. After `fell_behind`, when a resume could not keep up, the client asks again by itself. */
  readonly reason: string;
}

/**
 * What was missed in a topic is lost: its epoch is over, as after a restart of the server, or not all of it is kept any
 * more.
 */
export interface NotRecovered {
  /** The topic's name. */
  readonly topic: string;
  /** The position that was asked for. */
  readonly asked: Position;
  /** From where it goes on: where the epochs are equal, the messages between the two are lost. */
  readonly position: Position | undefined;
}

/** What a subscription tells, by the names for {@link Subscription.on}. */
export interface SubscriptionEvents {
  /** A message, in order, and each once. */
  message: Message;
  /** The topic goes on from a position: after the first answer, and after each reconnect. */
  subscribed: Subscribed;
  /** What was missed is lost. */
  notRecovered: NotRecovered;
  /** The server has ended the topic. */
  unsubscribed: Unsubscribed;
  /** The server refuses the topic; `busy` alone is followed by another attempt. */
  error: WeirError;
}

/** A topic that a client wants to be in, whatever becomes of its connections. */
export class Subscription {
  /** The topic's name. */
  readonly topic: string;
  /**
   * Resolves when the connection is in the topic for the first time.
   *
   * Rejects with a {@link WeirError} if the server refuses or ends it, and with `closed` if it is given up before.
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
    // Who does not wait for it hears of it by the events.
    this.ready.catch(() => {});
  }

  /** How far it has been seen; `undefined` before the first answer, unless a position was given. */
  get position(): Position | undefined {
    return this.#owner.position(this);
  }

  /** Adds a handler of an event; the function returned takes it away. */
  on<Name extends keyof SubscriptionEvents>(
    name: Name,
    handler: (event: SubscriptionEvents[Name]) => void,
  ): () => void {
    return this.#events.on(name, handler);
  }

  /** Leaves the topic. No handler is called any more, also not for what is on its way. */
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
 * Who knows the positions and talks to the server.
 *
 * @internal
 */
export interface SubscriptionOwner {
  position(subscription: Subscription): Position | undefined;
  unsubscribe(subscription: Subscription): void;
}
