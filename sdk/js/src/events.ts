/** Handlers by the name of an event. */

/**
 * Names of events and what each of them carries.
 *
 * @internal
 */
export class Emitter<Events extends object> {
  readonly #handlers = new Map<keyof Events, Set<(event: never) => void>>();

  /** Adds a handler; the function returned takes it away. */
  on<Name extends keyof Events>(name: Name, handler: (event: Events[Name]) => void): () => void {
    let handlers = this.#handlers.get(name);
    if (handlers === undefined) {
      handlers = new Set();
      this.#handlers.set(name, handlers);
    }
    // Its own function each time: the same handler added twice is called twice, and each goes by itself.
    const entry = (event: Events[Name]): void => handler(event);
    handlers.add(entry);
    return () => void handlers.delete(entry);
  }

  /**
   * Calls the handlers in the order in which they were added, but none that another one has taken away meanwhile.
   *
   * What one throws is a fault of its own and reported like any uncaught error; the others are called all the same.
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

/** Makes an error as visible as if nobody had caught it. */
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
