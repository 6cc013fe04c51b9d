// The page /demo of `weir demo`, opened twice: both chat, and see each other move. Argument: the address
// of the dashboard.

import assert from 'node:assert/strict';

import { PATIENCE, screenshot, withBrowser } from './browser.mjs';

const address = new URL('/demo', process.argv[2]).href;
const PHONE = { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, hasTouch: true, isMobile: true };
const WIDE = { viewport: { width: 1280, height: 800 } };

/** What is at a place of the map, as the numbers of its pixels. */
const pixels = (page) =>
  page.evaluate(() => {
    const canvas = document.getElementById('map');
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return data.reduce((sum, value, index) => (sum * 31 + value * (index % 97)) % 1_000_003, 0);
  });

async function until(what, check) {
  const end = Date.now() + PATIENCE;
  while (!(await check())) {
    assert.ok(Date.now() < end, `waited in vain: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

await withBrowser(async (open) => {
  const ada = await open(address, { ...WIDE, colorScheme: 'light' });
  const bob = await open(address, { ...PHONE, colorScheme: 'dark' });
  for (const [page, name] of [[ada, 'Ada on the desk'], [bob, 'Bob <i>']]) {
    await page.getByText('connected', { exact: true }).waitFor();
    await page.getByLabel('Your name').fill(name);
    await page.keyboard.press('Enter');
    await page.getByLabel('Message').focus();
  }
  // Each hears of the other, and of the players.
  await ada.getByText('Also on this page: Bob <i>').waitFor();
  await bob.getByText('Also on this page: Ada on the desk').waitFor();
  await until('many players', async () => parseInt(await ada.locator('#count').textContent(), 10) >= 10);
  // The keyboard is enough: a line to the chat, and a walk on the map.
  await ada.getByLabel('Message').focus();
  await ada.keyboard.type('hello <img src=x onerror=alert(1)>');
  await ada.keyboard.press('Enter');
  await bob.locator('#log li', { hasText: 'Ada on the deskhello <img src=x onerror=alert(1)>' }).waitFor();
  assert.equal(await bob.locator('#log img').count(), 0);
  await bob.getByLabel('Message').fill('hello from the phone');
  await bob.getByRole('button', { name: 'Send' }).click();
  await ada.locator('#log li', { hasText: 'hello from the phone' }).waitFor();
  const seen = () =>
    bob.evaluate(() => window.weirDemo.players().find(({ name }) => name === 'Ada on the desk'));
  const before = await seen();
  await ada.locator('#map').focus();
  const key = before.x < 500 ? 'ArrowRight' : 'ArrowLeft';
  await ada.keyboard.down(key);
  await until('ada moves on the map of bob', async () => Math.abs((await seen()).x - before.x) > 50);
  await ada.keyboard.up(key);
  const first = await pixels(bob);
  await until('the map is drawn anew', async () => (await pixels(bob)) !== first);
  await screenshot(ada, 'demo-wide-light');
  await screenshot(bob, 'demo-phone-dark');
  // Who comes later sees what was said; who goes is no longer there.
  const late = await open(address, { ...WIDE, colorScheme: 'dark' });
  await late.locator('#log li', { hasText: 'hello from the phone' }).waitFor();
  await bob.close();
  await ada.getByText('Also on this page: guest-').waitFor();
  await screenshot(late, 'demo-wide-dark');
});
