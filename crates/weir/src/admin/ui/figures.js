// From documents of /v1/stats to rates, shares and percentiles. No page, no clock: documents in, numbers out.

/** The difference of two numbers of one start of the gateway; never below zero. */
const grown = (now, before) => Math.max(0, now - before);

/** The sum of an object's numbers. */
export const sum = (counts) => Object.values(counts).reduce((total, value) => total + value, 0);

/** How much each number of `now` has grown, of those that have. */
export function growth(now, before) {
  const changes = Object.entries(now).map(([name, value]) => [name, grown(value, before?.[name] ?? 0)]);
  return Object.fromEntries(changes.filter(([, value]) => value > 0));
}

/** Whether both documents are of one start of the gateway, in order. */
export const isOneStart = (now, before) => before !== undefined && now.uptime_ms > before.uptime_ms;

/** A state's connections of all transports. */
export const inState = ({ connections }, state) =>
  Object.values(connections.transports).reduce((total, states) => total + states[state], 0);

/** The counts of histograms in between, added up. */
export function between(now, before) {
  return now[0].counts.map((_, bucket) =>
    now.reduce(
      (total, histogram, index) => total + grown(histogram.counts[bucket], before?.[index].counts[bucket] ?? 0),
      0,
    ),
  );
}

/**
 * The time that a share of all values does not exceed, as far as buckets tell: between two bounds it is taken as even.
 * `null` without values.
 */
export function percentile(counts, bounds, share) {
  const all = counts.reduce((total, count) => total + count, 0);
  if (all === 0) {
    return null;
  }
  let rest = all * share;
  for (const [bucket, count] of counts.entries()) {
    if (count > 0 && rest <= count) {
      const low = bucket === 0 ? 0 : bounds[bucket - 1];
      const high = bounds[bucket] ?? low * 2;
      return low + (high - low) * (rest / count);
    }
    rest -= count;
  }
  return bounds.at(-1);
}

/** The bound of the longest value; `null` without values. */
export function longest(counts, bounds) {
  const bucket = counts.findLastIndex((count) => count > 0);
  return bucket < 0 ? null : (bounds[bucket] ?? bounds.at(-1) * 2);
}

/** What a chart shows of one moment: levels of `now`, and rates since `before` where there is one. */
export function sample(now, before) {
  const levels = {
    at: now.time_ms / 1000,
    tcp: now.connections.transports.tcp?.settled ?? 0,
    tls: now.connections.transports.tls?.settled ?? 0,
    unsettled: inState(now, 'unsettled'),
    stalled: now.connections.stalled,
    resident: now.process.resident_bytes,
    allocated: now.process.allocated_bytes,
    queued: now.budget.used_bytes,
    perConnection: bytesPerConnection(now),
  };
  return isOneStart(now, before) ? { ...levels, ...rates(now, before) } : levels;
}

/** What the heap has grown by since the start, for each settled connection; `null` for few of them. */
export function bytesPerConnection({ process, connections }) {
  const settled = Object.values(connections.transports).reduce((total, { settled: count }) => total + count, 0);
  const { allocated_bytes: now, allocated_at_start_bytes: start } = process;
  return settled < CONNECTIONS_MIN || now === null || start === null ? null : grown(now, start) / settled;
}

function rates(now, before) {
  const seconds = (now.uptime_ms - before.uptime_ms) / 1000;
  const rate = (of) => grown(of(now), of(before)) / seconds;
  const bounds = now.times.bounds_s;
  const fanout = between([now.times.fanout], [before.times.fanout]);
  const lag = between(Object.values(now.times.lag), Object.values(before.times.lag));
  const busy = now.shards.map((shard, index) => grown(shard.busy_s, before.shards[index]?.busy_s ?? 0) / seconds);
  const { full, ...resumed } = now.tls.handshakes;
  return {
    seconds,
    published: rate(({ messages }) => sum(messages.published)),
    delivered: rate(({ messages }) => messages.delivered),
    sent: rate(({ messages }) => messages.sent_bytes),
    received: rate(({ messages }) => messages.received_bytes),
    fanoutHalf: percentile(fanout, bounds, 0.5),
    fanoutMost: percentile(fanout, bounds, 0.99),
    fanoutMax: longest(fanout, bounds),
    lagHalf: percentile(lag, bounds, 0.5),
    lagMost: percentile(lag, bounds, 0.99),
    lagMax: longest(lag, bounds),
    full: rate(({ tls }) => tls.handshakes.full ?? 0),
    resumed: Object.keys(resumed).reduce((total, kind) => total + rate(({ tls }) => tls.handshakes[kind] ?? 0), 0),
    failed: rate(({ tls }) => sum(tls.handshakes_failed) + tls.handshakes_refused),
    opened: rate(({ connections }) => connections.adopted),
    closed: rate(({ connections }) => sum(connections.closed)),
    refused: rate(({ connections }) => sum(connections.refused)),
    cpu: rate(({ process }) => process.cpu_ms / 1000),
    busy,
    busyMax: Math.min(1, Math.max(0, ...busy)),
    datagrams: rate(({ udp }) => udp.received),
    lost: rate(({ udp }) => udp.lost),
  };
}

/** With fewer connections, the figure says more about everything else. */
const CONNECTIONS_MIN = 100;
