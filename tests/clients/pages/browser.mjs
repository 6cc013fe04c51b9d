// A headless browser for pages that the tests look at, from the tools of sdk/js.

import { mkdirSync } from 'node:fs';
import { join } from 'node:path';

import { chromium } from '../../../sdk/js/node_modules/playwright-core/index.mjs';

/** Without what a browser does beside its work: the network here is closed to it. */
const FLAGS = ['--disable-background-networking', '--disable-component-update', '--disable-gpu', '--disable-sync'];

/** The longest wait for anything on a page, in milliseconds: for a slow machine. */
export const PATIENCE = 120_000;

/** Runs `test` with a browser. `test` fails if any page has an error on its console. `flags` are more of the browser. */
export async function withBrowser(test, flags = []) {
  const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
  const browser = await chromium.launch({ executablePath, args: [...FLAGS, ...flags] });
  const errors = [];
  const open = async (url, options = {}) => {
    const context = options.context ?? (await browser.newContext(options));
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE);
    page.on('console', (message) => message.type() === 'error' && errors.push(message.text()));
    page.on('pageerror', (error) => errors.push(String(error)));
    await page.goto(url);
    return page;
  };
  try {
    await test(open, browser);
  } finally {
    await browser.close();
  }
  if (errors.length > 0) {
    throw new Error(`errors on the console: ${errors.join('; ')}`);
  }
}

/** Takes a picture, if WEIR_SCREENSHOTS names a directory. */
export async function screenshot(page, name) {
  const directory = process.env.WEIR_SCREENSHOTS;
  if (directory !== undefined) {
    mkdirSync(directory, { recursive: true });
    await page.screenshot({ path: join(directory, `${name}.png`) });
  }
}
