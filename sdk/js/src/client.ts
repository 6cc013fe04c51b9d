/** The client: one connection after the other, and what outlives them. */

import { ASKED_MS_MAX, Backoff } from './backoff.js';
import { Connection } from './connection.js';
import type { ConnectionOwner, Welcome } from './connection.js';
import { WeirError } from './errors.js';
import { Emitter } from './events.js';
import { openEventStream } from './eventstream.js';
import { REOPENING, failure, isReopening } from './line.js';
import type { Ending, Line, LineListener } from './line.js';
import { checkedTopic, resolve } from './options.js';
import type { Settings, SubscribeOptions, TokenReason, WeirClientOptions } from './options.js';
import { Positions } from './positions.js';
import type { Wish } from './positions.js';
import { probe } from './probe.js';
import { HttpPublisher } from './requests.js';
import { WebSocketRetry } from './retry.js';
import type { Attempt } from './retry.js';
import { Run } from './run.js';
import { Subscription } from './subscription.js';
import type { NotRecovered, Subscribed, SubscriptionEvents, Unsubscribed } from './subscription.js';
import { Tabs } from './tabs.js';
import { Ways } from './ways.js';
import type { TransportKind } from './ways.js';
import { openWebSocket, tryWebSocket } from './websocket.js';
import { fittingTopics } from './wire.js';
import type {
  ClientMessage,
  Message,
  Position,
  Publication,
  Published,
  ServerMessage,
} from './wire.js';

/** A connection is open. */
export interface Opened {
  /** The way it took. */
  readonly transport: TransportKind;
  /** Names the connection to the operator, and one's own messages in {@link Message.sender}. */
  readonly connectionId: bigint;
  /** The interval agreed between signs of life. */
  readonly heartbeatMs: number;
  /** The server's time, in milliseconds since 1970. */
  readonly serverTimeMs: number;
}

/** A connection, or the attempt to open one, has ended. */
export interface Closed extends Ending {
  /** Whether there will be another; if not, only {@link WeirClient.connect} begins anew. */
  readonly willReconnect: boolean;
}

/** Another attempt will be made. */
export interface Reconnecting {
  /** How many have been made since a connection was open, this one included. */
  readonly attempt: number;
  /** How long from now. */
  readonly delayMs: number;
  /** The way that it will take. */
  readonly transport: TransportKind;
}

/** The credentials end soon. */
export interface Expiring {
  /** When, in milliseconds since 1970. */
  readonly expiresAtMs: number;
}

/** What a client tells, by the names for {@link WeirClient.on}. */
export interface ClientEvents {
  /** A connection is open; again after each reconnect. */
  open: Opened;
  /** A connection, or the attempt to open one, has ended. */
  close: Closed;
  /** Another attempt will be made. */
  reconnecting: Reconnecting;
  /** Something failed: an attempt, a connection, a token, or what the server could not do. */
  error: WeirError;
  /** A message: of any topic, to this device, or to everyone. */
  message: Message;
  /** A topic goes on from a position. */
  subscribed: Subscribed;
  /** The server has ended a topic. */
  unsubscribed: Unsubscribed;
  /** What was missed in a topic is lost: fetch the state anew if it matters. */
  notRecovered: NotRecovered;
  /** The credentials end soon; `getToken`, if there is one, is asked at once. */
  expiring: Expiring;
}

/**
 * A client of a Weir gateway, which stays connected until it is closed.
 *
 * It reconnects by itself, resumes every topic after the last message seen, and hands out each message once: what it has
 * seen before it suppresses, and what is lost it tells by `notRecovered`.
 *
 * @example
 * ```ts
 * const client = new WeirClient({ url: 'https://gate.example', getToken: () => fetchToken() });
 * client.subscribe('news', { onMessage: (message) => show(message.text) });
 * client.on('notRecovered', ({ topic }) => reload(topic));
 * await client.connect();
 * await client.publish({ topic: 'news', text: 'hello' });
 * ```
 */
export class WeirClient {
  readonly #settings: Settings;
  readonly #getToken: WeirClientOptions['getToken'];
  readonly #events = new Emitter<ClientEvents>();
  readonly #positions = new Positions();
  readonly #subscriptions = new Map<string, Subscription>();
  readonly #ways: Ways;
  readonly #backoff: Backoff;
  readonly #publisher: HttpPublisher;
  readonly #retry = new WebSocketRetry(
    () => this.#tryWebSocket(),
    () => this.#returnToWebSocket(),
  );
  #tabs: Tabs | undefined;
  #run: Run | undefined;
  #connection: Connection | undefined;
  /** The transport of the last connection that was open. */
  #openedLast: TransportKind | undefined;
  /** What the connection has asked for, each with the number of the wish. */
  #asked = new Map<string, number>();
  #token: string | undefined;
  /** The one that the connection has shown. */
  #shownToken = '';
  /** Since the last welcome the server has refused a token. */
  #hasRefused = false;

  /**
   * Checks the options; nothing is sent before {@link WeirClient.connect}.
   *
   * @throws TypeError naming the option, its value and what is allowed.
   */
  constructor(options: WeirClientOptions) {
    this.#settings = resolve(options);
    const { fetch, url, connectTimeoutMs } = this.#settings;
    this.#publisher = new HttpPublisher(fetch, url, connectTimeoutMs);
    this.#token = options.token;
    this.#getToken = options.getToken;
    this.#ways = new Ways(this.#settings.transports, this.#settings.fallbackAfter);
    this.#backoff = new Backoff(this.#settings.backoffMinMs, this.#settings.backoffMaxMs);
    for (const topic of options.topics ?? []) {
      if (typeof topic === 'string') {
        this.subscribe(topic);
      } else {
        this.subscribe(topic.topic, topic);
      }
    }
  }

  /** Whether a connection is open at this moment. */
  get isOpen(): boolean {
    return this.#connection?.isOpen() ?? false;
  }

  /**
   * Adds a handler of an event; the function returned takes it away.
   *
   * Handlers are called one after the other, in the order of what the server has said. What one throws is reported as
   * any uncaught error is, and holds up nothing.
   */
  on<Name extends keyof ClientEvents>(
    name: Name,
    handler: (event: ClientEvents[Name]) => void,
  ): () => void {
    return this.#events.on(name, handler);
  }

  /**
   * Connects, and stays connected until {@link WeirClient.close}. Resolves when a connection is open, however many
   * attempts it takes; what happens meanwhile and afterwards is told by events.
   *
   * @throws WeirError if there will be no further attempt: the server says not to return, credentials are refused and
   *   there are no others, or the client was closed.
   */
  connect(): Promise<void> {
    if (this.#run === undefined) {
      this.#run = new Run();
      this.#tabs = new Tabs(this.#settings.url, () => this.#handleWebSocketWorksElsewhere());
      this.#hasRefused = false;
      void this.#stayConnected(this.#run);
    }
    return this.#run.opened;
  }

  /** Ends the connection and all attempts. Topics and positions stay for another {@link WeirClient.connect}. */
  close(): void {
    const run = this.#run;
    if (run === undefined) {
      return;
    }
    const error = new WeirError('closed', 'the client was closed');
    const ending: Ending = { ...failure(error, NORMAL_CLOSURE, 'never'), error: undefined };
    this.#endRun(run, error);
    this.#connection?.end(ending);
    this.#connection = undefined;
    this.#events.emit('close', { ...ending, willReconnect: false });
  }

  /**
   * Wants to be in a topic, now and after each reconnect. A topic that is wanted already has one subscription, which is
   * returned: of the options only `onMessage` counts then.
   *
   * Over SSE a new topic needs a new stream, and the others resume on it: of topics of which no message is kept, what is
   * published meanwhile is lost, which `notRecovered` tells. So name topics before {@link WeirClient.connect} where that
   * matters.
   *
   * @throws TypeError if the name can be none: 1 to 255 bytes, no control character, none of `* # +`.
   */
  subscribe(topic: string, options: SubscribeOptions = {}): Subscription {
    const known = this.#subscriptions.get(checkedTopic(topic));
    const subscription = known ?? new Subscription(topic, this.#subscriptionOwner);
    if (options.onMessage !== undefined) {
      subscription.on('message', options.onMessage);
    }
    if (known === undefined) {
      this.#subscriptions.set(topic, subscription);
      this.#positions.want(topic, options.position);
      this.#askForWanted();
    }
    return subscription;
  }

  /**
   * The positions of all topics, by name: what to store in order to go on in another client. {@link formatPosition}
   * makes text of one.
   */
  positions(): Map<string, Position> {
    const seen = new Map<string, Position>();
    for (const { topic, position } of this.#positions.wanted()) {
      if (position !== undefined) {
        seen.set(topic, position);
      }
    }
    return seen;
  }

  /**
   * Publishes a message. Over WebSocket it goes on the connection, over SSE by a request of its own, which needs no
   * stream that is open at this moment.
   *
   * Nothing is kept for later, and nothing is sent twice: after `not_connected` it was not published, after
   * `connection_lost` nobody knows.
   *
   * @returns what became of it once the server has accepted it.
   * @throws WeirError with the server's word if it refuses, such as `not_permitted`.
   */
  async publish(publication: Publication): Promise<Published> {
    const topic = checkedTopic(publication.topic);
    if (this.#run?.hasOpened() === true) {
      if (this.#connection?.isOpen() === true && this.#connection.canSend()) {
        return this.#connection.publish(publication);
      }
      // Also on the way from a stream back to WebSocket.
      if (this.#openedLast === 'sse' || this.#ways.current() === 'sse') {
        return this.#publisher.publish(publication, this.#token ?? '');
      }
    }
    throw new WeirError('not_connected', 'there is no connection to publish on', { topic });
  }

  /**
   * Gives the client a new token, and the server too if a connection is open: over WebSocket by `Refresh`, over SSE by a
   * new stream, on which all topics resume.
   */
  refresh(token: string): void {
    if (token === '') {
      throw new TypeError('token: empty; give one, or make a client without');
    }
    this.#token = token;
    this.#showToken();
  }

  /** Attempt after attempt until there is no reason for another. */
  async #stayConnected(run: Run): Promise<void> {
    for (let attempt = 1; !run.isStopped(); attempt += 1) {
      const ending = await this.#holdConnection(run);
      if (run.isStopped()) {
        return;
      }
      if (ending.wasOpen) {
        attempt = 0;
      }
      const ownMs = this.#delayMs(ending);
      this.#tellEnding(run, ending, ownMs !== undefined);
      if (ownMs === undefined) {
        return;
      }
      const askedMs = ending.isTransportInDoubt ? await this.#lookForServer(run) : 0;
      if (!run.isStopped()) {
        const transport = this.#ways.current();
        const delayMs = askedMs + ownMs;
        this.#events.emit('reconnecting', { attempt: attempt + 1, delayMs, transport });
        await run.sleep(delayMs);
      }
    }
  }

  /**
   * Whether the server is away or a transport is blocked, which decides about the next transport. Resolves with how long
   * the server asks to stay away.
   */
  async #lookForServer(run: Run): Promise<number> {
    const { fetch, url, connectTimeoutMs } = this.#settings;
    const timeoutMs = Math.min(PROBE_MS_MAX, connectTimeoutMs);
    const { hasAnswered, retryAfterMs } = await probe(fetch, url, timeoutMs, run.stopping);
    if (hasAnswered) {
      this.#ways.handleAnswered();
    } else {
      this.#ways.handleUnanswered();
    }
    return Math.min(retryAfterMs ?? 0, ASKED_MS_MAX);
  }

  /** One attempt, and the connection that comes of it, to its end. */
  async #holdConnection(run: Run): Promise<Held> {
    if (this.#token === undefined) {
      const asked = await this.#askForToken(this.#hasRefused ? 'refused' : 'first').catch(
        (error: WeirError) => error,
      );
      if (run.isStopped()) {
        return { ...REOPENING, wasOpen: false, isTransportInDoubt: false };
      }
      // One given by `refresh` meanwhile is newer than the answer.
      if (this.#token === undefined) {
        if (asked instanceof WeirError) {
          return { ...failure(asked), wasOpen: false, isTransportInDoubt: false };
        }
        this.#token = asked;
      }
    }
    const connection = this.#openConnection(run);
    const ending = await connection.ended;
    if (this.#connection === connection) {
      this.#connection = undefined;
    }
    const openMs = connection.openMs();
    let isTransportInDoubt = false;
    if (openMs === undefined) {
      if (ending.error !== undefined && ending.advice === 'later') {
        isTransportInDoubt = this.#ways.handleNotOpened();
      }
    } else if (!isReopening(ending)) {
      this.#backoff.handleLasted(openMs);
      this.#ways.handleClosed();
    }
    return { ...ending, wasOpen: openMs !== undefined, isTransportInDoubt };
  }

  #openConnection(run: Run): Connection {
    const transport = this.#ways.current();
    const owner: ConnectionOwner = {
      handleWelcome: (welcome) => this.#handleWelcome(run, transport, welcome),
      handleMessage: (message) => this.#handleServerMessage(connection, message),
    };
    this.#positions.handleConnecting();
    const open = (listener: LineListener): Line => this.#openLine(transport, listener);
    const connection: Connection = new Connection(owner, open, this.#settings.connectTimeoutMs);
    this.#connection = connection;
    return connection;
  }

  #openLine(transport: TransportKind, listener: LineListener): Line {
    const { url, fetch, deviceId, client, heartbeatMs, WebSocket } = this.#settings;
    const asking = (topics: readonly Wish[]): void => {
      this.#asked = new Map(topics.map(({ topic, wish }) => [topic, wish]));
    };
    if (transport === 'websocket' && WebSocket !== undefined) {
      const hello = (): ClientMessage => {
        const token = (this.#shownToken = this.#token ?? '');
        const greeting = { kind: 'hello', deviceId, token, client, heartbeatMs, topics: [] } as const;
        // The others are asked for after the welcome.
        const topics = fittingTopics(greeting, this.#positions.wanted());
        asking(topics);
        return { ...greeting, topics };
      };
      return openWebSocket(WebSocket, url, hello, listener);
    }
    this.#shownToken = this.#token ?? '';
    const topics = this.#positions.wanted();
    asking(topics);
    return openEventStream(fetch, url, this.#shownToken, deviceId, topics, listener);
  }

  /** How long until the next attempt; `undefined` if there is to be none. */
  #delayMs(ending: Ending): number | undefined {
    if (isReopening(ending)) {
      return 0;
    }
    switch (ending.advice) {
      case 'never':
        return undefined;
      case 'credentials':
        if (this.#token === this.#shownToken) {
          if (this.#getToken === undefined || this.#hasRefused) {
            return undefined;
          }
          this.#token = undefined;
        }
        this.#hasRefused = true;
        break;
      case 'now':
      case 'later':
    }
    return this.#backoff.next(ending.retryAfterMs);
  }

  #tellEnding(run: Run, ending: Ending, willReconnect: boolean): void {
    const { code, reason, advice, retryAfterMs, error } = ending;
    if (!willReconnect) {
      this.#endRun(run, error ?? new WeirError(reason, `the server ended it: ${code} ${reason}`));
    }
    if (error !== undefined) {
      this.#events.emit('error', error);
      if (willReconnect && run.isStopped()) {
        // A handler has closed the client, and by that told the end.
        return;
      }
    }
    this.#events.emit('close', { code, reason, advice, retryAfterMs, error, willReconnect });
  }

  #endRun(run: Run, error: WeirError): void {
    this.#run = undefined;
    this.#tabs?.close();
    this.#retry.reset();
    run.stop(error);
  }

  /** An attempt beside a connection over another transport. Without one it would come to nothing. */
  #tryWebSocket(): Attempt | undefined {
    const { url, connectTimeoutMs, WebSocket } = this.#settings;
    const isUseful = this.isOpen && this.#ways.isAwayFromWebSocket();
    return isUseful && WebSocket !== undefined
      ? tryWebSocket(WebSocket, url, connectTimeoutMs)
      : undefined;
  }

  /** WebSocket passes: the next connection takes it, and resumes the topics as after any end. */
  #returnToWebSocket(): void {
    // The connection may have ended during the attempt, and the next one may take WebSocket already.
    if (this.#ways.isAwayFromWebSocket()) {
      this.#ways.handleFirstPasses();
      this.#connection?.end(REOPENING);
    }
  }

  #handleWebSocketWorksElsewhere(): void {
    if (this.#settings.transports[0] === 'websocket') {
      this.#ways.handleFirstWorksElsewhere();
      if (this.#ways.isAwayFromWebSocket()) {
        this.#retry.hurry();
      }
    }
  }

  #handleWelcome(run: Run, transport: TransportKind, welcome: Welcome): void {
    this.#openedLast = transport;
    this.#ways.handleOpened();
    if (transport === 'websocket') {
      this.#retry.reset();
      this.#tabs?.tellWebSocketWorks();
    } else if (this.#ways.isAwayFromWebSocket()) {
      this.#retry.start(this.#ways.hasFirstWorked());
    }
    this.#hasRefused = false;
    run.handleOpened();
    const { connectionId, heartbeatMs, serverTimeMs } = welcome;
    this.#events.emit('open', { transport, connectionId, heartbeatMs, serverTimeMs });
    if (this.#token !== this.#shownToken) {
      this.#showToken();
    }
    this.#askForWanted();
  }

  #handleServerMessage(connection: Connection, message: ServerMessage): void {
    switch (message.kind) {
      case 'push':
        this.#handleMessage(message.message);
        break;
      case 'batch':
        for (const each of message.messages) {
          // A handler may close the client between two of them.
          if (this.#connection === connection) {
            this.#handleMessage(each);
          }
        }
        break;
      case 'subscribed':
        this.#handleSubscribed(message);
        break;
      case 'unsubscribed':
        this.#handleUnsubscribed(message);
        break;
      case 'error':
        this.#handleError(connection, message);
        break;
      case 'expiring':
        this.#events.emit('expiring', { expiresAtMs: message.expiresAtMs });
        void this.#renewToken();
        break;
      case 'welcome':
      case 'pong':
      case 'published':
      case 'goodbye':
      // The connection has dealt with these.
    }
  }

  #handleMessage(message: Message): void {
    if (this.#positions.handleMessage(message.topic, message.offset) === 'new') {
      this.#subscriptions.get(message.topic)?.emit('message', message);
      this.#events.emit('message', message);
    }
  }

  #handleSubscribed({ topic, position, recovered }: Subscribed): void {
    const { isCurrent, asked, hasLost } = this.#positions.handleSubscribed(topic, position, recovered);
    if (!isCurrent) {
      return;
    }
    this.#tell(topic, 'subscribed', { topic, position, recovered });
    if (hasLost && asked !== undefined) {
      this.#tell(topic, 'notRecovered', { topic, asked, position });
    }
  }

  #handleUnsubscribed({ topic, reason }: Unsubscribed): void {
    if (!this.#positions.handleUnsubscribed(topic, reason)) {
      return;
    }
    const event: Unsubscribed = { topic, reason };
    if (reason === FELL_BEHIND) {
      this.#tell(topic, 'unsubscribed', event);
      this.#askAgain(topic);
    } else {
      const error = new WeirError(reason, 'the server has ended the topic', { topic });
      this.#giveUpTopic(topic, error, 'unsubscribed', event);
    }
  }

  #handleError(connection: Connection, told: { code: string; message: string; topic: string }): void {
    const { code, topic } = told;
    const error = new WeirError(code, told.message, { topic: topic === '' ? undefined : topic });
    if (!this.#positions.isAwaited(topic)) {
      this.#events.emit('error', error);
    } else if (code === BUSY) {
      this.#tell(topic, 'error', error);
      const delayMs = BUSY_MS + Math.random() * BUSY_MS;
      void this.#run?.sleep(delayMs).then(() => {
        if (this.#connection === connection && this.#positions.isAwaited(topic)) {
          this.#askAgain(topic);
        }
      });
    } else {
      this.#giveUpTopic(topic, error, 'error', error);
    }
  }

  /** The server wants no more of a topic: it is not asked for again. */
  #giveUpTopic<Name extends 'unsubscribed' | 'error'>(
    topic: string,
    error: WeirError,
    name: Name,
    event: SubscriptionEvents[Name] & ClientEvents[Name],
  ): void {
    const subscription = this.#subscriptions.get(topic);
    // First, for a handler may want the topic anew.
    this.#subscriptions.delete(topic);
    this.#positions.drop(topic);
    this.#asked.delete(topic);
    subscription?.emit(name, event);
    this.#events.emit(name, event);
    subscription?.handleGivenUp(error);
  }

  readonly #subscriptionOwner = {
    position: (subscription: Subscription): Position | undefined =>
      this.#subscriptions.get(subscription.topic) === subscription
        ? this.#positions.at(subscription.topic)
        : undefined,
    unsubscribe: (subscription: Subscription): void => {
      const { topic } = subscription;
      if (this.#subscriptions.get(topic) !== subscription) {
        return;
      }
      this.#subscriptions.delete(topic);
      this.#positions.drop(topic);
      subscription.handleGivenUp(new WeirError('closed', 'unsubscribed', { topic }));
      this.#askForWanted();
    },
  };

  /** Tells an open connection what is wanted and it has not asked for, and what is no longer wanted. */
  #askForWanted(): void {
    const connection = this.#connection;
    if (connection === undefined || !connection.isOpen()) {
      // The next welcome leads here.
      return;
    }
    const wanted = this.#positions.wanted();
    const wishes = new Set(wanted.map(({ wish }) => wish));
    const left = [...this.#asked].filter(([, wish]) => !wishes.has(wish));
    const added = wanted.filter(({ topic, wish }) => this.#asked.get(topic) !== wish);
    if (left.length + added.length === 0) {
      return;
    }
    if (!connection.canSend()) {
      connection.end(REOPENING);
      return;
    }
    for (const [topic] of left) {
      this.#asked.delete(topic);
      this.#positions.handleLeaving(topic);
      connection.send({ kind: 'unsubscribe', topic });
    }
    for (const { topic, position, wish } of added) {
      this.#asked.set(topic, wish);
      connection.send({ kind: 'subscribe', topic, position });
    }
  }

  /** Asks once more for a topic that the connection is not in. */
  #askAgain(topic: string): void {
    this.#positions.handleAskedAgain(topic);
    if (this.#positions.isAwaited(topic) && this.#connection?.isOpen() === true) {
      if (this.#connection.canSend()) {
        const position = this.#positions.at(topic);
        this.#connection.send({ kind: 'subscribe', topic, position });
      } else {
        this.#connection.end(REOPENING);
      }
    }
  }

  /** Shows an open connection the token as it is now. */
  #showToken(): void {
    const connection = this.#connection;
    const token = this.#token;
    if (token === undefined || connection === undefined || !connection.isOpen()) {
      return;
    }
    if (connection.canSend()) {
      this.#shownToken = token;
      connection.send({ kind: 'refresh', token });
    } else {
      connection.end(REOPENING);
    }
  }

  async #renewToken(): Promise<void> {
    if (this.#getToken === undefined) {
      return;
    }
    const known = this.#token;
    try {
      const token = await this.#askForToken('expiring');
      // One given by `refresh` meanwhile is newer than the answer.
      if (this.#token === known) {
        this.refresh(token);
      }
    } catch (error) {
      this.#events.emit('error', error as WeirError);
    }
  }

  async #askForToken(reason: TokenReason): Promise<string> {
    const getToken = this.#getToken;
    if (getToken === undefined) {
      return '';
    }
    const { connectTimeoutMs } = this.#settings;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const timeout = new Promise<never>((_, reject) => {
      const text = `getToken took longer than ${connectTimeoutMs} ms`;
      timer = setTimeout(() => reject(new WeirError('credentials', text)), connectTimeoutMs);
    });
    try {
      const token: unknown = await Promise.race([(async () => getToken(reason))(), timeout]);
      if (typeof token !== 'string' || token === '') {
        throw new WeirError('credentials', 'getToken gave no token');
      }
      return token;
    } catch (cause) {
      throw cause instanceof WeirError
        ? cause
        : new WeirError('credentials', 'getToken failed', { cause });
    } finally {
      clearTimeout(timer);
    }
  }

  #tell<Name extends keyof SubscriptionEvents & keyof ClientEvents>(
    topic: string,
    name: Name,
    event: SubscriptionEvents[Name] & ClientEvents[Name],
  ): void {
    this.#subscriptions.get(topic)?.emit(name, event);
    this.#events.emit(name, event);
  }
}

/** What became of an attempt, and of the connection that came of it. */
interface Held extends Ending {
  readonly wasOpen: boolean;
  /** Whether the next transport depends on a plain request to the server. */
  readonly isTransportInDoubt: boolean;
}

/**
 * An answer comes within a round trip or two. A longer wait would keep a page away that has no connection left for it,
 * since other tabs hold all that the browser opens to one host.
 */
const PROBE_MS_MAX = 3_000;

/** RFC 6455, section 7.4.1. */
const NORMAL_CLOSURE = 1_000;

/** A resume could not keep up with what was published; another one may. */
const FELL_BEHIND = 'fell_behind';

/** No room at the moment. */
const BUSY = 'busy';

/** At least so long, and at most twice as long, until a busy server is asked again for a topic. */
const BUSY_MS = 1_000;
