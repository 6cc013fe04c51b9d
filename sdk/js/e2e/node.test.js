// The client in Node, against the real gateway.

import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { test } from 'node:test';

import { WeirClient } from '../dist/index.js';
import { Gateway, Proxy, rest } from './gateway.js';
import { cutAndRestart } from './scenario.js';

const FAST = { backoffMinMs: 50, backoffMaxMs: 500 };

/** The next event of a name. */
const next = (client, name) => new Promise((resolve) => {
  const off = client.on(name, (event) => {
    off();
    resolve(event);
  });
});

const SECRET = 'a secret of thirty-two characters';

/** A token as a backend of its own would issue it. */
const signed = (claims) => {
  const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const text = `${part({ alg: 'HS256', typ: 'JWT' })}.${part(claims)}`;
  return `${text}.${createHmac('sha256', SECRET).update(text).digest('base64url')}`;
};

for (const transport of ['websocket', 'sse']) {
  const options = { ...FAST, deviceId: `node-${transport}`, transports: [transport] };

  test(`every message comes once by ${transport}`, { timeout: 240_000 }, async (t) => {
    const gateway = await Gateway.start(t);
    const proxy = await Proxy.start(t, gateway.http);
    const topic = `feed/${transport}`;
    const client = new WeirClient({ ...options, url: proxy.url, topics: [topic] });
    t.after(() => client.close());
    const seen = { entered: 0, texts: [], lost: [] };
    client.on('subscribed', () => (seen.entered += 1));
    client.on('message', ({ text }) => seen.texts.push(text));
    client.on('notRecovered', (event) => seen.lost.push(event.topic));
    client.connect();
    await cutAndRestart(gateway, proxy, topic, async () => seen);
  });

  test(`publishes are answered, topics come and go by ${transport}`, { timeout: 60_000 }, async (t) => {
    const gateway = await Gateway.start(t);
    const client = new WeirClient({ ...options, url: gateway.url });
    t.after(() => client.close());
    const feed = client.subscribe('feed/talk');
    await client.connect();
    await feed.ready;
    const coming = next(client, 'message');
    const data = Uint8Array.of(0, 255);
    const published = await client.publish({ topic: 'feed/talk', data, contentType: 'x/y', key: 'k' });
    const message = await coming;
    assert.deepEqual(
      [message.topic, message.data, message.contentType, message.key],
      ['feed/talk', data, 'x/y', 'k'],
    );
    assert.deepEqual([published.messageId, published.offset, published.connections], [message.messageId, 1n, 1]);
    await assert.rejects(client.publish({ topic: 'closed', text: 'x' }), {
      code: transport === 'websocket' ? 'not_permitted' : 'forbidden',
    });

    // A topic of which nothing is kept ends with its last subscriber, and the next stream could not resume it.
    await gateway.publish('feed/other', ['for nobody yet']);
    const other = client.subscribe('feed/other');
    await other.ready;
    feed.unsubscribe();
    const left = next(client, 'message');
    await gateway.publish('feed/talk', ['to nobody']);
    await gateway.publish('feed/other', ['still here']);
    // Over SSE that one is on the next stream, behind what the new one resumes.
    assert.equal((await left).text, 'still here');

    const ending = next(client, 'close');
    const opening = next(client, 'open');
    await gateway.endConnections(options.deviceId);
    const { code, willReconnect } = await ending;
    assert.deepEqual([code, willReconnect], [4006, true]);
    await opening;
  });

  test(`who enters and who leaves is told, and listed, by ${transport}`, { timeout: 60_000 }, async (t) => {
    const rooms = '[[topic_classes]]\npattern = "room/*"\npresence = true\npresence_for = ["devices"]\n';
    const gateway = await Gateway.start(t, rooms);
    const topics = [{ topic: 'room/1', presence: true }, 'feed/a'];
    const client = new WeirClient({ ...options, url: gateway.url, topics });
    t.after(() => client.close());
    const present = new Map();
    client.on('presence', ({ joined, left }) => {
      joined.forEach(({ connectionId, deviceId }) => present.set(connectionId, deviceId));
      left.forEach(({ connectionId }) => present.delete(connectionId));
    });
    const isThere = (device) => [...present.values()].includes(device);
    await client.connect();
    while (!isThere(options.deviceId)) {
      await rest();
    }
    const guest = new WeirClient({ ...options, url: gateway.url, deviceId: 'guest', topics: ['room/1'] });
    t.after(() => guest.close());
    await guest.connect();
    while (!isThere('guest')) {
      await rest();
    }
    const answer = await fetch(`${gateway.url}/v1/topics/room%2F1/presence`);
    const { connections, members } = await answer.json();
    const listed = new Map(members.map(({ connection, device }) => [BigInt(`0x${connection}`), device]));
    assert.deepEqual([connections, listed], [2, present]);
    guest.close();
    while (isThere('guest')) {
      await rest();
    }
  });

  test(`a wrong token is refused, a right one is not by ${transport}`, { timeout: 60_000 }, async (t) => {
    const gateway = await Gateway.start(t, '[[auth.tokens]]\ntoken = "a-good-long-token"\ndevice = "sensor"\n');
    const tokens = ['wrong', 'a-good-long-token'];
    const reasons = [];
    const client = new WeirClient({
      ...FAST,
      url: gateway.url,
      transports: [transport],
      getToken: (reason) => {
        reasons.push(reason);
        return tokens.shift() ?? 'wrong';
      },
    });
    t.after(() => client.close());
    await client.connect();
    assert.deepEqual(reasons, ['first', 'refused']);
    const hopeless = new WeirClient({ ...FAST, url: gateway.url, transports: [transport], token: 'wrong' });
    t.after(() => hopeless.close());
    await assert.rejects(hopeless.connect(), { code: 'unauthorized' });
  });

  test(`a token that ends is renewed, and nothing is missed by ${transport}`, { timeout: 60_000 }, async (t) => {
    const file = join(mkdtempSync(join(tmpdir(), 'weir-js-')), 'secret');
    t.after(() => rmSync(dirname(file), { recursive: true }));
    writeFileSync(file, SECRET, { mode: 0o600 });
    const keys = `[[auth.jwt.keys]]\nalgorithm = "HS256"\nfile = "${file}"\n`;
    const gateway = await Gateway.start(t, `[auth.jwt]\nleeway = "0s"\n${keys}`);
    const reasons = [];
    const client = new WeirClient({
      ...FAST,
      url: gateway.url,
      transports: [transport],
      topics: ['feed/ends'],
      getToken: (reason) => {
        reasons.push(reason);
        // Told of after half of that.
        return signed({ sub: 'sensor', exp: Math.ceil(Date.now() / 1000) + 10 });
      },
    });
    t.after(() => client.close());
    const texts = [];
    let opened = 0;
    client.on('message', ({ text }) => texts.push(text));
    client.on('open', () => (opened += 1));
    const entering = next(client, 'subscribed');
    await client.connect();
    await entering;
    let published = 0;
    // Told of the third one, the server has taken the second one for the first.
    while (reasons.length < 3) {
      await gateway.publish('feed/ends', [`${(published += 1)}`]);
      await rest();
    }
    await gateway.publish('feed/ends', ['end']);
    while (texts.at(-1) !== 'end') {
      await rest();
    }
    assert.deepEqual(texts, [...Array.from({ length: published }, (_, index) => `${index + 1}`), 'end']);
    assert.deepEqual(reasons.slice(0, 3), ['first', 'expiring', 'expiring']);
    if (transport === 'websocket') {
      assert.equal(opened, 1);
    }
  });
}

for (const upgrades of ['400', 'reset', 'held']) {
  test(`where WebSocket is blocked (${upgrades}) it goes on by SSE`, { timeout: 60_000 }, async (t) => {
    const gateway = await Gateway.start(t);
    const proxy = await Proxy.start(t, gateway.http);
    proxy.upgrades = upgrades;
    const limit = upgrades === 'held' ? { connectTimeoutMs: 1_000 } : {};
    const client = new WeirClient({ ...FAST, ...limit, url: proxy.url, deviceId: 'node', topics: ['feed/a'] });
    t.after(() => client.close());
    const opening = next(client, 'open');
    const entering = next(client, 'subscribed');
    await client.connect();
    assert.equal((await opening).transport, 'sse');
    await entering;
    const coming = next(client, 'message');
    await client.publish({ topic: 'feed/a', text: 'through' });
    assert.equal((await coming).text, 'through');
  });
}

test('it moves to SSE and back to WebSocket under load, and every message comes once', { timeout: 60_000 }, async (t) => {
  const gateway = await Gateway.start(t);
  const proxy = await Proxy.start(t, gateway.http);
  const client = new WeirClient({ ...FAST, url: proxy.url, deviceId: 'node', topics: ['feed/a'] });
  t.after(() => client.close());
  const opened = [];
  const texts = [];
  const lost = [];
  client.on('open', ({ transport }) => opened.push(transport));
  client.on('message', ({ text }) => texts.push(text));
  client.on('notRecovered', (event) => lost.push(event));
  await client.connect();
  let published = 0;
  const publishUntil = async (condition) => {
    while (!condition()) {
      await gateway.publish('feed/a', [`${(published += 1)}`]);
      await rest();
    }
  };
  await publishUntil(() => texts.length > 5);
  for (let move = 1; move <= 2; move += 1) {
    proxy.upgrades = '400';
    proxy.cut();
    await publishUntil(() => opened.at(-1) === 'sse');
    const seen = texts.length;
    const blocked = proxy.upgradesBlocked;
    // WebSocket is tried beside the stream.
    await publishUntil(() => texts.length > seen + 5 && proxy.upgradesBlocked > blocked);
    proxy.upgrades = 'pass';
    await publishUntil(() => opened.at(-1) === 'websocket');
  }
  await gateway.publish('feed/a', ['end']);
  while (texts.at(-1) !== 'end') {
    await rest();
  }
  assert.deepEqual(opened, ['websocket', 'sse', 'websocket', 'sse', 'websocket']);
  const first = Number(texts[0]);
  const expected = Array.from({ length: published - first + 1 }, (_, index) => `${first + index}`);
  assert.deepEqual(texts, [...expected, 'end']);
  assert.deepEqual(lost, []);
});
