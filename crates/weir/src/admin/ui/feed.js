// The stream of figures: what it says now, what it said in the last minutes, and whether it still comes.

import { isOneStart, sample } from './figures.js';

/**
 * Reads /v1/stats/stream. Events: `figures` after each document, `state` when the stream opens, breaks or falls silent.
 */
export class Feed extends EventTarget {
  /** `wait` before the first document, `live`, or `broken`. */
  state = 'wait';
  /** When the last document came, by this page's clock. */
  heardAt = 0;
  /** The newest documents, the last one at the end; all of one start of the gateway. */
  documents = [];
  /** What charts show, the newest at the end. */
  samples = [];
  #source;
  #retry;
  #watch;
  #pause = RETRY_MIN_MS;

  get latest() {
    return this.documents.at(-1);
  }

  /** The document of so many seconds ago, or the oldest one there is. */
  before(seconds) {
    const then = (this.latest?.time_ms ?? 0) - seconds * 1000;
    return this.documents.find(({ time_ms: at }) => at >= then);
  }

  start() {
    this.stop();
    this.#source = new EventSource('/v1/stats/stream');
    this.#source.onmessage = ({ data }) => this.#hear(JSON.parse(data));
    this.#source.onerror = () => this.#lose();
    this.#watch = setInterval(() => {
      if (this.state === 'live' && performance.now() - this.heardAt > SILENCE_MS) {
        this.#lose();
      }
    }, 500);
  }

  stop() {
    this.#source?.close();
    clearInterval(this.#watch);
    clearTimeout(this.#retry);
  }

  #hear(document) {
    if (!isOneStart(document, this.latest)) {
      // Another start of the gateway counts from zero.
      this.documents = [];
    }
    this.samples.push(sample(document, this.latest));
    this.documents.push(document);
    this.samples.splice(0, this.samples.length - SAMPLES_MAX);
    this.documents.splice(0, this.documents.length - DOCUMENTS_MAX);
    this.heardAt = performance.now();
    this.#pause = RETRY_MIN_MS;
    this.#become('live');
    this.dispatchEvent(new Event('figures'));
  }

  /** The browser would try again by itself, but not after an answer that is no stream. */
  #lose() {
    this.stop();
    this.#become('broken');
    this.#retry = setTimeout(() => this.start(), this.#pause);
    this.#pause = Math.min(this.#pause * 2, RETRY_MAX_MS);
  }

  #become(state) {
    if (this.state !== state) {
      this.state = state;
      this.dispatchEvent(new Event('state'));
    }
  }
}

/** Ten minutes. */
const SAMPLES_MAX = 600;
/** Five minutes, for what happened lately. */
const DOCUMENTS_MAX = 300;
/** Three documents that did not come. */
const SILENCE_MS = 3500;
const RETRY_MIN_MS = 500;
const RETRY_MAX_MS = 4000;
