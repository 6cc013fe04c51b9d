// The first page: key figures, charts, and the parts of the gateway one by one.

import { get } from './api.js';
import { Chart } from './charts.js';
import { DETAILS, draw } from './details.js';
import { at, h, say, show } from './dom.js';
import { between, inState, percentile, sum } from './figures.js';
import * as format from './format.js';

/** The page; `feed` has the figures. */
export class Overview {
  #feed;
  #tiles = new Map();
  #charts;
  #details = new Map();
  #rest = h('div', { class: 'details' });
  #asked = -REST_MS;
  #memory;
  #nodes;

  constructor(feed) {
    this.#feed = feed;
    this.#charts = charts();
    const tiles = TILES.map(([name]) => {
      const tile = { value: h('dd', { class: 'big' }, '–'), more: h('dd', { class: 'more' }, ' ') };
      this.#tiles.set(name, tile);
      return h('div', { class: 'tile' }, h('dt', {}, name), tile.value, tile.more);
    });
    const details = DETAILS.map(([name, note]) => {
      const place = h('div', {});
      this.#details.set(name, place);
      return h(
        'article',
        { class: 'card' },
        h('h3', {}, name),
        place,
        note === undefined ? undefined : h('p', { class: 'note' }, note),
      );
    });
    this.#rest.append(...details);
    at('overview').append(
      h('dl', { class: 'tiles' }, tiles),
      h('h2', { class: 'unseen' }, 'The last minutes'),
      h(
        'div',
        { class: 'grid charts' },
        this.#charts.map(({ element }) => element),
      ),
      h('h2', {}, 'Part by part'),
      this.#rest,
    );
    new ResizeObserver(() => this.#charts.forEach((chart) => chart.resize())).observe(at('overview'));
  }

  /** Draws the newest figures. */
  draw() {
    const { latest, samples } = this.#feed;
    if (latest === undefined || at('overview').hidden) {
      return;
    }
    const lately = this.#feed.before(10);
    for (const [name, of] of TILES) {
      const [value, more] = of(latest, samples.at(-1), lately);
      const tile = this.#tiles.get(name);
      say(tile.value, value);
      say(tile.more, more);
    }
    const age = samples.at(-1).at - samples[0].at;
    const span = SPANS.find((seconds) => seconds >= age) ?? SPANS.at(-1);
    this.#charts.forEach((chart) => chart.draw(samples, span, latest.upgrade?.at_ms / 1000));
    this.#drawDetails(latest, this.#feed.before(300));
    this.#askRest();
  }

  /** Takes the colours anew. */
  renew() {
    this.#charts.forEach((chart) => chart.renew());
  }

  #drawDetails(now, before) {
    for (const [name, , make] of DETAILS) {
      const content = make(now, before, { memory: this.#memory, nodes: this.#nodes });
      show(this.#details.get(name), JSON.stringify(content), () => content.map(draw));
    }
  }

  /** Memory and nodes are not in the stream: they cost more. They are asked for while somebody can see them. */
  async #askRest() {
    const now = performance.now();
    const { top, bottom } = this.#rest.getBoundingClientRect();
    const isSeen = !document.hidden && top < innerHeight && bottom > 0;
    if (!isSeen || now - this.#asked < REST_MS) {
      return;
    }
    this.#asked = now;
    const [memory, nodes] = await Promise.allSettled([get('/v1/debug/memory'), get('/v1/nodes')]);
    this.#memory = memory.value;
    this.#nodes = nodes.value;
    this.#drawDetails(this.#feed.latest, this.#feed.before(300));
  }
}

const REST_MS = 10_000;
/** How many seconds charts show, at most: no more than there is to see. */
const SPANS = [30, 60, 120, 300, 600];

const perSecond = (value) => (value === undefined ? '–' : `${format.short(value)}/s`);

const TILES = [
  [
    'Connections',
    (now, one) => [
      format.count(inState(now, 'settled')),
      `${perSecond(one.opened)} opened, ${perSecond(one.closed)} closed`,
    ],
  ],
  ['Messages out', (_, one) => [perSecond(one.delivered), `${format.bytes(one.sent)}/s`]],
  ['Messages in', (now, one) => [perSecond(one.published), `${format.plural(now.connections.topics, 'topic')}`]],
  [
    'Delivery lag, p99',
    (now, _, lately) => {
      const lag = between(Object.values(now.times.lag), Object.values(lately.times.lag));
      const of = (share) => percentile(lag, now.times.bounds_s, share);
      return lag.every((count) => count === 0)
        ? ['–', 'nothing sent in 10 s']
        : [format.time(of(0.99)), `half within ${format.time(of(0.5))}`];
    },
  ],
  ['Stalled', (now) => [format.count(now.connections.stalled), `${format.bytes(now.budget.used_bytes)} held`]],
  [
    'Memory',
    (now, one) => [
      format.bytes(now.process.resident_bytes),
      one.perConnection === null
        ? `${format.bytes(now.process.allocated_bytes)} on the heap`
        : `${format.bytes(one.perConnection)} a connection`,
    ],
  ],
  [
    'Processor',
    (now, one) => [
      one.cpu === undefined ? '–' : `${format.short(one.cpu)} cores`,
      `busiest shard ${format.share(one.busyMax)}`,
    ],
  ],
];

function charts() {
  const level = (value) => format.short(value);
  return [
    new Chart(
      'Connections',
      [
        { name: 'TCP', of: ({ tcp }) => tcp, colour: 'a', isFilled: true },
        { name: 'TLS', of: ({ tls }) => tls, colour: 'b', isFilled: true },
        { name: 'not settled', of: ({ unsettled }) => unsettled, colour: 'c' },
        { name: 'stalled', of: ({ stalled }) => stalled, colour: 'd' },
      ],
      level,
    ),
    new Chart(
      'Messages',
      [
        { name: 'out', of: ({ delivered }) => delivered, colour: 'a', isFilled: true },
        { name: 'in', of: ({ published }) => published, colour: 'c' },
      ],
      perSecond,
    ),
    new Chart(
      'Delivery lag',
      [
        { name: 'half', of: ({ lagHalf }) => lagHalf, colour: 'b' },
        { name: '99 %', of: ({ lagMost }) => lagMost, colour: 'a' },
        { name: 'longest', of: ({ lagMax }) => lagMax, colour: 'c', isDashed: true },
      ],
      format.time,
      { isLog: true, note: 'from acceptance to send, missed messages too' },
    ),
    new Chart(
      'Fan-out time',
      [
        { name: 'half', of: ({ fanoutHalf }) => fanoutHalf, colour: 'b' },
        { name: '99 %', of: ({ fanoutMost }) => fanoutMost, colour: 'a' },
        { name: 'longest', of: ({ fanoutMax }) => fanoutMax, colour: 'c', isDashed: true },
      ],
      format.time,
      { isLog: true, note: 'from a message’s first send to its last' },
    ),
    new Chart(
      'Load',
      [
        { name: 'busiest shard', of: ({ busyMax }) => busyMax, colour: 'a', isFilled: true },
        { name: 'mean of shards', of: ({ busy }) => busy && sum(busy) / busy.length, colour: 'b' },
      ],
      format.share,
      { most: 1 },
    ),
    new Chart(
      'TLS handshakes',
      [
        { name: 'full', of: ({ full }) => full, colour: 'a' },
        { name: 'resumed', of: ({ resumed }) => resumed, colour: 'b', isFilled: true },
        { name: 'failed', of: ({ failed }) => failed, colour: 'd' },
      ],
      perSecond,
    ),
    new Chart(
      'Coming and going',
      [
        { name: 'opened', of: ({ opened }) => opened, colour: 'b', isFilled: true },
        { name: 'closed', of: ({ closed }) => closed, colour: 'c' },
        { name: 'refused', of: ({ refused }) => refused, colour: 'd' },
      ],
      perSecond,
    ),
    new Chart(
      'Memory',
      [
        { name: 'resident', of: ({ resident }) => resident, colour: 'a' },
        { name: 'heap', of: ({ allocated }) => allocated, colour: 'b', isFilled: true },
        { name: 'byte budget used', of: ({ queued }) => queued, colour: 'c' },
      ],
      format.bytes,
    ),
    new Chart(
      'Bytes',
      [
        { name: 'out', of: ({ sent }) => sent, colour: 'a', isFilled: true },
        { name: 'in', of: ({ received }) => received, colour: 'c' },
      ],
      (value) => `${format.bytes(value)}/s`,
    ),
  ];
}
