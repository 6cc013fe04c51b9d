// The client in a page of a real browser, against the real gateway, through a network that breaks.

import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { PAGES, launch } from './browser.js';
import { Gateway, Proxy } from './gateway.js';
import { cutAndRestart } from './scenario.js';

for (const transport of ['websocket', 'sse']) {
  test(`a page gets every message once by ${transport}`, { timeout: 240_000 }, async (t) => {
    const gateway = await Gateway.start(t);
    const proxy = await Proxy.start(t, gateway.http, PAGES);
    const browser = await launch();
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
