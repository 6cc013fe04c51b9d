import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Positions } from '../dist/positions.js';

const at = (epoch, offset) => ({ epoch: BigInt(epoch), offset: BigInt(offset) });

/** Positions that want `t` from a position, on a connection that has asked for it. */
function asked(from) {
  const positions = new Positions();
  positions.want('t', from);
  positions.handleConnecting();
  return positions;
}

test('what was asked for stays until the server answers', () => {
  const positions = asked(at(1, 5));
  assert.equal(positions.handleMessage('t', 9n), 'stray');
  assert.deepEqual(positions.at('t'), at(1, 5));
  const entered = positions.handleSubscribed('t', at(2, 7), false);
  assert.deepEqual(entered, { isCurrent: true, asked: at(1, 5), hasLost: true });
  assert.equal(positions.handleMessage('t', 8n), 'new');
  assert.deepEqual(positions.at('t'), at(2, 8));
});

test('what was missed is not seen before it has come', () => {
  const positions = asked(at(1, 5));
  assert.equal(positions.handleSubscribed('t', at(1, 20), true).hasLost, false);
  assert.deepEqual(positions.at('t'), at(1, 5));
  assert.equal(positions.handleMessage('t', 6n), 'new');
  assert.deepEqual(positions.at('t'), at(1, 6));
});

test('a message that was seen is a duplicate, over connections too', () => {
  const positions = asked(undefined);
  positions.handleSubscribed('t', at(1, 5), false);
  const verdicts = [6n, 6n, 7n, 5n].map((offset) => positions.handleMessage('t', offset));
  assert.deepEqual(verdicts, ['new', 'duplicate', 'new', 'duplicate']);
  positions.handleConnecting();
  positions.handleSubscribed('t', at(1, 7), true);
  assert.equal(positions.handleMessage('t', 7n), 'duplicate');
  assert.equal(positions.handleMessage('t', 8n), 'new');
  assert.equal(positions.handleMessage('', 0n), 'new');
  assert.equal(positions.handleMessage('other', 1n), 'stray');
});

test('nothing is lost where nothing was asked for, or where it goes on from there', () => {
  assert.equal(asked(undefined).handleSubscribed('t', at(1, 5), false).hasLost, false);
  assert.equal(asked(at(1, 5)).handleSubscribed('t', at(1, 5), false).hasLost, false);
  assert.equal(asked(at(1, 5)).handleSubscribed('t', at(1, 6), false).hasLost, true);
  assert.equal(asked(at(1, 5)).handleSubscribed('t', at(2, 5), false).hasLost, true);
});

test('what is told again is no news, and a later position is a loss of what is between', () => {
  const positions = asked(undefined);
  positions.handleSubscribed('t', at(1, 5), false);
  positions.handleMessage('t', 6n);
  for (const known of [at(1, 5), at(1, 6)]) {
    assert.equal(positions.handleSubscribed('t', known, false).hasLost, false);
    assert.deepEqual(positions.at('t'), at(1, 6));
  }
  const entered = positions.handleSubscribed('t', at(1, 9), false);
  assert.deepEqual(entered, { isCurrent: true, asked: at(1, 6), hasLost: true });
  assert.deepEqual(positions.at('t'), at(1, 9));
});

test('another epoch in a running subscription is a loss of what followed the last message seen', () => {
  const positions = asked(undefined);
  positions.handleSubscribed('t', at(1, 5), false);
  positions.handleMessage('t', 6n);
  const entered = positions.handleSubscribed('t', at(2, 0), false);
  assert.deepEqual(entered, { isCurrent: true, asked: at(1, 6), hasLost: true });
  assert.deepEqual(positions.at('t'), at(2, 0));
  assert.equal(positions.handleMessage('t', 1n), 'new');
});

test('what was on its way says nothing of the return', () => {
  const positions = asked(at(1, 5));
  const again = () => {
    positions.drop('t');
    positions.handleLeaving('t');
    positions.want('t', at(1, 9));
  };
  again();
  again();
  assert.equal(positions.handleSubscribed('t', at(1, 5), true).isCurrent, false);
  assert.equal(positions.handleUnsubscribed('t', 'fell_behind'), false);
  assert.equal(positions.handleUnsubscribed('t', ''), false);
  assert.equal(positions.handleSubscribed('t', at(2, 1), false).isCurrent, false);
  assert.equal(positions.handleMessage('t', 30n), 'stray');
  assert.equal(positions.isAwaited('t'), false);
  positions.handleUnsubscribed('t', '');
  assert.equal(positions.isAwaited('t'), true);
  positions.handleSubscribed('t', at(1, 9), true);
  assert.equal(positions.handleMessage('t', 10n), 'new');
  assert.equal(positions.handleUnsubscribed('t', 'fell_behind'), true);
});

test('a connection owes no answers of the one before', () => {
  const positions = asked(at(1, 5));
  positions.drop('t');
  positions.handleLeaving('t');
  positions.want('t', undefined);
  positions.handleConnecting();
  assert.equal(positions.handleSubscribed('t', at(1, 9), false).isCurrent, true);
});

test('a wish is told from an earlier one for the same topic', () => {
  const positions = asked(undefined);
  const [first] = positions.wanted();
  positions.want('t', at(1, 1));
  assert.deepEqual(positions.wanted(), [first]);
  positions.drop('t');
  positions.want('t', undefined);
  assert.notEqual(positions.wanted()[0].wish, first.wish);
});
