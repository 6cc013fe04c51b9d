/**
 * The line over SSE: a stream of events from the server, read with `fetch` so that the request
 * carries the token.
 */

import type { Advice } from './backoff.js';
import { WeirError } from './errors.js';
import { failure } from './line.js';
import type { Ending, Line, LineListener } from './line.js';
import { routeUrl } from './options.js';
import { discard, problem, requestHeaders } from './requests.js';
import { EventStreamParser } from './sse.js';
import { decodeKind, formatPosition } from './wire.js';
import type { Wanted } from './wire.js';

/**
 * Opens a stream of the wanted topics.
 *
 * @internal
 */
export function openEventStream(
  fetch: typeof globalThis.fetch,
  base: URL,
  token: string,
  deviceId: string,
  wanted: readonly Wanted[],
  listener: LineListener,
): Line {
  const abort = new AbortController();
  const url = routeUrl(base, '/v1/sse');
  for (const { topic, presence } of wanted) {
    url.searchParams.append('topic', topic);
    if (presence) {
      url.searchParams.append('presence', topic);
    }
  }
  if (deviceId !== '') {
    url.searchParams.append('device', deviceId);
  }
  const headers = requestHeaders(token);
  headers.set('Accept', 'text/event-stream');
  const positions = wanted.flatMap(({ position }) => (position ? [formatPosition(position)] : []));
  if (positions.length > 0) {
    headers.set('Last-Event-ID', positions.join(','));
  }

  const read = async (): Promise<Ending> => {
    const answer = await fetch(url, { headers, signal: abort.signal, cache: 'no-store' });
    if (answer.status !== 200) {
      return refusal(answer.status, await problem(answer));
    }
    const type = answer.headers.get('Content-Type') ?? 'nothing';
    if (!type.startsWith('text/event-stream') || answer.body === null) {
      discard(answer);
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

function refusal(status: number, error: WeirError): Ending {
  return failure(error, status, adviceOfStatus(status));
}

/**
 * The advice of an HTTP status. Only a status about this very request is final. Others may come
 * from a proxy on the way, and pass.
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
