/** One connection, from the attempt to open it to its end: welcome, signs of life, answers to publishes. */

import { WeirError } from './errors.js';
import { publishByHttp } from './eventstream.js';
import type { Requests } from './eventstream.js';
import { failure, goodbye } from './line.js';
import type { Ending, Line, LineListener } from './line.js';
import type { ClientMessage, Publication, Published, ServerMessage } from './wire.js';

/** @internal */
export type Welcome = Extract<ServerMessage, { kind: 'welcome' }>;

/**
 * Who owns the connection.
 *
 * @internal
 */
export interface ConnectionOwner {
  handleWelcome(welcome: Welcome): void;
  /** Whatever else the server says and the connection has not dealt with. */
  handleMessage(message: ServerMessage): void;
}

/**
 * A connection.
 *
 * States: opening → open (at `Welcome`) → ended, or opening → ended. There is one end, told by {@link Connection.ended}.
 * Limits: `PUBLISHES_WAITING_MAX` publishes wait for their answer; a welcome is waited for `connectTimeoutMs`; an open
 * connection that brings nothing for two heartbeats is dead.
 *
 * @internal
 */
export class Connection implements LineListener {
  readonly ended: Promise<Ending>;
  readonly #owner: ConnectionOwner;
  readonly #requests: Requests;
  readonly #connectTimeoutMs: number;
  readonly #line: Line;
  readonly #waiting = new Map<number, Waiting>();
  /** Ends the publishes by HTTP that wait. */
  readonly #abort = new AbortController();
  #end!: (ending: Ending) => void;
  #hasEnded = false;
  #welcomedAt: number | undefined;
  #connectTimer: ReturnType<typeof setTimeout> | undefined;
  #heartbeatTimer: ReturnType<typeof setInterval> | undefined;
  /** Heartbeats since something was heard. */
  #silentBeats = 0;
  #lastRequest = 0;
  #requestsWaiting = 0;

  constructor(
    owner: ConnectionOwner,
    open: (listener: LineListener) => Line,
    requests: Requests,
    connectTimeoutMs: number,
  ) {
    this.#owner = owner;
    this.#requests = requests;
    this.#connectTimeoutMs = connectTimeoutMs;
    this.ended = new Promise((end) => {
      this.#end = end;
    });
    this.#line = this.#open(open);
    this.#connectTimer = setTimeout(() => {
      const error = new WeirError('timeout', `no welcome within ${connectTimeoutMs} ms`);
      this.end(failure(error));
    }, connectTimeoutMs);
  }

  /** A line, or none where not even an attempt is possible, as when a page may not open a WebSocket there. */
  #open(open: (listener: LineListener) => Line): Line {
    try {
      return open(this);
    } catch (cause) {
      queueMicrotask(() => this.end(failure(new WeirError('network', 'cannot connect', { cause }))));
      return { send: undefined, close: () => {} };
    }
  }

  /** How long it has been open; `undefined` if it never was. */
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

  async publish(publication: Publication): Promise<Published> {
    if (this.#waiting.size + this.#requestsWaiting >= PUBLISHES_WAITING_MAX) {
      const text = `${PUBLISHES_WAITING_MAX} publishes wait for their answer already`;
      throw new WeirError('busy', text, { topic: publication.topic });
    }
    return this.canSend() ? this.#publishOnLine(publication) : this.#publishByHttp(publication);
  }

  /** Ends it; what waits for an answer learns that there will be none. */
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
    this.#abort.abort();
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
    // A page sees nothing of the pings of WebSocket itself, so it asks for an answer. A stream brings comments unasked.
    this.send({ kind: 'ping' });
  }

  #publishOnLine(publication: Publication): Promise<Published> {
    this.#lastRequest = (this.#lastRequest % REQUEST_MAX) + 1;
    const request = this.#lastRequest;
    return new Promise((resolve, reject) => {
      this.#waiting.set(request, { publication, resolve, reject });
      this.send({ kind: 'publish', publication, request });
    });
  }

  async #publishByHttp(publication: Publication): Promise<Published> {
    const timeout = new AbortController();
    const stop = (): void => timeout.abort();
    const timer = setTimeout(stop, this.#connectTimeoutMs);
    this.#abort.signal.addEventListener('abort', stop);
    this.#requestsWaiting += 1;
    try {
      return await publishByHttp(this.#requests, publication, timeout.signal);
    } catch (error) {
      throw timeout.signal.aborted ? lost(publication) : error;
    } finally {
      this.#requestsWaiting -= 1;
      clearTimeout(timer);
      this.#abort.signal.removeEventListener('abort', stop);
    }
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

function lost({ topic }: Publication): WeirError {
  const text = 'the connection ended before the answer: the message may have been published or not';
  return new WeirError('connection_lost', text, { topic });
}

/** More than the server's burst of a device, which refuses what comes faster; each holds its message in memory. */
const PUBLISHES_WAITING_MAX = 1_024;

/** Request numbers have 32 bits. */
const REQUEST_MAX = 0xffff_ffff;

/** The server's own rule: two missed heartbeats. */
const SILENT_BEATS_MAX = 2;

/** Used if a server agrees to no heartbeat: its default. */
const HEARTBEAT_MS_DEFAULT = 60_000;

/** The longest that a server grants by default; also what a timer can count. */
const HEARTBEAT_MS_MAX = 15 * 60_000;
