/** The error class of the client. */

/**
 * An error of this client, or one from the server.
 *
 * `code` is a word for programs. These codes come from the client:
 *
 * | code | meaning |
 * |---|---|
 * | `not_connected` | There is no connection for this message. |
 * | `connection_lost` | No answer came: the server may have published the message or not. |
 * | `closed` | {@link WeirClient.close} was called. |
 * | `network` | The server could not be reached, or the connection broke. |
 * | `timeout` | No answer came in time. |
 * | `silent` | Nothing came on an open connection for two heartbeats. |
 * | `protocol` | The server violated the protocol. |
 * | `http_…` | An HTTP answer with this status and no explanation. |
 * | `credentials` | `getToken` failed. |
 * | `busy` | Too many publishes, or calls, wait for their answer. |
 * | `cancelled` | The signal of a call was aborted. |
 *
 * All other codes come from the server, such as `not_permitted` or `rate_limited`.
 */
export class WeirError extends Error {
  /** A word for programs. */
  readonly code: string;
  /** The topic concerned, if any. */
  readonly topic: string | undefined;
  /** How long to wait before another attempt, if the server says so. */
  readonly retryAfterMs: number | undefined;

  /** @internal */
  constructor(
    code: string,
    message: string,
    more: { topic?: string | undefined; retryAfterMs?: number | undefined; cause?: unknown } = {},
  ) {
    super(message, more.cause === undefined ? undefined : { cause: more.cause });
    this.name = 'WeirError';
    this.code = code;
    this.topic = more.topic;
    this.retryAfterMs = more.retryAfterMs;
  }
}
