// The page /demo: a chat and a map of the game room, over WebSocket with JSON (docs/protocol.md).

const ROOM = 'room/lobby';
const CHAT = 'chat/lobby';
/** The room's width and height. */
const SIZE = 1000;
/** Units a second that the own dot walks. */
const SPEED = 260;
/** At most this often the own place is published, in milliseconds; and at least this often. */
const MOVE_MS = 100;
const ALIVE_MS = 2000;
/** A player that is not heard for so long has left. */
const GONE_MS = 6000;
/** The room is never silent for so long while the connection lives. */
const SILENCE_MS = 15000;
const LINES_MAX = 200;
const TRAIL_MAX = 14;

const byId = (id) => document.getElementById(id);
const [status, nameField, count, people, log, form, text, send] =
  ['status', 'name', 'count', 'people', 'log', 'form', 'text', 'send'].map(byId);
const canvas = byId('map');
const gateway = document.querySelector('meta[name="weir-gateway"]').content;
const random = crypto.getRandomValues(new Uint32Array(2));
const device = `page-${random[0].toString(16)}${random[1].toString(16)}`;
const isCalm = matchMedia('(prefers-reduced-motion: reduce)');

// The connection.

let socket;
let ownId;
let heardAt = 0;
let failures = 0;
let requests = 0;
/** Of the chat: an epoch that no topic has asks for everything that is retained. */
let position = { epoch: '1', offset: '0' };

function connect() {
  show('connecting', 'connecting');
  socket = new WebSocket(`${gateway}/v1/connect`, 'weir.v1.json');
  heardAt = performance.now();
  socket.onopen = () => say({
    hello: {
      deviceId: device,
      client: 'demo-page/1',
      topics: [{ topic: ROOM }, { topic: CHAT, position }],
    },
  });
  socket.onmessage = ({ data }) => {
    heardAt = performance.now();
    handle(JSON.parse(data));
  };
  socket.onclose = ({ code, reason }) => lose(code, reason);
}

function say(message) {
  if (socket.readyState === WebSocket.OPEN) {
    socket.send(JSON.stringify(message));
  }
}

function lose(code, reason) {
  ownId = undefined;
  send.disabled = true;
  // Codes from 4200 on: another attempt would end in the same way.
  if (code >= 4200 && code < 4400) {
    show('lost', `the gateway ended the connection: ${reason || code}`);
    return;
  }
  const delay = Math.min(8000, 500 * 2 ** failures) * (0.5 + Math.random() / 2);
  failures += 1;
  show('lost', `connection lost, trying again${code === 1006 ? '' : ` (${reason || code})`}`);
  setTimeout(connect, delay);
}

function show(state, words) {
  status.dataset.state = state;
  status.textContent = words;
}

function handle(message) {
  const { welcome, subscribed, push, batch, error } = message;
  if (welcome) {
    ownId = welcome.connectionId;
    failures = 0;
    send.disabled = false;
    show('connected', 'connected');
    publishPlace();
  } else if (subscribed?.topic === CHAT && subscribed.position) {
    const { epoch = '0', offset = '0' } = subscribed.position;
    position = { epoch, offset };
  } else if (push) {
    receive(push.topic, push);
  } else if (batch) {
    batch.messages.forEach((each) => receive(batch.topic, each));
  } else if (error) {
    write('', `not done: ${error.message}`, 'note');
  }
}

function receive(topic, { text: content = '', key = '', sender = '0', offset }) {
  let said;
  try {
    said = JSON.parse(content);
  } catch {
    // Other programs may publish plain text.
  }
  if (topic === ROOM && said && Number.isFinite(said.x) && Number.isFinite(said.y)) {
    place(sender, key, said);
  } else if (topic === CHAT) {
    position.offset = offset;
    const isLine = said && typeof said.name === 'string' && typeof said.text === 'string';
    write(isLine ? said.name : 'backend', isLine ? said.text : content, '', isLine ? said.name : '');
  }
}

function publish(topic, content, key) {
  requests += 1;
  const request = topic === CHAT ? requests : 0;
  say({ publish: { topic, text: JSON.stringify(content), contentType: 'application/json', key, request } });
}

// The chat.

function write(name, words, kind = '', seed = '') {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  const line = document.createElement('li');
  line.className = kind;
  if (name !== '') {
    const bold = document.createElement('b');
    bold.textContent = name.slice(0, 24);
    bold.style.color = colour(seed);
    line.append(bold);
  }
  line.append(words.slice(0, 300));
  log.append(line);
  while (log.childElementCount > LINES_MAX) {
    log.firstElementChild.remove();
  }
  if (isAtEnd) {
    log.scrollTop = log.scrollHeight;
  }
}

form.addEventListener('submit', (event) => {
  event.preventDefault();
  const words = text.value.trim();
  if (words !== '' && ownId !== undefined) {
    publish(CHAT, { name: ownName(), text: words }, '');
    text.value = '';
  }
});

nameField.value = localStorage.getItem('weir-demo-name') ?? `guest-${random[0] % 1000}`;
nameField.addEventListener('change', () => {
  localStorage.setItem('weir-demo-name', ownName());
  publishPlace();
});

function ownName() {
  return nameField.value.trim().slice(0, 24) || 'guest';
}

// The room.

/** Players by the id of their connection: the place that was told, the one that is drawn, and a trail. */
const players = new Map();
const own = { x: 100 + Math.random() * 800, y: 100 + Math.random() * 800, goal: undefined };
const pressed = new Set();
let publishedAt = 0;
let isMoved = false;

function place(id, key, { x, y, name }) {
  const clamp = (value) => Math.max(0, Math.min(SIZE, value));
  const player = players.get(id) ?? { at: { x: clamp(x), y: clamp(y) }, trail: [], isPage: key.startsWith('page-') };
  player.told = { x: clamp(x), y: clamp(y) };
  player.name = typeof name === 'string' ? name.slice(0, 24) : '';
  player.heardAt = performance.now();
  const isNew = !players.has(id);
  players.set(id, player);
  if (isNew && player.isPage) {
    tellPeople();
  }
}

function tellPeople() {
  const others = [...players].filter(([id, { isPage }]) => isPage && id !== ownId).map(([, { name }]) => name);
  const words = others.length === 0
    ? 'Open this page twice: both see each other.'
    : `Also on this page: ${others.join(', ')}`;
  // A screen reader announces each change.
  if (people.textContent !== words) {
    people.textContent = words;
  }
}

function publishPlace() {
  publishedAt = performance.now();
  isMoved = false;
  publish(ROOM, { name: ownName(), x: Math.round(own.x), y: Math.round(own.y) }, device);
}

const KEYS = new Map([
  ['ArrowUp', [0, -1]], ['w', [0, -1]], ['ArrowDown', [0, 1]], ['s', [0, 1]],
  ['ArrowLeft', [-1, 0]], ['a', [-1, 0]], ['ArrowRight', [1, 0]], ['d', [1, 0]],
]);

canvas.addEventListener('keydown', (event) => {
  const isPlain = !event.ctrlKey && !event.altKey && !event.metaKey;
  if (isPlain && KEYS.has(event.key)) {
    event.preventDefault();
    pressed.add(event.key);
    own.goal = undefined;
  }
});
canvas.addEventListener('keyup', ({ key }) => pressed.delete(key));
canvas.addEventListener('blur', () => pressed.clear());
canvas.addEventListener('pointerdown', (event) => {
  const { left, top, width, height } = canvas.getBoundingClientRect();
  own.goal = { x: ((event.clientX - left) / width) * SIZE, y: ((event.clientY - top) / height) * SIZE };
});

function walk(seconds) {
  let [dx, dy] = [0, 0];
  for (const key of pressed) {
    const [x, y] = KEYS.get(key);
    [dx, dy] = [dx + x, dy + y];
  }
  if (own.goal !== undefined) {
    [dx, dy] = [own.goal.x - own.x, own.goal.y - own.y];
  }
  const distance = Math.hypot(dx, dy);
  if (distance === 0) {
    return;
  }
  const step = Math.min(SPEED * seconds, own.goal === undefined ? Infinity : distance);
  const clamp = (value) => Math.max(15, Math.min(SIZE - 15, value));
  [own.x, own.y] = [clamp(own.x + (dx / distance) * step), clamp(own.y + (dy / distance) * step)];
  if (own.goal !== undefined && distance <= step) {
    own.goal = undefined;
  }
  isMoved = true;
}

// The drawing.

const context = canvas.getContext('2d');
const dark = matchMedia('(prefers-color-scheme: dark)');
let palette = {};
let drawnAt = performance.now();

function readPalette() {
  const style = getComputedStyle(document.documentElement);
  palette = Object.fromEntries(['panel', 'ink', 'quiet', 'grid', 'accent'].map((name) => [name, style.getPropertyValue(`--${name}`)]));
}

/** The same for the same word, and readable on the ground. */
function colour(word) {
  let hash = 7;
  for (const letter of word) {
    hash = (hash * 31 + letter.codePointAt(0)) % 360;
  }
  return word === '' ? 'inherit' : `hsl(${hash} ${dark.matches ? '65% 68%' : '70% 34%'})`;
}

function resize() {
  const scale = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [canvas.clientWidth * scale, canvas.clientHeight * scale];
}

function draw(now) {
  const seconds = Math.min(0.1, (now - drawnAt) / 1000);
  drawnAt = now;
  walk(seconds);
  if (ownId !== undefined && isMoved && now - publishedAt >= MOVE_MS) {
    publishPlace();
  }
  const scale = devicePixelRatio || 1;
  const [width, height] = [canvas.width / scale, canvas.height / scale];
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.fillStyle = palette.panel;
  context.fillRect(0, 0, width, height);
  context.strokeStyle = palette.grid;
  context.lineWidth = 1;
  context.beginPath();
  for (let line = 1; line < 10; line += 1) {
    const [x, y] = [Math.round((width * line) / 10) + 0.5, Math.round((height * line) / 10) + 0.5];
    context.moveTo(x, 0);
    context.lineTo(x, height);
    context.moveTo(0, y);
    context.lineTo(width, y);
  }
  context.stroke();
  const toScreen = ({ x, y }) => [(x / SIZE) * width, (y / SIZE) * height];
  const others = [...players].filter(([id]) => id !== ownId).map(([, player]) => player);
  // People above all others.
  others.sort((a, b) => a.isPage - b.isPage);
  for (const player of others) {
    glide(player, seconds);
    drawPlayer(player, toScreen, player.isPage);
  }
  drawPlayer({ at: own, trail: [], name: `${ownName()} (you)` }, toScreen, true);
  requestAnimationFrame(draw);
}

/** Moves the drawn dot towards the place that was told last. */
function glide(player, seconds) {
  const share = isCalm.matches ? 1 : 1 - Math.exp(-seconds * 6);
  player.at.x += (player.told.x - player.at.x) * share;
  player.at.y += (player.told.y - player.at.y) * share;
  const last = player.trail.at(-1);
  if (last === undefined || Math.hypot(player.at.x - last.x, player.at.y - last.y) > 6) {
    player.trail.push({ ...player.at });
    player.trail.splice(0, player.trail.length - TRAIL_MAX);
  }
}

function drawPlayer({ at, trail, name }, toScreen, isPerson) {
  const [x, y] = toScreen(at);
  const paint = isPerson ? palette.accent : colour(name);
  if (!isCalm.matches) {
    context.fillStyle = paint;
    trail.forEach((point, index) => {
      context.globalAlpha = (0.3 * (index + 1)) / trail.length;
      context.beginPath();
      context.arc(...toScreen(point), 2, 0, 2 * Math.PI);
      context.fill();
    });
    context.globalAlpha = 1;
  }
  context.fillStyle = paint;
  context.beginPath();
  context.arc(x, y, isPerson ? 8 : 5, 0, 2 * Math.PI);
  context.fill();
  if (isPerson) {
    context.strokeStyle = paint;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(x, y, 12, 0, 2 * Math.PI);
    context.stroke();
  }
  context.font = `${isPerson ? '600 13px' : '11px'} system-ui, sans-serif`;
  context.fillStyle = isPerson ? palette.ink : palette.quiet;
  // Inside the map, also at its edges.
  const half = context.measureText(name).width / 2 + 3;
  context.textAlign = 'center';
  const middle = Math.max(half, Math.min(canvas.clientWidth - half, x));
  const line = y < 30 ? y + 26 : y - (isPerson ? 17 : 9);
  context.strokeStyle = palette.panel;
  context.lineWidth = 3;
  context.lineJoin = 'round';
  context.strokeText(name, middle, line);
  context.fillText(name, middle, line);
}

// Everything that happens now and then.

setInterval(() => {
  const now = performance.now();
  for (const [id, player] of players) {
    if (now - player.heardAt > GONE_MS) {
      players.delete(id);
    }
  }
  tellPeople();
  count.textContent = `${players.size} players`;
  if (socket.readyState === WebSocket.OPEN && now - heardAt > SILENCE_MS) {
    socket.close();
  }
  if (ownId !== undefined && now - publishedAt >= ALIVE_MS - 500) {
    publishPlace();
  }
}, 1000);

/** For the console of a curious reader, and for the test of this page. */
window.weirDemo = { players: () => [...players.values()].map(({ name, told }) => ({ name, ...told })) };

new ResizeObserver(resize).observe(canvas);
dark.addEventListener('change', readPalette);
readPalette();
resize();
connect();
requestAnimationFrame(draw);
