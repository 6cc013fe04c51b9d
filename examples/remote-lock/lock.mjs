// A lock: it asks the backend who may enter, and opens when a backend calls it.
//
//   node --experimental-websocket lock.mjs LOCK [--badge B]... [--gateway URL]

import { parseArgs } from 'node:util';

import { CallError, WeirClient } from '../../sdk/js/dist/index.js';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    badge: { type: 'string', multiple: true, default: [] },
    gateway: { type: 'string', default: 'http://127.0.0.1:8080' },
  },
});
const tell = (text) => console.log(`${new Date().toLocaleTimeString('en-GB')} ${text}`);

const client = new WeirClient({
  url: values.gateway,
  deviceId: positionals[0] ?? 'lock-1',
  onCall: ({ method, text }) => {
    switch (method) {
      case 'lock/open':
        tell(`opened for ${text}`);
        return 'open';
      case 'lock/self-destruct':
        throw new CallError('refused', 'this lock does no such thing');
      default:
        throw new CallError('unsupported', `no method ${method}`);
    }
  },
});
await client.connect();
for (const badge of values.badge) {
  try {
    const { text } = await client.call({ method: 'doors/may-enter', text: badge, deadlineMs: 2000 });
    tell(`badge ${badge}: ${text}`);
  } catch (error) {
    tell(`badge ${badge}: ${error.code}`);
  }
}
tell('ready');
