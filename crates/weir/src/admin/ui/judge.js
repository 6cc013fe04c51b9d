// Whether all is well, in words. The first finding is the worst; without one all is well.

import * as format from './format.js';
import { between, growth, inState, percentile, sum } from './figures.js';

/**
 * What is wrong. `now` is the newest document, `before` one of a minute ago, and `lately` one of ten seconds ago, all of
 * one start. A finding has a `level` (`bad` or `warn`) and a `text`; `since` in milliseconds since 1970 where it is known.
 */
export function judge(now, before, lately) {
  const findings = [
    ...parts(now),
    ...cluster(now),
    ...drain(now),
    ...refusals(now, before),
    ...load(now, lately),
    ...room(now),
    ...losses(now, before),
    ...certificates(now),
    ...upstreams(now, before),
  ];
  return findings.sort((one, other) => LEVELS.indexOf(one.level) - LEVELS.indexOf(other.level));
}

const LEVELS = ['bad', 'warn'];

const bad = (text, since) => ({ level: 'bad', text, since });
const warn = (text, since) => ({ level: 'warn', text, since });

/** A cause as a sentence. */
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function parts({ parts: all }) {
  const troubled = all.filter(({ part, state }) => part !== 'drain' && state !== 'ok');
  return troubled.map(({ part, state, cause, since_ms: since }) => {
    const named = cause?.includes(part) ? sentence(cause) : `${PARTS[part] ?? part}: ${cause ?? state}`;
    return state === 'failed' ? bad(named, since) : warn(named, since);
  });
}

const PARTS = {
  listeners: 'Listeners do not accept connections',
  shards: 'A thread that holds connections has ended',
  store: 'The device store does not work',
  cache: 'The cache does not answer, and the gateway asks the store instead',
};

function cluster({ cluster: seen, store }) {
  const findings = [];
  if (seen !== null && !seen.broker_reachable) {
    findings.push(bad('The broker of the cluster cannot be reached: messages do not reach other nodes'));
  }
  if (seen !== null && seen.nodes_different.length > 0) {
    findings.push(warn(`Nodes with other topic classes: ${seen.nodes_different.join(', ')}`));
  }
  if (store !== null && store.circuits_open.length > 0) {
    findings.push(warn(`Requests are held back because too many failed: ${store.circuits_open.join(', ')}`));
  }
  return findings;
}

function drain({ drain: { state, closed, to_close: all, since_ms: since, share }, parts: all_parts }) {
  switch (state) {
    case 'announced':
      return [warn('A drain is announced: this node is not ready, and connections will be told to leave', since)];
    case 'draining':
      return [
        warn(`This node drains: ${format.count(closed)} of ${format.plural(all, 'connection')} are closed`, since),
      ];
    case 'drained':
      return share === 1
        ? [warn('This node is drained. It admits no connection until the drain is cancelled', since)]
        : [];
    default: {
      const ending = all_parts.find(({ part, state: is }) => part === 'drain' && is === 'failed');
      return ending === undefined ? [] : [warn('This node shuts down', ending.since_ms)];
    }
  }
}

/** The parts of an object, the largest first, as words. */
function words(counts, hints = {}) {
  const sorted = Object.entries(counts).sort(([, one], [, other]) => other - one);
  return sorted
    .slice(0, 3)
    .map(([name, count]) => `${format.count(count)} × ${name}${hints[name] ? ` (${hints[name]})` : ''}`)
    .join(', ');
}

function refusals(now, before) {
  const findings = [];
  const { draining: _, ...connections } = growth(now.connections.refused, before.connections.refused);
  if (sum(connections) > 0) {
    findings.push(warn(`Connections were refused in the last minute: ${words(connections, KEYS)}`));
  }
  const publishes = growth(now.messages.publish_refused, before.messages.publish_refused);
  const ours = Object.fromEntries(Object.entries(publishes).filter(([cause]) => OURS.includes(cause)));
  if (sum(ours) > 0) {
    findings.push(warn(`Messages were refused in the last minute: ${words(ours)}`));
  }
  const errors = growth(now.connections.accept_errors, before.connections.accept_errors);
  const { aborted: __, ...serious } = errors;
  if (sum(serious) > 0) {
    findings.push(bad(`Connections could not be accepted in the last minute: ${words(serious)}`));
  }
  return findings;
}

/** What an operator raises or changes to admit more connections. */
const KEYS = {
  source_connections: 'limits.connections_per_source_max',
  source_rate: 'limits.connects_per_source_per_second',
  connections_max: 'limits.connections_max',
  http_connections_max: 'http.connections_max',
  unsettled_max: 'limits.unsettled_connections_max',
  memory: 'memory.budget_bytes',
  memory_limit: 'the memory of the machine or of the cgroup',
  descriptors: 'the limit on open files',
  handshakes: 'tls.handshake_queue_max',
  mailbox: 'threads.shards',
  proxy_header: 'listen.proxy_networks',
};

/** Refusals of messages that are not the sender's fault. */
const OURS = ['mailbox', 'budget', 'tick_full', 'topics_max', 'broker', 'broker_uncertain'];

function load(now, lately) {
  const findings = [];
  const seconds = (now.uptime_ms - lately.uptime_ms) / 1000;
  if (seconds >= 5) {
    const busy = now.shards.map(
      (shard, index) => (shard.busy_s - (lately.shards[index]?.busy_s ?? shard.busy_s)) / seconds,
    );
    const full = busy.filter((part) => part > BUSY).length;
    if (full > 0) {
      findings.push(
        warn(
          `${full} of ${format.plural(busy.length, 'shard')} had work for more than ${BUSY * 100} % of the last ten seconds`,
        ),
      );
    }
  }
  const lag = between(Object.values(now.times.lag), Object.values(lately.times.lag));
  const half = percentile(lag, now.times.bounds_s, 0.5);
  if (half !== null && half > LAG_S) {
    findings.push(warn(`Messages are late: half of them waited for more than ${format.time(half)}`));
  }
  const { stalled } = now.connections;
  if (stalled > STALLED && stalled > inState(now, 'settled') * STALLED_SHARE) {
    findings.push(warn(`${format.plural(stalled, 'connection')} do not take what they are sent (stalled)`));
  }
  return findings;
}

function room({ budget, process, messages }) {
  const findings = [];
  const full = Object.entries(budget.shares).filter(([, { used_bytes: used, bytes_max: max }]) => used > max * FULL);
  if (budget.used_bytes > budget.bytes_max * FULL) {
    findings.push(
      warn(
        `The byte budget is nearly used up: ${format.bytes(budget.used_bytes)} of ${format.bytes(budget.bytes_max)}`,
      ),
    );
  } else if (full.length > 0) {
    findings.push(warn(`Shares of the byte budget are nearly used up: ${full.map(([name]) => name).join(', ')}`));
  }
  if (process.fds_max !== null && process.open_fds > process.fds_max * FULL) {
    findings.push(warn(`Open files: ${format.count(process.open_fds)} of ${format.count(process.fds_max)}`));
  }
  if (messages.retained_bytes > messages.retained_bytes_max * FULL && messages.retained_bytes_max > 0) {
    findings.push(
      warn(`Topics retain ${format.bytes(messages.retained_bytes)} of ${format.bytes(messages.retained_bytes_max)}`),
    );
  }
  return findings;
}

function losses(now, before) {
  const findings = [];
  const lost = now.udp.lost - before.udp.lost;
  if (lost > 0) {
    findings.push(
      warn(`The kernel threw ${format.plural(lost, 'datagram')} away in the last minute, as a receive buffer was full`),
    );
  }
  const cut = now.budget.cut - before.budget.cut;
  if (cut > 0) {
    findings.push(
      warn(`${format.plural(cut, 'connection')} closed in the last minute, because what waited had no room`),
    );
  }
  return findings;
}

function certificates({ tls, time_ms: now }) {
  return tls.certificates.flatMap(({ kind, file, ends_s: end }) => {
    const left = end * 1000 - now;
    const name = kind === 'certificate' ? 'certificate' : 'revocation list';
    if (left <= 0) {
      return [bad(`The ${name} in ${file} has ended`, end * 1000)];
    }
    return left < CERTIFICATE_MS ? [warn(`The ${name} in ${file} ends in ${format.span(left)}`)] : [];
  });
}

function upstreams(now, before) {
  return now.upstreams.flatMap(({ name, endpoints, failures, name_problems: problems }) => {
    const aside = endpoints.filter(({ state }) => state !== 'available').map(({ address }) => address);
    const lost = growth(failures, before.upstreams.find((earlier) => earlier.name === name)?.failures);
    return [
      ...(aside.length > 0 && aside.length === endpoints.length
        ? [bad(`Upstream ${name}: all endpoints fail (${aside.join(', ')})`)]
        : aside.length > 0
          ? [warn(`Upstream ${name}: endpoints are set aside, because they fail: ${aside.join(', ')}`)]
          : []),
      ...problems.map((problem) => warn(`Upstream ${name}: ${problem}`)),
      ...(sum(lost) > 0 ? [warn(`Upstream ${name}: requests had no answer in the last minute: ${words(lost)}`)] : []),
    ];
  });
}

/** A shard with more work than this has no room for a burst. */
const BUSY = 0.9;
/** Of half the messages: those that a client missed while it was away count too, and are old. */
const LAG_S = 1;
const STALLED = 10;
const STALLED_SHARE = 0.01;
const FULL = 0.85;
/** A week. Development certificates live for a month or more. */
const CERTIFICATE_MS = 7 * 86400 * 1000;
