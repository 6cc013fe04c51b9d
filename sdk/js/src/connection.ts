/**
 * One connection, from the attempt to open it until its end: welcome, heartbeats, answers to
 * publishes.
 */

import { Calls } from './calls.js';
import type { Answer, Call, CallHandler } from './calls.js';
import { WeirError } from './errors.js';
import { failure, goodbye } from './line.js';
import type { Ending, Line, LineListener } from './line.js';
import { PUBLISHES_WAITING_MAX, lost, tooMany } from './requests.js';
import type { ClientMessage, Publication, Published, ServerMessage } from './wire.js';

/** @internal */
export type Welcome = Extract<ServerMessage, { kind: 'welcome' }>;

/**
 * The owner of a connection.
 *
 * @internal
 */
export interface ConnectionOwner {
  handleWelcome(welcome: Welcome): void;
  /** Handles the messages of the server that the connection has not handled. */
  handleMessage(message: ServerMessage): void;
}

/**
 * A connection.
 *
 * States: opening → open (at `Welcome`) → ended, or opening → ended. There is one end; {@link
 * Connection.ended} resolves with it.
 * Limits: `PUBLISHES_WAITING_MAX` publishes wait for their answer. The welcome must come within
 * `connectTimeoutMs`. An open connection without a sign of life for two heartbeats is dead.
 *
 * @internal
 */
export class Connection implements LineListener {
  readonly ended: Promise<Ending>;
  readonly #owner: ConnectionOwner;
  readonly #line: Line;
  readonly #waiting = new Map<number, Waiting>();
  readonly #calls: Calls;
  #end!: (ending: Ending) => void;
  #hasEnded = false;
  #welcomedAt: number | undefined;
  #connectTimer: ReturnType<typeof setTimeout> | undefined;
  #heartbeatTimer: ReturnType<typeof setInterval> | undefined;
  /** Heartbeat intervals since the last sign of life. */
  #silentBeats = 0;
  #lastRequest = 0;

  constructor(
    owner: ConnectionOwner,
    open: (listener: LineListener) => Line,
    connectTimeoutMs: number,
    onCall: CallHandler | undefined,
  ) {
    this.#owner = owner;
    this.#calls = new Calls((message) => this.send(message), onCall);
    this.ended = new Promise((end) => {
      this.#end = end;
    });
    this.#line = this.#open(open);
    this.#connectTimer = setTimeout(() => {
      const error = new WeirError('timeout', `no welcome within ${connectTimeoutMs} ms`);
      this.end(failure(error));
    }, connectTimeoutMs);
  }

  /**
   * Opens a line. Sometimes no attempt is possible, for example if the page may not open a
   * WebSocket there.
   */
  #open(open: (listener: LineListener) => Line): Line {
    try {
      return open(this);
    } catch (cause) {
      queueMicrotask(() => this.end(failure(new WeirError('network', 'cannot connect', { cause }))));
      return { send: undefined, close: () => {} };
    }
  }

  /** How long the connection has been open; `undefined` if it never was. */
  openMs(): number | undefined {
    return this.#welcomedAt === undefined ? undefined : performance.now() - this.#welcomedAt;
  }

  isOpen(): boolean {
    return this.#welcomedAt !== undefined && !this.#hasEnded;
  }

  /** Whether the transport carries messages to the server. */
  canSend(): boolean {
    return this.#line.send !== undefined;
  }

  send(message: ClientMessage): void {
    this.#line.send?.(message);
  }

  /** Publishes on a transport that carries messages to the server. */
  publish(publication: Publication): Promise<Published> {
    if (this.#waiting.size >= PUBLISHES_WAITING_MAX) {
      return Promise.reject(tooMany(publication));
    }
    this.#lastRequest = (this.#lastRequest % REQUEST_MAX) + 1;
    const request = this.#lastRequest;
    return new Promise((resolve, reject) => {
      // First, because a message that cannot be sent waits for no answer.
      this.send({ kind: 'publish', publication, request });
      this.#waiting.set(request, { publication, resolve, reject });
    });
  }

  /** Calls a backend on a transport that carries messages to the server. */
  call(call: Call): Promise<Answer> {
    return this.#calls.call(call);
  }

  /** Ends the connection. Publishes and calls that wait for an answer fail. */
  end(ending: Ending): void {
    if (this.#hasEnded) {
      return;
    }
    this.#hasEnded = true;
    clearTimeout(this.#connectTimer);
    clearInterval(this.#heartbeatTimer);
    this.#line.close();
    for (const { publication, reject } of this.#waiting.values()) {
      reject(lost(publication));
    }
    this.#waiting.clear();
    this.#calls.end();
    this.#end(ending);
  }

  handleHeard(): void {
    this.#silentBeats = 0;
  }

  handleEnd(ending: Ending): void {
    this.end(ending);
  }

  handleMessage(message: ServerMessage): void {
    switch (message.kind) {
      case 'welcome':
        this.#handleWelcome(message);
        break;
      case 'pong':
        break;
      case 'published':
        this.#takeWaiting(message.request)?.resolve(message.published);
        break;
      case 'call':
        this.#calls.handleCall(message);
        break;
      case 'answer':
        this.#calls.handleAnswer(message);
        break;
      case 'cancel':
        this.#calls.handleCancel(message.id);
        break;
      case 'goodbye':
        this.end(goodbye(message.code, message.reason, message.retryAfterMs));
        break;
      case 'error': {
        const waiting = this.#takeWaiting(message.request);
        if (waiting === undefined) {
          this.#owner.handleMessage(message);
        } else {
          const { topic } = waiting.publication;
          waiting.reject(new WeirError(message.code, message.message, { topic }));
        }
        break;
      }
      default:
        this.#owner.handleMessage(message);
    }
  }

  #handleWelcome(welcome: Welcome): void {
    if (this.#welcomedAt !== undefined) {
      return;
    }
    clearTimeout(this.#connectTimer);
    this.#welcomedAt = performance.now();
    const beatMs = welcome.heartbeatMs > 0 ? welcome.heartbeatMs : HEARTBEAT_MS_DEFAULT;
    this.#heartbeatTimer = setInterval(() => this.#beat(), Math.min(beatMs, HEARTBEAT_MS_MAX));
    this.#owner.handleWelcome(welcome);
  }

  #beat(): void {
    if (this.#silentBeats >= SILENT_BEATS_MAX) {
      this.end(failure(new WeirError('silent', 'nothing was heard for two heartbeats')));
      return;
    }
    this.#silentBeats += 1;
    // A page does not see WebSocket pings, so the client asks for an answer. On a stream the server
    // sends comments.
    this.send({ kind: 'ping' });
  }

  #takeWaiting(request: number): Waiting | undefined {
    const waiting = this.#waiting.get(request);
    this.#waiting.delete(request);
    return waiting;
  }
}

interface Waiting {
  readonly publication: Publication;
  readonly resolve: (published: Published) => void;
  readonly reject: (error: WeirError) => void;
}

/** Request numbers have 32 bits. */
const REQUEST_MAX = 0xffff_ffff;

/** The server's own rule: two missed heartbeats. */
const SILENT_BEATS_MAX = 2;

/** The server's default; used if a server grants no heartbeat. */
const HEARTBEAT_MS_DEFAULT = 60_000;

/** The longest heartbeat that a server grants by default. A timer can count it. */
const HEARTBEAT_MS_MAX = 15 * 60_000;
