import assert from 'node:assert/strict';
import { test } from 'node:test';

import { WebSocketRetry } from '../dist/retry.js';

/** A clock that stands still; the function returned moves it. */
function mockClock(t) {
  const timers = new Set();
  let now = 0;
  t.mock.method(performance, 'now', () => now);
  t.mock.method(globalThis, 'clearTimeout', (timer) => timers.delete(timer));
  t.mock.method(globalThis, 'setTimeout', (run, delayMs) => {
    const timer = { run, at: now + delayMs };
    timers.add(timer);
    return timer;
  });
  return (ms) => {
    now += ms;
    for (const timer of [...timers].filter(({ at }) => at <= now)) {
      timers.delete(timer);
      timer.run();
    }
  };
}

/** A retry whose attempts end as the test says, and whose delays are the longest possible. */
function retry(t) {
  t.mock.method(Math, 'random', () => 1);
  const tick = mockClock(t);
  const state = { attempts: 0, cancelled: 0, passed: 0, isUseful: true };
  const begin = () => {
    state.attempts += 1;
    if (!state.isUseful) {
      return undefined;
    }
    const cancel = () => (state.cancelled += 1);
    return { passes: new Promise((resolve) => (state.end = resolve)), cancel };
  };
  const retry = new WebSocketRetry(begin, () => (state.passed += 1));
  /** The next attempt comes after this delay, not before, and ends so. */
  const attempt = async (delayMs, passes) => {
    const { attempts } = state;
    tick(delayMs - 1);
    assert.equal(state.attempts, attempts, `an attempt before ${delayMs} ms`);
    tick(1);
    assert.equal(state.attempts, attempts + 1, `no attempt after ${delayMs} ms`);
    state.end?.(passes);
    await new Promise(setImmediate);
  };
  return { retry, state, attempt, tick };
}

test('where WebSocket has worked it is tried soon, and again within a minute', async (t) => {
  const { retry: eager, state, attempt, tick } = retry(t);
  eager.start(true);
  for (const delayMs of [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]) {
    // Once more changes nothing.
    eager.start(true);
    await attempt(delayMs, false);
  }
  state.isUseful = false;
  await attempt(60_000);
  state.isUseful = true;
  await attempt(60_000, true);
  assert.equal(state.passed, 1);
  tick(10_000_000);
  assert.equal(state.attempts, 10);
});

test('only a welcome by WebSocket starts the steps anew', async (t) => {
  const { retry: eager, attempt } = retry(t);
  eager.start(true);
  await attempt(1_000, false);
  await attempt(2_000, true);
  eager.start(true);
  await attempt(4_000, true);
  eager.reset();
  eager.start(true);
  await attempt(1_000, true);
});

test('where WebSocket has never worked it is tried rarely, but soon once it works in another tab', async (t) => {
  const { retry: rare, state, attempt, tick } = retry(t);
  rare.start(false);
  await attempt(90_000, false);
  await attempt(120_000, false);
  rare.hurry();
  await attempt(1_000, false);
  await attempt(1_000, false);
  rare.hurry();
  rare.hurry();
  await attempt(1_000, false);
  rare.stop();
  tick(10_000_000);
  assert.equal(state.attempts, 5);
});

test('an attempt under way is ended with the retry, and its outcome means nothing then', async (t) => {
  const { retry: eager, state, tick } = retry(t);
  eager.start(true);
  tick(1_000);
  assert.equal(state.attempts, 1);
  eager.stop();
  assert.equal(state.cancelled, 1);
  state.end(true);
  await new Promise(setImmediate);
  tick(10_000_000);
  assert.deepEqual([state.attempts, state.passed], [1, 0]);
});
