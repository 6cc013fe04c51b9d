// Eight tabs of one browser, with the client's defaults, through outages and behind a network that blocks WebSocket.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { PAGES, launch } from './browser.js';
import { Gateway, Proxy } from './gateway.js';

const TABS = 8;

/** Longest time from the end of an outage until the last tab is back. */
const BACK_MS_MAX = 15_000;

/** Between two looks at the tabs. */
const POLL_MS = 50;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The tests run at the same time in one browser, each with a profile of its own. */
let browser;

/** Tabs of one profile, each with a device of its own, and what lies between them and the gateway. */
class Tabs {
  #context;
  #pages = [];
  #texts = [];

  static async open(t, count, prepare = () => {}) {
    const tabs = new Tabs();
    tabs.gateway = await Gateway.start(t);
    tabs.proxy = await Proxy.start(t, tabs.gateway.http, PAGES);
    prepare(tabs.proxy);
    tabs.#context = await browser.newContext();
    t.after(() => tabs.#context.close());
    for (let index = 1; index <= count; index += 1) {
      await tabs.openOne();
    }
    return tabs;
  }

  /** Opens one more tab, which sees what is published from now on. */
  async openOne() {
    const page = await this.#context.newPage();
    const device = `tab-${this.#pages.length + 1}`;
    await page.goto(`${this.proxy.url}/page/tab.html?topic=feed/tabs&device=${device}`);
    this.#pages.push({ page, seesFrom: this.#texts.length });
  }

  look() {
    const nothing = { isIn: false, opened: [], texts: [], lost: [] };
    return Promise.all(this.#pages.map(({ page }) => page.evaluate((nothing) => window.seen ?? nothing, nothing)));
  }

  /** Publishes the next texts, as a backend does. */
  async publish(count) {
    const texts = Array.from({ length: count }, (_, index) => `${this.#texts.length + index + 1}`);
    await this.gateway.publish('feed/tabs', texts);
    this.#texts.push(...texts);
  }

  async publishFrom(index, text) {
    await this.#pages[index].page.evaluate((text) => window.client.publish({ topic: 'feed/tabs', text }), text);
    this.#texts.push(text);
  }

  /** Waits until a condition is true of all tabs; returns how long each took. */
  async until(what, limitMs, condition) {
    const start = performance.now();
    const tookMs = [];
    for (;;) {
      const seen = await this.look();
      const ms = Math.round(performance.now() - start);
      seen.forEach((tab, index) => (tookMs[index] = condition(tab, index) ? (tookMs[index] ?? ms) : undefined));
      if (!tookMs.includes(undefined)) {
        return tookMs;
      }
      if (ms > limitMs) {
        const tabs = seen.map(({ isIn, opened }) => `${isIn ? 'in the topic' : 'down'}: ${opened.join(' ')}`);
        assert.fail(`not every tab ${what} within ${limitMs} ms:\n${tabs.join('\n')}`);
      }
      await sleep(POLL_MS);
    }
  }

  /** Has every tab seen all that was published since it was there, in order, each once? */
  async checkMessages() {
    const last = this.#texts.at(-1);
    await this.until('has the last message', 15_000, ({ texts }) => texts.at(-1) === last);
    for (const [index, { texts, lost }] of (await this.look()).entries()) {
      assert.deepEqual(texts, this.#texts.slice(this.#pages[index].seesFrom));
      assert.deepEqual(lost, []);
    }
  }
}

const isOn = (transport) => ({ isIn, opened }) => isIn && opened.at(-1) === transport;

/** One outage, and how long each tab took to be back. */
async function outage(t, tabs, ms, begin) {
  await tabs.publish(5);
  const before = await tabs.look();
  begin(tabs.proxy);
  await tabs.publish(5);
  await sleep(ms);
  await tabs.proxy.up();
  const isBack = (tab, index) => isOn('websocket')(tab) && tab.opened.length > before[index].opened.length;
  const tookMs = await tabs.until('is back on WebSocket', BACK_MS_MAX, isBack);
  t.diagnostic(`outage of ${ms} ms: back after ${tookMs.sort((a, b) => a - b).join(', ')} ms`);
  await tabs.checkMessages();
}

describe('eight tabs', { concurrency: true }, () => {
  before(async () => (browser = await launch()));
  after(() => browser.close());

  test('are back on WebSocket after short outages', { timeout: 240_000 }, async (t) => {
    const tabs = await Tabs.open(t, TABS);
    await tabs.until('is on WebSocket', 60_000, isOn('websocket'));
    await outage(t, tabs, 300, (proxy) => proxy.down());
    await outage(t, tabs, 3_000, (proxy) => proxy.down());
    // A proxy that answers for a gateway that is away: HTTP works, and still nothing is blocked.
    await outage(t, tabs, 3_000, (proxy) => proxy.loseGateway());
  });

  test('go on by SSE where WebSocket is blocked, and leave it together', { timeout: 120_000 }, async (t) => {
    // Over HTTP/1.1 a browser has six connections to a host, and publishing takes one.
    const tabs = await Tabs.open(t, 5, (proxy) => (proxy.upgrades = '400'));
    await tabs.until('is on SSE', 60_000, isOn('sse'));
    const { upgradesBlocked } = tabs.proxy;
    await tabs.publish(5);
    await tabs.publishFrom(0, 'from a tab');
    await tabs.checkMessages();
    // One more tab finds out that WebSocket passes, and tells the others. By themselves they do not try it in a minute.
    assert.equal(tabs.proxy.upgradesBlocked, upgradesBlocked);
    tabs.proxy.upgrades = 'pass';
    await tabs.openOne();
    const tookMs = await tabs.until('is on WebSocket', BACK_MS_MAX, isOn('websocket'));
    t.diagnostic(`back on WebSocket after ${tookMs.join(', ')} ms`);
    await tabs.publish(5);
    await tabs.checkMessages();
  });

  test('are back on WebSocket after a long outage', { timeout: 240_000 }, async (t) => {
    const tabs = await Tabs.open(t, TABS);
    await tabs.until('is on WebSocket', 60_000, isOn('websocket'));
    await outage(t, tabs, 30_000, (proxy) => proxy.down());
  });
});
