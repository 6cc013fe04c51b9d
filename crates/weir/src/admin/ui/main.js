// Starts the page: who is the caller, which section is shown, and whether all is well.

import { Silence, get, post, remove, whenSignedOut } from './api.js';
import { at, h, say, show } from './dom.js';
import { Ends } from './ends.js';
import { Feed } from './feed.js';
import { inState } from './figures.js';
import * as format from './format.js';
import { judge } from './judge.js';
import { LookUp } from './look-up.js';
import { OwnNode } from './own-node.js';
import { Overview } from './overview.js';
import { Push } from './push.js';

const feed = new Feed();
/** The caller: its name and scopes. */
let session;
/** The sections by path; made when the caller is known. */
let sections;
const overview = new Overview(feed);

/** Finds out who the caller is. Without a token that is needed, the form to sign in comes. */
async function begin() {
  let caller;
  try {
    caller = await findCaller();
  } catch (error) {
    tell(
      'bad',
      error instanceof Silence ? 'The gateway does not answer' : `The gateway refuses: ${error.message}`,
      'Trying again …',
    );
    setTimeout(begin, 2000);
    return;
  }
  if (caller === undefined) {
    signIn();
    return;
  }
  session = caller;
  sections = {
    '/': overview,
    '/look-up': new LookUp(session),
    '/ends': new Ends(feed),
    '/push': new Push(session),
    '/node': new OwnNode(session, feed),
  };
  at('sections').hidden = false;
  at('sign-out').hidden = session.isAnyone;
  at('caller').hidden = session.isAnyone;
  say(at('caller'), session.name);
  tell('wait', 'Asking the gateway …', '');
  feed.start();
  route();
}

/** The caller; `undefined` if a token is needed. An older gateway knows no sessions. */
async function findCaller() {
  const all = ['read', 'publish', 'operate', 'devices'];
  try {
    const caller = await get('/v1/session');
    return { ...caller, isAnyone: caller.expires_at_ms === null };
  } catch (error) {
    if (error.status === 401) {
      return undefined;
    }
    if (error.status !== 404) {
      throw error;
    }
  }
  try {
    await get('/v1/stats');
    return { name: 'anyone', may: all, isAnyone: true };
  } catch (error) {
    if (error.status === 401) {
      throw new Error('it asks for a token, and offers no sessions for browsers', { cause: error });
    }
    throw error;
  }
}

function signIn() {
  feed.stop();
  feed.state = 'wait';
  session = undefined;
  for (const id of ['sections', 'sign-out', 'caller', 'feed']) {
    at(id).hidden = true;
  }
  at('confirmation').close();
  tell('wait', 'Please sign in', '');
  reveal('sign-in');
  at('token').focus();
}

at('sign-in-form').onsubmit = async (event) => {
  event.preventDefault();
  const token = at('token').value;
  say(at('sign-in-said'), '');
  try {
    await post('/v1/session', { token });
    at('token').value = '';
    await begin();
  } catch (error) {
    say(
      at('sign-in-said'),
      error.status === 401 ? 'The gateway does not know this token.' : `Not signed in: ${error.message}.`,
    );
    at('token').select();
  }
};

at('sign-out').onclick = async () => {
  // The gateway ends the streams of a session that ends.
  feed.stop();
  await remove('/v1/session').catch(() => {});
  signIn();
};

whenSignedOut(() => {
  if (session !== undefined) {
    signIn();
  }
});

const VIEWS = { '/': 'overview', '/look-up': 'look-up', '/ends': 'ends', '/push': 'push', '/node': 'own-node' };

/** Shows the section that the address names. */
function route() {
  if (session === undefined) {
    return;
  }
  const [path, query] = (location.hash.slice(1) || '/').split('?');
  const known = path in VIEWS ? path : '/';
  for (const link of at('sections').children) {
    if (link.hash.slice(1) === known) {
      link.setAttribute('aria-current', 'page');
    } else {
      link.removeAttribute('aria-current');
    }
  }
  reveal(VIEWS[known]);
  sections[known].open?.(new URLSearchParams(query ?? ''));
  sections[known].draw?.();
}

window.addEventListener('hashchange', () => {
  route();
  // A reader with a keyboard or a screen reader goes on at the beginning of the section.
  if (session !== undefined && !at('content').contains(document.activeElement)) {
    at('content').focus({ preventScroll: true });
  }
});

function reveal(id) {
  for (const view of document.querySelectorAll('.view')) {
    view.hidden = view.id !== id;
  }
}

feed.addEventListener('figures', () => {
  const { latest } = feed;
  const { node, version, uptime_ms: up, time_ms: now, upgrade } = latest;
  const upgraded = upgrade ? ` · upgraded ${format.rough(now - upgrade.at_ms)} ago` : '';
  say(at('node'), `${node.name} · ${version} · up ${format.rough(up)}${upgraded}`);
  judgeNow();
  Object.values(sections).forEach((section) => section.draw?.());
});

feed.addEventListener('state', async () => {
  const isLive = feed.state === 'live';
  document.body.classList.toggle('stale', !isLive);
  if (!isLive) {
    tellLost();
    // The session may have ended: then the form to sign in comes.
    const isSignedOut = await get('/v1/session').then(
      () => false,
      ({ status }) => status === 401,
    );
    if (isSignedOut && session !== undefined) {
      signIn();
    }
  }
});

setInterval(() => {
  if (session !== undefined && feed.state === 'broken') {
    tellLost();
  }
}, 1000);

/** Says whether all is well, with everything that is wrong. */
function judgeNow() {
  const { latest } = feed;
  const findings = judge(latest, feed.before(60), feed.before(10));
  const [worst, ...others] = findings;
  const one = feed.samples.at(-1);
  const rate =
    one.delivered === undefined
      ? []
      : [`${format.short(one.delivered)} messages/s out`, `${format.short(one.published)}/s in`];
  const summary = [format.plural(inState(latest, 'settled'), 'connection'), ...rate].join(' · ');
  const since = worst?.since === undefined ? '' : ` (since ${format.moment(worst.since)})`;
  tell(worst?.level ?? 'good', worst === undefined ? 'All parts work' : `${worst.text}${since}`, summary, others);
  say(at('feed-text'), 'live');
  at('feed').hidden = false;
  at('feed').dataset.state = 'live';
}

function tellLost() {
  const age = (performance.now() - feed.heardAt) / 1000;
  const figures =
    feed.latest === undefined
      ? 'There are no figures yet.'
      : `The figures are ${format.span(Math.max(1, age) * 1000)} old.`;
  tell('bad', 'No connection to the gateway', `${figures} Trying again …`);
  say(at('feed-text'), 'broken');
  at('feed').hidden = false;
  at('feed').dataset.state = 'broken';
}

function tell(level, headline, summary, findings = []) {
  at('status').dataset.level = level;
  say(at('headline'), headline);
  announce(headline);
  say(at('summary'), summary);
  at('findings').hidden = findings.length === 0;
  show(at('findings'), JSON.stringify(findings), () =>
    findings.map(({ level: of, text }) => h('li', { 'data-level': of }, text)),
  );
  const title = { good: 'Weir', wait: 'Weir' }[level] ?? `⚠ ${headline} – Weir`;
  if (document.title !== title) {
    document.title = title;
  }
}

/** For screen readers: what is the matter, but not each change of a number in it. */
function announce(headline) {
  const matter = headline.replace(/[\d.,:]+/g, '');
  if (announced !== matter) {
    announced = matter;
    say(at('announcement'), headline);
  }
}

let announced;

const theme = at('theme');
theme.value = document.documentElement.dataset.theme;
theme.onchange = () => {
  document.documentElement.dataset.theme = theme.value;
  try {
    localStorage.setItem('weir-theme', theme.value);
  } catch {
    // Then it is chosen again next time.
  }
  overview.renew();
};
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => overview.renew());

begin();
