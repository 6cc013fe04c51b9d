// This node: empties it for maintenance, and shows the acts of administrators where the gateway tells them.

import { get, post, remove } from './api.js';
import { allow, at, confirmed, facts, h, say, show, table } from './dom.js';
import { inState } from './figures.js';
import * as format from './format.js';

export class OwnNode {
  #feed;
  #state = h('div', {});
  #share = h('input', {
    id: 'drain-share',
    type: 'number',
    min: '1',
    max: '100',
    step: '1',
    value: '100',
    required: true,
  });
  #lead = h('input', { id: 'drain-lead', type: 'text', value: '5s', pattern: '[0-9]+(ms|s|m|h)', required: true });
  #over = h('input', { id: 'drain-over', type: 'text', value: '60s', pattern: '[0-9]+(ms|s|m|h)', required: true });
  #begin = h('button', { type: 'submit', class: 'danger' }, 'Drain …');
  #cancel = h('button', { type: 'button', onclick: () => this.#end() }, 'Cancel the drain');
  #said = h('p', { class: 'said', role: 'status' });
  #acts = h('div', {});
  #may;

  constructor(session, feed) {
    this.#feed = feed;
    this.#may = session.may.includes('operate');
    at('own-node').replaceChildren(
      at('own-node-title'),
      h(
        'div',
        { class: 'grid two' },
        h(
          'div',
          { class: 'card' },
          h('h2', {}, 'Drain'),
          this.#state,
          h('div', { class: 'row' }, this.#may ? this.#cancel : undefined),
          this.#said,
        ),
        h(
          'form',
          { class: 'card form', onsubmit: (event) => this.#submit(event) },
          h('h2', {}, 'Empty this node'),
          h(
            'p',
            {},
            'The node becomes not ready, and tells its connections to come back elsewhere. It goes on serving the others.',
          ),
          h(
            'div',
            { class: 'grid three' },
            h('div', { class: 'field' }, h('label', { for: 'drain-share' }, 'Share, %'), this.#share),
            h('div', { class: 'field' }, h('label', { for: 'drain-lead' }, 'Lead'), this.#lead),
            h('div', { class: 'field' }, h('label', { for: 'drain-over' }, 'Over'), this.#over),
          ),
          h(
            'p',
            { class: 'note' },
            'Lead: time before the first connection is told. Over: time until the last one is. Such as 30s or 10m.',
          ),
          h('div', { class: 'row' }, allow(session, 'operate', this.#begin)),
        ),
      ),
      this.#acts,
    );
  }

  open() {
    this.#listActs();
  }

  draw() {
    const { latest } = this.#feed;
    if (latest === undefined || at('own-node').hidden) {
      return;
    }
    const { drain } = latest;
    const rows = [
      ['state', drain.state],
      ['since', format.moment(drain.since_ms)],
      ['share', drain.share === undefined ? undefined : format.share(drain.share)],
      [
        'closed',
        drain.state === 'idle' ? undefined : `${format.count(drain.closed)} of ${format.count(drain.to_close)}`,
      ],
      ['connections now', format.count(drain.connections)],
      ['HTTP connections now', format.count(drain.http_connections)],
    ];
    show(this.#state, JSON.stringify(rows), () => facts(rows));
    const goesOn =
      drain.state === 'announced' || drain.state === 'draining' || (drain.state === 'drained' && drain.share === 1);
    this.#cancel.hidden = !goesOn;
    this.#begin.disabled = goesOn || !this.#may;
  }

  async #submit(event) {
    event.preventDefault();
    const share = Number(this.#share.value) / 100;
    const count = Math.round(inState(this.#feed.latest, 'settled') * share);
    const isSure = await confirmed({
      title: 'Drain this node?',
      text: [
        `${format.plural(count, 'connection')} will be told to leave, over ${this.#over.value}, the first one in ${this.#lead.value}.`,
        share === 1
          ? 'The node then admits no connection until the drain is cancelled.'
          : 'The node goes on admitting connections.',
      ],
      verb: 'Drain it',
      isDangerous: true,
    });
    if (isSure) {
      await this.#do(
        () => post('/v1/drain', { share, lead: this.#lead.value, over: this.#over.value }),
        'The drain begins.',
      );
    }
  }

  async #end() {
    await this.#do(() => remove('/v1/drain'), 'The drain is cancelled.');
  }

  async #do(act, done) {
    try {
      await act();
      say(this.#said, done);
      this.#listActs();
    } catch (error) {
      say(this.#said, `Refused: ${error.message}.`);
    }
  }

  async #listActs() {
    if (!this.#may) {
      return;
    }
    try {
      const { entries } = await get('/v1/audit?limit=50');
      this.#acts.replaceChildren(
        h(
          'div',
          { class: 'card' },
          h('h2', {}, 'Acts of administrators'),
          h('div', { class: 'list' }, table('Acts', ACTS, entries, 'There are none since the start.')),
        ),
      );
    } catch {
      // This gateway does not tell them.
      this.#acts.replaceChildren();
    }
  }
}

const ACTS = [
  { title: 'time', of: ({ at_ms: when }) => format.moment(when) },
  { title: 'who', of: ({ who }) => who },
  { title: 'from', of: ({ from }) => from },
  { title: 'act', of: ({ act }) => h('code', {}, act) },
  { title: 'what', of: ({ what }) => (typeof what === 'string' ? what : JSON.stringify(what ?? null)) },
  { title: 'outcome', of: ({ outcome }) => outcome },
];
