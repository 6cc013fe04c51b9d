// The parts of the gateway one by one, below the charts.

import { facts, h, table } from './dom.js';
import { growth, inState, sum } from './figures.js';
import * as format from './format.js';

/** What a detail shows is plain data first, so that it is drawn again only when it changes. */
export function draw(part) {
  switch (part.kind) {
    case 'counts':
      return table(
        part.caption,
        [
          { title: part.title, of: ([name]) => h('code', {}, name) },
          { title: '5 min', of: ([, , lately]) => format.count(lately), kind: 'number' },
          { title: 'since start', of: ([, all]) => format.count(all), kind: 'number' },
        ],
        part.rows,
        part.empty,
      );
    case 'bars':
      return h(
        'ul',
        { class: 'bars' },
        part.rows.map(({ name, value, share, isHigh }) =>
          h(
            'li',
            {},
            h('span', { class: 'key' }, name),
            h('span', { class: 'value' }, value),
            h('meter', {
              class: isHigh ? 'high' : undefined,
              value: String(share),
              min: '0',
              max: '1',
              'aria-label': name,
            }),
          ),
        ),
      );
    case 'parts':
      return h(
        'ul',
        { class: 'parts' },
        part.rows.map(({ name, state, text }) =>
          h(
            'li',
            { 'data-state': state },
            h('span', { class: 'key' }, name),
            h('span', { class: 'state' }, state),
            text ? h('span', { class: 'text' }, text) : undefined,
          ),
        ),
      );
    case 'facts':
      return facts(part.rows);
    case 'table':
      return table(
        part.caption,
        part.columns.map(({ title, kind }, index) => ({ title, kind, of: (row) => row[index] })),
        part.rows,
        part.empty,
      );
    default:
      return h('p', { class: 'empty' }, part.text);
  }
}

/** Rows of counts, those that grew lately first. Zeros are left out. */
function counted(now, before) {
  const lately = growth(now, before);
  const rows = Object.entries(now)
    .filter(([, all]) => all > 0)
    .map(([name, all]) => [name, all, lately[name] ?? 0]);
  return rows.sort((one, other) => other[2] - one[2] || other[1] - one[1]);
}

const counts = (caption, title, now, before, empty) => ({
  kind: 'counts',
  caption,
  title,
  rows: counted(now, before),
  empty,
});

/**
 * Each detail: its title, a note, and what it shows of the newest figures, of those of five minutes ago, and of the rest.
 */
export const DETAILS = [
  [
    'Parts',
    undefined,
    (now) => [
      {
        kind: 'parts',
        rows: [
          ...now.parts.map(({ part, state, cause, since_ms: since }) => ({
            name: part,
            state,
            text: cause ? `${cause} (since ${format.moment(since)})` : undefined,
          })),
          ...(now.cluster === null ? [] : [{ name: 'broker', state: now.cluster.broker_reachable ? 'ok' : 'failed' }]),
          ...(now.store === null ? [{ name: 'store', state: 'none' }] : []),
        ],
      },
    ],
  ],
  [
    'Why connections ended',
    undefined,
    (now, before) => [
      counts(
        'Ends by reason',
        'reason',
        now.connections.closed,
        before.connections.closed,
        'No connection has ended since the start.',
      ),
    ],
  ],
  [
    'What was refused',
    undefined,
    (now, before) => {
      const named = ({ connections, messages }) =>
        Object.fromEntries([
          ...Object.entries(connections.refused).map(([cause, count]) => [`connection: ${cause}`, count]),
          ...Object.entries(messages.publish_refused).map(([cause, count]) => [`message: ${cause}`, count]),
          ...Object.entries(messages.subscribe_refused).map(([cause, count]) => [`subscription: ${cause}`, count]),
          ...Object.entries(messages.dropped).map(([rule, count]) => [`dropped: ${rule}`, count]),
          ['credentials', connections.authentications.refused],
        ]);
      return [
        counts('Refusals by cause', 'cause', named(now), named(before), 'Nothing has been refused since the start.'),
      ];
    },
  ],
  ['Where the bytes are', undefined, (now, _, { memory }) => [where(memory)]],
  [
    'Byte budget',
    'What waits for slow connections, is on its way, or is retained.',
    ({ budget, messages }) => [
      {
        kind: 'bars',
        rows: [
          bar('all', budget.used_bytes, budget.bytes_max),
          ...Object.entries(budget.shares).map(([name, { used_bytes: used, bytes_max: max }]) => bar(name, used, max)),
          ...(messages.retained_bytes_max > 0
            ? [bar('retained by topics', messages.retained_bytes, messages.retained_bytes_max)]
            : []),
        ],
      },
    ],
  ],
  [
    'Shards',
    undefined,
    (now, before) => [
      {
        kind: 'table',
        caption: 'Shards',
        columns: [
          { title: 'shard' },
          { title: 'connections', kind: 'number' },
          { title: 'busy, 5 min', kind: 'number' },
          { title: 'longest turn', kind: 'number' },
          { title: 'waiting', kind: 'number' },
        ],
        rows: now.shards.map((shard, index) => {
          const seconds = (now.uptime_ms - before.uptime_ms) / 1000;
          const busy = seconds > 0 ? (shard.busy_s - (before.shards[index]?.busy_s ?? 0)) / seconds : undefined;
          return [
            String(index),
            format.count(shard.connections),
            format.share(busy),
            format.time(shard.turn_max_s),
            format.count(sum(shard.mailbox)),
          ];
        }),
      },
    ],
  ],
  [
    'Protocols',
    undefined,
    ({ connections }) => [
      {
        kind: 'facts',
        rows: [
          ...Object.entries(connections.protocols).map(([name, count]) => [name, format.count(count)]),
          ...Object.entries(connections.http).map(([version, count]) => [`HTTP/${version}`, format.count(count)]),
          ['devices', format.count(connections.devices)],
          ['topics', format.count(connections.topics)],
          ['subscriptions', format.count(connections.memberships)],
          ['sources', format.count(connections.sources)],
        ],
      },
    ],
  ],
  [
    'Device store',
    undefined,
    ({ store }, before) => [
      store === null
        ? { text: 'This gateway has no device store.' }
        : {
            kind: 'facts',
            rows: [
              ['devices', format.count(store.devices)],
              ...Object.entries(store.queues).map(([kind, queue]) => [
                `${kind}: asked / waiting`,
                `${format.count(queue.requests)} / ${format.count(queue.depth)}`,
              ]),
              ['failed, 5 min', format.count(failedOf(store) - (before.store ? failedOf(before.store) : 0))],
              ...(store.cache === null
                ? []
                : [
                    ['cache hits', format.share(store.cache.hits / Math.max(1, store.cache.hits + store.cache.misses))],
                    ['cache errors', format.count(store.cache.errors)],
                  ]),
            ],
          },
    ],
  ],
  [
    'TLS',
    undefined,
    ({ tls, time_ms: now }, before) => [
      {
        kind: 'facts',
        rows: [
          ...Object.entries(tls.handshakes).map(([kind, count]) => [kind.replace('_', ' '), format.count(count)]),
          ['waiting', format.count(tls.handshake_queue)],
          ['refused', format.count(tls.handshakes_refused)],
          ...tls.certificates.map(({ file, ends_s: end }) => [
            file,
            `ends in ${format.span(Math.max(0, Math.floor((end * 1000 - now) / 3_600_000) * 3_600_000))}`,
          ]),
        ],
      },
      ...(sum(tls.handshakes_failed) > 0
        ? [counts('Failed handshakes', 'failed', tls.handshakes_failed, before.tls.handshakes_failed)]
        : []),
    ],
  ],
  [
    'Datagrams',
    undefined,
    ({ udp }, before) => [
      {
        kind: 'facts',
        rows: [
          ['received', format.count(udp.received)],
          ['answered', format.count(udp.sent)],
          ['lost by the kernel', format.count(udp.lost)],
          ['lost, 5 min', format.count(udp.lost - before.udp.lost)],
          ['malformed', format.count(udp.malformed)],
        ],
      },
      ...(sum(udp.refused) > 0 ? [counts('Refused datagrams', 'refused', udp.refused, before.udp.refused)] : []),
    ],
  ],
  [
    'Upstreams',
    undefined,
    ({ upstreams }) => [
      upstreams.length === 0
        ? { text: 'This gateway calls no services.' }
        : {
            kind: 'table',
            caption: 'Upstreams',
            columns: [
              { title: 'endpoint' },
              { title: 'state' },
              { title: 'in flight', kind: 'number' },
              { title: 'tries', kind: 'number' },
              { title: 'failed', kind: 'number' },
              { title: 'latency', kind: 'number' },
            ],
            rows: upstreams.flatMap(({ name, endpoints }) =>
              endpoints.map((endpoint) => [
                `${name} ${endpoint.address}`,
                endpoint.state.replace('_', ' '),
                format.count(endpoint.in_flight),
                format.count(endpoint.requests),
                format.count(endpoint.failures),
                endpoint.latency_us === 0 ? '–' : format.time(endpoint.latency_us / 1e6),
              ]),
            ),
            empty: 'No endpoint is known yet.',
          },
    ],
  ],
  [
    'Nodes',
    undefined,
    (now, _, { nodes }) => [
      nodes === undefined
        ? { text: 'The nodes are not known.' }
        : {
            kind: 'table',
            caption: 'Nodes',
            columns: [
              { title: 'node' },
              { title: 'connections', kind: 'number' },
              { title: 'up', kind: 'number' },
              { title: 'version', kind: 'number' },
            ],
            rows: nodes.nodes.map(({ number, name, own, about }) => [
              `${number} ${name}${own ? ' (this one)' : ''}${about?.draining ? ', drains' : ''}`,
              format.count(own ? inState(now, 'settled') : about?.connections),
              format.rough(own ? now.uptime_ms : about && about.uptime_s * 1000),
              about?.version ?? '–',
            ]),
          },
    ],
  ],
];

const failedOf = ({ queues }) =>
  Object.values(queues).reduce(
    (total, { refused, timed_out: late, batches_failed: failed }) => total + refused + late + failed,
    0,
  );

function bar(name, used, max) {
  const share = max > 0 ? Math.min(1, used / max) : 0;
  return {
    name,
    value: `${format.bytes(used)} of ${format.bytes(max)}`,
    share: Number(share.toFixed(3)),
    isHigh: share > 0.85,
  };
}

/** The largest parts of the memory, and everything else as one. */
function where(memory) {
  if (memory === undefined) {
    return { text: 'Asking …' };
  }
  const byName = new Map();
  for (const { name, bytes, count } of memory.parts) {
    const known = byName.get(name) ?? { bytes: 0, count: 0 };
    byName.set(name, { bytes: known.bytes + bytes, count: known.count + count });
  }
  const sorted = [...byName].sort(([, one], [, other]) => other.bytes - one.bytes);
  const all = sorted.reduce((total, [, { bytes }]) => total + bytes, 0);
  const rest = sorted.slice(PARTS_SHOWN).reduce((total, [, { bytes }]) => total + bytes, 0);
  const row = (name, bytes) => ({
    name,
    value: format.bytes(bytes),
    share: Number((bytes / Math.max(1, all)).toFixed(3)),
  });
  const rows = sorted
    .slice(0, PARTS_SHOWN)
    .filter(([, { bytes }]) => bytes > 0)
    .map(([name, { bytes }]) => row(name.replaceAll('_', ' '), bytes));
  return { kind: 'bars', rows: rest > 0 ? [...rows, row('everything else', rest)] : rows };
}

const PARTS_SHOWN = 8;
