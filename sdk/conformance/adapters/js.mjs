// The adapter of sdk/js. It needs `npm run build` there, and in Node 20 the option
// --experimental-websocket.

import { createInterface } from 'node:readline';

import { CallError, WeirClient } from '../../js/dist/index.js';

const tell = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);

let client;
const subscriptions = new Map();

function subscribe(topic) {
  const subscription = client.subscribe(topic, {
    onMessage: ({ text }) => tell({ event: 'message', topic, text }),
  });
  subscriptions.set(topic, subscription);
}

const commands = {
  connect({ address, device, token, topics, calls, next_token: next }) {
    client = new WeirClient({
      url: `http://${address}`,
      deviceId: device,
      token,
      transports: ['websocket'],
      ...(next && { getToken: () => next }),
      ...(calls && {
        onCall: ({ method }) => {
          throw new CallError('unsupported', `no method ${method}`);
        },
      }),
    });
    client.on('notRecovered', ({ topic }) => tell({ event: 'lost', topic }));
    client.on('close', ({ willReconnect }) => willReconnect || tell({ event: 'ended' }));
    topics.forEach(subscribe);
    // `close` tells of a failure.
    client.connect().catch(() => {});
  },
  subscribe: ({ topic }) => subscribe(topic),
  unsubscribe: ({ topic }) => subscriptions.get(topic).unsubscribe(),
  publish: ({ topic, text, id }) =>
    client.publish({ topic, text }).then(
      () => tell({ event: 'published', id }),
      ({ code }) => tell({ event: 'failed', id, code }),
    ),
};

const lines = createInterface({ input: process.stdin });
lines.on('line', (line) => {
  const command = JSON.parse(line);
  commands[command.do](command);
});
lines.on('close', () => process.exit());
