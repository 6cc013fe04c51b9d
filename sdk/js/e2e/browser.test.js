// The client in a page of a real browser, against the real gateway, through a network that breaks.

import assert from 'node:assert/strict';
import { mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { chromium } from 'playwright-core';

import { Gateway, Proxy } from './gateway.js';
import { cutAndRestart } from './scenario.js';

/** Without what a browser does beside its work: the network here is closed to it. */
const FLAGS = [
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-gpu',
  '--disable-quic',
  '--disable-sync',
  '--no-first-run',
];

const directory = import.meta.dirname;
const dist = join(directory, '..', 'dist');
const modules = readdirSync(dist).filter((name) => name.endsWith('.js'));
const PAGES = {
  'page.html': join(directory, 'page.html'),
  ...Object.fromEntries(modules.map((name) => [`dist/${name}`, join(dist, name)])),
};

for (const transport of ['websocket', 'sse']) {
  test(`a page gets every message once by ${transport}`, { timeout: 240_000 }, async (t) => {
    const gateway = await Gateway.start(t);
    const proxy = await Proxy.start(t, gateway.http, PAGES);
    const browser = await chromium.launch({
      executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
      args: FLAGS,
    });
    t.after(() => browser.close());
    const page = await browser.newPage();
    const topic = `feed/${transport}`;
    await page.goto(`${proxy.url}/page/page.html?transport=${transport}&topic=${topic}`);
    const look = () => page.evaluate(() => window.seen ?? { entered: 0, texts: [], lost: [] });
    await cutAndRestart(gateway, proxy, topic, look);

    const shown = await page.locator('#messages li').allTextContents();
    assert.equal(shown.length, 1_002);
    assert.deepEqual(shown, (await look()).texts);
    assert.equal(await page.locator('#transport').textContent(), transport);
    assert.match(await page.locator('#lost').textContent(), /^Recovery of feed\/\w+ was not possible/);
    assert.equal(await page.locator('#lost').isVisible(), true);
    const screenshots = process.env.E2E_SCREENSHOTS;
    if (screenshots !== undefined) {
      mkdirSync(screenshots, { recursive: true });
      await page.screenshot({ path: join(screenshots, `${transport}.png`), fullPage: true });
    }
  });
}
