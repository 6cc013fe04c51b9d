/** What a client is told when it is made. */

import type { Message, Position } from './wire.js';
import type { TransportKind } from './ways.js';

/** Why a token is asked for. */
export type TokenReason = 'first' | 'expiring' | 'refused';

/** A topic to be in from the start. */
export interface TopicOptions extends SubscribeOptions {
  /** Its name. */
  readonly topic: string;
}

/** How to be in a topic. */
export interface SubscribeOptions {
  /** The position of the last message seen, to resume after it; left out: from now on. */
  readonly position?: Position | undefined;
  /** Called with each message of the topic, in order. */
  readonly onMessage?: ((message: Message) => void) | undefined;
}

/** How to connect: identity, wishes, limits. */
export interface WeirClientOptions {
  /**
   * The gateway's HTTP address, such as `https://gate.example`; `wss:` and `ws:` mean the same. A path is put before
   * those of the API. In a browser it may be relative to the page.
   */
  readonly url: string | URL;
  /** Who this device says it is; the token, or anonymous mode, must permit it. Left out: whom the token names. */
  readonly deviceId?: string | undefined;
  /** A token, if there is one already. */
  readonly token?: string | undefined;
  /**
   * Where tokens come from: asked at the first connect if there is no `token`, when the server says that the credentials
   * end soon, and once after it has refused them. An answer takes at most `connectTimeoutMs`.
   */
  readonly getToken?: ((reason: TokenReason) => Promise<string> | string) | undefined;
  /** Topics to be in from the start. */
  readonly topics?: readonly (string | TopicOptions)[] | undefined;
  /**
   * The ways to try, the best one first. Default: WebSocket, then SSE. Where there is no WebSocket (Node 20 without
   * `--experimental-websocket`) it is left out of the default.
   */
  readonly transports?: readonly TransportKind[] | undefined;
  /**
   * Attempts in a row that must fail before the next way is tried. Default: 2, since one may be chance. The first way
   * gives way only if the server answers a plain request at that time: otherwise the server is away, and no way is blocked.
   */
  readonly fallbackAfter?: number | undefined;
  /** Name and version of the program, for the operator's eyes. Default: that of this package. */
  readonly client?: string | undefined;
  /** Wished interval between signs of life, over WebSocket. Default: the server's. */
  readonly heartbeatMs?: number | undefined;
  /** Longest wait for a welcome, for a token, and for the answer to a publish by HTTP. Default: 10,000, as the server's. */
  readonly connectTimeoutMs?: number | undefined;
  /** The first step of the delays between attempts, in milliseconds. Default: 500. */
  readonly backoffMinMs?: number | undefined;
  /**
   * The last step. Default: 8,000, so that a page is back within 15 s after an outage of any length: Chromium itself holds
   * a WebSocket back for up to 5 s after several failures.
   */
  readonly backoffMaxMs?: number | undefined;
  /** The WebSocket to use. Default: the global one. */
  readonly WebSocket?: WebSocketConstructor | undefined;
  /** The `fetch` to use. Default: the global one. */
  readonly fetch?: typeof fetch | undefined;
}

/** What makes a WebSocket: that of the browser, or one that behaves like it. */
export type WebSocketConstructor = new (url: string, protocols: string[]) => WebSocketLike;

/** As much of a WebSocket as is used. */
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
 * @throws TypeError naming the option, its value and what would do.
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
    // Called by its bare name: that of a browser works on no other object than its window.
    fetch: (input, init) => fetch(input, init),
  };
}

/**
 * A topic's name, if it can be one.
 *
 * @throws TypeError if not: the server would refuse it, without being able to say which one it was.
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

/** As the server has it. */
const TOPIC_BYTES_MAX = 255;

/** Timers of JavaScript count milliseconds in 31 bits. */
const TIMER_MS_MAX = 2 ** 31 - 1;
