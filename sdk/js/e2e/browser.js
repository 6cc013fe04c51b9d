// A headless browser, and what the pages in it load.

import { readdirSync } from 'node:fs';
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

const directory = import.meta.dirname;
const dist = join(directory, '..', 'dist');
const modules = readdirSync(dist).filter((name) => name.endsWith('.js'));

/** The files under `/page/`, by name. */
export const PAGES = {
  'page.html': join(directory, 'page.html'),
  'tab.html': join(directory, 'tab.html'),
  ...Object.fromEntries(modules.map((name) => [`dist/${name}`, join(dist, name)])),
};

/** A browser; the caller closes it. */
export function launch() {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: FLAGS });
}
