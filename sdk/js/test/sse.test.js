import assert from 'node:assert/strict';
import { test } from 'node:test';

import { EventStreamParser } from '../dist/sse.js';

const STREAM =
  ': hello\n\ndata: one\n\nevent: welcome\ndata:two\ndata\ndata: three\nid: 7-1\nretry: 5\n\n' +
  'event: nothing\n\ndata:\r\rdata: a: b\r\ndata:  c\r\n\r\nunknown: x\ndata: é😀\n\ndata: cut off\n';

const EVENTS = [
  { name: 'message', data: 'one' },
  { name: 'welcome', data: 'two\n\nthree' },
  { name: 'message', data: '' },
  { name: 'message', data: 'a: b\n c' },
  { name: 'message', data: 'é😀' },
];

test('a stream is cut into its events, wherever it is cut itself', () => {
  assert.deepEqual(new EventStreamParser().push(STREAM), EVENTS);
  for (let cut = 0; cut <= STREAM.length; cut += 1) {
    const parser = new EventStreamParser();
    const events = [...parser.push(STREAM.slice(0, cut)), ...parser.push(''), ...parser.push(STREAM.slice(cut))];
    assert.deepEqual(events, EVENTS, `cut at ${cut}`);
  }
  const parser = new EventStreamParser();
  assert.deepEqual([...STREAM].flatMap((char) => parser.push(char)), EVENTS);
});

test('an event over the limit is refused, however its lines are cut', () => {
  const parser = new EventStreamParser(100);
  assert.equal(parser.push(`data: ${'x'.repeat(80)}\n\n`.repeat(5)).length, 5);
  assert.throws(() => parser.push(`data: ${'x'.repeat(101)}`), { code: 'protocol' });
  assert.throws(() => new EventStreamParser(100).push('data:\n'.repeat(101)), { code: 'protocol' });
});
