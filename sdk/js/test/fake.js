// A server as small as the tests need: WebSocket by hand, server-sent events, publishes. The tests say what it says.

import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';

/** A queue on which one can wait for what comes next. */
export class Inbox {
  #items = [];
  #waiting = [];

  put(item) {
    const resolve = this.#waiting.shift();
    if (resolve === undefined) {
      this.#items.push(item);
    } else {
      resolve(item);
    }
  }

  next() {
    if (this.#items.length > 0) {
      return Promise.resolve(this.#items.shift());
    }
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  get length() {
    return this.#items.length;
  }
}

export class FakeServer {
  /** Those who came by WebSocket, before they have said anything. */
  webSockets = new Inbox();
  /** Those who asked for a stream. */
  streams = new Inbox();
  publishes = new Inbox();
  /** As something on the way does that knows no WebSocket. */
  refusesUpgrades = false;
  /** As something on the way does that lets an upgrade through, and no frame behind it. */
  holdsFrames = false;
  upgradesRefused = 0;
  /** The answers to the next plain requests for a WebSocket, [status, headers]; then 426, as of the gateway. */
  probeAnswers = [];
  probes = 0;
  /** An answer to the next stream that is none: [status, headers, body]. */
  streamRefusals = [];
  #server = createServer((request, response) => this.#handleRequest(request, response));
  #sockets = new Set();

  static async start(t) {
    const fake = new FakeServer();
    fake.#server.on('upgrade', (request, socket) => fake.#handleUpgrade(request, socket));
    fake.#server.on('connection', (socket) => {
      fake.#sockets.add(socket);
      socket.on('close', () => fake.#sockets.delete(socket));
      socket.on('error', () => {});
    });
    fake.#server.listen(0, '127.0.0.1');
    await once(fake.#server, 'listening');
    fake.url = `http://127.0.0.1:${fake.#server.address().port}`;
    t.after(() => {
      fake.#server.close();
      fake.#sockets.forEach((socket) => socket.destroy());
    });
    return fake;
  }

  /** The next WebSocket, welcomed, with its hello. */
  async welcome(heartbeatMs = 60_000) {
    const peer = await this.webSockets.next();
    peer.hello = (await peer.next()).hello;
    peer.say({ welcome: { connectionId: '4294967303', heartbeatMs, serverTimeMs: '1767225600000' } });
    return peer;
  }

  /** The next stream, welcomed. */
  async welcomeStream(heartbeatMs = 60_000) {
    const stream = await this.streams.next();
    stream.say('welcome', { connectionId: '8', heartbeatMs, serverTimeMs: '1767225600000' });
    return stream;
  }

  #handleUpgrade(request, socket) {
    if (this.refusesUpgrades) {
      this.upgradesRefused += 1;
      socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n');
      return;
    }
    const key = `${request.headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`;
    const accept = createHash('sha1').update(key).digest('base64');
    const head = ['HTTP/1.1 101 Switching Protocols', 'Upgrade: websocket', 'Connection: Upgrade'];
    head.push(`Sec-WebSocket-Accept: ${accept}`, 'Sec-WebSocket-Protocol: weir.v1.json', '', '');
    socket.write(head.join('\r\n'));
    if (!this.holdsFrames) {
      this.webSockets.put(new Peer(request, socket));
    }
  }

  async #handleRequest(request, response) {
    const { pathname } = new URL(request.url, this.url);
    if (pathname === '/v1/publish') {
      const pieces = [];
      for await (const piece of request) {
        pieces.push(piece);
      }
      const body = JSON.parse(Buffer.concat(pieces).toString());
      this.publishes.put({ body, headers: request.headers, response });
    } else if (pathname === '/v1/connect') {
      this.probes += 1;
      const [status, headers] = this.probeAnswers.shift() ?? [426, { Upgrade: 'websocket' }];
      response.writeHead(status, headers).end();
    } else if (this.streamRefusals.length > 0) {
      const [status, headers, body] = this.streamRefusals.shift();
      response.writeHead(status, headers).end(body);
    } else {
      response.writeHead(200, { 'Content-Type': 'text/event-stream', Connection: 'close' });
      response.flushHeaders();
      this.streams.put(new Stream(request, response));
    }
  }
}

/** A client's stream of events. */
class Stream {
  constructor(request, response) {
    this.headers = request.headers;
    this.url = new URL(request.url, 'http://fake');
    this.response = response;
    // `once` would fail where the client resets the connection.
    this.closed = new Promise((resolve) => response.on('close', resolve));
  }

  say(event, data) {
    const name = event === 'push' ? '' : `event: ${event}\n`;
    this.response.write(`${name}data: ${JSON.stringify(data)}\n\n`);
  }

  comment() {
    this.response.write(':\n\n');
  }

  cut() {
    this.response.destroy();
  }
}

/** A client's WebSocket. */
class Peer {
  /** Messages so far. */
  heard = 0;
  #inbox = new Inbox();
  #bytes = Buffer.alloc(0);
  #socket;

  constructor(request, socket) {
    this.headers = request.headers;
    this.#socket = socket;
    // `once` would fail where the client resets the connection.
    this.closed = new Promise((resolve) => socket.on('close', resolve));
    socket.on('data', (bytes) => this.#handleBytes(bytes));
  }

  next() {
    return this.#inbox.next();
  }

  /** The next message that is no ping. */
  async nextDeed() {
    for (;;) {
      const message = await this.next();
      if (message.ping === undefined) {
        return message;
      }
    }
  }

  say(message) {
    this.#frame(0x81, Buffer.from(JSON.stringify(message)));
  }

  close(code, reason) {
    this.#frame(0x88, Buffer.concat([Buffer.from([code >> 8, code & 0xff]), Buffer.from(reason)]));
  }

  cut() {
    this.#socket.destroy();
  }

  #frame(head, body) {
    const length =
      body.length < 126
        ? Buffer.from([body.length])
        : Buffer.from([126, body.length >> 8, body.length & 0xff]);
    this.#socket.write(Buffer.concat([Buffer.from([head]), length, body]));
  }

  #handleBytes(bytes) {
    this.#bytes = Buffer.concat([this.#bytes, bytes]);
    for (;;) {
      const short = this.#bytes.length < 2 ? 0 : this.#bytes[1] & 0x7f;
      const head = short === 127 ? 10 : short === 126 ? 4 : 2;
      if (this.#bytes.length < head) {
        return;
      }
      const length =
        short === 127 ? Number(this.#bytes.readBigUInt64BE(2)) : short === 126 ? this.#bytes.readUInt16BE(2) : short;
      if (this.#bytes.length < head + 4 + length) {
        return;
      }
      const mask = this.#bytes.subarray(head, head + 4);
      const body = Buffer.from(this.#bytes.subarray(head + 4, head + 4 + length));
      body.forEach((byte, index) => (body[index] = byte ^ mask[index % 4]));
      const opcode = this.#bytes[0] & 0x0f;
      if (opcode === 1) {
        this.heard += 1;
        this.#inbox.put(JSON.parse(body.toString()));
      } else if (opcode === 8) {
        this.#frame(0x88, body);
        this.#socket.end();
      }
      this.#bytes = this.#bytes.subarray(head + 4 + length);
    }
  }
}
