// What a client must stand, wherever it runs.

import assert from 'node:assert/strict';

import { rest } from './gateway.js';

const CUTS = 10;
const MESSAGES = 1_000;

/**
 * Publishes 1,000 messages to a client that is in `topic` already, with the connection cut ten times in between: while
 * messages are on their way, and with more published before the client is back. Then starts the gateway anew.
 *
 * `look` says what the client has seen: how often a connection was opened, the texts of the messages, and the topics of
 * which it was told that recovery was not possible.
 */
export async function cutAndRestart(gateway, proxy, topic, look) {
  const numbers = Array.from({ length: MESSAGES }, (_, index) => `${index + 1}`);
  let published = 0;
  const publish = async (count) => {
    await gateway.publish(topic, numbers.slice(published, published + count));
    published += count;
  };
  for (let cut = 1; cut <= CUTS; cut += 1) {
    await until(look, `connection ${cut}, in the topic`, (seen) => seen.entered >= cut);
    await publish(40);
    proxy.hold();
    await publish(20);
    proxy.cut();
    await publish(30);
  }
  await publish(MESSAGES - published);
  // What comes behind the last one shows that nothing else does.
  await gateway.publish(topic, ['end']);
  const { entered, texts, lost } = await until(look, 'the end', (seen) => seen.texts.at(-1) === 'end');
  assert.deepEqual(texts, [...numbers, 'end']);
  assert.deepEqual(lost, []);
  assert.equal(entered, CUTS + 1);

  await gateway.stop('SIGTERM');
  await gateway.launch();
  await until(look, 'word that recovery was not possible', (seen) => seen.lost.length > 0);
  await gateway.publish(topic, ['after the restart']);
  const after = await until(look, 'a message after the restart', (seen) => seen.texts.length > MESSAGES + 1);
  assert.deepEqual(after.texts, [...numbers, 'end', 'after the restart']);
  assert.deepEqual(after.lost, [topic]);
}

async function until(look, what, condition) {
  // The test's own time limit ends this; what was seen last is worth knowing then.
  const deadline = Date.now() + 60_000;
  for (;;) {
    const seen = await look();
    if (condition(seen)) {
      return seen;
    }
    if (Date.now() > deadline) {
      const { texts, ...rest } = seen;
      const tail = texts.slice(-3).join(', ');
      assert.fail(`waited in vain for ${what}: ${JSON.stringify(rest)}, ${texts.length} messages up to ${tail}`);
    }
    await rest();
  }
}
