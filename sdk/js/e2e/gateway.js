// The program under test, and a proxy before it that cuts connections as a network does.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { extname, join } from 'node:path';

const CONFIGURATION = `
[store]
kind = "none"

[connection]
drain_timeout = "1s"

[[topic_classes]]
pattern = "feed/*"
retention_messages = 2000
publish = ["devices"]
`;

/** A running `weir` (E2E_PROGRAM); it can be started again on the same ports. */
export class Gateway {
  #directory = mkdtempSync(join(tmpdir(), 'weir-js-'));
  #child;

  static async start(t, extra = '') {
    const gateway = new Gateway();
    // The last resort if a test ends by its time limit.
    const kill = () => gateway.#child?.kill('SIGKILL');
    process.on('exit', kill);
    t.after(async () => {
      await gateway.stop('SIGKILL');
      process.off('exit', kill);
      rmSync(gateway.#directory, { recursive: true });
    });
    // A port that was free a moment ago may be taken: then others are tried.
    for (let attempt = 1; ; attempt += 1) {
      await gateway.#configure(extra);
      try {
        await gateway.launch();
        return gateway;
      } catch (error) {
        if (attempt === 3) {
          throw error;
        }
      }
    }
  }

  async #configure(extra) {
    const [tcp, http, admin] = [await freePort(), await freePort(), await freePort()];
    this.http = http;
    this.url = `http://127.0.0.1:${http}`;
    this.admin = `http://127.0.0.1:${admin}`;
    const listen =
      `[listen]\ntcp = ["127.0.0.1:${tcp}"]\nudp = []\nhttp = ["127.0.0.1:${http}"]\nadmin = "127.0.0.1:${admin}"\n`;
    writeFileSync(join(this.#directory, 'weir.toml'), listen + CONFIGURATION + extra);
  }

  /** Starts it, and waits until it is ready. */
  async launch() {
    const program = process.env.E2E_PROGRAM;
    if (program === undefined) {
      throw new Error('E2E_PROGRAM names no program: run this by `cargo xtask test`');
    }
    const log = openSync(join(this.#directory, 'log'), 'a');
    const own = Object.entries(process.env).filter(([key]) => !key.startsWith('WEIR_'));
    this.#child = spawn(program, ['--config', 'weir.toml'], {
      cwd: this.#directory,
      env: Object.fromEntries(own),
      stdio: ['ignore', log, log],
    });
    closeSync(log);
    await once(this.#child, 'spawn');
    for (;;) {
      if (this.#child.exitCode !== null || this.#child.signalCode !== null) {
        throw new Error(`weir did not start: ${readFileSync(join(this.#directory, 'log'), 'utf8')}`);
      }
      const answer = await fetch(`${this.admin}/readyz`).catch(() => undefined);
      if (answer?.status === 200) {
        return;
      }
      await rest();
    }
  }

  async stop(signal) {
    const child = this.#child;
    if (child !== undefined && child.exitCode === null && child.signalCode === null) {
      const end = once(child, 'exit');
      child.kill(signal);
      await end;
    }
  }

  /** Publishes texts to a topic, in order, as a backend does. */
  async publish(topic, texts) {
    const messages = texts.map((text) => ({ topic, text }));
    const answer = await fetch(`${this.admin}/v1/publish`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ messages }),
    });
    const { results } = await answer.json();
    if (answer.status !== 200 || results.some(({ error }) => error !== undefined)) {
      throw new Error(`publish answered ${answer.status}: ${JSON.stringify(results)}`);
    }
  }

  /** Ends the connections of a device, as an operator does. */
  async endConnections(device) {
    const answer = await fetch(`${this.admin}/v1/connections?device=${device}`);
    for (const { id } of (await answer.json()).connections) {
      await fetch(`${this.admin}/v1/connections/${id}`, { method: 'DELETE' });
    }
  }
}

/**
 * Passes bytes on between clients and the gateway, and answers what lies under `/page/` itself: so page and gateway are
 * one origin.
 */
export class Proxy {
  /**
   * What becomes of WebSockets: they `pass`; or as behind a middlebox that knows none, an upgrade is answered with `400`,
   * or its connection is `reset`; or it is let through, and frames are `held`.
   */
  upgrades = 'pass';
  upgradesBlocked = 0;
  #isBadGateway = false;
  #port;
  #pages;
  #clients = new Set();
  #pairs = new Set();
  #server;

  static async start(t, port, pages = {}) {
    const proxy = new Proxy();
    proxy.#port = port;
    proxy.#pages = pages;
    await proxy.#listen(0);
    proxy.url = `http://127.0.0.1:${proxy.#server.address().port}`;
    t.after(() => proxy.down());
    return proxy;
  }

  /** Is not there: breaks every connection and refuses new ones. */
  down() {
    this.#server.close();
    for (const client of this.#clients) {
      client.resetAndDestroy();
    }
    this.cut();
  }

  /** Is there, but the gateway is not: breaks every connection and answers each request with 502. */
  loseGateway() {
    this.#isBadGateway = true;
    this.cut();
  }

  /** Is there again, on the same port, and so is the gateway. */
  async up() {
    this.#isBadGateway = false;
    if (this.#server.listening) {
      return;
    }
    const { port } = new URL(this.url);
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#listen(Number(port));
      } catch (error) {
        // A connection of another program may have taken the port for a moment.
        if (attempt === 100) {
          throw error;
        }
        await rest();
      }
    }
  }

  async #listen(port) {
    this.#server = createServer((client) => this.#handleClient(client)).listen(port, '127.0.0.1');
    await once(this.#server, 'listening');
  }

  /** From now on what the gateway sends stays here. */
  hold() {
    for (const { server } of this.#pairs) {
      server.pause();
    }
  }

  /** Breaks every connection, with whatever is on its way. */
  cut() {
    for (const { client, server } of this.#pairs) {
      client.resetAndDestroy();
      server.resetAndDestroy();
    }
    this.#pairs.clear();
  }

  #handleClient(client) {
    this.#clients.add(client);
    client.on('error', () => {}).on('close', () => this.#clients.delete(client));
    client.once('data', (bytes) => {
      // A head fits its first piece: everybody here is on this machine.
      const head = bytes.toString('latin1');
      const path = head.split(' ')[1] ?? '';
      if (path.startsWith('/page/')) {
        this.#answer(client, path.slice('/page/'.length).split('?')[0]);
      } else if (this.#isBadGateway) {
        client.end('HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Length: 0\r\n\r\n');
      } else if (this.upgrades !== 'pass' && /^upgrade:/im.test(head)) {
        this.#blockUpgrade(client, bytes);
      } else {
        // Each request has a connection of its own: the next one may be for a page.
        this.#pass(client, Buffer.from(head.replace(/^connection: keep-alive/im, 'Connection: close'), 'latin1'));
      }
    });
  }

  #blockUpgrade(client, bytes) {
    this.upgradesBlocked += 1;
    switch (this.upgrades) {
      case '400':
        client.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n');
        break;
      case 'reset':
        client.resetAndDestroy();
        break;
      case 'held':
        this.#pass(client, bytes, true);
    }
  }

  #pass(client, bytes, areFramesHeld = false) {
    const server = connect(this.#port, '127.0.0.1');
    const pair = { client, server };
    this.#pairs.add(pair);
    const end = () => {
      this.#pairs.delete(pair);
      client.destroy();
      server.destroy();
    };
    server.on('error', end).on('close', end);
    client.on('error', end).on('close', end);
    server.write(bytes);
    if (areFramesHeld) {
      // The answer to the upgrade, and nothing after it.
      server.once('data', (answer) => client.write(answer));
      client.resume();
      return;
    }
    client.pipe(server);
    server.pipe(client);
  }

  #answer(client, name) {
    const file = this.#pages[name];
    if (file === undefined) {
      client.end('HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n');
      return;
    }
    const body = readFileSync(file);
    const type = extname(name) === '.html' ? 'text/html; charset=utf-8' : 'text/javascript';
    const head = `HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: ${type}\r\n`;
    client.write(`${head}Content-Length: ${body.length}\r\n\r\n`);
    client.end(body);
  }
}

/** A short pause between two looks at another process. */
export function rest() {
  return new Promise((resolve) => setTimeout(resolve, 20));
}

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}
