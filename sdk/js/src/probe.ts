/** A plain request that tells a server that is away from a transport that is blocked. */

import { routeUrl } from './options.js';
import { discard, retryAfterMs } from './requests.js';

/**
 * What came of it.
 *
 * @internal
 */
export interface ProbeResult {
  /** Whether plain HTTP reaches something that serves: any status below 500 but 429. */
  readonly hasAnswered: boolean;
  /** How long to stay away, if the answer says. */
  readonly retryAfterMs: number | undefined;
}

/**
 * Asks for `/v1/connect` without an upgrade, which the gateway answers with 426 and without a token.
 *
 * A page cannot tell a refused connection from a blocked upgrade: both close a WebSocket with 1006. This request can: it
 * fails, or a proxy answers it with 502 or 503, while the server is away. No answer within `timeoutMs` counts as none; it
 * may also mean that other tabs hold all connections that the browser opens to one host.
 *
 * @internal
 */
export async function probe(
  fetch: typeof globalThis.fetch,
  base: URL,
  timeoutMs: number,
  stopped: AbortSignal,
): Promise<ProbeResult> {
  const abort = new AbortController();
  const stop = (): void => abort.abort();
  const timer = setTimeout(stop, timeoutMs);
  stopped.addEventListener('abort', stop);
  try {
    const url = routeUrl(base, '/v1/connect');
    const answer = await fetch(url, { signal: abort.signal, cache: 'no-store' });
    discard(answer);
    const { status } = answer;
    return { hasAnswered: status < 500 && status !== 429, retryAfterMs: retryAfterMs(answer) };
  } catch {
    return { hasAnswered: false, retryAfterMs: undefined };
  } finally {
    clearTimeout(timer);
    stopped.removeEventListener('abort', stop);
  }
}
