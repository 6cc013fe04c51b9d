/**
 * The common interface of the transports: a line to the server, from the attempt to open it until
 * its only end.
 */

import { adviceOf } from './backoff.js';
import type { Advice } from './backoff.js';
import type { WeirError } from './errors.js';
import type { ClientMessage, ServerMessage } from './wire.js';

/**
 * A line to the server.
 *
 * @internal
 */
export interface Line {
  /** Sends a message; `undefined` if the transport carries no messages to the server. */
  readonly send: ((message: ClientMessage) => void) | undefined;
  /** Ends the line without a further call to the listener. */
  close(): void;
}

/**
 * The listener of a line. {@link LineListener.handleEnd} is called once, and nothing after it.
 *
 * @internal
 */
export interface LineListener {
  /** A sign of life of any kind has arrived. */
  handleHeard(): void;
  handleMessage(message: ServerMessage): void;
  handleEnd(ending: Ending): void;
}

/** Why a connection has ended. */
export interface Ending {
  /** The close code of the server (4000 to 4399), of the WebSocket, the status of an HTTP answer, or 0. */
  readonly code: number;
  /** A word for programs, such as `draining` or `network`. */
  readonly reason: string;
  /** The next step. */
  readonly advice: Advice;
  /** How long to stay away, if the server says so. */
  readonly retryAfterMs: number | undefined;
  /** The error, unless the server sent `Goodbye`. */
  readonly error: WeirError | undefined;
}

/**
 * The end after a `Goodbye`.
 *
 * @internal
 */
export function goodbye(code: number, reason: string, retryAfterMs: number): Ending {
  const asked = retryAfterMs > 0 ? retryAfterMs : undefined;
  return { code, reason, advice: adviceOf(code), retryAfterMs: asked, error: undefined };
}

/**
 * The end without a `Goodbye`.
 *
 * @internal
 */
export function failure(error: WeirError, code = 0, advice: Advice = 'later'): Ending {
  return { code, reason: error.code, advice, retryAfterMs: error.retryAfterMs, error };
}

/**
 * The end of a stream that the client opens again at once, with other topics or another token.
 *
 * @internal
 */
export const REOPENING: Ending = {
  code: 0,
  reason: 'reopening',
  advice: 'now',
  retryAfterMs: undefined,
  error: undefined,
};

/** @internal */
export function isReopening(ending: Ending): boolean {
  return ending.reason === REOPENING.reason && ending.code === REOPENING.code;
}
