/** A plain request that shows whether the server is away or a transport is blocked. */

import { routeUrl } from './options.js';
import { discard, retryAfterMs } from './requests.js';

/**
 * The result of a probe.
 *
 * @internal
 */
export interface ProbeResult {
  /** Whether plain HTTP reaches a server: any status below 500 except 429. */
  readonly hasAnswered: boolean;
  /** How long to stay away, if the answer says so. */
  readonly retryAfterMs: number | undefined;
}

/**
 * Requests `/v1/connect` without an upgrade. The gateway answers 426 and needs no token for it.
 *
 * A page cannot tell a refused connection from a blocked upgrade: both close a WebSocket with 1006.
 * This request can: while the server is away, it fails, or a proxy answers 502 or 503. If no answer
 * comes within `timeoutMs`, the probe has failed. Perhaps other tabs hold all connections that the
 * browser opens to one host.
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
