// The dashboard in a real browser: each action is clicked through, and its effect is looked at.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { Visit } from './browser.js';
import { Gateway, rest, until } from './gateway.js';

/** A name that would run as a script if a page took it for HTML. */
const HOSTILE = '<img src=x onerror=alert(1)>';

/** A gateway with four devices, and a visitor. */
async function begin(t, options, extra) {
  const gateway = await Gateway.start(t, extra);
  await gateway.connect('phone-1', 'phone-1.log', 'news', 'rooms/1');
  await gateway.connect('phone-2', 'phone-2.log', 'news', 'rooms/2');
  await gateway.connect('meter/7 é', 'meter.log', 'news');
  await gateway.connect(HOSTILE, 'hostile.log', 'news', HOSTILE);
  const visit = await Visit.begin(t, gateway.admin, options);
  // Without these, the page says so, and the browser reports each attempt.
  for (const path of ['/v1/session', '/v1/closes', '/v1/audit']) {
    if ((await fetch(`${gateway.admin}${path}`)).status === 404) {
      visit.expect(new RegExp(`404.*${path}`));
    }
  }
  return { gateway, visit, page: visit.page };
}

const headline = (page) => page.locator('#headline').textContent();

/** Presses the button of the dialog that asks whether to go on; its text. */
async function confirm(page, verb) {
  const dialog = page.getByRole('dialog');
  const text = await dialog.innerText();
  await dialog.getByRole('button', { name: verb }).click();
  return text;
}

test('the overview tells whether all is well, and what is not', { timeout: 180_000 }, async (t) => {
  const { gateway, visit, page } = await begin(t);
  await visit.open();
  await until(async () => (await headline(page)) === 'All parts work', 'it does not say that all is well');
  assert.match(await page.locator('#summary').textContent(), /^4 connections/);
  const tile = (name) => page.locator('.tile', { hasText: name }).locator('.big').textContent();
  assert.equal(await tile('Connections'), '4');
  const bytes = [...visit.weight.values()].reduce((total, size) => total + size, 0);
  console.log(`# weight of the page: ${bytes} bytes in ${visit.weight.size} files`);
  assert.ok(bytes < WEIGHT_MAX, `${bytes} bytes`);
  // What costs more is asked for when it is seen.
  await page.locator('.details').scrollIntoViewIfNeeded();
  await page.getByText('program data').waitFor();
  await page.getByText('(this one)').waitFor();
  await visit.audit('overview, light');
  await page.emulateMedia({ colorScheme: 'dark' });
  await visit.audit('overview, dark');
  await visit.pictures('idle');

  let isLoaded = true;
  const load = (async () => {
    while (isLoaded) {
      await gateway.publish('news', 100);
      await rest(50);
    }
  })();
  await until(
    async () => /^[\d,]+\/s$/.test(await tile('Messages out')) && (await tile('Messages out')) !== '0/s',
    'no messages',
  );
  await until(async () => /ms|µs/.test(await tile('Delivery lag')), 'no delivery lag');
  await rest(8_000);
  await visit.pictures('load');
  isLoaded = false;
  await load;

  rmSync(join(gateway.directory, 'devices.db'));
  await until(async () => /store is lost/.test(await headline(page)), 'it does not say that the store is lost');
  assert.match(await page.title(), /store is lost/);
  await visit.audit('store lost');
  await visit.pictures('store-lost');
  visit.judge();
});

test('a storm of connections shows, and what was refused', { timeout: 120_000 }, async (t) => {
  const limits = '\n[limits]\nconnects_per_source_per_second = 150\nconnects_per_source_burst = 150\n';
  const { gateway, visit, page } = await begin(t, {}, limits);
  await visit.open();
  await until(async () => (await headline(page)) === 'All parts work', 'it does not say that all is well');
  const end = gateway.storm(250);
  const refused =
    /^Connections were refused in the last minute: .* × source_rate \(limits\.connects_per_source_per_second\)$/;
  await until(async () => refused.test(await headline(page)), 'it does not say that connections were refused');
  await rest(8_000);
  await page.locator('.details').scrollIntoViewIfNeeded();
  await page.getByText('connection: source_rate').waitFor();
  await visit.audit('storm');
  await visit.pictures('storm');
  end();
  visit.judge();
});

test('a broken stream is told at once, and comes back', { timeout: 60_000 }, async (t) => {
  const { gateway, visit, page } = await begin(t);
  await visit.open();
  await until(async () => (await headline(page)) === 'All parts work', 'it does not say that all is well');
  // The browser itself reports each attempt.
  visit.expect(/ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE/);
  await gateway.stop('SIGKILL');
  const began = Date.now();
  await until(async () => (await headline(page)) === 'No connection to the gateway', 'it does not say so');
  assert.ok(Date.now() - began < 2_000, 'it took too long');
  assert.ok((await page.locator('body.stale').count()) === 1, 'old figures are not marked');
  assert.match(await page.locator('#summary').textContent(), /The figures are \d+ s old/);
  await visit.audit('broken');
  await visit.pictures('broken');
  await gateway.launch();
  await until(async () => (await headline(page)) === 'All parts work', 'it does not come back');
  assert.equal(await page.locator('body.stale').count(), 0);
  visit.judge();
});

test('an upgrade shows, and the page goes on', { timeout: 60_000 }, async (t) => {
  const { gateway, visit, page } = await begin(t, undefined, '[upgrade]\nsocket = "upgrade.sock"\n');
  await visit.open();
  await until(async () => (await headline(page)) === 'All parts work', 'it does not say that all is well');
  assert.doesNotMatch(await page.locator('#node').textContent(), /upgraded/);
  // The stream of the old process ends.
  visit.expect(/ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE/);
  await gateway.upgrade();
  await until(async () => /upgraded/.test(await page.locator('#node').textContent()), 'it does not show');
  await until(async () => (await headline(page)) === 'All parts work', 'it does not come back');
  assert.match(await page.locator('#summary').textContent(), /^4 connections/);
  visit.judge();
});

test('devices and topics are found, connections closed, devices revoked', { timeout: 120_000 }, async (t) => {
  const { gateway, visit, page } = await begin(t);
  await visit.open('#/look-up');
  const said = page.locator('#look-up .said');
  await page.getByRole('row').getByRole('rowheader', { name: HOSTILE, exact: true }).waitFor();
  assert.match(await said.textContent(), /^4 connections/);
  await visit.audit('connections');
  await visit.pictures('look-up');

  await page.locator('#topic').fill('rooms/');
  await page.locator('#topic').press('Enter');
  await page.getByRole('link', { name: 'rooms/2' }).click();
  await page.getByRole('heading', { name: 'rooms/2' }).waitFor();
  assert.match(await said.textContent(), /^1 subscriber/);
  assert.equal(await page.getByRole('link', { name: 'phone-2' }).count(), 1);
  await visit.audit('subscribers');

  visit.expect(/404.*\/v1\/devices\//);
  await page.locator('#device').fill('no such device');
  await page.locator('#device').press('Enter');
  await until(async () => /is not known here/.test(await said.textContent()), 'an unknown device is not told');

  await gateway.connect('phone-3', 'phone-3.log', 'news');
  await page.locator('#device').fill('phone-3');
  await page.locator('#device').press('Enter');
  await page.getByRole('button', { name: 'Close' }).click();
  await visit.audit('a question');
  await page.keyboard.press('Escape');
  assert.doesNotMatch(gateway.read('phone-3.log'), /goodbye/, 'the question was not confirmed');
  await page.getByRole('button', { name: 'Close' }).click();
  assert.match(await confirm(page, 'Close it'), /of device “phone-3” ends/);
  await until(() => /closed_by_operator/.test(gateway.read('phone-3.log')), 'the device was not told');
  await until(async () => /is told to close/.test(await said.textContent()), 'it does not tell that it closed');

  await page.locator('#device').fill(HOSTILE);
  await page.locator('#device').press('Enter');
  await page.getByRole('heading', { name: HOSTILE, exact: true }).waitFor();
  await page.getByRole('button', { name: 'Revoke …' }).click();
  assert.match(await confirm(page, 'Revoke it'), new RegExp(HOSTILE.replace(/[()]/g, '\\$&')));
  await until(async () => /is revoked|is not known/.test(await said.textContent()), 'it does not tell that it revoked');
  await until(() => /revoked/.test(gateway.read('hostile.log')), 'the device was not told');
  visit.judge();
});

test('a push tells how many it reaches, and arrives', { timeout: 120_000 }, async (t) => {
  const { gateway, visit, page } = await begin(t);
  await visit.open('#/push?device=phone-1');
  const said = page.locator('#push .said');
  const send = async (choose, text, expected) => {
    await choose();
    await page.getByLabel('Message').fill(text);
    await page.getByRole('button', { name: 'Check and send' }).click();
    assert.match(await confirm(page, 'Send it'), expected);
    await until(async () => /^Accepted/.test(await said.textContent()), `not accepted: ${await said.textContent()}`);
  };
  await send(async () => {}, 'hello one', /Send to 1 connection\?/);
  await until(() => gateway.read('phone-1.log').includes('hello one'), 'the device got nothing');
  await page.getByText('nothing waits for its connection any more').waitFor();
  await visit.audit('push');
  await visit.pictures('push');
  await send(
    async () => {
      await page.getByRole('radio', { name: 'Topic' }).check();
      await page.getByRole('textbox', { name: 'Topic' }).fill('news');
    },
    'hello topic',
    /Send to 4 connections\?/,
  );
  await until(() => gateway.read('meter.log').includes('hello topic'), 'a subscriber got nothing');
  await send(() => page.getByRole('radio', { name: 'Everyone' }).check(), 'hello all', /Send to 4 connections\?/);
  await until(() => gateway.read('hostile.log').includes('hello all'), 'a connection got nothing');

  await page.getByLabel('Message').fill('not sent');
  await page.getByRole('button', { name: 'Check and send' }).click();
  await confirm(page, 'Cancel');
  await until(async () => (await said.textContent()) === 'Not sent.', 'it does not tell that it was cancelled');
  assert.ok(!gateway.read('phone-1.log').includes('not sent'));
  visit.judge();
});

test('the ends of connections are listed, or the page says that it cannot', { timeout: 60_000 }, async (t) => {
  const { gateway, visit, page } = await begin(t);
  const device = await gateway.connect('phone-4', 'phone-4.log', 'news');
  const ended = once(device, 'exit');
  device.kill('SIGTERM');
  await ended;
  const isOffered = (await fetch(`${gateway.admin}/v1/closes`)).status !== 404;
  await visit.open('#/ends?device=phone-4');
  if (isOffered) {
    await page.getByRole('link', { name: 'phone-4' }).waitFor();
  } else {
    await page.getByText('This gateway does not offer the ends of connections').waitFor();
  }
  await visit.audit('ends');
  await visit.pictures('ends');
  visit.judge();
});

test('a node is drained after a question, and the drain is cancelled', { timeout: 60_000 }, async (t) => {
  const { visit, page } = await begin(t);
  await visit.open('#/node');
  await page.getByLabel('Over', { exact: true }).fill('10m');
  await until(async () => /^4 connections/.test(await page.locator('#summary').textContent()), 'no figures');
  await page.getByRole('button', { name: 'Drain …' }).click();
  assert.match(await confirm(page, 'Drain it'), /4 connections will be told to leave, over 10m/);
  await until(async () => /drain/i.test(await headline(page)), 'the state does not tell that it drains');
  await visit.audit('drain');
  await visit.pictures('drain');
  await page.getByRole('button', { name: 'Cancel the drain' }).click();
  await until(async () => (await headline(page)) === 'All parts work', 'the drain was not cancelled');
  visit.judge();
});

test('a keyboard reaches everything, and the colours can be chosen', { timeout: 60_000 }, async (t) => {
  const { visit, page } = await begin(t);
  await visit.open();
  await until(async () => (await headline(page)) === 'All parts work', 'it does not say that all is well');
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to the content');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Look up' }).waitFor();
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await background();
  await page.getByLabel('Colours').selectOption('dark');
  assert.notEqual(await background(), light);
  await page.reload();
  assert.equal(await page.getByLabel('Colours').inputValue(), 'dark', 'the choice is not kept');
  visit.judge();
});

test('nothing is shown without a token', { timeout: 60_000 }, async (t) => {
  const gateway = await Gateway.start(t, `\n[admin]\ntoken = "${TOKEN}"\n`);
  const offersSessions = (await signIn(gateway, TOKEN)).ok;
  const visit = await Visit.begin(t, gateway.admin);
  visit.expect(/401/);
  await visit.open();
  const { page } = visit;
  assert.equal(await page.locator('#overview').isVisible(), false);
  await page.getByLabel('Token').fill('a wrong token');
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByText('The gateway does not know this token.').waitFor();
  await visit.audit('sign in');
  await visit.pictures('sign-in');
  if (offersSessions) {
    await page.getByLabel('Token').fill(TOKEN);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await until(async () => (await headline(page)) === 'All parts work', 'it does not sign in');
    assert.ok(!page.url().includes(TOKEN), 'the token is in the address');
    const stored = await page.evaluate(() => JSON.stringify([localStorage, sessionStorage, document.cookie]));
    assert.ok(!stored.includes(TOKEN), 'the token is stored');
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  }
  visit.judge();
});

test('what the caller may not do cannot be pressed', { timeout: 60_000 }, async (t) => {
  const reference = execFileSync(process.env.E2E_PROGRAM, ['config', 'reference', '--toml'], { encoding: 'utf8' });
  if (!reference.includes('admin.tokens')) {
    t.skip('this program has no admin.tokens');
    return;
  }
  const hash = createHash('sha256').update(TOKEN).digest('hex');
  const token = `[[admin.tokens]]\nname = "viewer"\nhash = "sha256:${hash}"\nmay = ["read"]\n`;
  const gateway = await Gateway.start(t, `\n${token}`);
  await gateway.connect('phone-1', 'phone-1.log', 'news');
  const visit = await Visit.begin(t, gateway.admin);
  visit.expect(/401/);
  await visit.open();
  const { page } = visit;
  await page.getByLabel('Token').fill(TOKEN);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await until(async () => (await headline(page)) === 'All parts work', 'it does not sign in');
  assert.equal(await page.locator('#caller').textContent(), 'viewer');
  for (const [hash, button, scope] of [
    ['#/push', 'Check and send …', 'publish'],
    ['#/node', 'Drain …', 'operate'],
    ['#/look-up?device=phone-1', 'Revoke …', 'devices'],
    ['#/look-up?device=phone-1', 'Close', 'operate'],
  ]) {
    await visit.open(hash);
    assert.equal(await page.getByRole('button', { name: button, exact: true }).isDisabled(), true, button);
    await page.getByText(`needs the scope “${scope}”, which “viewer” lacks`).first().waitFor();
  }
  await visit.audit('without scopes');
  await visit.pictures('without-scopes');
  visit.judge();
});

/** Posts a token as the page does. */
function signIn(gateway, token) {
  const headers = { 'Content-Type': 'application/json', 'Sec-Fetch-Site': 'same-origin' };
  return fetch(`${gateway.admin}/v1/session`, { method: 'POST', headers, body: JSON.stringify({ token }) });
}

const TOKEN = 'a-token-of-at-least-16-bytes';
/** 200 KB, half of which uPlot may take. */
const WEIGHT_MAX = 200_000;
