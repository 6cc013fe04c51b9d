// A player of the room: walks around, and draws everybody as a map of letters.
//
//   node --experimental-websocket player.mjs NAME [--room R] [--seconds S] [--gateway URL] [--json]

import { parseArgs } from 'node:util';

import { WeirClient } from '../../sdk/js/dist/index.js';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    room: { type: 'string', default: '1' },
    seconds: { type: 'string', default: '60' },
    gateway: { type: 'string', default: 'http://127.0.0.1:8080' },
    json: { type: 'boolean', default: false },
  },
});
const [WIDTH, HEIGHT] = [40, 12];
/** The last seconds of a player: it stands still. */
const REST_MS = 2000;
const STEP_MS = 100;
const topic = `room/${values.room}`;
const me = {
  name: (positionals[0] ?? 'guest').slice(0, 20),
  x: Math.floor(Math.random() * WIDTH),
  y: Math.floor(Math.random() * HEIGHT),
};
/** By device id: a player has left when its connection has. */
const players = new Map();
const events = { joined: new Set(), left: new Set() };

const client = new WeirClient({ url: values.gateway, deviceId: `player-${me.name}` });
const room = client.subscribe(topic, {
  presence: true,
  // The key is the player: in a tick, a newer message with the same key replaces an older one.
  onMessage: ({ key, text }) => players.set(key, JSON.parse(text)),
});
room.on('presence', ({ joined, left }) => {
  for (const { deviceId } of joined) {
    events.joined.add(deviceId);
  }
  for (const { deviceId } of left) {
    events.left.add(deviceId);
    players.delete(deviceId);
  }
});
await client.connect();

const end = Date.now() + Number(values.seconds) * 1000;
let drawnAt = 0;
while (Date.now() < end) {
  if (Date.now() < end - REST_MS) {
    me.x = Math.max(0, Math.min(WIDTH - 1, me.x + Math.floor(Math.random() * 3) - 1));
    me.y = Math.max(0, Math.min(HEIGHT - 1, me.y + Math.floor(Math.random() * 3) - 1));
  }
  await client.publish({ topic, text: JSON.stringify(me), key: `player-${me.name}` });
  if (!values.json && Date.now() - drawnAt >= 500) {
    drawnAt = Date.now();
    draw();
  }
  await new Promise((resolve) => setTimeout(resolve, STEP_MS));
}
if (values.json) {
  const [joined, left] = [[...events.joined], [...events.left]];
  console.log(JSON.stringify({ me, players: Object.fromEntries(players), joined, left }));
}
await client.close();

function draw() {
  const map = Array.from({ length: HEIGHT }, () => Array(WIDTH).fill('.'));
  for (const { name, x, y } of players.values()) {
    map[y][x] = name[0];
  }
  console.log(`${map.map((row) => row.join('')).join('\n')}\n${players.size} players in ${topic}\n`);
}
