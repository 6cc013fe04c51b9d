import assert from 'node:assert/strict';
import { test } from 'node:test';

import { formatPosition, parsePosition } from '../dist/index.js';
import { decode, decodeKind, encode } from '../dist/wire.js';

const U64_MAX = 2n ** 64n - 1n;

test('what the server says has the types that programs want', () => {
  const position = { epoch: U64_MAX, offset: 41n };
  for (const [json, expected] of [
    [
      { welcome: { connectionId: '4294967303', heartbeatMs: 30000, serverTimeMs: '1767225600000' } },
      { kind: 'welcome', connectionId: 4294967303n, heartbeatMs: 30000, serverTimeMs: 1767225600000 },
    ],
    [{ pong: { data: 'aGk=' } }, { kind: 'pong' }],
    [
      { subscribed: { topic: 'a', position: { epoch: `${U64_MAX}`, offset: '41' }, recovered: true } },
      { kind: 'subscribed', topic: 'a', position, recovered: true },
    ],
    [
      { unsubscribed: { topic: 'a', reason: 'fell_behind' } },
      { kind: 'unsubscribed', topic: 'a', reason: 'fell_behind', position: undefined },
    ],
    [
      { published: { request: 4294967295, messageId: `${U64_MAX}`, offset: 3, epoch: '4', connections: '2' } },
      {
        kind: 'published',
        request: 4294967295,
        published: { messageId: U64_MAX, offset: 3n, epoch: 4n, connections: 2 },
      },
    ],
    [
      { presence: { topic: 'a', joined: [{ deviceId: 'd', connectionId: `${U64_MAX}` }] } },
      { kind: 'presence', topic: 'a', joined: [{ deviceId: 'd', connectionId: U64_MAX }], left: [], missed: false },
    ],
    [
      { error: { code: 'busy', message: 'later', topic: 'a' } },
      { kind: 'error', code: 'busy', message: 'later', request: 0, topic: 'a' },
    ],
    [
      { call: { id: 7, method: 'lock/open', text: 'x', deadlineMs: 5000 } },
      { kind: 'call', id: 7, call: { method: 'lock/open', text: 'x', contentType: '', deadlineMs: 5000 } },
    ],
    [
      { answer: { id: 7, code: 'failed', message: 'no', data: 'aGk=', status: 503 } },
      {
        kind: 'answer',
        id: 7,
        code: 'failed',
        message: 'no',
        answer: { data: Uint8Array.of(104, 105), contentType: '', status: 503 },
      },
    ],
    [{ cancel: { id: 7 } }, { kind: 'cancel', id: 7 }],
    [{ expiring: { expiresAtMs: '5' } }, { kind: 'expiring', expiresAtMs: 5 }],
    [{ goodbye: { code: 4100, reason: 'draining' } }, { kind: 'goodbye', code: 4100, reason: 'draining', retryAfterMs: 0 }],
    [{ push: null, pong: {} }, { kind: 'pong' }],
    [{ brandNew: {} }, undefined],
    [{ constructor: {} }, undefined],
    [{}, undefined],
  ]) {
    assert.deepEqual(decode(JSON.stringify(json)), expected);
  }
});

test('a message is text or bytes, and in a batch of its topic', () => {
  const empty = { contentType: '', key: '', messageId: 0n, offset: 0n, sender: 0n };
  const text = decodeKind('push', '{"topic":"a","text":"","messageId":"7","offset":"5","sender":"9","later":1}');
  const ids = { messageId: 7n, offset: 5n, sender: 9n };
  assert.deepEqual(text.message, { ...empty, ...ids, topic: 'a', text: '' });
  for (const data of ['+/8A', '-_8A']) {
    const bytes = decode(JSON.stringify({ push: { data } })).message;
    assert.deepEqual(bytes, { ...empty, topic: '', data: Uint8Array.of(0xfb, 0xff, 0) });
  }
  assert.deepEqual(decode('{"push":{"topic":"a"}}').message.data, new Uint8Array());
  const batch = decode('{"batch":{"topic":"a","messages":[{"text":"x","offset":"1"},{"text":"y","offset":"3"}]}}');
  assert.deepEqual(
    batch.messages.map(({ topic, text, offset }) => [topic, text, offset]),
    [['a', 'x', 1n], ['a', 'y', 3n]],
  );
});

test('what is no message is refused, with the place named', () => {
  for (const [text, place] of [
    ['{', /no JSON/],
    ['[]', /message is \[\]/],
    ['{"push":5}', /push is 5/],
    ['{"push":{"offset":"-1"}}', /push\.offset is "-1"/],
    ['{"push":{"offset":"18446744073709551616"}}', /push\.offset/],
    ['{"push":{"offset":9007199254740993}}', /push\.offset/],
    ['{"push":{"text":5}}', /push\.text/],
    ['{"push":{"data":"*"}}', /push\.data/],
    ['{"goodbye":{"code":4294967296}}', /goodbye\.code/],
    ['{"subscribed":{"recovered":"yes"}}', /subscribed\.recovered/],
    ['{"subscribed":{"position":{"epoch":"x"}}}', /subscribed\.position\.epoch/],
    ['{"batch":{"messages":{}}}', /batch\.messages/],
    ['{"batch":{"messages":[{"offset":true}]}}', /batch\.messages/],
  ]) {
    assert.throws(() => decode(text), { code: 'protocol', message: place }, text);
  }
});

test('what the client says is proto3 JSON', () => {
  const position = { epoch: U64_MAX, offset: 2n };
  const said = (message) => JSON.parse(encode(message));
  assert.deepEqual(
    said({
      kind: 'hello',
      deviceId: 'd',
      token: 't',
      client: 'c',
      heartbeatMs: 1,
      topics: [
        { topic: 'a', position, presence: false, wish: 3 },
        { topic: 'b', position: undefined, presence: true },
      ],
    }),
    {
      hello: {
        deviceId: 'd',
        token: 't',
        client: 'c',
        heartbeatMs: 1,
        topics: [{ topic: 'a', position: { epoch: `${U64_MAX}`, offset: '2' } }, { topic: 'b', presence: true }],
      },
    },
  );
  assert.deepEqual(said({ kind: 'ping' }), { ping: {} });
  assert.deepEqual(said({ kind: 'subscribe', topic: 'a', position: undefined }), { subscribe: { topic: 'a' } });
  assert.deepEqual(said({ kind: 'unsubscribe', topic: 'a' }), { unsubscribe: { topic: 'a' } });
  assert.deepEqual(said({ kind: 'refresh', token: 't' }), { refresh: { token: 't' } });
  const call = { method: 'a/b', data: Uint8Array.of(104, 105), deadlineMs: 5 };
  assert.deepEqual(said({ kind: 'call', id: 1, call }), { call: { id: 1, method: 'a/b', data: 'aGk=', deadlineMs: 5 } });
  assert.deepEqual(said({ kind: 'call', id: 2, call: { method: 'a' } }), { call: { id: 2, method: 'a', text: '' } });
  const answer = { kind: 'answer', id: 1, code: '', message: '', payload: { text: '' }, contentType: undefined };
  assert.deepEqual(said(answer), { answer: { id: 1, text: '' } });
  const failed = { ...answer, code: 'jammed', message: 'no', payload: undefined };
  assert.deepEqual(said(failed), { answer: { id: 1, code: 'jammed', message: 'no' } });
  assert.deepEqual(said({ kind: 'cancel', id: 1 }), { cancel: { id: 1 } });
  assert.equal(said({ kind: 'hello', deviceId: '', token: '', client: '', heartbeatMs: 0, topics: [], calls: true }).hello.calls, true);
  const text = { topic: 'a', text: '', contentType: 'text/plain', key: 'k' };
  assert.deepEqual(said({ kind: 'publish', publication: text, request: 1 }), { publish: { ...text, request: 1 } });
  const data = Uint8Array.from({ length: 20_000 }, (_, index) => index);
  const bytes = said({ kind: 'publish', publication: { topic: 'a', data }, request: 2 }).publish;
  assert.deepEqual(Buffer.from(bytes.data, 'base64'), Buffer.from(data));
});

test('positions go to text and back', () => {
  for (const [position, text] of [
    [{ epoch: 0n, offset: 0n }, '0000000000000000-0'],
    [{ epoch: 0x8f3a61c2d4e5b709n, offset: 41n }, '8f3a61c2d4e5b709-41'],
    [{ epoch: U64_MAX, offset: U64_MAX }, `ffffffffffffffff-${U64_MAX}`],
  ]) {
    assert.equal(formatPosition(position), text);
    assert.deepEqual(parsePosition(text), position);
  }
  for (const text of ['', '8f3a61c2d4e5b709', '8F3A61C2D4E5B709-1', 'ffffffffffffffff-18446744073709551616']) {
    assert.throws(() => parsePosition(text), TypeError);
  }
});
