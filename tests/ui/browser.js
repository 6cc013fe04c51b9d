// A headless browser that notes everything that a page must not do.

import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

import { chromium } from 'playwright-core';

/** Without what a browser does beside its work: the network here is closed to it. */
const FLAGS = [
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-gpu',
  '--disable-quic',
  '--disable-sync',
  '--no-first-run',
];

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** A page of the dashboard at this address. */
export class Visit {
  /** Errors and warnings of the console, uncaught errors, requests that failed. */
  complaints = [];
  /** Addresses of requests to any other server. */
  outside = [];
  /** Bytes of bodies, by path. */
  weight = new Map();
  #base;
  #patience = [];

  static async begin(t, base, options = {}) {
    const visit = new Visit();
    visit.#base = base;
    const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
    const browser = await chromium.launch({ executablePath, args: FLAGS });
    t.after(() => browser.close());
    const context = await browser.newContext({
      viewport: { width: 1440, height: 900 },
      colorScheme: 'light',
      ...options,
    });
    visit.page = await context.newPage();
    visit.#watch();
    return visit;
  }

  #watch() {
    const complain = (text) => {
      if (!this.#patience.some((expected) => expected.test(text))) {
        this.complaints.push(text);
      }
    };
    this.page.on('console', (message) => {
      if (['error', 'warning'].includes(message.type())) {
        complain(`${message.text()} ${message.location().url}`);
      }
    });
    this.page.on('pageerror', (error) => complain(`uncaught: ${error.message}`));
    this.page.on('dialog', (dialog) => complain(`a script ran: ${dialog.message()}`));
    this.page.on('request', (request) => {
      if (!request.url().startsWith(`${this.#base}/`)) {
        this.outside.push(request.url());
      }
    });
    this.page.on('response', async (response) => {
      const { pathname } = new URL(response.url());
      if (response.status() === 200 && (pathname === '/' || pathname.startsWith('/ui/'))) {
        this.weight.set(pathname, (await response.body()).length);
      }
    });
  }

  /** From now on complaints like this are expected. */
  expect(pattern) {
    this.#patience.push(pattern);
  }

  async open(hash = '') {
    await this.page.goto(`${this.#base}/${hash}`);
  }

  /** Fails if the page did something that it must not do. */
  judge() {
    assert.deepEqual(this.complaints, []);
    assert.deepEqual(this.outside, []);
  }

  /** Fails if axe finds a violation, of whatever impact. `what` is shown then. */
  async audit(what) {
    await this.page.evaluate(axe);
    const { violations, passes } = await this.page.evaluate(() => globalThis.axe.run(document));
    const shown = violations.map(
      ({ id, impact, nodes }) =>
        `${id} (${impact}): ${nodes.map(({ html, failureSummary }) => `${html} ${failureSummary}`).join('; ')}`,
    );
    assert.deepEqual(shown, [], what);
    console.log(`# axe, ${what}: ${passes.length} rules passed, none violated`);
  }

  /** Keeps a picture, if somebody wants pictures. */
  async picture(name, options = {}) {
    const directory = process.env.E2E_SCREENSHOTS;
    if (directory !== undefined) {
      mkdirSync(directory, { recursive: true });
      await this.page.screenshot({ path: join(directory, `${name}.png`), ...options });
    }
  }

  /** Pictures of what is shown, for a phone and for a wide screen, light and dark. */
  async pictures(name) {
    for (const colorScheme of ['light', 'dark']) {
      await this.page.emulateMedia({ colorScheme });
      for (const [size, width, height] of SIZES) {
        await this.page.setViewportSize({ width, height });
        // Charts are drawn again in the next frames.
        await this.page.waitForTimeout(400);
        const overflow = await this.page.evaluate(
          () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
        );
        assert.ok(overflow <= 0, `${name} is wider than a ${size}`);
        await this.picture(`${name}-${size}-${colorScheme}`, { fullPage: true });
      }
    }
    await this.page.emulateMedia({ colorScheme: 'light' });
    await this.page.setViewportSize({ width: 1440, height: 900 });
  }
}

const SIZES = [
  ['phone', 360, 740],
  ['desk', 1440, 900],
  ['wall', 2200, 1200],
];
