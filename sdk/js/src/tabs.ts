/** Messages between the tabs of one origin. */

/**
 * Tells other tabs that WebSocket works, and receives the same message from them.
 *
 * The message goes through a `BroadcastChannel`, named after the gateway's address, to pages of the
 * same origin in the same browser. It carries no token, no device, no topic and no time. Nothing is
 * stored. Outside of pages and workers the channel does not exist. Without it, each tab learns by
 * itself.
 *
 * @internal
 */
export class Tabs {
  #channel: BroadcastChannel | undefined;

  constructor(gateway: URL, handleWebSocketWorks: () => void) {
    // Node has the class but no tabs; there the channel would only keep the process alive.
    if ((globalThis as { location?: unknown }).location === undefined) {
      return;
    }
    try {
      this.#channel = new BroadcastChannel(`weir ${gateway.href}`);
      this.#channel.onmessage = ({ data }: MessageEvent<unknown>) => {
        // Any script of the origin may send this message. It is only a hint, and costs at most one
        // attempt.
        if (data === WEBSOCKET_WORKS) {
          handleWebSocketWorks();
        }
      };
    } catch {
      // The class does not exist, or the browser's settings forbid it.
    }
  }

  tellWebSocketWorks(): void {
    try {
      this.#channel?.postMessage(WEBSOCKET_WORKS);
    } catch {
      // The channel was closed meanwhile, for example because the page closes.
    }
  }

  close(): void {
    this.#channel?.close();
    this.#channel = undefined;
  }
}

const WEBSOCKET_WORKS = 'websocket works';
