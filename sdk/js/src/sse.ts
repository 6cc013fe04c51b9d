/** Parses server-sent events from pieces of text (WHATWG HTML, section 9.2). No I/O. */

import { WeirError } from './errors.js';

/**
 * One event of a stream.
 *
 * @internal
 */
export interface StreamEvent {
  /** The name behind `event:`, or `message`. */
  readonly name: string;
  /** The lines behind `data:`, joined by line feeds. */
  readonly data: string;
}

/**
 * Cuts a stream into events.
 *
 * Shape: keeps the unfinished event, at most `eventCharsMax` characters of it.
 * Errors: an event beyond that limit is a `protocol` error. There is no other error, because lines
 * without a meaning are ignored.
 *
 * @internal
 */
export class EventStreamParser {
  readonly #eventCharsMax: number;
  /** The unfinished line. */
  #line = '';
  /** The last piece ended in a carriage return, to which a following line feed belongs. */
  #skipsLineFeed = false;
  #name = '';
  #data: string[] = [];
  #dataChars = 0;

  constructor(eventCharsMax: number = EVENT_CHARS_MAX) {
    this.#eventCharsMax = eventCharsMax;
  }

  /** Takes the next piece of text. Returns the events that it completes. */
  push(piece: string): StreamEvent[] {
    const events: StreamEvent[] = [];
    let start = this.#skipsLineFeed && piece.startsWith('\n') ? 1 : 0;
    if (piece !== '') {
      this.#skipsLineFeed = false;
    }
    LINE_END.lastIndex = start;
    for (let end = LINE_END.exec(piece); end !== null; end = LINE_END.exec(piece)) {
      const event = this.#takeLine(this.#line + piece.slice(start, end.index));
      this.#line = '';
      if (event !== undefined) {
        events.push(event);
      }
      start = LINE_END.lastIndex;
      this.#skipsLineFeed = end[0] === '\r' && start === piece.length;
    }
    this.#line += piece.slice(start);
    if (this.#line.length + this.#dataChars > this.#eventCharsMax) {
      throw new WeirError('protocol', `an event of more than ${this.#eventCharsMax} characters`);
    }
    return events;
  }

  #takeLine(line: string): StreamEvent | undefined {
    if (line === '') {
      return this.#takeEvent();
    }
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const rest = colon < 0 ? '' : line.slice(colon + 1);
    const value = rest.startsWith(' ') ? rest.slice(1) : rest;
    switch (field) {
      case 'event':
        this.#name = value;
        break;
      case 'data':
        this.#data.push(value);
        this.#dataChars += value.length + 1;
        break;
      default:
      // Ignored: a comment, which has no name before its colon; `id` and `retry`, because the data
      // also contains positions and delays; an unknown field.
    }
    return undefined;
  }

  #takeEvent(): StreamEvent | undefined {
    const { length } = this.#data;
    const event = {
      name: this.#name === '' ? 'message' : this.#name,
      data: this.#data.join('\n'),
    };
    this.#name = '';
    this.#data = [];
    this.#dataChars = 0;
    return length === 0 ? undefined : event;
  }
}

const LINE_END = /\r\n|\r|\n/g;

/**
 * A server's frame has at most 1 MiB in any sensible configuration, and JSON makes at most six
 * bytes of one.
 */
const EVENT_CHARS_MAX = 6 * 1024 * 1024 + 65_536;
