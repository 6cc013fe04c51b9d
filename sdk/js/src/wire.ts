/** The messages of `weir.v1`: as JSON (the proto3 JSON form), and as typed values. */

import type { Answer, Call, IncomingCall } from './calls.js';
import { WeirError } from './errors.js';

/** A position in a topic's stream of messages. Offsets of different epochs cannot be compared. */
export interface Position {
  /**
   * Random per topic and unbroken sequence of offsets: a restart of the server, or a loss in a cluster, begins another.
   * 64 bits.
   */
  readonly epoch: bigint;
  /** Offset of the last message seen. The first message of a topic has offset 1. */
  readonly offset: bigint;
}

/** The content of a message: text or bytes, never both. */
export type Payload =
  | { readonly text: string; readonly data?: undefined }
  | { readonly text?: undefined; readonly data: Uint8Array };

/** A message to a topic, to this device or to all connections. */
export type Message = Payload & {
  /** The topic's name; empty for a message to the device or to all connections. */
  readonly topic: string;
  /** Media type, or empty. */
  readonly contentType: string;
  /** Conflation key, or empty. */
  readonly key: string;
  /** The message's id, unique for one run of the server. */
  readonly messageId: bigint;
  /** Offset in the topic's epoch; 0 for a message without a topic. */
  readonly offset: bigint;
  /**
   * Id of the connection that published the message; 0 for a backend, and for a publish by HTTP (as
   * over SSE).
   */
  readonly sender: bigint;
};

/** A message to publish. */
export type Publication = Payload & {
  /** The topic's name. */
  readonly topic: string;
  /** Media type. */
  readonly contentType?: string | undefined;
  /**
   * Conflation key. In a topic with conflation, a message replaces an earlier one with the same key
   * that has not left yet.
   */
  readonly key?: string | undefined;
};

/** The result of an accepted message. */
export interface Published {
  /** The message's id, unique for one run of the server. */
  readonly messageId: bigint;
  /** The message's offset in the topic's epoch; 0 if the server gives none. */
  readonly offset: bigint;
  /** The epoch of the offset; 0 where the server gives none. */
  readonly epoch: bigint;
  /**
   * How many connections were subscribed at that moment, at the node that has answered. That they have read it, it does
   * not mean.
   */
  readonly connections: number;
}

/** A connection that is in a topic, or was. */
export interface Member {
  /** Its device. */
  readonly deviceId: string;
  /** Its id. */
  readonly connectionId: bigint;
}

/** @internal */
export type ServerMessage =
  | { kind: 'welcome'; connectionId: bigint; heartbeatMs: number; serverTimeMs: number }
  | { kind: 'pong' }
  | { kind: 'push'; message: Message }
  | { kind: 'batch'; messages: Message[] }
  | { kind: 'subscribed'; topic: string; position: Position | undefined; recovered: boolean }
  | { kind: 'unsubscribed'; topic: string; reason: string; position: Position | undefined }
  | { kind: 'presence'; topic: string; joined: Member[]; left: Member[]; missed: boolean }
  | { kind: 'published'; request: number; published: Published }
  | { kind: 'error'; code: string; message: string; request: number; topic: string }
  | { kind: 'call'; id: number; call: Omit<IncomingCall, 'signal'> & Payload }
  | { kind: 'answer'; id: number; code: string; message: string; answer: Answer }
  | { kind: 'cancel'; id: number }
  | { kind: 'expiring'; expiresAtMs: number }
  | { kind: 'goodbye'; code: number; reason: string; retryAfterMs: number };

/** @internal */
export type ClientMessage =
  | {
      kind: 'hello';
      deviceId: string;
      token: string;
      client: string;
      heartbeatMs: number;
      topics: readonly Wanted[];
      /** Whether the program answers calls of backends. */
      calls: boolean;
    }
  | { kind: 'ping' }
  | ({ kind: 'subscribe' } & Wanted)
  | { kind: 'unsubscribe'; topic: string }
  | { kind: 'publish'; publication: Publication; request: number }
  | { kind: 'refresh'; token: string }
  | { kind: 'call'; id: number; call: Call }
  | {
      kind: 'answer';
      id: number;
      code: string;
      message: string;
      payload: Payload | undefined;
      contentType: string | undefined;
    }
  | { kind: 'cancel'; id: number };

/**
 * A wanted topic, and the position from which to resume.
 *
 * @internal
 */
export interface Wanted {
  readonly topic: string;
  readonly position: Position | undefined;
  /** Whether the server tells who enters and who leaves. */
  readonly presence: boolean;
}

/**
 * A position as text: the epoch as 16 hexadecimal digits, a hyphen, the offset. Server-sent events
 * have it as id, and the history takes it as `after`. Use it for storage: `JSON.stringify` cannot
 * write a bigint.
 */
export function formatPosition(position: Position): string {
  return `${position.epoch.toString(16).padStart(16, '0')}-${position.offset}`;
}

/**
 * Reads the text that {@link formatPosition} makes.
 *
 * @throws TypeError if the text is not a position.
 */
export function parsePosition(text: string): Position {
  const [, epoch, offset] = /^([0-9a-f]{16})-([0-9]{1,20})$/.exec(text) ?? [];
  if (epoch === undefined || offset === undefined || BigInt(offset) > U64_MAX) {
    throw new TypeError(`no position, such as 8f3a61c2d4e5b709-41: ${JSON.stringify(text)}`);
  }
  return { epoch: BigInt(`0x${epoch}`), offset: BigInt(offset) };
}

/**
 * The text of a message to the server.
 *
 * @internal
 */
export function encode(message: ClientMessage): string {
  switch (message.kind) {
    case 'hello': {
      const { deviceId, token, client, heartbeatMs, topics } = message;
      const wanted = topics.map(wantedToJson);
      // JSON leaves out what is undefined.
      const calls = message.calls ? true : undefined;
      return JSON.stringify({
        hello: { deviceId, token, client, heartbeatMs, topics: wanted, calls },
      });
    }
    case 'ping':
      return '{"ping":{}}';
    case 'subscribe':
      return JSON.stringify({ subscribe: wantedToJson(message) });
    case 'unsubscribe':
      return JSON.stringify({ unsubscribe: { topic: message.topic } });
    case 'publish': {
      const { topic, contentType, key } = message.publication;
      const payload = payloadToJson(message.publication);
      const { request } = message;
      return JSON.stringify({ publish: { topic, ...payload, contentType, key, request } });
    }
    case 'refresh':
      return JSON.stringify({ refresh: { token: message.token } });
    case 'call': {
      const { method, text, data, contentType, deadlineMs } = message.call;
      const payload = data === undefined ? { text: text ?? '' } : payloadToJson({ data });
      const { id } = message;
      return JSON.stringify({ call: { id, method, ...payload, contentType, deadlineMs } });
    }
    case 'answer': {
      const { id, contentType } = message;
      const payload = message.payload && payloadToJson(message.payload);
      const code = message.code === '' ? undefined : message.code;
      const said = message.message === '' ? undefined : message.message;
      return JSON.stringify({ answer: { id, code, ...payload, contentType, message: said } });
    }
    case 'cancel':
      return JSON.stringify({ cancel: { id: message.id } });
  }
}

/**
 * The first of `topics` that fit into `Hello`; a server accepts up to 16 KiB. The client
 * subscribes to the others later.
 *
 * @internal
 */
export function fittingTopics<T extends Wanted>(
  hello: Extract<ClientMessage, { kind: 'hello' }>,
  topics: readonly T[],
): T[] {
  const lengthOf = (text: string): number => new TextEncoder().encode(text).length;
  let left = HELLO_BYTES_MAX - lengthOf(encode({ ...hello, topics: [] }));
  const fitting: T[] = [];
  for (const topic of topics) {
    left -= lengthOf(JSON.stringify(wantedToJson(topic))) + 1;
    if (left < 0) {
      break;
    }
    fitting.push(topic);
  }
  return fitting;
}

/**
 * The payload of a message in JSON, with bytes as base64.
 *
 * @internal
 */
export function payloadToJson(payload: Payload): { text: string } | { data: string } {
  return payload.text === undefined
    ? { data: toBase64(payload.data) }
    : { text: payload.text };
}

/**
 * Reads a message of the server; `undefined` if this client does not know its kind.
 *
 * @throws WeirError `protocol` if it is no message.
 * @internal
 */
export function decode(text: string): ServerMessage | undefined {
  const outer = parse(text);
  for (const [kind, inner] of Object.entries(outer)) {
    const message = inner === null ? undefined : decodeInner(kind, inner);
    if (message !== undefined) {
      return message;
    }
  }
  return undefined;
}

/**
 * Reads a message of the server from its kind and its text, as SSE gives them.
 *
 * @throws WeirError `protocol` if it is no message.
 * @internal
 */
export function decodeKind(kind: string, text: string): ServerMessage | undefined {
  return decodeInner(kind, parse(text));
}

function decodeInner(kind: string, value: unknown): ServerMessage | undefined {
  const decoder = DECODERS[kind as ServerMessage['kind']];
  return Object.hasOwn(DECODERS, kind) ? decoder(new Fields(kind, value)) : undefined;
}

const DECODERS: Record<ServerMessage['kind'], (fields: Fields) => ServerMessage> = {
  welcome: (fields) => ({
    kind: 'welcome',
    connectionId: fields.u64('connectionId'),
    heartbeatMs: fields.u32('heartbeatMs'),
    serverTimeMs: Number(fields.u64('serverTimeMs')),
  }),
  pong: () => ({ kind: 'pong' }),
  push: (fields) => ({ kind: 'push', message: message(fields, fields.string('topic')) }),
  batch: (fields) => {
    const topic = fields.string('topic');
    return { kind: 'batch', messages: fields.list('messages').map((each) => message(each, topic)) };
  },
  subscribed: (fields) => ({
    kind: 'subscribed',
    topic: fields.string('topic'),
    position: fields.position('position'),
    recovered: fields.bool('recovered'),
  }),
  unsubscribed: (fields) => ({
    kind: 'unsubscribed',
    topic: fields.string('topic'),
    reason: fields.string('reason'),
    position: fields.position('position'),
  }),
  presence: (fields) => ({
    kind: 'presence',
    topic: fields.string('topic'),
    joined: fields.list('joined').map(member),
    left: fields.list('left').map(member),
    missed: fields.bool('missed'),
  }),
  published: (fields) => ({
    kind: 'published',
    request: fields.u32('request'),
    published: {
      messageId: fields.u64('messageId'),
      offset: fields.u64('offset'),
      epoch: fields.u64('epoch'),
      connections: fields.u32('connections'),
    },
  }),
  error: (fields) => ({
    kind: 'error',
    code: fields.string('code'),
    message: fields.string('message'),
    request: fields.u32('request'),
    topic: fields.string('topic'),
  }),
  call: (fields) => ({
    kind: 'call',
    id: fields.u32('id'),
    call: {
      method: fields.string('method'),
      ...payload(fields),
      contentType: fields.string('contentType'),
      deadlineMs: fields.u32('deadlineMs'),
    },
  }),
  answer: (fields) => ({
    kind: 'answer',
    id: fields.u32('id'),
    code: fields.string('code'),
    message: fields.string('message'),
    answer: {
      ...payload(fields),
      contentType: fields.string('contentType'),
      status: fields.u32('status'),
    },
  }),
  cancel: (fields) => ({ kind: 'cancel', id: fields.u32('id') }),
  expiring: (fields) => ({ kind: 'expiring', expiresAtMs: Number(fields.u64('expiresAtMs')) }),
  goodbye: (fields) => ({
    kind: 'goodbye',
    code: fields.u32('code'),
    reason: fields.string('reason'),
    retryAfterMs: fields.u32('retryAfterMs'),
  }),
};

function message(fields: Fields, topic: string): Message {
  return {
    topic,
    ...payload(fields),
    contentType: fields.string('contentType'),
    key: fields.string('key'),
    messageId: fields.u64('messageId'),
    offset: fields.u64('offset'),
    sender: fields.u64('sender'),
  };
}

function payload(fields: Fields): Payload {
  const text = fields.optionalString('text');
  return text === undefined ? { data: fields.bytes('data') } : { text };
}

function member(fields: Fields): Member {
  return { deviceId: fields.string('deviceId'), connectionId: fields.u64('connectionId') };
}

/**
 * The fields of a message. An absent field or null means the type's empty value. 64-bit numbers are
 * strings; exact numbers are accepted too.
 */
class Fields {
  readonly #path: string;
  readonly #fields: Record<string, unknown>;

  constructor(path: string, value: unknown) {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) {
      throw malformed(path, 'an object', value);
    }
    this.#path = path;
    this.#fields = value as Record<string, unknown>;
  }

  string(name: string): string {
    return this.optionalString(name) ?? '';
  }

  optionalString(name: string): string | undefined {
    const value = this.#value(name);
    if (value !== undefined && typeof value !== 'string') {
      throw this.#malformed(name, 'a string');
    }
    return value;
  }

  bool(name: string): boolean {
    const value = this.#value(name) ?? false;
    if (typeof value !== 'boolean') {
      throw this.#malformed(name, 'true or false');
    }
    return value;
  }

  u32(name: string): number {
    const value = this.u64(name);
    if (value > 0xffff_ffffn) {
      throw this.#malformed(name, 'a number of 32 bits');
    }
    return Number(value);
  }

  u64(name: string): bigint {
    const value = this.#value(name) ?? 0;
    if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) {
      return BigInt(value);
    }
    if (typeof value === 'string' && /^[0-9]{1,20}$/.test(value) && BigInt(value) <= U64_MAX) {
      return BigInt(value);
    }
    throw this.#malformed(name, 'a whole number of 64 bits');
  }

  bytes(name: string): Uint8Array {
    try {
      return fromBase64(this.string(name));
    } catch {
      throw this.#malformed(name, 'base64');
    }
  }

  position(name: string): Position | undefined {
    const value = this.#value(name);
    if (value === undefined) {
      return undefined;
    }
    const fields = new Fields(`${this.#path}.${name}`, value);
    return { epoch: fields.u64('epoch'), offset: fields.u64('offset') };
  }

  list(name: string): Fields[] {
    const value = this.#value(name) ?? [];
    if (!Array.isArray(value)) {
      throw this.#malformed(name, 'a list');
    }
    return value.map((each, index) => new Fields(`${this.#path}.${name}[${index}]`, each));
  }

  #value(name: string): unknown {
    return Object.hasOwn(this.#fields, name) ? (this.#fields[name] ?? undefined) : undefined;
  }

  #malformed(name: string, wanted: string): WeirError {
    return malformed(`${this.#path}.${name}`, wanted, this.#fields[name]);
  }
}

function parse(text: string): object {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new WeirError('protocol', `no JSON: ${shown(text)}`, { cause });
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw malformed('message', 'an object', value);
  }
  return value;
}

function malformed(path: string, wanted: string, value: unknown): WeirError {
  return new WeirError('protocol', `${path} is ${shown(JSON.stringify(value))}, but should be ${wanted}`);
}

function shown(text: string | undefined): string {
  const whole = text ?? 'nothing';
  return whole.length > 60 ? `${whole.slice(0, 60)}…` : whole;
}

function wantedToJson({ topic, position, presence }: Wanted): object {
  const from = position && { epoch: `${position.epoch}`, offset: `${position.offset}` };
  // JSON leaves out what is undefined.
  return { topic, position: from, presence: presence ? true : undefined };
}

function toBase64(bytes: Uint8Array): string {
  let text = '';
  // In pieces, because a call takes a limited number of arguments.
  for (let start = 0; start < bytes.length; start += 8_192) {
    text += String.fromCharCode(...bytes.subarray(start, start + 8_192));
  }
  return btoa(text);
}

function fromBase64(text: string): Uint8Array {
  const binary = atob(text.replaceAll('-', '+').replaceAll('_', '/'));
  return Uint8Array.from(binary, (char) => char.charCodeAt(0));
}

const U64_MAX = (1n << 64n) - 1n;

/** The default of a server's `limits.hello_bytes_max`. */
const HELLO_BYTES_MAX = 16_384;
