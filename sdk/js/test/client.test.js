import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { CallError, WeirClient } from '../dist/index.js';
import { Run } from '../dist/run.js';
import { tryWebSocket } from '../dist/websocket.js';
import { FakeServer, Inbox } from './fake.js';

const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
const FAST = { backoffMinMs: 1, backoffMaxMs: 4 };
const EPOCH = '10301516829406148361';

const subscribed = (offset, recovered = false, epoch = EPOCH) => ({
  subscribed: { topic: 'a', position: { epoch, offset: `${offset}` }, recovered },
});
const push = (offset) => ({ push: { topic: 'a', text: `${offset}`, offset: `${offset}`, messageId: '1' } });

/** A client of the fake, closed with the test, and an inbox of each of its events. */
function client(t, fake, options = {}) {
  const client = new WeirClient({ url: fake.url, ...FAST, ...options });
  t.after(() => client.close());
  const events = {};
  for (const name of ['open', 'close', 'reconnecting', 'error', 'message', 'subscribed', 'unsubscribed', 'notRecovered', 'presence', 'expiring']) {
    events[name] = new Inbox();
    client.on(name, (event) => events[name].put(event));
  }
  return { client, events };
}

const texts = async (inbox, count) => {
  const all = [];
  for (let index = 0; index < count; index += 1) {
    all.push((await inbox.next()).text);
  }
  return all;
};

test('it greets, subscribes, and hands out messages, to the handler of the topic and to all', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake, {
    deviceId: 'd',
    token: 't',
    heartbeatMs: 20_000,
    topics: ['a', { topic: 'b', position: { epoch: 3n, offset: 4n } }],
  });
  const seen = new Inbox();
  weir.subscribe('a', { onMessage: (message) => seen.put(message) });
  const opening = weir.connect();
  const peer = await fake.welcome();
  assert.equal(peer.headers['sec-websocket-protocol'], 'weir.v1.json');
  assert.deepEqual(peer.hello, {
    deviceId: 'd',
    token: 't',
    client: `weir-js/${version}`,
    heartbeatMs: 20_000,
    topics: [{ topic: 'a' }, { topic: 'b', position: { epoch: '3', offset: '4' } }],
  });
  await opening;
  assert.equal(weir.isOpen, true);
  const open = await events.open.next();
  assert.deepEqual([open.transport, open.connectionId], ['websocket', 4294967303n]);
  peer.say(subscribed(41));
  peer.say(push(42));
  peer.say({ batch: { topic: 'a', firstOffset: '43', lastOffset: '45', messages: [{ text: '43', offset: '43' }, { text: '45', offset: '45' }] } });
  peer.say({ push: { text: 'to you' } });
  assert.deepEqual(await texts(seen, 3), ['42', '43', '45']);
  assert.deepEqual(await texts(events.message, 4), ['42', '43', '45', 'to you']);
  assert.deepEqual(weir.positions().get('a'), { epoch: BigInt(EPOCH), offset: 45n });
  weir.close();
  const { code, willReconnect } = await events.close.next();
  assert.deepEqual([code, willReconnect, weir.isOpen], [1000, false, false]);
  await peer.closed;
});

test('topics for which a hello has no room are asked for after the welcome', async (t) => {
  const fake = await FakeServer.start(t);
  const topics = Array.from({ length: 400 }, (_, index) => `room/é/${'x'.repeat(60)}/${index}`);
  const { client: weir } = client(t, fake, { topics });
  void weir.connect();
  const peer = await fake.welcome();
  const first = peer.hello.topics.map(({ topic }) => topic);
  assert.ok(Buffer.byteLength(JSON.stringify({ hello: peer.hello })) <= 16_384);
  assert.ok(first.length > 150, `${first.length}`);
  const asked = [...first];
  while (asked.length < topics.length) {
    asked.push((await peer.next()).subscribe.topic);
  }
  assert.deepEqual(asked, topics);
});

test('another epoch in a running subscription is told as a loss', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake, { topics: ['a'] });
  weir.connect();
  const peer = await fake.welcome();
  peer.say(subscribed(0));
  [1, 2].forEach((offset) => peer.say(push(offset)));
  // The answer to another wish says nothing new.
  peer.say(subscribed(2));
  assert.deepEqual(await texts(events.message, 2), ['1', '2']);
  peer.say(subscribed(0, false, '5'));
  peer.say(push(1));
  assert.deepEqual(await events.notRecovered.next(), {
    topic: 'a',
    asked: { epoch: BigInt(EPOCH), offset: 2n },
    position: { epoch: 5n, offset: 0n },
  });
  assert.deepEqual(await texts(events.message, 1), ['1']);
  assert.deepEqual(weir.positions().get('a'), { epoch: 5n, offset: 1n });
  assert.equal(events.notRecovered.length, 0);
});

test('who enters and who leaves is told where it is wanted, after a reconnect too', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake, { topics: [{ topic: 'a', presence: true }] });
  weir.connect();
  let peer = await fake.welcome();
  assert.deepEqual(peer.hello.topics, [{ topic: 'a', presence: true }]);
  peer.say(subscribed(0));
  const left = [{ deviceId: 'd', connectionId: '7' }];
  peer.say({ presence: { topic: 'other', left } });
  peer.say({ presence: { topic: 'a', left } });
  const told = { topic: 'a', joined: [], left: [{ deviceId: 'd', connectionId: 7n }], missed: false };
  assert.deepEqual(await events.presence.next(), told);
  peer.say({ presence: { topic: 'a', missed: true } });
  assert.deepEqual(await events.presence.next(), { topic: 'a', joined: [], left: [], missed: true });
  peer.say({ unsubscribed: { topic: 'a', reason: 'fell_behind', position: { epoch: EPOCH, offset: '0' } } });
  const again = { topic: 'a', position: { epoch: EPOCH, offset: '0' }, presence: true };
  assert.deepEqual(await peer.next(), { subscribe: again });
  peer.cut();
  peer = await fake.welcome();
  assert.deepEqual(peer.hello.topics, [again]);
});

test('a cut connection is resumed, and what comes twice is handed out once', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake, { topics: ['a'] });
  weir.connect();
  let peer = await fake.welcome();
  peer.say(subscribed(0));
  [1, 2].forEach((offset) => peer.say(push(offset)));
  assert.deepEqual(await texts(events.message, 2), ['1', '2']);
  peer.cut();
  const reconnecting = await events.reconnecting.next();
  assert.deepEqual([reconnecting.attempt, reconnecting.transport], [1, 'websocket']);
  peer = await fake.welcome();
  assert.deepEqual(peer.hello.topics, [{ topic: 'a', position: { epoch: EPOCH, offset: '2' } }]);
  peer.say(subscribed(2, true));
  [2, 3, 3, 4].forEach((offset) => peer.say(push(offset)));
  assert.deepEqual(await texts(events.message, 2), ['3', '4']);
  assert.equal(events.notRecovered.length, 0);
  peer.cut();
  peer = await fake.welcome();
  peer.say(subscribed(0, false, '5'));
  const lost = await events.notRecovered.next();
  assert.deepEqual(lost, {
    topic: 'a',
    asked: { epoch: BigInt(EPOCH), offset: 4n },
    position: { epoch: 5n, offset: 0n },
  });
  peer.say(push(1));
  assert.deepEqual(await texts(events.message, 1), ['1']);
});

test('topics come and go on a running connection', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake);
  const early = weir.subscribe('early');
  weir.connect();
  const waiting = await fake.webSockets.next();
  const { hello } = await waiting.next();
  assert.deepEqual(hello.topics, [{ topic: 'early' }]);
  // Between hello and welcome: asked for as soon as it is open.
  early.unsubscribe();
  const a = weir.subscribe('a', { position: { epoch: BigInt(EPOCH), offset: 7n } });
  await assert.rejects(early.ready, { code: 'closed' });
  waiting.say({ welcome: { heartbeatMs: 60_000 } });
  assert.deepEqual(await waiting.next(), { unsubscribe: { topic: 'early' } });
  assert.deepEqual(await waiting.next(), { subscribe: { topic: 'a', position: { epoch: EPOCH, offset: '7' } } });
  waiting.say(subscribed(7, true));
  await a.ready;
  assert.deepEqual(a.position, { epoch: BigInt(EPOCH), offset: 7n });
  assert.equal(weir.subscribe('a'), a);
  a.unsubscribe();
  const again = weir.subscribe('a');
  assert.notEqual(again, a);
  assert.deepEqual(await waiting.next(), { unsubscribe: { topic: 'a' } });
  assert.deepEqual(await waiting.next(), { subscribe: { topic: 'a' } });
  waiting.say(push(8));
  waiting.say({ unsubscribed: { topic: 'a' } });
  waiting.say(subscribed(9));
  waiting.say(push(10));
  assert.deepEqual(await texts(events.message, 1), ['10']);
});

test('a topic that is refused is given up; a busy one and one that fell behind are asked for again', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake);
  const refused = weir.subscribe('secret');
  const a = weir.subscribe('a');
  const told = new Inbox();
  refused.on('error', (error) => told.put(error));
  weir.connect();
  const peer = await fake.welcome();
  peer.say({ error: { code: 'not_permitted', message: 'no', topic: 'secret' } });
  await assert.rejects(refused.ready, { code: 'not_permitted', topic: 'secret' });
  assert.equal((await told.next()).code, 'not_permitted');
  assert.equal((await events.error.next()).code, 'not_permitted');
  peer.say({ error: { code: 'busy', message: 'wait', topic: 'a' } });
  assert.deepEqual(await peer.next(), { subscribe: { topic: 'a' } });
  peer.say(subscribed(5));
  peer.say(push(6));
  await a.ready;
  peer.say({ unsubscribed: { topic: 'a', reason: 'fell_behind', position: { epoch: EPOCH, offset: '6' } } });
  assert.deepEqual(await peer.next(), { subscribe: { topic: 'a', position: { epoch: EPOCH, offset: '6' } } });
  peer.say(subscribed(9));
  assert.equal((await events.notRecovered.next()).asked.offset, 6n);
  peer.say({ unsubscribed: { topic: 'a', reason: 'gone' } });
  await events.unsubscribed.next();
  assert.equal((await events.unsubscribed.next()).reason, 'gone');
  peer.cut();
  assert.deepEqual((await fake.welcome()).hello.topics, []);
});

test('a handler may want a topic anew that the server refuses or ends', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake);
  const first = weir.subscribe('a');
  let second;
  let third;
  first.on('error', () => (second = weir.subscribe('a', { onMessage: () => {} })));
  weir.on('unsubscribed', () => (third = weir.subscribe('a')));
  weir.connect();
  const peer = await fake.welcome();
  peer.say({ error: { code: 'not_permitted', message: 'not yet', topic: 'a' } });
  assert.deepEqual(await peer.next(), { subscribe: { topic: 'a' } });
  await assert.rejects(first.ready, { code: 'not_permitted' });
  assert.notEqual(second, first);
  peer.say(subscribed(4));
  await second.ready;
  peer.say({ unsubscribed: { topic: 'a', reason: 'gone' } });
  assert.deepEqual(await peer.next(), { subscribe: { topic: 'a' } });
  assert.notEqual(third, second);
  peer.say(subscribed(7));
  peer.say(push(8));
  assert.deepEqual(await texts(events.message, 1), ['8']);
});

test('a publish is answered by its number, or fails with the connection', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir } = client(t, fake);
  await assert.rejects(weir.publish({ topic: 'a', text: 'x' }), { code: 'not_connected', topic: 'a' });
  await assert.rejects(weir.publish({ topic: '', text: 'x' }), TypeError);
  const opening = weir.connect();
  const peer = await fake.welcome();
  await opening;
  const first = weir.publish({ topic: 'a', text: 'x', contentType: 'text/plain', key: 'k' });
  const second = weir.publish({ topic: 'a', data: Uint8Array.of(1) });
  const third = weir.publish({ topic: 'a', text: 'y' });
  const [one, two] = [await peer.next(), await peer.next()].map(({ publish }) => publish);
  assert.deepEqual(one, { topic: 'a', text: 'x', contentType: 'text/plain', key: 'k', request: one.request });
  peer.say({ error: { code: 'rate_limited', message: 'slowly', request: two.request, topic: 'a' } });
  peer.say({ published: { request: one.request, messageId: '9', offset: '3', epoch: '8', connections: 2 } });
  assert.deepEqual(await first, { messageId: 9n, offset: 3n, epoch: 8n, connections: 2 });
  await assert.rejects(second, { code: 'rate_limited', topic: 'a' });
  peer.cut();
  await assert.rejects(third, { code: 'connection_lost' });
});

test('the number of publishes that wait is bounded', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir } = client(t, fake);
  const opening = weir.connect();
  const peer = await fake.welcome();
  await opening;
  // What could not be sent waits for nothing.
  await assert.rejects(weir.publish({ topic: 'a' }), TypeError);
  const waiting = Array.from({ length: 1_024 }, () => weir.publish({ topic: 'a', text: '' }));
  await assert.rejects(weir.publish({ topic: 'a', text: '' }), { code: 'busy' });
  const outcomes = Promise.allSettled(waiting);
  peer.cut();
  assert.ok((await outcomes).every(({ reason }) => reason.code === 'connection_lost'));
});

test('goodbye: the range of the code decides, by message or by close frame', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake);
  weir.connect();
  const say = async (goodbye) => {
    const peer = await fake.welcome();
    peer.say({ goodbye });
    peer.close(goodbye.code, goodbye.reason);
    return (await events.reconnecting.next()).delayMs;
  };
  assert.ok((await say({ code: 4006, reason: 'closed_by_operator' })) < 5);
  const later = await say({ code: 4100, reason: 'draining', retryAfterMs: 30 });
  assert.ok(later >= 30 && later < 33, `${later}`);
  let peer = await fake.welcome();
  peer.close(4103, 'internal');
  assert.equal((await events.reconnecting.next()).attempt, 1);
  peer = await fake.welcome();
  peer.say({ goodbye: { code: 4399, reason: 'of a later day' } });
  const closes = [];
  for (let count = 0; count < 4; count += 1) {
    const { code, advice, willReconnect } = await events.close.next();
    closes.push([code, advice, willReconnect]);
  }
  assert.deepEqual(closes, [
    [4006, 'now', true],
    [4100, 'later', true],
    [4103, 'later', true],
    [4399, 'never', false],
  ]);
  assert.equal(events.error.length, 0);
  await peer.closed;
  // A client that was told not to return can be told to try all the same.
  const opening = weir.connect();
  await fake.welcome();
  await opening;
});

test('refused credentials are renewed once', async (t) => {
  const fake = await FakeServer.start(t);
  const reasons = [];
  const { client: weir, events } = client(t, fake, {
    getToken: async (reason) => `${reasons.push(reason)}`,
  });
  const opening = weir.connect();
  const refuse = async () => {
    const peer = await fake.webSockets.next();
    const { token } = (await peer.next()).hello;
    peer.say({ goodbye: { code: 4200, reason: 'unauthorized' } });
    return token;
  };
  assert.equal(await refuse(), '1');
  assert.equal((await fake.welcome()).hello.token, '2');
  await opening;
  weir.close();
  const again = weir.connect();
  assert.equal(await refuse(), '2');
  assert.equal(await refuse(), '3');
  await assert.rejects(again, { code: 'unauthorized' });
  assert.deepEqual(reasons, ['first', 'refused', 'refused']);
  const last = [await events.close.next(), await events.close.next(), await events.close.next(), await events.close.next()];
  assert.deepEqual(last.map(({ willReconnect }) => willReconnect), [true, false, true, false]);
});

test('a fixed token that is refused is not shown twice', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir } = client(t, fake, { token: 'wrong' });
  const opening = weir.connect();
  const peer = await fake.webSockets.next();
  peer.say({ goodbye: { code: 4201, reason: 'revoked' } });
  await assert.rejects(opening, { code: 'revoked' });
});

test('a token given while another is asked for is the newer one', async (t) => {
  const fake = await FakeServer.start(t);
  const asked = new Inbox();
  const { client: weir } = client(t, fake, {
    getToken: (reason) => new Promise((answer) => asked.put({ reason, answer })),
  });
  weir.connect();
  const first = await asked.next();
  weir.refresh('by hand');
  first.answer('too late');
  let peer = await fake.welcome();
  assert.equal(peer.hello.token, 'by hand');
  peer.say({ expiring: { expiresAtMs: '1' } });
  const second = await asked.next();
  assert.deepEqual([first.reason, second.reason], ['first', 'expiring']);
  weir.refresh('by hand again');
  assert.deepEqual(await peer.next(), { refresh: { token: 'by hand again' } });
  second.answer('too late again');
  await new Promise(setImmediate);
  peer.cut();
  peer = await fake.welcome();
  assert.equal(peer.hello.token, 'by hand again');
});

test('what a client that was closed meanwhile is answered is no longer its token', async (t) => {
  const fake = await FakeServer.start(t);
  const asked = new Inbox();
  const { client: weir } = client(t, fake, { getToken: () => new Promise((answer) => asked.put(answer)) });
  weir.connect();
  const first = await asked.next();
  weir.close();
  weir.connect();
  (await asked.next())('of this run');
  const peer = await fake.welcome();
  first('of the run before');
  await new Promise(setImmediate);
  peer.cut();
  assert.equal((await fake.welcome()).hello.token, 'of this run');
});

test('a token that cannot be had is asked for again', async (t) => {
  const fake = await FakeServer.start(t);
  let calls = 0;
  const { client: weir, events } = client(t, fake, {
    getToken: async () => {
      calls += 1;
      if (calls === 1) {
        throw new Error('offline');
      }
      return 'good';
    },
  });
  weir.connect();
  const error = await events.error.next();
  assert.deepEqual([error.code, error.cause.message], ['credentials', 'offline']);
  assert.equal((await fake.welcome()).hello.token, 'good');
});

test('credentials that expire are renewed on the running connection', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake, { token: 'old', getToken: (reason) => `new ${reason}` });
  weir.connect();
  let peer = await fake.welcome();
  assert.equal(peer.hello.token, 'old');
  peer.say({ expiring: { expiresAtMs: '1767225600000' } });
  assert.deepEqual(await peer.next(), { refresh: { token: 'new expiring' } });
  assert.equal((await events.expiring.next()).expiresAtMs, 1767225600000);
  weir.refresh('newer');
  assert.deepEqual(await peer.next(), { refresh: { token: 'newer' } });
  peer.cut();
  peer = await fake.welcome();
  assert.equal(peer.hello.token, 'newer');
  assert.throws(() => weir.refresh(''), TypeError);
});

test('it shows that it is there, and finds out when the server is not', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake);
  weir.connect();
  const peer = await fake.welcome(100);
  for (let count = 0; count < 4; count += 1) {
    assert.deepEqual(await peer.next(), { ping: {} });
    peer.say({ pong: {} });
  }
  assert.equal(events.close.length, 0);
  // And now says nothing any more.
  assert.equal((await events.error.next()).code, 'silent');
  const { reason, willReconnect } = await events.close.next();
  assert.deepEqual([reason, willReconnect], ['silent', true]);
  await peer.closed;
  await fake.welcome();
});

test('nonsense ends a connection, an unknown kind does not', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake);
  weir.connect();
  const peer = await fake.welcome();
  peer.say({ somethingNew: { a: 1 } });
  peer.say({ push: { offset: 'x' } });
  const error = await events.error.next();
  assert.deepEqual([error.code, /push\.offset/.test(error.message)], ['protocol', true]);
  await fake.welcome();
});

test('no welcome in time is a failure, and so is a server that is not there', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake, { connectTimeoutMs: 30, transports: ['websocket'] });
  const opening = weir.connect();
  await fake.webSockets.next();
  assert.equal((await events.error.next()).code, 'timeout');
  weir.close();
  await assert.rejects(opening, { code: 'closed' });
  const nowhere = client(t, { url: 'http://127.0.0.1:1' });
  nowhere.client.connect();
  for (let attempt = 1; attempt <= 8; attempt += 1) {
    assert.equal((await nowhere.events.error.next()).code, 'network');
    // A server that is not there says nothing about WebSocket.
    assert.equal((await nowhere.events.reconnecting.next()).transport, 'websocket');
  }
});

test('a proxy that answers for a server that is away says nothing about WebSocket, and may ask for patience', async (t) => {
  const fake = await FakeServer.start(t);
  fake.refusesUpgrades = true;
  fake.probeAnswers = [[502], [503, { 'Retry-After': '1' }], [429]];
  const { client: weir, events } = client(t, fake);
  weir.connect();
  const told = [];
  for (let attempt = 1; attempt <= 7; attempt += 1) {
    told.push(await events.reconnecting.next());
  }
  const transports = told.map(({ transport }) => transport);
  assert.deepEqual(transports, [...Array(6).fill('websocket'), 'websocket']);
  const waits = told.map(({ delayMs }) => delayMs >= 1_000);
  assert.deepEqual(waits, [false, false, false, true, false, false, false]);
  assert.equal((await events.reconnecting.next()).transport, 'sse');
  assert.equal(fake.probes, 4);
});

test('an answer that does not come is none', async (t) => {
  const fake = await FakeServer.start(t);
  fake.refusesUpgrades = true;
  const asked = new Inbox();
  const fetch = (url, { signal }) =>
    new Promise((_, reject) => {
      asked.put(url.pathname);
      signal.addEventListener('abort', () => reject(signal.reason));
    });
  const { client: weir, events } = client(t, fake, { fetch, connectTimeoutMs: 300 });
  weir.connect();
  for (let attempt = 1; attempt <= 4; attempt += 1) {
    assert.equal((await events.reconnecting.next()).transport, 'websocket');
  }
  assert.equal(await asked.next(), '/v1/connect');
  // And one that is under way ends with the client.
  assert.equal(await asked.next(), '/v1/connect');
});

test('where WebSocket passes again it goes back by itself, without a gap or a double', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake, { deviceId: 'd', topics: ['a'] });
  weir.connect();
  let peer = await fake.welcome();
  peer.say(subscribed(0));
  peer.say(push(1));
  assert.deepEqual(await texts(events.message, 1), ['1']);
  fake.refusesUpgrades = true;
  peer.cut();
  const stream = await fake.welcomeStream();
  assert.match(stream.headers['last-event-id'], /-1$/);
  stream.say('subscribed', subscribed(1, true).subscribed);
  [2, 3].forEach((offset) => stream.say('push', push(offset).push));
  assert.deepEqual(await texts(events.message, 2), ['2', '3']);
  const before = fake.upgradesRefused;
  // It is tried beside the stream.
  while (fake.upgradesRefused === before) {
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  assert.equal(weir.isOpen, true);
  fake.refusesUpgrades = false;
  const trial = await fake.webSockets.next();
  await trial.closed;
  assert.equal(trial.heard, 0, 'it said something on a WebSocket that was for trial');
  const publishing = weir.publish({ topic: 'a', text: 'x' });
  peer = await fake.welcome();
  await stream.closed;
  assert.deepEqual(peer.hello.topics, [{ topic: 'a', position: { epoch: EPOCH, offset: '3' } }]);
  peer.say(subscribed(3, true));
  [3, 4].forEach((offset) => peer.say(push(offset)));
  assert.deepEqual(await texts(events.message, 1), ['4']);
  assert.equal(events.notRecovered.length, 0);
  // What was published meanwhile went by a request.
  (await fake.publishes.next()).response.end('{"id":"0000000000000001","connections":1}');
  assert.equal((await publishing).messageId, 1n);
  const transports = [];
  while (events.open.length > 0) {
    transports.push((await events.open.next()).transport);
  }
  assert.deepEqual(transports, ['websocket', 'sse', 'websocket']);
});

test('a WebSocket that opens and carries no frame does not pass', async (t) => {
  const fake = await FakeServer.start(t);
  const url = new URL(fake.url);
  fake.holdsFrames = true;
  assert.equal(await tryWebSocket(WebSocket, url, 200).passes, false);
  fake.holdsFrames = false;
  assert.equal(await tryWebSocket(WebSocket, url, 10_000).passes, true);
  fake.refusesUpgrades = true;
  assert.equal(await tryWebSocket(WebSocket, url, 10_000).passes, false);
  fake.refusesUpgrades = false;
  const cancelled = tryWebSocket(WebSocket, url, 10_000);
  cancelled.cancel();
  assert.equal(await cancelled.passes, false);
  const forbidden = class {
    constructor() {
      throw new DOMException('not from here', 'SecurityError');
    }
  };
  assert.equal(await tryWebSocket(forbidden, url, 10_000).passes, false);
});

test('tabs tell each other that WebSocket works, and do without where they cannot', async (t) => {
  const fake = await FakeServer.start(t);
  fake.refusesUpgrades = true;
  const { location, BroadcastChannel } = globalThis;
  t.after(() => Object.assign(globalThis, { location, BroadcastChannel }));
  globalThis.location = { href: `${fake.url}/page` };
  // One that WebSocket has never worked for would try it again within a minute, or later.
  const other = client(t, fake, { deviceId: 'other' });
  other.client.connect();
  const stream = await fake.welcomeStream();
  await other.events.open.next();
  fake.refusesUpgrades = false;
  const channel = new BroadcastChannel(`weir ${fake.url}/`);
  t.after(() => channel.close());
  channel.postMessage({ any: 'nonsense' });
  const begun = performance.now();
  const { client: weir } = client(t, fake, { deviceId: 'first' });
  weir.connect();
  assert.equal((await fake.welcome()).hello.deviceId, 'first');
  await (await fake.webSockets.next()).closed;
  assert.equal((await fake.welcome()).hello.deviceId, 'other');
  await stream.closed;
  assert.ok(performance.now() - begun < 30_000);
  assert.equal((await other.events.open.next()).transport, 'websocket');

  for (const broken of [undefined, class { constructor() { throw new Error('forbidden'); } }]) {
    globalThis.BroadcastChannel = broken;
    const alone = client(t, fake, { deviceId: 'alone' });
    alone.client.connect();
    assert.equal((await fake.welcome()).hello.deviceId, 'alone');
  }
});

test('where WebSocket is refused it goes on by SSE, and stays there', async (t) => {
  const fake = await FakeServer.start(t);
  fake.refusesUpgrades = true;
  const { client: weir, events } = client(t, fake, { deviceId: 'd', token: 't', topics: ['a', 'b &='] });
  const opening = weir.connect();
  let stream = await fake.welcomeStream();
  await opening;
  assert.deepEqual([fake.upgradesRefused, fake.probes], [2, 1]);
  assert.equal((await events.open.next()).transport, 'sse');
  assert.equal(stream.headers.authorization, 'Bearer t');
  assert.equal(stream.headers['last-event-id'], undefined);
  assert.deepEqual(stream.url.searchParams.getAll('topic'), ['a', 'b &=']);
  assert.equal(stream.url.searchParams.get('device'), 'd');
  stream.say('subscribed', subscribed(0).subscribed);
  [1, 2].forEach((offset) => stream.say('push', push(offset).push));
  assert.deepEqual(await texts(events.message, 2), ['1', '2']);
  stream.cut();
  stream = await fake.welcomeStream();
  assert.equal(stream.headers['last-event-id'], `${BigInt(EPOCH).toString(16)}-2`);
  stream.say('subscribed', subscribed(2, true).subscribed);
  [2, 3].forEach((offset) => stream.say('push', push(offset).push));
  assert.deepEqual(await texts(events.message, 1), ['3']);
  assert.equal(fake.upgradesRefused, 2);
  stream.say('goodbye', { code: 4303, reason: 'replaced' });
  for (let last; last?.willReconnect !== false; last = await events.close.next());
});

test('over SSE other topics and another token mean another stream', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake, { transports: ['sse'], token: 'old', topics: ['a'] });
  weir.connect();
  let stream = await fake.welcomeStream();
  stream.say('subscribed', subscribed(5).subscribed);
  await events.subscribed.next();
  weir.subscribe('b');
  weir.subscribe('c').unsubscribe();
  await stream.closed;
  stream = await fake.welcomeStream();
  assert.deepEqual(stream.url.searchParams.getAll('topic'), ['a', 'b']);
  assert.match(stream.headers['last-event-id'], /^[0-9a-f]{16}-5$/);
  stream.say('expiring', { expiresAtMs: '1' });
  await events.expiring.next();
  weir.refresh('new');
  stream = await fake.welcomeStream();
  assert.equal(stream.headers.authorization, 'Bearer new');
  assert.equal(events.error.length, 0);
  const closes = [await events.close.next(), await events.close.next()];
  assert.deepEqual(closes.map(({ reason }) => reason), ['reopening', 'reopening']);
});

test('over SSE comments are signs of life', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake, { transports: ['sse'] });
  weir.connect();
  const stream = await fake.welcomeStream(200);
  await events.open.next();
  for (let count = 0; count < 12; count += 1) {
    stream.comment();
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.equal(events.close.length, 0);
  assert.equal((await events.error.next()).code, 'silent');
  await stream.closed;
});

test('what a stream is refused with says what to do', async (t) => {
  const fake = await FakeServer.start(t);
  const problem = { 'Content-Type': 'application/problem+json' };
  const body = (word) => JSON.stringify({ type: `urn:problem-type:weir:${word}`, title: 'T', detail: 'D' });
  fake.streamRefusals = [
    [503, { ...problem, 'Retry-After': '0' }, body('not-ready')],
    [502, {}, 'a proxy'],
    [200, { 'Content-Type': 'text/html' }, 'a portal'],
    [401, problem, body('unauthorized')],
    [403, problem, body('forbidden')],
  ];
  const tokens = [];
  const { client: weir, events } = client(t, fake, { transports: ['sse'], getToken: (reason) => `${tokens.push(reason)}` });
  await assert.rejects(weir.connect(), { code: 'forbidden', message: 'D' });
  const codes = [];
  for (let count = 0; count < 5; count += 1) {
    codes.push((await events.error.next()).code);
  }
  assert.deepEqual(codes, ['not_ready', 'http_502', 'protocol', 'unauthorized', 'forbidden']);
  assert.deepEqual(tokens, ['first', 'refused']);
});

test('a status holds whatever becomes of its body', async (t) => {
  const uncaught = [];
  const note = (error) => uncaught.push(error);
  process.on('unhandledRejection', note);
  t.after(() => process.off('unhandledRejection', note));
  const broken = () => new ReadableStream({ start: (body) => body.error(new TypeError('broken off')) });
  const headers = { 'Content-Type': 'application/problem+json' };
  const answers = [
    new Response(broken(), { status: 502 }),
    new Response(broken(), { headers: { 'Content-Type': 'text/html' } }),
    new Response('null', { status: 503, headers }),
    new Response(broken(), { status: 401, headers }),
    new Response('{"type":', { status: 403, headers }),
  ];
  const reasons = [];
  const { client: weir, events } = client(t, { url: 'http://a' }, {
    transports: ['sse'],
    fetch: async () => answers.shift(),
    getToken: (reason) => `${reasons.push(reason)}`,
  });
  await assert.rejects(weir.connect(), { code: 'http_403' });
  const codes = [];
  for (let count = 0; count < 5; count += 1) {
    codes.push((await events.error.next()).code);
  }
  assert.deepEqual(codes, ['http_502', 'protocol', 'http_503', 'http_401', 'http_403']);
  assert.deepEqual(reasons, ['first', 'refused']);
  await new Promise(setImmediate);
  assert.deepEqual(uncaught, []);
});

test('over SSE a publish is a request of its own', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir } = client(t, fake, { transports: ['sse'], token: 't' });
  const opening = weir.connect();
  const stream = await fake.welcomeStream();
  await opening;
  const first = weir.publish({ topic: 'a', data: Uint8Array.of(255), key: 'k', contentType: 'x/y' });
  let request = await fake.publishes.next();
  assert.deepEqual(request.body, { topic: 'a', data: '/w==', key: 'k', content_type: 'x/y' });
  assert.equal(request.headers.authorization, 'Bearer t');
  request.response.end('{"id":"5d0c7a9e00000001","connections":2,"offset":17,"epoch":"8f3a61c2d4e5b709"}');
  assert.deepEqual(await first, {
    messageId: 0x5d0c7a9e00000001n,
    offset: 17n,
    epoch: 0x8f3a61c2d4e5b709n,
    connections: 2,
  });
  const second = weir.publish({ topic: 'a', text: 'x' });
  request = await fake.publishes.next();
  request.response.writeHead(429, { 'Content-Type': 'application/problem+json', 'Retry-After': '2' });
  request.response.end('{"type":"urn:problem-type:weir:rate-limited","title":"T"}');
  await assert.rejects(second, { code: 'rate_limited', retryAfterMs: 2_000, topic: 'a' });
  // What becomes of the stream is another matter.
  const third = weir.publish({ topic: 'a', text: 'x' });
  request = await fake.publishes.next();
  stream.cut();
  const fourth = weir.publish({ topic: 'a', text: 'x' });
  (await fake.publishes.next()).response.destroy();
  await assert.rejects(fourth, { code: 'connection_lost', topic: 'a' });
  request.response.end('{"id":"0000000000000001","connections":0}');
  assert.deepEqual(await third, { messageId: 1n, offset: 0n, epoch: 0n, connections: 0 });
  weir.close();
  await assert.rejects(weir.publish({ topic: 'a', text: 'x' }), { code: 'not_connected' });
});

test('a handler may close the client, and one that throws holds up nobody', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir, events } = client(t, fake, { topics: ['a'] });
  const uncaught = [];
  const { reportError } = globalThis;
  globalThis.reportError = (error) => uncaught.push(error.message);
  t.after(() => Object.assign(globalThis, { reportError }));
  weir.subscribe('a').on('message', () => {
    throw new Error('a bug of the page');
  });
  const off = weir.on('message', (message) => message.text === '2' && weir.close());
  weir.connect();
  const peer = await fake.welcome();
  peer.say(subscribed(0));
  peer.say({ batch: { topic: 'a', messages: [1, 2, 3].map((offset) => push(offset).push) } });
  await events.close.next();
  assert.deepEqual(uncaught, ['a bug of the page', 'a bug of the page']);
  assert.equal(weir.positions().get('a').offset, 2n);
  off();
  weir.connect();
  assert.equal((await fake.welcome()).hello.topics[0].position.offset, '2');
});

test('a client closed by a handler of its error says so once, and waits for nothing more', async (t) => {
  const { client: weir, events } = client(t, { url: 'http://127.0.0.1:1' });
  weir.on('error', () => weir.close());
  await assert.rejects(weir.connect(), { code: 'closed' });
  assert.equal((await events.close.next()).willReconnect, false);
  await new Promise(setImmediate);
  assert.deepEqual([events.close.length, events.reconnecting.length], [0, 0]);

  const run = new Run();
  run.stop(new Error('closed by a handler of `reconnecting`'));
  const woken = run.sleep(2 ** 31 - 1).then(() => 'woken');
  assert.equal(await Promise.race([woken, new Promise((late) => setImmediate(late, 'late'))]), 'woken');
});

test('a handler taken away by one before it is not called', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir } = client(t, fake);
  let calls = 0;
  weir.on('open', () => off());
  const off = weir.on('open', () => (calls += 1));
  const opening = weir.connect();
  await fake.welcome();
  await opening;
  assert.equal(calls, 0);
});

test('options that cannot be are refused by name', () => {
  for (const [options, name] of [
    [{ url: 'nowhere' }, /^url/],
    [{ url: 'ftp://a' }, /^url/],
    [{ url: 'https://me:secret@a' }, /^url(?!.*secret)/],
    [{ url: 'https://a/?token=x' }, /^url(?!.*token)/],
    [{ transports: [] }, /^transports/],
    [{ transports: ['carrier pigeon'] }, /^transports/],
    [{ fallbackAfter: 0 }, /^fallbackAfter/],
    [{ connectTimeoutMs: -1 }, /^connectTimeoutMs/],
    [{ heartbeatMs: 2 ** 31 }, /^heartbeatMs/],
    [{ backoffMinMs: Number.NaN }, /^backoffMinMs/],
    [{ topics: ['a#'] }, /^topic/],
    [{ topics: ['é'.repeat(128)] }, /^topic: 256 bytes/],
  ]) {
    assert.throws(() => new WeirClient({ url: 'http://a', ...options }), { name: 'TypeError', message: name });
  }
});

test('without a WebSocket there is SSE, and a clear word for who insists', (t) => {
  const { WebSocket } = globalThis;
  t.after(() => Object.assign(globalThis, { WebSocket }));
  globalThis.WebSocket = undefined;
  new WeirClient({ url: 'http://a' });
  assert.throws(() => new WeirClient({ url: 'http://a', transports: ['websocket'] }), /--experimental-websocket/);
  new WeirClient({ url: 'http://a', transports: ['websocket'], WebSocket });
});

test('calls of the client are answered, refused, given up, or lost with the connection', async (t) => {
  const fake = await FakeServer.start(t);
  const { client: weir } = client(t, fake);
  await assert.rejects(weir.call({ method: 'a' }), { code: 'not_connected' });
  const opening = weir.connect();
  const peer = await fake.welcome();
  await opening;
  assert.equal(peer.hello.calls, undefined);
  const first = weir.call({ method: 'orders/price', text: '{}', deadlineMs: 500 });
  const second = weir.call({ method: 'orders/price', data: Uint8Array.of(1) });
  const sent = { id: 1, method: 'orders/price', text: '{}', deadlineMs: 500 };
  assert.deepEqual(await peer.nextDeed(), { call: sent });
  assert.deepEqual(await peer.nextDeed(), { call: { id: 2, method: 'orders/price', data: 'AQ==' } });
  peer.say({ answer: { id: 2, code: 'unavailable', message: 'later' } });
  peer.say({ answer: { id: 1, text: '5', status: 200 } });
  peer.say({ answer: { id: 1, text: 'twice' } });
  assert.deepEqual(await first, { text: '5', contentType: '', status: 200 });
  await assert.rejects(second, { code: 'unavailable', message: 'later' });
  const stop = new AbortController();
  const third = weir.call({ method: 'a', signal: stop.signal });
  await peer.nextDeed();
  stop.abort();
  await assert.rejects(third, { code: 'cancelled' });
  assert.deepEqual(await peer.nextDeed(), { cancel: { id: 3 } });
  await assert.rejects(weir.call({ method: 'a', signal: stop.signal }), { code: 'cancelled' });
  const fourth = weir.call({ method: 'a' });
  await peer.nextDeed();
  peer.cut();
  await assert.rejects(fourth, { code: 'connection_lost' });
});

test('a handler answers calls of backends, and hears when nobody waits any more', async (t) => {
  const fake = await FakeServer.start(t);
  const ended = new Inbox();
  const onCall = async ({ method, text, deadlineMs, signal }) => {
    switch (method) {
      case 'echo':
        return `${text} ${deadlineMs}`;
      case 'bytes':
        return { data: Uint8Array.of(104, 105), contentType: 'a/b' };
      case 'wait':
        return new Promise((resolve) => signal.addEventListener('abort', () => {
          ended.put('aborted');
          resolve('too late');
        }));
      case 'broken':
        throw new TypeError('a secret');
      default:
        throw new CallError('unsupported', `no method ${method}`);
    }
  };
  const { client: weir } = client(t, fake, { onCall });
  void weir.connect();
  const peer = await fake.welcome();
  assert.equal(peer.hello.calls, true);
  for (const [call, answer] of [
    [{ method: 'echo', text: 'x', deadlineMs: 50 }, { text: 'x 50' }],
    [{ method: 'bytes' }, { data: 'aGk=', contentType: 'a/b' }],
    [{ method: 'broken' }, { code: 'failed', message: 'the handler has failed' }],
    [{ method: 'other' }, { code: 'unsupported', message: 'no method other' }],
  ]) {
    peer.say({ call: { id: 9, ...call } });
    assert.deepEqual(await peer.nextDeed(), { answer: { id: 9, ...answer } });
  }
  peer.say({ call: { id: 10, method: 'wait' } });
  peer.say({ cancel: { id: 10 } });
  assert.equal(await ended.next(), 'aborted');
  peer.say({ call: { id: 11, method: 'wait' } });
  peer.say({ call: { id: 12, method: 'echo', text: 'after' } });
  assert.equal((await peer.nextDeed()).answer.id, 12);
  peer.cut();
  assert.equal(await ended.next(), 'aborted');
});
