/** Calls on one connection: those of this client to backends, and those of backends to this client. */

import { WeirError } from './errors.js';
import type { ClientMessage, Payload, ServerMessage } from './wire.js';

/** A call to a backend. Without `text` and `data` its content is empty. */
export interface Call {
  /** What is called: letters, digits, `.`, `_` and `-`, in segments joined by `/`. */
  readonly method: string;
  /** The content as text. */
  readonly text?: string | undefined;
  /** The content as bytes. */
  readonly data?: Uint8Array | undefined;
  /** Media type of the content. */
  readonly contentType?: string | undefined;
  /** How long to wait for the answer, in milliseconds. Default: as long as the server permits. */
  readonly deadlineMs?: number | undefined;
  /** Gives the call up when it is aborted. */
  readonly signal?: AbortSignal | undefined;
}

/** The answer to a call. */
export type Answer = Payload & {
  /** Media type, or empty. */
  readonly contentType: string;
  /** The status that the backend has answered with: of HTTP, or of gRPC. 0: none. */
  readonly status: number;
};

/** A call of a backend to this client. */
export type IncomingCall = Payload & {
  /** What is called. */
  readonly method: string;
  /** Media type, or empty. */
  readonly contentType: string;
  /** The time that is left for the answer, in milliseconds. */
  readonly deadlineMs: number;
  /** Aborted when nobody waits for the answer any more. */
  readonly signal: AbortSignal;
};

/** What a handler answers: text, bytes, or one of both with its media type. */
export type CallResult = string | Uint8Array | (Payload & { readonly contentType?: string | undefined });

/** Answers calls of backends. */
export type CallHandler = (call: IncomingCall) => CallResult | Promise<CallResult>;

/** An error that a handler answers with. Any other error becomes `failed`, without its text. */
export class CallError extends Error {
  /** A word for programs, at most 64 bytes. `unsupported`: there is no such method. */
  readonly code: string;

  constructor(code: string, message = '') {
    super(message);
    this.name = 'CallError';
    this.code = code === '' ? FAILED : code;
  }
}

/**
 * The calls of one connection.
 *
 * Limits: `CALLS_WAITING_MAX` of this client's wait; the server bounds those of backends.
 *
 * @internal
 */
export class Calls {
  readonly #send: (message: ClientMessage) => void;
  readonly #handler: CallHandler | undefined;
  readonly #waiting = new Map<number, Waiting>();
  readonly #running = new Map<number, AbortController>();
  #last = 0;

  constructor(send: (message: ClientMessage) => void, handler: CallHandler | undefined) {
    this.#send = send;
    this.#handler = handler;
  }

  /** Calls a backend. */
  call(call: Call): Promise<Answer> {
    const { method, signal } = call;
    if (signal?.aborted === true) {
      return Promise.reject(cancelled(method));
    }
    if (this.#waiting.size >= CALLS_WAITING_MAX) {
      const text = `${CALLS_WAITING_MAX} calls wait for their answer already`;
      return Promise.reject(new WeirError('busy', text));
    }
    this.#last = (this.#last % ID_MAX) + 1;
    const id = this.#last;
    return new Promise((resolve, reject) => {
      // First, because a call that cannot be sent waits for no answer.
      this.#send({ kind: 'call', id, call });
      const abort = (): void => {
        if (this.#take(id) !== undefined) {
          this.#send({ kind: 'cancel', id });
          reject(cancelled(method));
        }
      };
      signal?.addEventListener('abort', abort);
      const forget = (): void => signal?.removeEventListener('abort', abort);
      this.#waiting.set(id, { resolve, reject, forget });
    });
  }

  handleAnswer(told: Extract<ServerMessage, { kind: 'answer' }>): void {
    const waiting = this.#take(told.id);
    if (told.code === '') {
      waiting?.resolve(told.answer);
    } else {
      waiting?.reject(new WeirError(told.code, told.message));
    }
  }

  handleCall(told: Extract<ServerMessage, { kind: 'call' }>): void {
    const { id, call } = told;
    const running = new AbortController();
    this.#running.set(id, running);
    const answer = async (): Promise<CallResult> => {
      if (this.#handler === undefined) {
        throw new CallError('unsupported', 'this program answers no calls');
      }
      return this.#handler({ ...call, signal: running.signal });
    };
    const done = (message: ClientMessage): void => {
      if (this.#running.delete(id)) {
        this.#send(message);
      }
    };
    answer().then(
      (result) => done({ kind: 'answer', id, code: '', message: '', ...resultOf(result) }),
      (error: unknown) => {
        const { code, message } =
          error instanceof CallError ? error : new CallError(FAILED, 'the handler has failed');
        done({ kind: 'answer', id, code, message, payload: undefined, contentType: undefined });
      },
    );
  }

  handleCancel(id: number): void {
    const running = this.#running.get(id);
    this.#running.delete(id);
    running?.abort();
  }

  /** Ends all calls with their connection. */
  end(): void {
    for (const { reject, forget } of this.#waiting.values()) {
      forget();
      const text = 'there was no answer: the backend may have carried the call out or not';
      reject(new WeirError('connection_lost', text));
    }
    this.#waiting.clear();
    const running = [...this.#running.values()];
    this.#running.clear();
    for (const each of running) {
      each.abort();
    }
  }

  #take(id: number): Waiting | undefined {
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    waiting?.forget();
    return waiting;
  }
}

interface Waiting {
  readonly resolve: (answer: Answer) => void;
  readonly reject: (error: WeirError) => void;
  readonly forget: () => void;
}

function resultOf(result: CallResult): { payload: Payload; contentType: string | undefined } {
  if (typeof result === 'string') {
    return { payload: { text: result }, contentType: undefined };
  }
  if (result instanceof Uint8Array) {
    return { payload: { data: result }, contentType: undefined };
  }
  return { payload: result, contentType: result.contentType };
}

function cancelled(method: string): WeirError {
  return new WeirError('cancelled', `the call of ${JSON.stringify(method)} was given up`);
}

const FAILED = 'failed';

/** More than a server lets one connection have. */
const CALLS_WAITING_MAX = 1_024;

/** Ids have 32 bits. */
const ID_MAX = 0xffff_ffff;
