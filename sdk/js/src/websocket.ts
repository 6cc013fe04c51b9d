/** The line over WebSocket, subprotocol `weir.v1.json`: one message in each text frame, both ways. */

import { WeirError } from './errors.js';
import { failure, goodbye } from './line.js';
import type { Ending, Line, LineListener } from './line.js';
import { routeUrl } from './options.js';
import type { WebSocketConstructor, WebSocketLike } from './options.js';
import type { Attempt } from './retry.js';
import { decode, encode } from './wire.js';
import type { ClientMessage } from './wire.js';

/**
 * Opens a WebSocket and says hello on it.
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
    // Kept: a socket that is closed before it is open has an error of its own, which nobody should see as uncaught.
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
  // A page is not told why, and where it fails before it is open not everybody lets a close follow.
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
 * Opens a WebSocket and closes it again, without a word of the protocol.
 *
 * It passes if the server takes the upgrade and answers the Close frame: so frames pass in both directions. An upgrade
 * alone does not show that, since some filters let it through and then hold back every frame. No token is shown, no
 * device is named, so no other connection of the device is replaced.
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
  // Where it fails before it is open not everybody lets a close follow.
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

/** The codes with which the server closes, and which say what to do next. */
const CODES_MIN = 4_000;
const CODES_MAX = 4_399;

/** RFC 6455, section 7.4.1. */
const NORMAL_CLOSURE = 1_000;
