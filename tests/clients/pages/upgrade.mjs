// A page with a WebSocket over TLS that lives on while the gateway is upgraded. Arguments: the address of the WebSocket,
// and the version of TLS, 1.2 or 1.3. It waits for lines: at each the page must have heard so many numbers of the topic
// "news" more, in order and on its one connection. It pings then, and the line is written back.

import assert from 'node:assert/strict';
import { createInterface } from 'node:readline';

import { PATIENCE, screenshot, withBrowser } from './browser.mjs';

const [address, version] = process.argv.slice(2);

/** Runs in the page: connects, and shows what comes. A connection that ends would be made again, and be counted. */
function live([address]) {
  document.body.innerHTML = '<p id="state"></p><p id="opened">0</p><p id="closed">0</p><ol id="numbers"></ol><p id="pong"></p>';
  const show = (id, text) => (document.getElementById(id).textContent = text);
  const count = (id) => show(id, Number(document.getElementById(id).textContent) + 1);
  const connect = () => {
    const socket = new WebSocket(address, 'weir.v1.json');
    socket.onopen = () => {
      count('opened');
      socket.send(JSON.stringify({ hello: { deviceId: 'browser', topics: [{ topic: 'news' }] } }));
    };
    socket.onmessage = ({ data }) => {
      const { subscribed, push, pong } = JSON.parse(data);
      if (subscribed) show('state', 'connected');
      if (push) document.getElementById('numbers').append(Object.assign(document.createElement('li'), { textContent: push.text }));
      if (pong) show('pong', atob(pong.data));
    };
    socket.onclose = () => {
      count('closed');
      connect();
    };
    window.ping = (word) => socket.send(JSON.stringify({ ping: { data: btoa(word) } }));
  };
  connect();
}

await withBrowser(
  async (open) => {
    const page = await open('about:blank', { ignoreHTTPSErrors: true });
    await page.evaluate(live, [address]);
    await page.getByText('connected').waitFor();
    console.log('ready');
    let heard = 0;
    for await (const line of createInterface({ input: process.stdin })) {
      heard += Number(line);
      const all = Array.from({ length: heard }, (_, number) => String(number));
      const numbers = page.locator('#numbers li');
      await numbers.nth(heard - 1).waitFor();
      assert.deepEqual(await numbers.allTextContents(), all);
      await page.evaluate((word) => window.ping(word), `at ${heard}`);
      await page.locator('#pong', { hasText: `at ${heard}` }).waitFor({ timeout: PATIENCE });
      assert.equal(await page.locator('#opened').textContent(), '1');
      assert.equal(await page.locator('#closed').textContent(), '0');
      console.log(line);
    }
    await screenshot(page, `upgrade-${version}`);
  },
  // The page comes from nowhere, so the browser would keep it from loopback.
  [`--ssl-version-max=tls${version}`, '--disable-features=LocalNetworkAccessChecks'],
);
