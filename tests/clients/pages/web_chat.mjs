// The page of examples/web-chat: two tabs of one user and one of another. Arguments: its address, and
// the gateway's admin address.

import assert from 'node:assert/strict';

import { screenshot, withBrowser } from './browser.mjs';

const [address, admin] = process.argv.slice(2);

async function say(page, text) {
  await page.getByLabel('Message').fill(text);
  await page.getByRole('button', { name: 'Send' }).click();
}

await withBrowser(async (open, browser) => {
  const context = await browser.newContext();
  const tabs = [await open(`${address}/?user=ada`, { context }), await open(`${address}/?user=ada`, { context })];
  const bob = await open(`${address}/?user=bob`);
  const shown = (page, line) => page.locator('#log li', { hasText: line }).first().waitFor();
  for (const page of [...tabs, bob]) {
    await page.getByText('connected').waitFor();
  }
  await say(bob, 'hello <b>from</b> bob');
  await say(tabs[0], 'hello from ada');
  for (const page of [...tabs, bob]) {
    await shown(page, 'bob: hello <b>from</b> bob');
    await shown(page, 'ada: hello from ada');
  }
  // Who comes later sees what was said, in its order.
  const late = await open(`${address}/?user=ada`, { context });
  await shown(late, 'ada: hello from ada');
  assert.deepEqual(await late.locator('#log li').allTextContents(), [
    'bob: hello <b>from</b> bob',
    'ada: hello from ada',
  ]);
  const { connections } = await (await fetch(`${admin}/v1/connections`)).json();
  assert.deepEqual(connections.map(({ device }) => device).sort(), ['ada', 'ada', 'ada', 'bob']);
  await screenshot(late, 'web-chat');
});
