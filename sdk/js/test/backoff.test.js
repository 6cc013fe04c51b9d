import assert from 'node:assert/strict';
import { test } from 'node:test';

import { adviceOf, Backoff } from '../dist/backoff.js';
import { Ways } from '../dist/ways.js';

test('steps double up to the last, and a delay is anything up to its step', () => {
  const longest = new Backoff(100, 1_000, () => 1);
  assert.deepEqual([1, 2, 3, 4, 5, 6].map(() => longest.next()), [100, 200, 400, 800, 1_000, 1_000]);
  const shortest = new Backoff(100, 1_000, () => 0);
  assert.deepEqual([1, 2].map(() => shortest.next()), [0, 0]);
});

test("the server's delay is a lower bound, and has an end itself", () => {
  assert.equal(new Backoff(100, 1_000, () => 0).next(7_000), 7_000);
  assert.equal(new Backoff(100, 1_000, () => 1).next(7_000), 7_050);
  assert.equal(new Backoff(100, 1_000, () => 0).next(2 ** 32), 3_600_000);
});

test('only a connection that lasted starts the steps anew', () => {
  const backoff = new Backoff(100, 1_000, () => 1);
  backoff.next();
  backoff.handleLasted(199);
  assert.equal(backoff.next(), 200);
  backoff.handleLasted(400);
  assert.equal(backoff.next(), 100);
});

test('the range of a code says what to do, whatever the code', () => {
  const advices = [4000, 4099, 4100, 4199, 4200, 4299, 4300, 4399, 4400, 1006, 0].map(adviceOf);
  const expected = ['now', 'now', 'later', 'later', 'credentials', 'credentials', 'never', 'never'];
  assert.deepEqual(advices, [...expected, 'later', 'later', 'later']);
});

/** Fails twice on the first way, the second time with or without an answer to a plain request. */
const fail = (ways, hasAnswered) => {
  assert.equal(ways.handleNotOpened(), false);
  assert.equal(ways.handleNotOpened(), true);
  if (hasAnswered) {
    ways.handleAnswered();
  } else {
    ways.handleUnanswered();
  }
};

test('a server that does not answer says nothing about the first way', () => {
  const ways = new Ways(['websocket', 'sse'], 2);
  for (let outage = 0; outage < 3; outage += 1) {
    fail(ways, false);
    assert.equal(ways.current(), 'websocket');
  }
  fail(ways, true);
  assert.equal(ways.current(), 'sse');
});

test('a second way that cannot be opened gives way in turn', () => {
  const ways = new Ways(['websocket', 'sse'], 2);
  fail(ways, true);
  const seen = [1, 2].map(() => {
    const way = ways.current();
    assert.equal(ways.handleNotOpened(), false);
    return way;
  });
  assert.deepEqual([...seen, ways.current()], ['sse', 'sse', 'websocket']);
  const only = new Ways(['websocket'], 1);
  assert.equal(only.handleNotOpened(), false);
  assert.equal(only.current(), 'websocket');
});

test('the second way is kept unless the first has worked before', () => {
  const refused = new Ways(['websocket', 'sse'], 2);
  fail(refused, true);
  refused.handleOpened();
  refused.handleClosed();
  assert.equal(refused.current(), 'sse');
  assert.deepEqual([refused.isAwayFromWebSocket(), refused.hasFirstWorked()], [true, false]);
  refused.handleFirstWorksElsewhere();
  refused.handleClosed();
  assert.equal(refused.current(), 'websocket');
  const moved = new Ways(['websocket', 'sse'], 2);
  moved.handleOpened();
  for (const end of ['handleClosed', 'handleNotOpened', 'handleFirstPasses']) {
    fail(moved, true);
    assert.equal(moved.current(), 'sse');
    moved[end]();
    assert.equal(moved.current(), 'websocket');
  }
  assert.equal(new Ways(['sse', 'websocket'], 2).isAwayFromWebSocket(), false);
});
