/** What can go wrong, as one class. */

/**
 * An error of this client, or one that the server has told.
 *
 * `code` is a word for programs. Of this client are:
 *
 * | code | meaning |
 * |---|---|
 * | `not_connected` | There is no connection to send this on. |
 * | `connection_lost` | There was no answer: whether the server did it is unknown. |
 * | `closed` | {@link WeirClient.close} was called. |
 * | `network` | The server could not be reached, or the connection broke. |
 * | `timeout` | There was no answer in time. |
 * | `silent` | An open connection brought nothing for two heartbeats. |
 * | `protocol` | The other side said what it may not say. |
 * | `http_…` | An HTTP answer with this status that explains nothing. |
 * | `credentials` | `getToken` failed. |
 * | `busy` | Too many publishes wait for their answer. |
 *
 * Any other is a word of the server's, such as `not_permitted` or `rate_limited`.
 */
export class WeirError extends Error {
  /** A word for programs. */
  readonly code: string;
  /** The topic concerned, if one is. */
  readonly topic: string | undefined;
  /** How long to wait before trying again, if the server says. */
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
