// Why connections ended: the last ends that the gateway keeps.

import { get, withQuery } from './api.js';
import { at, h, say, table } from './dom.js';
import * as format from './format.js';

export class Ends {
  #feed;
  #device = h('input', {
    id: 'ends-device',
    type: 'search',
    autocomplete: 'off',
    spellcheck: 'false',
    maxlength: '255',
  });
  #reason = h('select', { id: 'ends-reason' }, h('option', { value: '' }, 'any reason'));
  #said = h('p', { class: 'said', role: 'status' });
  #result = h('div', { class: 'result' });

  constructor(feed) {
    this.#feed = feed;
    const go = (event) => {
      event.preventDefault();
      const hash = `#${withQuery('/ends', { device: this.#device.value.trim(), reason: this.#reason.value })}`;
      if (location.hash === hash) {
        this.#look();
      } else {
        location.hash = hash;
      }
    };
    at('ends').replaceChildren(
      at('ends-title'),
      h(
        'form',
        { class: 'card filter', role: 'search', 'aria-label': 'Filter the ends', onsubmit: go },
        h('div', { class: 'field' }, h('label', { for: 'ends-device' }, 'Device'), this.#device),
        h('div', { class: 'field' }, h('label', { for: 'ends-reason' }, 'Reason'), this.#reason),
        h('button', { type: 'submit' }, 'Show'),
      ),
      this.#said,
      this.#result,
    );
  }

  open(query) {
    this.#device.value = query.get('device') ?? '';
    this.#fill(query.get('reason') ?? '');
    this.#look();
  }

  /** The reasons that the figures name. */
  #fill(chosen) {
    const known = Object.keys(this.#feed.latest?.connections.closed ?? {});
    const reasons = [...new Set([...known, ...(chosen === '' ? [] : [chosen])])].sort();
    this.#reason.replaceChildren(
      h('option', { value: '' }, 'any reason'),
      ...reasons.map((reason) => h('option', { value: reason }, reason)),
    );
    this.#reason.value = chosen;
  }

  draw() {
    if (this.#reason.options.length <= 1 && !at('ends').hidden) {
      this.#fill(this.#reason.value);
    }
  }

  async #look() {
    const filter = { device: this.#device.value.trim(), reason: this.#reason.value };
    try {
      const { closes, kept } = await get(withQuery('/v1/closes', { ...filter, limit: SHOWN }));
      const isFull =
        closes.length === SHOWN ? `the last ${SHOWN} that match` : `${format.count(closes.length)} that match`;
      say(this.#said, `${isFull}, of ${format.plural(kept, 'end')} that the gateway keeps`);
      this.#result.replaceChildren(
        h(
          'div',
          { class: 'card' },
          h('div', { class: 'list' }, table('Ends of connections', COLUMNS, closes, 'No end matches.')),
        ),
      );
    } catch (error) {
      say(
        this.#said,
        error.status === 404
          ? 'This gateway does not offer the ends of connections: it has no /v1/closes. The overview counts them by reason.'
          : `${error.message}.`,
      );
      this.#result.replaceChildren();
    }
  }
}

const COLUMNS = [
  { title: 'time', of: ({ at_ms: when }) => format.moment(when) },
  {
    title: 'device',
    of: ({ device }) =>
      device === null ? '–' : h('a', { class: 'id', href: `#${withQuery('/look-up', { device })}` }, device),
  },
  {
    title: 'reason',
    of: ({ reason, code }) => [
      h('code', {}, reason),
      code === null || code === undefined ? '' : h('span', { class: 'sub' }, String(code)),
    ],
  },
  { title: 'lived', of: ({ age_ms: age }) => format.span(age), kind: 'number' },
  {
    title: 'spoke',
    of: ({ transport, protocol, client }) => [
      transport === 'tls' ? `${protocol}, TLS` : (protocol ?? '–'),
      client ? h('span', { class: 'sub' }, client) : '',
    ],
  },
  { title: 'from', of: ({ peer, source }) => peer ?? source ?? '–' },
  { title: 'connection', of: ({ connection }) => (connection === null ? '–' : h('code', {}, connection)) },
];

const SHOWN = 200;
