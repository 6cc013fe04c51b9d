/** The client: opens one connection after the other, and keeps the state that outlives them. */

import { ASKED_MS_MAX, Backoff } from './backoff.js';
import type { Answer, Call, CallHandler } from './calls.js';
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
import type { NotRecovered, Presence, Subscribed, SubscriptionEvents, Unsubscribed } from './subscription.js';
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
  /** The transport of the connection. */
  readonly transport: TransportKind;
  /**
   * The id by which the operator knows the connection. Messages that it published have this id in
   * {@link Message.sender}.
   */
  readonly connectionId: bigint;
  /** The agreed heartbeat interval. */
  readonly heartbeatMs: number;
  /** The server's time, in milliseconds since 1970. */
  readonly serverTimeMs: number;
}

/** A connection, or the attempt to open one, has ended. */
export interface Closed extends Ending {
  /**
   * Whether the client will connect again. If not, only {@link WeirClient.connect} starts it again.
   */
  readonly willReconnect: boolean;
}

/** The client will make another attempt. */
export interface Reconnecting {
  /** The number of attempts since a connection was open, including this one. */
  readonly attempt: number;
  /** The delay until the attempt. */
  readonly delayMs: number;
  /** The transport of the attempt. */
  readonly transport: TransportKind;
}

/** The credentials end soon. */
export interface Expiring {
  /** The end of the credentials, in milliseconds since 1970. */
  readonly expiresAtMs: number;
}

/** The events of a client, by their names for {@link WeirClient.on}. */
export interface ClientEvents {
  /** A connection is open: the first one, and each after a reconnect. */
  open: Opened;
  /** A connection, or the attempt to open one, has ended. */
  close: Closed;
  /** The client will make another attempt. */
  reconnecting: Reconnecting;
  /** Something failed: an attempt, a connection, a token, or a request to the server. */
  error: WeirError;
  /** A message: of any topic, to this device, or to all connections. */
  message: Message;
  /** A topic continues from a position. */
  subscribed: Subscribed;
  /** The server has ended a topic. */
  unsubscribed: Unsubscribed;
  /** Messages of a topic are lost: fetch the state anew if it matters. */
  notRecovered: NotRecovered;
  /** Connections have entered or left a topic that is wanted with `presence`. */
  presence: Presence;
  /** The credentials end soon; `getToken`, if there is one, is asked at once. */
  expiring: Expiring;
}

/**
 * A client of a Weir gateway. It stays connected until it is closed.
 *
 * It reconnects by itself, resumes every topic after the last message seen, and delivers each
 * message once. It suppresses duplicates, and reports lost messages by `notRecovered`.
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
  readonly #onCall: CallHandler | undefined;
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
  /** The topics for which the connection has asked, each with the number of the wish. */
  #asked = new Map<string, number>();
  #token: string | undefined;
  /** The token that the connection has shown. */
  #shownToken = '';
  /** Whether the server has refused a token since the last welcome. */
  #hasRefused = false;

  /**
   * Checks the options. Nothing is sent before {@link WeirClient.connect}.
   *
   * @throws TypeError with the option, its value and the allowed values.
   */
  constructor(options: WeirClientOptions) {
    this.#settings = resolve(options);
    const { fetch, url, connectTimeoutMs } = this.#settings;
    this.#publisher = new HttpPublisher(fetch, url, connectTimeoutMs);
    this.#token = options.token;
    this.#getToken = options.getToken;
    this.#onCall = options.onCall;
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
   * Adds a handler for an event. Returns a function that removes it.
   *
   * The client calls handlers one after the other, in the order of the server's messages. An
   * exception in a handler is reported like any uncaught error, and does not stop the other
   * handlers.
   */
  on<Name extends keyof ClientEvents>(
    name: Name,
    handler: (event: ClientEvents[Name]) => void,
  ): () => void {
    return this.#events.on(name, handler);
  }

  /**
   * Connects, and stays connected until {@link WeirClient.close}. Resolves when a connection is
   * open, after any number of attempts. Events report what happens before and after.
   *
   * @throws WeirError if there will be no further attempt: the server says not to return, it
   * refuses the credentials and there are no others, or the client was closed.
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

  /**
   * Ends the connection and all attempts. Topics and positions are kept for another {@link
   * WeirClient.connect}.
   */
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
   * Subscribes to a topic, now and after each reconnect. If the client already has a subscription
   * to the topic, that one is returned, and only the option `onMessage` has an effect.
   *
   * Over SSE a new topic needs a new stream, on which the other topics resume. If a topic keeps no
   * messages, those published meanwhile are lost; `notRecovered` reports it. To avoid that,
   * subscribe before {@link WeirClient.connect}.
   *
   * @throws TypeError if the name is not allowed: 1 to 255 bytes, no control character, none of `*
   * # +`.
   */
  subscribe(topic: string, options: SubscribeOptions = {}): Subscription {
    const known = this.#subscriptions.get(checkedTopic(topic));
    const subscription = known ?? new Subscription(topic, this.#subscriptionOwner);
    if (options.onMessage !== undefined) {
      subscription.on('message', options.onMessage);
    }
    if (known === undefined) {
      this.#subscriptions.set(topic, subscription);
      this.#positions.want(topic, options.position, options.presence);
      this.#askForWanted();
    }
    return subscription;
  }

  /**
   * The positions of all topics, by name. Store them to continue in another client. {@link
   * formatPosition} makes a text of a position.
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
   * Publishes a message. Over WebSocket it goes on the connection. Over SSE it goes by its own
   * request, which needs no open stream.
   *
   * The client keeps no message for later, and sends none twice. After `not_connected` the message
   * was not published. After `connection_lost` nobody knows whether it was.
   *
   * @returns the result, once the server has accepted the message.
   * @throws WeirError with the server's code if it refuses, such as `not_permitted`.
   */
  async publish(publication: Publication): Promise<Published> {
    const topic = checkedTopic(publication.topic);
    if (this.#run?.hasOpened() === true) {
      if (this.#connection?.isOpen() === true && this.#connection.canSend()) {
        return this.#connection.publish(publication);
      }
      // This includes the switch from a stream back to WebSocket.
      if (this.#openedLast === 'sse' || this.#ways.current() === 'sse') {
        return this.#publisher.publish(publication, this.#token ?? '');
      }
    }
    throw new WeirError('not_connected', 'there is no connection to publish on', { topic });
  }

  /**
   * Calls a backend over the connection. The gateway's routes say which one answers the method.
   *
   * The client sends no call twice. After `not_connected` it was not sent. After `connection_lost`
   * nobody knows whether the backend has carried it out. An SSE stream carries no calls.
   *
   * @returns the backend's answer.
   * @throws WeirError with the code of the answer, such as `unsupported` or `deadline_exceeded`;
   * `cancelled` if `signal` is aborted.
   */
  async call(call: Call): Promise<Answer> {
    if (this.#connection?.isOpen() === true && this.#connection.canSend()) {
      return this.#connection.call(call);
    }
    throw new WeirError('not_connected', 'there is no WebSocket to call on');
  }

  /**
   * Gives a new token to the client, and to the server if a connection is open: over WebSocket by
   * `Refresh`, over SSE by a new stream, on which all topics resume.
   */
  refresh(token: string): void {
    if (token === '') {
      throw new TypeError('token: empty; give one, or make a client without');
    }
    this.#token = token;
    this.#showToken();
  }

  /** Makes attempts until there is no reason for another. */
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
   * Finds out whether the server is away or a transport is blocked. That decides about the next
   * transport. Resolves with the delay that the server asks for.
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

  /** Makes one attempt, and holds the connection until its end. */
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
    const { connectTimeoutMs } = this.#settings;
    const connection: Connection = new Connection(owner, open, connectTimeoutMs, this.#onCall);
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
        const calls = this.#onCall !== undefined;
        const same = { deviceId, token, client, heartbeatMs, calls };
        const greeting = { kind: 'hello', ...same, topics: [] } as const;
        // The client subscribes to the others after the welcome.
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

  /** The delay until the next attempt; `undefined` if there will be none. */
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
        // A handler has closed the client; that has already reported the end.
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

  /**
   * Starts an attempt beside a connection over another transport. Without such a connection it
   * would be useless.
   */
  #tryWebSocket(): Attempt | undefined {
    const { url, connectTimeoutMs, WebSocket } = this.#settings;
    const isUseful = this.isOpen && this.#ways.isAwayFromWebSocket();
    return isUseful && WebSocket !== undefined
      ? tryWebSocket(WebSocket, url, connectTimeoutMs)
      : undefined;
  }

  /** WebSocket works: the next connection uses it, and resumes the topics as after any end. */
  #returnToWebSocket(): void {
    // The connection may have ended during the attempt, and the next one may already use WebSocket.
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
          // A handler may close the client between two messages.
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
      case 'presence': {
        const { topic, joined, left, missed } = message;
        if (this.#positions.isIn(topic)) {
          this.#tell(topic, 'presence', { topic, joined, left, missed });
        }
        break;
      }
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
      case 'call':
      case 'answer':
      case 'cancel':
      // The connection has handled these.
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

  /** Gives a topic up after the server has refused or ended it. */
  #giveUpTopic<Name extends 'unsubscribed' | 'error'>(
    topic: string,
    error: WeirError,
    name: Name,
    event: SubscriptionEvents[Name] & ClientEvents[Name],
  ): void {
    const subscription = this.#subscriptions.get(topic);
    // First, because a handler may subscribe to the topic again.
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

  /**
   * Subscribes an open connection to the topics that are wanted and missing, and unsubscribes it
   * from the others.
   */
  #askForWanted(): void {
    const connection = this.#connection;
    if (connection === undefined || !connection.isOpen()) {
      // The next welcome calls this again.
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
    for (const { topic, position, presence, wish } of added) {
      this.#asked.set(topic, wish);
      connection.send({ kind: 'subscribe', topic, position, presence });
    }
  }

  /** Subscribes again to a topic that the connection has left. */
  #askAgain(topic: string): void {
    this.#positions.handleAskedAgain(topic);
    if (this.#positions.isAwaited(topic) && this.#connection?.isOpen() === true) {
      if (this.#connection.canSend()) {
        const position = this.#positions.at(topic);
        const presence = this.#positions.wantsPresence(topic);
        this.#connection.send({ kind: 'subscribe', topic, position, presence });
      } else {
        this.#connection.end(REOPENING);
      }
    }
  }

  /** Sends the current token on an open connection. */
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

/** The result of an attempt and its connection. */
interface Held extends Ending {
  readonly wasOpen: boolean;
  /** Whether the next transport depends on a plain request to the server. */
  readonly isTransportInDoubt: boolean;
}

/**
 * An answer takes a round trip or two. If other tabs hold all connections that the browser opens to
 * one host, the request gets none. A longer wait would then only keep the page away.
 */
const PROBE_MS_MAX = 3_000;

/** RFC 6455, section 7.4.1. */
const NORMAL_CLOSURE = 1_000;

/** The resume could not keep up with new messages; another one may. */
const FELL_BEHIND = 'fell_behind';

/** No room at the moment. */
const BUSY = 'busy';

/**
 * After `busy`, the client waits this time to twice this time before it asks for the topic again.
 */
const BUSY_MS = 1_000;
