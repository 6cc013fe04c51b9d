// The program under test, with devices that are connected to it.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** A running `weir` (E2E_PROGRAM) with a device store in a directory of its own. */
export class Gateway {
  directory = mkdtempSync(join(tmpdir(), 'weir-ui-'));
  #child;
  /** The process that has taken the place of the child. */
  #newest;
  #devices = new Set();

  static async start(t, extra = '') {
    const gateway = new Gateway();
    const kill = () => gateway.#kill();
    process.on('exit', kill);
    t.after(async () => {
      kill();
      await gateway.stop('SIGKILL');
      process.off('exit', kill);
      rmSync(gateway.directory, { recursive: true });
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
    const [tcp, admin] = [await freePort(), await freePort()];
    this.tcp = `127.0.0.1:${tcp}`;
    this.admin = `http://127.0.0.1:${admin}`;
    writeFileSync(
      join(this.directory, 'weir.toml'),
      `[listen]
tcp = ["${this.tcp}"]
udp = []
http = []
admin = "127.0.0.1:${admin}"

[store]
path = "devices.db"

[connection]
drain_timeout = "1s"

[[topic_classes]]
pattern = "*"
retention_messages = 100
${extra}`,
    );
  }

  /** Starts it, and waits until it is ready. */
  async launch() {
    this.#child = this.#run(['--config', 'weir.toml'], 'log');
    await once(this.#child, 'spawn');
    for (;;) {
      if (hasEnded(this.#child)) {
        throw new Error(`weir did not start: ${this.read('log')}`);
      }
      const answer = await fetch(`${this.admin}/readyz`).catch(() => undefined);
      if (answer?.status === 200) {
        return;
      }
      await rest();
    }
  }

  #run(words, log) {
    const program = process.env.E2E_PROGRAM;
    if (program === undefined) {
      throw new Error('E2E_PROGRAM names no program: run this by `cargo xtask test`');
    }
    const output = openSync(join(this.directory, log), 'a');
    const own = Object.entries(process.env).filter(([key]) => !key.startsWith('WEIR_'));
    const options = { cwd: this.directory, env: Object.fromEntries(own), stdio: ['ignore', output, output] };
    const child = spawn(program, words, options);
    closeSync(output);
    return child;
  }

  read(file) {
    return readFileSync(join(this.directory, file), 'utf8');
  }

  /** Connects a device; its log is a file of this name. Waits until it is in its topics. */
  async connect(device, log, ...topics) {
    const child = this.#run(['subscribe', ...topics, '--device', device, '--addr', this.tcp], log);
    this.#devices.add(child);
    child.once('exit', () => this.#devices.delete(child));
    await until(() => this.read(log).split('subscribed to').length > topics.length, `${device} is not connected`);
    return child;
  }

  /** Publishes this number of messages to a topic. */
  async publish(topic, count) {
    const messages = Array.from({ length: count }, (_, index) => ({ topic, text: `message ${index}` }));
    const answer = await fetch(`${this.admin}/v1/publish`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ messages }),
    });
    await answer.text();
  }

  /** Devices that come at this rate, and leave after two seconds. Ends when the result is called. */
  storm(perSecond) {
    const [host, port] = this.tcp.split(':');
    let count = 0;
    const timer = setInterval(() => {
      count += 1;
      const socket = connect(Number(port), host);
      socket.on('error', () => {}).on('data', () => {});
      socket.write(hello(`storm-${count}`));
      setTimeout(() => socket.destroy(), 2_000).unref();
    }, 1_000 / perSecond);
    return () => clearInterval(timer);
  }

  #kill() {
    for (const child of [...this.#devices, this.#child]) {
      child?.kill('SIGKILL');
    }
    if (this.#newest) {
      try {
        process.kill(this.#newest, 'SIGKILL');
      } catch {
        // It has ended.
      }
    }
  }

  /** Has a new process take its place; `[upgrade]` names a socket. */
  async upgrade() {
    const command = this.#run(['upgrade', '--config', 'weir.toml'], 'upgrade.log');
    const [code] = await once(command, 'exit');
    const said = this.read('upgrade.log');
    this.#newest = Number(/process (\d+) runs/.exec(said)?.[1]);
    if (code !== 0) {
      throw new Error(`it is not upgraded: ${said}`);
    }
  }

  async stop(signal) {
    const child = this.#child;
    if (child !== undefined && !hasEnded(child)) {
      const end = once(child, 'exit');
      child.kill(signal);
      await end;
    }
  }
}

/** Waits until something holds, for at most ten seconds. */
export async function until(holds, complaint) {
  for (let attempt = 0; attempt < 500; attempt += 1) {
    if (await holds()) {
      return;
    }
    await rest();
  }
  throw new Error(complaint);
}

/** The frame of a `Hello` with this device id: docs/protocol.md. */
function hello(device) {
  const field = (bytes) => Buffer.concat([Buffer.from([0x0a, bytes.length]), bytes]);
  const message = field(field(Buffer.from(device)));
  return Buffer.concat([Buffer.from([message.length]), message]);
}

export function rest(millis = 20) {
  return new Promise((resolve) => setTimeout(resolve, millis));
}

const hasEnded = ({ exitCode, signalCode }) => exitCode !== null || signalCode !== null;

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}
