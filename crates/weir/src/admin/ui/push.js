// Pushes a message to a device, a topic or all: first it tells how many it reaches, then whether it has arrived.

import { get, post, segment, withQuery } from './api.js';
import { allow, at, confirmed, facts, h, say } from './dom.js';
import { inState } from './figures.js';
import * as format from './format.js';

export class Push {
  #kinds = KINDS.map(([kind, label]) => ({
    kind,
    label,
    radio: h('input', { type: 'radio', name: 'target', value: kind, id: `to-${kind}` }),
  }));
  #name = h('input', { id: 'push-name', type: 'text', autocomplete: 'off', spellcheck: 'false', maxlength: '255' });
  #nameLabel = h('label', { for: 'push-name' }, 'Device');
  #nameField = h('div', { class: 'field' }, this.#nameLabel, this.#name);
  #text = h('textarea', { id: 'push-text', rows: '5', spellcheck: 'false' });
  #type = h('input', {
    id: 'push-type',
    type: 'text',
    maxlength: '255',
    placeholder: 'text/plain',
    spellcheck: 'false',
  });
  #key = h('input', { id: 'push-key', type: 'text', maxlength: '255', spellcheck: 'false' });
  #ttl = h('input', { id: 'push-ttl', type: 'number', min: '1', max: '86400000', step: '1' });
  #said = h('p', { class: 'said', role: 'status' });
  #result = h('div', { class: 'result' });
  #sending = false;
  #sends = 0;

  constructor(session) {
    const send = allow(session, 'publish', h('button', { type: 'submit', class: 'main' }, 'Check and send …'));
    const radios = this.#kinds.map(({ label, radio }) => h('label', { class: 'choice' }, radio, label));
    const form = h(
      'form',
      { class: 'card form', onsubmit: (event) => this.#submit(event), onchange: () => this.#fit() },
      h('fieldset', {}, h('legend', {}, 'To'), h('div', { class: 'row' }, radios)),
      this.#nameField,
      h('div', { class: 'field' }, h('label', { for: 'push-text' }, 'Message'), this.#text),
      h(
        'details',
        {},
        h('summary', {}, 'More'),
        h(
          'div',
          { class: 'grid three' },
          h('div', { class: 'field' }, h('label', { for: 'push-type' }, 'Content type'), this.#type),
          h('div', { class: 'field' }, h('label', { for: 'push-key' }, 'Key'), this.#key),
          h('div', { class: 'field' }, h('label', { for: 'push-ttl' }, 'Time to live, ms'), this.#ttl),
        ),
      ),
      h('div', { class: 'row' }, send),
    );
    at('push').replaceChildren(
      at('push-title'),
      h('div', { class: 'grid two' }, form, h('div', {}, this.#said, this.#result)),
    );
    this.#kinds[0].radio.checked = true;
    this.#fit();
  }

  open(query) {
    for (const { kind, radio } of this.#kinds) {
      if (query.has(kind)) {
        radio.checked = true;
        this.#name.value = query.get(kind);
      }
    }
    this.#fit();
  }

  #fit() {
    const { kind, label } = this.#chosen();
    this.#nameField.hidden = kind === 'all';
    this.#name.required = kind !== 'all';
    say(this.#nameLabel, label);
  }

  #chosen() {
    return this.#kinds.find(({ radio }) => radio.checked);
  }

  async #submit(event) {
    event.preventDefault();
    if (this.#sending) {
      return;
    }
    this.#sending = true;
    const { kind } = this.#chosen();
    const name = this.#name.value;
    this.#result.replaceChildren();
    try {
      say(this.#said, 'Looking how many it reaches …');
      const reach = await reached(kind, name);
      const isSure = await confirmed({
        title: `Send to ${reach.text}?`,
        text: [kind === 'all' ? 'To every connection of this gateway.' : `To ${kind} “${name}”.`, reach.more].filter(
          Boolean,
        ),
        verb: 'Send it',
        isDangerous: kind === 'all',
      });
      if (isSure) {
        await this.#send(kind, name);
      } else {
        say(this.#said, 'Not sent.');
      }
    } catch (error) {
      say(this.#said, `Not sent: ${error.message}.`);
    } finally {
      this.#sending = false;
    }
  }

  async #send(kind, name) {
    const message = { [kind]: kind === 'all' ? true : name, text: this.#text.value };
    const optional = {
      content_type: this.#type.value,
      key: this.#key.value,
      ttl_ms: this.#ttl.value === '' ? '' : Number(this.#ttl.value),
    };
    Object.assign(message, Object.fromEntries(Object.entries(optional).filter(([, value]) => value !== '')));
    const before = await get('/v1/stats');
    const began = performance.now();
    const answer = await post('/v1/publish', message, { 'Idempotency-Key': key() });
    const took = performance.now() - began;
    say(this.#said, `Accepted after ${format.count(took)} ms, for ${format.plural(answer.connections, 'connection')}.`);
    const progress = { taken: h('span', {}, 'looking …'), delivered: h('span', {}, '–') };
    this.#result.replaceChildren(
      h(
        'div',
        { class: 'card' },
        h('h2', {}, 'Sent'),
        facts([
          ['id', answer.id],
          ['connections', format.count(answer.connections)],
          ['offset', answer.offset && format.count(answer.offset)],
          ['epoch', answer.epoch],
          ['nodes', answer.nodes === undefined ? undefined : JSON.stringify(answer.nodes)],
          ['taken', progress.taken],
          ['delivered by this node since', progress.delivered],
        ]),
      ),
    );
    this.#sends += 1;
    const sends = this.#sends;
    // It goes on while the next push is written.
    watch(kind, name, before, progress, () => sends === this.#sends).catch(() => say(progress.taken, 'not known'));
  }
}

const KINDS = [
  ['device', 'Device'],
  ['topic', 'Topic'],
  ['all', 'Everyone'],
];

/** How many connections a push would reach now. */
async function reached(kind, name) {
  const of = (count) => (count === 0 ? 'no connection' : format.plural(count, 'connection'));
  if (kind === 'device') {
    try {
      const { connections } = await get(`/v1/devices/${segment(name)}`);
      return {
        text: of(connections.length),
        more: connections.length === 0 ? 'The device is known, but not connected: the message is lost.' : undefined,
      };
    } catch (error) {
      if (error.status !== 404) {
        throw error;
      }
      return { text: of(0), more: 'The device is not known here: the message is lost.' };
    }
  }
  if (kind === 'topic') {
    const { topics } = await get(withQuery('/v1/topics', { prefix: name, limit: 1 }));
    const found = topics.find(({ topic }) => topic === name);
    return {
      text: of(found?.subscribers ?? 0),
      more: found === undefined ? 'Nobody subscribes to the topic at this node.' : undefined,
    };
  }
  const stats = await get('/v1/stats');
  const { nodes } = await get('/v1/nodes');
  const others = nodes.filter(({ own }) => !own).reduce((total, { about }) => total + (about?.connections ?? 0), 0);
  return {
    text: of(inState(stats, 'settled') + others),
    more: nodes.length > 1 ? `They are at ${format.plural(nodes.length, 'node')}.` : undefined,
  };
}

/**
 * Tells how far the message is: which of its connections have nothing left to take, and how much this node has delivered
 * meanwhile. It looks until all have taken everything, or some seconds are over.
 */
async function watch(kind, name, before, { taken, delivered }, isWanted) {
  const began = performance.now();
  while (isWanted()) {
    const now = await get('/v1/stats');
    const waiting = await waitingOf(kind, name);
    say(delivered, format.plural(now.messages.delivered - before.messages.delivered, 'message'));
    const isOver = performance.now() - began > WATCH_MS;
    if (waiting === undefined) {
      say(taken, 'not known for this many connections');
    } else if (waiting.slow === 0) {
      say(
        taken,
        waiting.all === 0
          ? 'there is no connection now'
          : `nothing waits for ${waiting.all === 1 ? 'its connection' : `any of its ${format.count(waiting.all)} connections`} any more`,
      );
    } else {
      say(
        taken,
        `${format.count(waiting.all - waiting.slow)} of ${format.plural(waiting.all, 'connection')} have taken everything${isOver ? `; ${format.count(waiting.slow)} are slow` : ' …'}`,
      );
    }
    if (isOver || waiting?.slow === 0) {
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

/** The connections that the message was for, and those for which something waits. `undefined`: they are too many to ask. */
async function waitingOf(kind, name) {
  if (kind === 'all') {
    return undefined;
  }
  const { connections, next_cursor: more } = await get(withQuery('/v1/connections', { [kind]: name, limit: 1000 }));
  const slow = connections.filter(({ queued_bytes: bytes }) => bytes > 0).length;
  return more === null || more === undefined ? { all: connections.length, slow } : undefined;
}

/** A text that no other push has, so that a repeated request is no second message. */
function key() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

const WATCH_MS = 5000;
