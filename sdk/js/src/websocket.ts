/**
 * The line over WebSocket, subprotocol `weir.v1.json`: one message in each text frame, in both
 * directions.
 */

import { WeirError } from './errors.js';
import { failure, goodbye } from './line.js';
import type { Ending, Line, LineListener } from './line.js';
import { routeUrl } from './options.js';
import type { WebSocketConstructor, WebSocketLike } from './options.js';
import type { Attempt } from './retry.js';
import { decode, encode } from './wire.js';
import type { ClientMessage } from './wire.js';

/**
 * Opens a WebSocket and sends `Hello`.
 *
 * @internal
 */
export function openWebSocket(
  constructor: WebSocketConstructor,
  base: URL,
  hello: () => ClientMessage,
  listener: LineListener,
): Line {
  const href = connectHref(base);
  const socket = new constructor(href, [SUBPROTOCOL]);
  let isDone = false;

  const close = (): void => {
    isDone = true;
    socket.onopen = socket.onmessage = socket.onclose = null;
    // Kept: a socket that is closed before it is open raises an error, which must not appear as
    // uncaught.
    socket.onerror = () => {};
    socket.close(NORMAL_CLOSURE);
  };
  const end = (ending: Ending): void => {
    if (!isDone) {
      close();
      listener.handleEnd(ending);
    }
  };

  socket.onopen = () => {
    if (socket.protocol === SUBPROTOCOL) {
      socket.send(encode(hello()));
    } else {
      end(failure(new WeirError('protocol', `whoever answers does not speak ${SUBPROTOCOL}`)));
    }
  };
  socket.onmessage = (event: { data: unknown }) => {
    listener.handleHeard();
    try {
      if (typeof event.data !== 'string') {
        throw new WeirError('protocol', 'a binary message, where text was agreed upon');
      }
      const message = decode(event.data);
      if (message !== undefined && !isDone) {
        listener.handleMessage(message);
      }
    } catch (error) {
      if (!(error instanceof WeirError)) {
        throw error;
      }
      end(failure(error));
    }
  };
  // A page does not learn the cause. If a WebSocket fails before it is open, not every browser
  // fires `close`.
  socket.onerror = () => end(failure(new WeirError('network', `no WebSocket to ${href}`)));
  socket.onclose = (event: { code: number; reason: string }) => {
    if (event.code >= CODES_MIN && event.code <= CODES_MAX) {
      end(goodbye(event.code, event.reason, 0));
    } else {
      const why = `the WebSocket closed with ${event.code} ${event.reason}`;
      end(failure(new WeirError('network', why.trimEnd()), event.code));
    }
  };

  return { send: (message) => socket.send(encode(message)), close };
}

/**
 * Opens a WebSocket and closes it again, without a message of the protocol.
 *
 * The attempt succeeds if the server accepts the upgrade and answers the Close frame: then frames
 * pass in both directions. An upgrade alone does not show that, because some filters pass it and
 * then hold back every frame. The attempt sends no token and no device id, so it replaces no
 * connection of the device.
 *
 * @internal
 */
export function tryWebSocket(
  constructor: WebSocketConstructor,
  base: URL,
  timeoutMs: number,
): Attempt {
  let end = (_passes: boolean): void => {};
  const passes = new Promise<boolean>((resolve) => (end = resolve));
  let socket: WebSocketLike;
  try {
    socket = new constructor(connectHref(base), [SUBPROTOCOL]);
  } catch {
    end(false);
    return { passes, cancel: () => {} };
  }
  const cancel = (): void => {
    clearTimeout(timer);
    socket.onopen = socket.onclose = null;
    socket.onerror = () => {};
    socket.close();
    end(false);
  };
  const timer = setTimeout(cancel, timeoutMs);
  let isOpen = false;
  socket.onopen = () => {
    if (socket.protocol === SUBPROTOCOL) {
      isOpen = true;
      socket.close(NORMAL_CLOSURE);
    } else {
      cancel();
    }
  };
  // If a WebSocket fails before it is open, not every browser fires `close`.
  socket.onerror = () => isOpen || cancel();
  socket.onclose = (event: { code: number }) => {
    clearTimeout(timer);
    // Without an answer to the Close frame the code is 1006.
    end(isOpen && event.code === NORMAL_CLOSURE);
  };
  return { passes, cancel };
}

function connectHref(base: URL): string {
  const url = routeUrl(base, '/v1/connect');
  url.protocol = base.protocol === 'https:' ? 'wss:' : 'ws:';
  return url.href;
}

const SUBPROTOCOL = 'weir.v1.json';

/** The close codes of the server, which tell the client what to do next. */
const CODES_MIN = 4_000;
const CODES_MAX = 4_399;

/** RFC 6455, section 7.4.1. */
const NORMAL_CLOSURE = 1_000;
