/**
 * Requests to the server beside the connection: publishes, if the connection is a stream of events.
 */

import { WeirError } from './errors.js';
import { routeUrl } from './options.js';
import { payloadToJson } from './wire.js';
import type { Publication, Published } from './wire.js';

/**
 * Publishes by `POST /v1/publish`, independently of connections.
 *
 * Limits: `PUBLISHES_WAITING_MAX` publishes wait for their answer, each for at most `timeoutMs`.
 *
 * @internal
 */
export class HttpPublisher {
  readonly #fetch: typeof fetch;
  readonly #url: URL;
  readonly #timeoutMs: number;
  #waiting = 0;

  constructor(fetch: typeof globalThis.fetch, base: URL, timeoutMs: number) {
    this.#fetch = fetch;
    this.#url = routeUrl(base, '/v1/publish');
    this.#timeoutMs = timeoutMs;
  }

  async publish(publication: Publication, token: string): Promise<Published> {
    if (this.#waiting >= PUBLISHES_WAITING_MAX) {
      throw tooMany(publication);
    }
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(), this.#timeoutMs);
    this.#waiting += 1;
    try {
      return await this.#post(publication, token, abort.signal);
    } catch (cause) {
      throw cause instanceof WeirError ? cause : lost(publication, cause);
    } finally {
      this.#waiting -= 1;
      clearTimeout(timer);
    }
  }

  async #post(publication: Publication, token: string, signal: AbortSignal): Promise<Published> {
    const { topic, contentType, key } = publication;
    const payload = payloadToJson(publication);
    const body = JSON.stringify({ topic, ...payload, content_type: contentType, key });
    const headers = requestHeaders(token);
    headers.set('Content-Type', 'application/json');
    const fetch = this.#fetch;
    const answer = await fetch(this.#url, { method: 'POST', headers, body, signal });
    if (!answer.ok) {
      throw await problem(answer, topic);
    }
    return published(await answer.json());
  }
}

/** @internal */
export function requestHeaders(token: string): Headers {
  return new Headers(token === '' ? {} : { Authorization: `Bearer ${token}` });
}

/**
 * The error of an answer: from its problem document (RFC 9457), or else from its status.
 *
 * @internal
 */
export async function problem(answer: Response, topic?: string): Promise<WeirError> {
  const more = { topic, retryAfterMs: retryAfterMs(answer) };
  if (answer.headers.get('Content-Type')?.startsWith('application/problem+json') !== true) {
    discard(answer);
    return new WeirError(`http_${answer.status}`, `HTTP ${answer.status}`, more);
  }
  // The status counts even if the document is cut or malformed.
  const document: unknown = await answer.json().catch(() => undefined);
  const { type, title, detail } = Object(document) as Record<string, unknown>;
  const word = typeof type === 'string' ? type.slice(type.lastIndexOf(':') + 1) : '';
  const code = word === '' ? `http_${answer.status}` : word.replaceAll('-', '_');
  const sentence = typeof detail === 'string' ? detail : `${title ?? `HTTP ${answer.status}`}`;
  return new WeirError(code, sentence, more);
}

/**
 * The delay of `Retry-After`, if the answer gives one in seconds.
 *
 * @internal
 */
export function retryAfterMs(answer: Response): number | undefined {
  const retryAfter = answer.headers.get('Retry-After') ?? '';
  return /^[0-9]{1,9}$/.test(retryAfter) ? Number(retryAfter) * 1_000 : undefined;
}

/**
 * Ends an answer without reading its body.
 *
 * @internal
 */
export function discard(answer: Response): void {
  // The body may have failed already; then there is nothing to cancel.
  answer.body?.cancel().catch(() => {});
}

/** @internal */
export function lost({ topic }: Publication, cause?: unknown): WeirError {
  const text = 'there was no answer: the message may have been published or not';
  return new WeirError('connection_lost', text, { topic, cause });
}

/** @internal */
export function tooMany({ topic }: Publication): WeirError {
  const text = `${PUBLISHES_WAITING_MAX} publishes wait for their answer already`;
  return new WeirError('busy', text, { topic });
}

/** The API's form: ids are hexadecimal there, and offset and epoch may be absent. */
function published(answer: {
  id?: unknown;
  offset?: unknown;
  epoch?: unknown;
  connections?: unknown;
}): Published {
  const { id, offset, epoch, connections } = answer;
  const isHex = (value: unknown): value is string =>
    typeof value === 'string' && /^[0-9a-f]{16}$/.test(value);
  if (!isHex(id)) {
    throw new WeirError('protocol', `a publish was answered with ${JSON.stringify(answer)}`);
  }
  return {
    messageId: BigInt(`0x${id}`),
    epoch: isHex(epoch) ? BigInt(`0x${epoch}`) : 0n,
    offset: typeof offset === 'number' ? BigInt(offset) : 0n,
    connections: typeof connections === 'number' ? connections : 0,
  };
}

/**
 * More than the server's burst for a device. The server refuses publishes beyond its burst, and
 * each waiting one holds its message in memory.
 *
 * @internal
 */
export const PUBLISHES_WAITING_MAX = 1_024;
