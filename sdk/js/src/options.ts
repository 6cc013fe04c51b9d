/** The options of a client. */

import type { CallHandler } from './calls.js';
import type { Message, Position } from './wire.js';
import type { TransportKind } from './ways.js';

/** The reason why the client asks for a token. */
export type TokenReason = 'first' | 'expiring' | 'refused';

/** A topic to subscribe to from the start. */
export interface TopicOptions extends SubscribeOptions {
  /** The topic's name. */
  readonly topic: string;
}

/** The options of a subscription. */
export interface SubscribeOptions {
  /**
   * The position of the last message seen, from which to resume. Without it, the subscription
   * starts with new messages.
   */
  readonly position?: Position | undefined;
  /**
   * Whether the event `presence` tells who enters and who leaves. The server refuses the topic if
   * its class has no presence (`not_supported`), or lets others see it (`not_permitted`).
   */
  readonly presence?: boolean | undefined;
  /** Called with each message of the topic, in order. */
  readonly onMessage?: ((message: Message) => void) | undefined;
}

/** Options of a client: identity, preferences, limits. */
export interface WeirClientOptions {
  /**
   * The gateway's HTTP address, such as `https://gate.example`; `wss:` and `ws:` are allowed too. A
   * path goes in front of the API's paths. In a browser the address may be relative to the page.
   */
  readonly url: string | URL;
  /**
   * The device id to claim. The token, or anonymous mode, must permit it. Default: the id that the
   * token names.
   */
  readonly deviceId?: string | undefined;
  /** A token to begin with. */
  readonly token?: string | undefined;
  /**
   * Returns a token. The client calls it at the first connect if there is no `token`, when the
   * server says that the credentials end soon, and once after the server has refused them. It must
   * answer within `connectTimeoutMs`.
   */
  readonly getToken?: ((reason: TokenReason) => Promise<string> | string) | undefined;
  /**
   * Answers calls of backends. Only with it the client announces that it answers calls, over
   * WebSocket.
   */
  readonly onCall?: CallHandler | undefined;
  /** Topics to subscribe to from the start. */
  readonly topics?: readonly (string | TopicOptions)[] | undefined;
  /**
   * The transports to try, the best one first. Default: WebSocket, then SSE. Where there is no
   * WebSocket (Node 20 without `--experimental-websocket`) the default omits it.
   */
  readonly transports?: readonly TransportKind[] | undefined;
  /**
   * Attempts in a row that must fail before the client tries the next transport. Default: 2, since
   * one failure may be chance. The client leaves the first transport only if the server answers a
   * plain request at that time: otherwise the server is away, and no transport is blocked.
   */
  readonly fallbackAfter?: number | undefined;
  /** Name and version of the program, for the operator. Default: those of this package. */
  readonly client?: string | undefined;
  /** Requested heartbeat interval, over WebSocket. Default: the server's. */
  readonly heartbeatMs?: number | undefined;
  /**
   * Longest wait for a welcome, for a token, and for the answer to a publish by HTTP, in
   * milliseconds. Default: 10,000, as the server's.
   */
  readonly connectTimeoutMs?: number | undefined;
  /** The first step of the delays between attempts, in milliseconds. Default: 500. */
  readonly backoffMinMs?: number | undefined;
  /**
   * The last step, in milliseconds. Default: 8,000, so that a page is back within 15 s after an
   * outage of any length. Chromium itself delays a WebSocket by up to 5 s after several failures.
   */
  readonly backoffMaxMs?: number | undefined;
  /** The WebSocket to use. Default: the global one. */
  readonly WebSocket?: WebSocketConstructor | undefined;
  /** The `fetch` to use. Default: the global one. */
  readonly fetch?: typeof fetch | undefined;
}

/** A constructor of WebSockets: the browser's, or one that behaves like it. */
export type WebSocketConstructor = new (url: string, protocols: string[]) => WebSocketLike;

/** The members of a WebSocket that the client uses. */
export interface WebSocketLike {
  readonly protocol: string;
  onopen: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  send(text: string): void;
  close(code?: number): void;
}

/**
 * The options with their defaults.
 *
 * @internal
 */
export interface Settings {
  readonly url: URL;
  readonly deviceId: string;
  readonly client: string;
  readonly heartbeatMs: number;
  readonly transports: readonly TransportKind[];
  readonly fallbackAfter: number;
  readonly connectTimeoutMs: number;
  readonly backoffMinMs: number;
  readonly backoffMaxMs: number;
  readonly WebSocket: WebSocketConstructor | undefined;
  readonly fetch: typeof fetch;
}

/**
 * Checks the options.
 *
 * @throws TypeError with the option, its value and the allowed values.
 * @internal
 */
export function resolve(options: WeirClientOptions): Settings {
  const fetch = options.fetch ?? globalThis.fetch;
  const WebSocket =
    options.WebSocket ?? (globalThis.WebSocket as unknown as WebSocketConstructor | undefined);
  return {
    url: baseUrl(options.url),
    deviceId: options.deviceId ?? '',
    client: options.client ?? CLIENT,
    heartbeatMs: milliseconds('heartbeatMs', options.heartbeatMs, 0),
    transports: transports(options.transports, WebSocket !== undefined),
    fallbackAfter: positive('fallbackAfter', options.fallbackAfter, 2),
    connectTimeoutMs: milliseconds('connectTimeoutMs', options.connectTimeoutMs, 10_000),
    backoffMinMs: milliseconds('backoffMinMs', options.backoffMinMs, 500),
    backoffMaxMs: milliseconds('backoffMaxMs', options.backoffMaxMs, 8_000),
    WebSocket,
    // Called without an object: the browser's `fetch` works on its window only.
    fetch: (input, init) => fetch(input, init),
  };
}

/**
 * Checks a topic's name and returns it.
 *
 * @throws TypeError if the name is not allowed. The server would refuse it without saying which
 * name was wrong.
 * @internal
 */
export function checkedTopic(topic: string): string {
  const bytes = new TextEncoder().encode(topic).length;
  if (bytes < 1 || bytes > TOPIC_BYTES_MAX) {
    throw new TypeError(`topic: ${bytes} bytes; 1 to ${TOPIC_BYTES_MAX} are allowed`);
  }
  if (/[\p{Cc}*#+]/u.test(topic)) {
    throw new TypeError(`topic: ${JSON.stringify(topic)} has a control character, or one of * # +`);
  }
  return topic;
}

/**
 * The address of a route of the API.
 *
 * @internal
 */
export function routeUrl(base: URL, path: string): URL {
  const url = new URL(base);
  url.pathname = base.pathname.replace(/\/$/, '') + path;
  return url;
}

function baseUrl(given: string | URL): URL {
  const page = (globalThis as { location?: { href: string } }).location?.href;
  let url: URL;
  try {
    url = new URL(given, page);
  } catch (cause) {
    throw new TypeError(`url: ${JSON.stringify(given)} is no address`, { cause });
  }
  const scheme = SCHEMES[url.protocol];
  if (scheme === undefined) {
    throw new TypeError(`url: ${url.protocol} in ${url.href}; http:, https:, ws: or wss: are allowed`);
  }
  if (url.username !== '' || url.password !== '' || url.search !== '' || url.hash !== '') {
    throw new TypeError(`url: only scheme, host, port and path are allowed in ${url.origin}`);
  }
  return new URL(scheme + url.href.slice(url.protocol.length));
}

function transports(
  given: readonly TransportKind[] | undefined,
  hasWebSocket: boolean,
): readonly TransportKind[] {
  if (given === undefined) {
    return hasWebSocket ? ['websocket', 'sse'] : ['sse'];
  }
  if (given.length === 0) {
    throw new TypeError('transports: none; at least one of "websocket" and "sse" is needed');
  }
  for (const kind of given) {
    if (kind !== 'websocket' && kind !== 'sse') {
      throw new TypeError(`transports: ${JSON.stringify(kind)}; "websocket" and "sse" are allowed`);
    }
  }
  if (given.includes('websocket') && !hasWebSocket) {
    throw new TypeError(
      'transports: there is no WebSocket here; give one as the option WebSocket, ' +
        'or start Node 20 with --experimental-websocket',
    );
  }
  return [...given];
}

function positive(name: string, value: number | undefined, otherwise: number): number {
  const number = value ?? otherwise;
  if (!Number.isSafeInteger(number) || number < 1) {
    throw new TypeError(`${name}: ${number}; a whole number from 1 on is needed`);
  }
  return number;
}

function milliseconds(name: string, value: number | undefined, otherwise: number): number {
  const number = value ?? otherwise;
  if (!Number.isInteger(number) || number < 0 || number > TIMER_MS_MAX) {
    throw new TypeError(`${name}: ${number}; whole milliseconds from 0 to ${TIMER_MS_MAX} are allowed`);
  }
  return number;
}

const SCHEMES: Record<string, string | undefined> = {
  'http:': 'http:',
  'https:': 'https:',
  'ws:': 'http:',
  'wss:': 'https:',
};

const CLIENT = 'weir-js/0.1.0';

/** The server's default. */
const TOPIC_BYTES_MAX = 255;

/** JavaScript's timers count milliseconds in 31 bits. */
const TIMER_MS_MAX = 2 ** 31 - 1;
