// Figures and the verdict over them, without a browser.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { growth, longest, percentile, sample } from '../../crates/weir/src/admin/ui/figures.js';
import { bytes, plural, span, time } from '../../crates/weir/src/admin/ui/format.js';
import { judge } from '../../crates/weir/src/admin/ui/judge.js';

const none = { counts: [0, 0, 0], sum_s: 0, max_s: 0 };

/** A document in which all is well, with these changes. */
function figures(changes = {}) {
  return structuredClone({
    time_ms: 1_000_000,
    uptime_ms: 60_000,
    ready: true,
    parts: [{ part: 'store', state: 'ok', since_ms: 1 }],
    drain: { state: 'idle', since_ms: 1, closed: 0, to_close: 0 },
    process: {
      cpu_ms: 0,
      resident_bytes: 1,
      allocated_bytes: 2_000,
      allocated_at_start_bytes: 1_000,
      open_fds: 10,
      fds_max: 100,
    },
    connections: {
      transports: { tcp: { settled: 100, unsettled: 0, lingering: 0 } },
      stalled: 0,
      adopted: 0,
      closed: {},
      refused: { source_rate: 0, draining: 0 },
      accept_errors: { emfile: 0, aborted: 0 },
    },
    messages: {
      published: { topic: 0 },
      publish_refused: { mailbox: 0, topic_name: 0 },
      delivered: 0,
      sent_bytes: 0,
      received_bytes: 0,
      retained_bytes: 0,
      retained_bytes_max: 100,
    },
    times: { bounds_s: [1, 2], fanout: none, lag: { normal: none } },
    budget: { used_bytes: 0, bytes_max: 100, cut: 0, shares: { waiting: { used_bytes: 0, bytes_max: 100 } } },
    tls: { handshakes: { full: 0, ticket: 0 }, handshakes_failed: {}, handshakes_refused: 0, certificates: [] },
    udp: { received: 0, lost: 0 },
    store: null,
    cluster: null,
    upstreams: [],
    shards: [{ busy_s: 0 }],
    ...changes,
  });
}

/** What is said of a document, against one a minute and one ten seconds before. */
function check(change, expected) {
  const [now, before, lately] = [figures(), figures({ uptime_ms: 0 }), figures({ uptime_ms: 50_000 })];
  change(now, before);
  const said = judge(now, before, lately).map(({ level, text }) => `${level}: ${text}`);
  assert.deepEqual(said, expected);
}

test('all is well without a finding', () => check(() => {}, []));

test('each trouble is said in words', () => {
  const upstream = { name: 'api', failures: { full: 0, connect: 2 }, name_problems: [] };
  const endpoints = ['available', 'set_aside'].map((state) => ({ address: `${state}:80`, state }));
  check(
    (now, before) => {
      now.upstreams = [{ ...upstream, endpoints }];
      before.upstreams = [{ ...upstream, endpoints, failures: { full: 0, connect: 0 } }];
    },
    [
      'warn: Upstream api: endpoints are set aside, because they fail: set_aside:80',
      'warn: Upstream api: requests had no answer in the last minute: 2 × connect',
    ],
  );
  check(
    (now, before) => {
      now.upstreams = [{ ...upstream, endpoints: endpoints.slice(1), name_problems: ['api.example: no answer'] }];
      before.upstreams = now.upstreams;
    },
    ['bad: Upstream api: all endpoints fail (set_aside:80)', 'warn: Upstream api: api.example: no answer'],
  );
  check(
    ({ parts }) => Object.assign(parts[0], { state: 'failed', cause: 'the store is lost: gone' }),
    ['bad: The store is lost: gone'],
  );
  check(
    ({ parts }) => Object.assign(parts[0], { state: 'degraded', cause: 'a record is damaged' }),
    ['warn: The device store does not work: a record is damaged'],
  );
  check(
    ({ connections }) => {
      connections.refused.source_rate = 3;
    },
    ['warn: Connections were refused in the last minute: 3 × source_rate (limits.connects_per_source_per_second)'],
  );
  check(({ connections }) => {
    connections.refused.draining = 3;
  }, []);
  check(({ messages }) => {
    messages.publish_refused.topic_name = 3;
  }, []);
  check(
    ({ messages }) => {
      messages.publish_refused.mailbox = 3;
    },
    ['warn: Messages were refused in the last minute: 3 × mailbox'],
  );
  check(
    ({ connections }) => {
      connections.accept_errors.emfile = 1;
    },
    ['bad: Connections could not be accepted in the last minute: 1 × emfile'],
  );
  check(
    ({ shards }) => {
      shards[0].busy_s = 9.5;
    },
    ['warn: 1 of 1 shard had work for more than 90 % of the last ten seconds'],
  );
  check(
    ({ times }) => {
      times.lag.normal.counts = [0, 0, 1];
    },
    ['warn: Messages are late: half of them waited for more than 3 s'],
  );
  check(
    ({ connections }) => {
      connections.stalled = 11;
    },
    ['warn: 11 connections do not take what they are sent (stalled)'],
  );
  check(
    ({ budget }) => {
      budget.shares.waiting.used_bytes = 90;
    },
    ['warn: Shares of the byte budget are nearly used up: waiting'],
  );
  check(
    ({ udp }) => {
      udp.lost = 1;
    },
    ['warn: The kernel threw 1 datagram away in the last minute, as a receive buffer was full'],
  );
  check(
    ({ process }) => {
      process.open_fds = 99;
    },
    ['warn: Open files: 99 of 100'],
  );
  check(
    (now) => {
      now.cluster = { broker_reachable: false, nodes_different: [] };
    },
    ['bad: The broker of the cluster cannot be reached: messages do not reach other nodes'],
  );
  check(
    ({ drain }) => Object.assign(drain, { state: 'draining', closed: 2, to_close: 5 }),
    ['warn: This node drains: 2 of 5 connections are closed'],
  );
  const certificate =
    (ends) =>
    ({ tls }) =>
      tls.certificates.push({ kind: 'certificate', file: 'a.pem', ends_s: ends });
  check(certificate(999), ['bad: The certificate in a.pem has ended']);
  check(certificate(1_000 + 86_400), ['warn: The certificate in a.pem ends in 1 d']);
  check(certificate(1_000 + 30 * 86_400), []);
});

test('the worst comes first', () => {
  check(
    (now) => {
      now.udp.lost = 1;
      Object.assign(now.parts[0], { state: 'failed', cause: 'the store is lost' });
    },
    [
      'bad: The store is lost',
      'warn: The kernel threw 1 datagram away in the last minute, as a receive buffer was full',
    ],
  );
});

test('rates are of one start of the gateway', () => {
  const before = figures();
  const now = figures({ uptime_ms: 62_000 });
  now.messages.delivered = 10;
  now.shards[0].busy_s = 1;
  const { delivered, busyMax, perConnection, lagMost } = sample(now, before);
  assert.deepEqual([delivered, busyMax, perConnection, lagMost], [5, 0.5, 10, null]);
  assert.equal(sample(figures({ uptime_ms: 10 }), before).delivered, undefined);
});

test('percentiles are within the bucket that holds them', () => {
  assert.equal(percentile([0, 0, 0], [1, 2], 0.5), null);
  assert.equal(percentile([2, 2, 0], [1, 2], 0.5), 1);
  assert.equal(percentile([0, 4, 0], [1, 2], 0.5), 1.5);
  assert.equal(percentile([0, 0, 4], [1, 2], 0.5), 3);
  assert.equal(longest([1, 1, 0], [1, 2]), 2);
  assert.equal(longest([0, 0, 0], [1, 2]), null);
  assert.deepEqual(growth({ a: 3, b: 2, c: 1 }, { a: 1, b: 2 }), { a: 2, c: 1 });
});

test('numbers are written for people', () => {
  assert.deepEqual([0, 999, 1_500, 12_345_678].map(bytes), ['0 B', '999 B', '1.5 KB', '12.3 MB']);
  assert.deepEqual([0, 0.000_02, 0.25, 90].map(time), ['0 µs', '20 µs', '250 ms', '90 s']);
  assert.deepEqual([0, 61_000, 3_600_000, 90_000_000].map(span), ['0 s', '1 min 1 s', '1 h', '1 d 1 h']);
  assert.deepEqual(
    [1, 2_000].map((count) => plural(count, 'device')),
    ['1 device', '2,000 devices'],
  );
});
