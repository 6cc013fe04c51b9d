/** The line over SSE: what the server says as a stream of events, read with `fetch` so that it carries the token. */

import type { Advice } from './backoff.js';
import { WeirError } from './errors.js';
import { failure } from './line.js';
import type { Ending, Line, LineListener } from './line.js';
import { routeUrl } from './options.js';
import { EventStreamParser } from './sse.js';
import { decodeKind, formatPosition, payloadToJson } from './wire.js';
import type { Publication, Published, Wanted } from './wire.js';

/**
 * What every request carries.
 *
 * @internal
 */
export interface Requests {
  readonly fetch: typeof fetch;
  readonly base: URL;
  readonly token: string;
}

/**
 * Opens a stream of the topics wanted.
 *
 * @internal
 */
export function openEventStream(
  requests: Requests,
  deviceId: string,
  wanted: readonly Wanted[],
  listener: LineListener,
): Line {
  const abort = new AbortController();
  const url = routeUrl(requests.base, '/v1/sse');
  for (const { topic } of wanted) {
    url.searchParams.append('topic', topic);
  }
  if (deviceId !== '') {
    url.searchParams.append('device', deviceId);
  }
  const headers = requestHeaders(requests.token);
  headers.set('Accept', 'text/event-stream');
  const positions = wanted.flatMap(({ position }) => (position ? [formatPosition(position)] : []));
  if (positions.length > 0) {
    headers.set('Last-Event-ID', positions.join(','));
  }

  const read = async (): Promise<Ending> => {
    const answer = await requests.fetch(url, { headers, signal: abort.signal, cache: 'no-store' });
    if (answer.status !== 200) {
      return refusal(answer.status, await problem(answer));
    }
    const type = answer.headers.get('Content-Type') ?? 'nothing';
    if (!type.startsWith('text/event-stream') || answer.body === null) {
      void answer.body?.cancel();
      return failure(new WeirError('protocol', `${url.pathname} answers with ${type}`));
    }
    const parser = new EventStreamParser();
    const decoder = new TextDecoder();
    const reader = answer.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return failure(new WeirError('network', 'the stream of events broke off'));
      }
      listener.handleHeard();
      for (const event of parser.push(decoder.decode(value, { stream: true }))) {
        const kind = event.name === 'message' ? 'push' : event.name;
        const message = decodeKind(kind, event.data);
        if (message !== undefined && !abort.signal.aborted) {
          listener.handleMessage(message);
        }
      }
    }
  };
  read()
    .catch((cause: unknown) => failure(asNetworkError(cause, `no stream of ${url.pathname}`)))
    .then((ending) => {
      if (!abort.signal.aborted) {
        abort.abort();
        listener.handleEnd(ending);
      }
    });

  return { send: undefined, close: () => abort.abort() };
}

/**
 * Publishes by `POST /v1/publish`.
 *
 * @internal
 */
export async function publishByHttp(
  requests: Requests,
  publication: Publication,
  signal: AbortSignal,
): Promise<Published> {
  const { topic, contentType, key } = publication;
  const body = JSON.stringify({
    topic,
    ...payloadToJson(publication),
    content_type: contentType,
    key,
  });
  const headers = requestHeaders(requests.token);
  headers.set('Content-Type', 'application/json');
  const url = routeUrl(requests.base, '/v1/publish');
  try {
    const answer = await requests.fetch(url, { method: 'POST', headers, body, signal });
    if (!answer.ok) {
      throw await problem(answer, topic);
    }
    return published(await answer.json());
  } catch (cause) {
    throw asNetworkError(cause, `no answer of ${url.pathname}`);
  }
}

/** The admin API's form: ids are hexadecimal there, and the offset may be absent. */
function published(answer: { id?: unknown; offset?: unknown; connections?: unknown }): Published {
  const { id, offset, connections } = answer;
  if (typeof id !== 'string' || !/^[0-9a-f]{16}$/.test(id)) {
    throw new WeirError('protocol', `a publish was answered with ${JSON.stringify(answer)}`);
  }
  return {
    messageId: BigInt(`0x${id}`),
    offset: typeof offset === 'number' ? BigInt(offset) : 0n,
    connections: typeof connections === 'number' ? connections : 0,
  };
}

function requestHeaders(token: string): Headers {
  return new Headers(token === '' ? {} : { Authorization: `Bearer ${token}` });
}

/** The error that an answer stands for: what its problem document says (RFC 9457), or else its status. */
async function problem(answer: Response, topic?: string): Promise<WeirError> {
  const retryAfter = answer.headers.get('Retry-After') ?? '';
  const retryAfterMs = /^[0-9]{1,9}$/.test(retryAfter) ? Number(retryAfter) * 1_000 : undefined;
  const more = { topic, retryAfterMs };
  if (answer.headers.get('Content-Type')?.startsWith('application/problem+json') !== true) {
    void answer.body?.cancel();
    return new WeirError(`http_${answer.status}`, `HTTP ${answer.status}`, more);
  }
  const { type, title, detail } = (await answer.json()) as Record<string, unknown>;
  const word = typeof type === 'string' ? type.slice(type.lastIndexOf(':') + 1) : '';
  const code = word === '' ? `http_${answer.status}` : word.replaceAll('-', '_');
  const sentence = typeof detail === 'string' ? detail : `${title ?? `HTTP ${answer.status}`}`;
  return new WeirError(code, sentence, more);
}

function refusal(status: number, error: WeirError): Ending {
  return failure(error, status, adviceOfStatus(status));
}

/**
 * What a status says of the next attempt. Only what the server says of this very request is final; the rest may be the
 * word of something on the way, and pass.
 */
function adviceOfStatus(status: number): Advice {
  switch (status) {
    case 401:
      return 'credentials';
    case 400:
    case 403:
      return 'never';
    default:
      return 'later';
  }
}

function asNetworkError(cause: unknown, what: string): WeirError {
  return cause instanceof WeirError ? cause : new WeirError('network', what, { cause });
}
