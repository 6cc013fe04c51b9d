/** What the tabs of one origin tell each other. */

/**
 * Tells the other tabs that WebSocket works, and hears it from them.
 *
 * The word goes through a `BroadcastChannel`, named after the gateway's address, to pages of the same origin in the same
 * browser. It carries no token, no device, no topic and no time. Nothing is stored. Outside of pages and workers there
 * is no such channel; where it cannot be used, each tab learns by itself.
 *
 * @internal
 */
export class Tabs {
  #channel: BroadcastChannel | undefined;

  constructor(gateway: URL, handleWebSocketWorks: () => void) {
    // Node has the class, but no tabs; there it would only keep the process alive.
    if ((globalThis as { location?: unknown }).location === undefined) {
      return;
    }
    try {
      this.#channel = new BroadcastChannel(`weir ${gateway.href}`);
      this.#channel.onmessage = ({ data }: MessageEvent<unknown>) => {
        // Any script of the origin may write here: the word is a hint, and costs one attempt at most.
        if (data === WEBSOCKET_WORKS) {
          handleWebSocketWorks();
        }
      };
    } catch {
      // No such class, or the browser's settings forbid it.
    }
  }

  tellWebSocketWorks(): void {
    try {
      this.#channel?.postMessage(WEBSOCKET_WORKS);
    } catch {
      // The channel was closed meanwhile, as of a page that goes away.
    }
  }

  close(): void {
    this.#channel?.close();
    this.#channel = undefined;
  }
}

const WEBSOCKET_WORKS = 'websocket works';
