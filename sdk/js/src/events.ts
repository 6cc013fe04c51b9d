/** Event handlers by the name of the event. */

/**
 * Calls the handlers of events; `Events` maps each name to its value.
 *
 * @internal
 */
export class Emitter<Events extends object> {
  readonly #handlers = new Map<keyof Events, Set<(event: never) => void>>();

  /** Adds a handler. Returns a function that removes it. */
  on<Name extends keyof Events>(name: Name, handler: (event: Events[Name]) => void): () => void {
    let handlers = this.#handlers.get(name);
    if (handlers === undefined) {
      handlers = new Set();
      this.#handlers.set(name, handlers);
    }
    // A new function each time: a handler that is added twice is called twice, and is removed
    // separately.
    const entry = (event: Events[Name]): void => handler(event);
    handlers.add(entry);
    return () => void handlers.delete(entry);
  }

  /**
   * Calls the handlers in the order in which they were added, except those that another handler has
   * removed meanwhile.
   *
   * An exception in a handler is reported like any uncaught error. The other handlers are still
   * called.
   */
  emit<Name extends keyof Events>(name: Name, event: Events[Name]): void {
    const handlers = this.#handlers.get(name) ?? new Set();
    for (const handler of [...handlers]) {
      if (!handlers.has(handler)) {
        continue;
      }
      try {
        (handler as (event: Events[Name]) => void)(event);
      } catch (error) {
        report(error);
      }
    }
  }
}

/** Reports an error as if it were uncaught. */
function report(error: unknown): void {
  if (typeof globalThis.reportError === 'function') {
    globalThis.reportError(error);
  } else {
    // Node has no such function.
    queueMicrotask(() => {
      throw error;
    });
  }
}
