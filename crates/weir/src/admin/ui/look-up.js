// Looks a device or a topic up, and closes or revokes.

import { get, post, remove, segment, withQuery } from './api.js';
import { action, at, confirmed, facts, h, say, table } from './dom.js';
import * as format from './format.js';

export class LookUp {
  #session;
  #device = h('input', {
    id: 'device',
    name: 'device',
    type: 'search',
    autocomplete: 'off',
    spellcheck: 'false',
    maxlength: '255',
  });
  #topic = h('input', {
    id: 'topic',
    name: 'topic',
    type: 'search',
    autocomplete: 'off',
    spellcheck: 'false',
    maxlength: '255',
  });
  #said = h('p', { class: 'said', role: 'status' });
  #result = h('div', { class: 'result' });
  /** What is shown, so that a slow answer to an earlier question is not. */
  #asked = 0;

  constructor(session) {
    this.#session = session;
    const go = (name, field) => (event) => {
      event.preventDefault();
      const hash = `#${withQuery('/look-up', { [name]: field.value.trim() })}`;
      if (location.hash === hash) {
        this.open(new URLSearchParams({ [name]: field.value.trim() }));
      } else {
        location.hash = hash;
      }
    };
    at('look-up').replaceChildren(
      at('look-up-title'),
      h(
        'div',
        { class: 'grid two' },
        h(
          'form',
          { class: 'card ask', role: 'search', 'aria-label': 'Look a device up', onsubmit: go('device', this.#device) },
          h('label', { for: 'device' }, 'Device'),
          h('div', { class: 'row' }, this.#device, h('button', { type: 'submit' }, 'Look up')),
          h('p', { class: 'note' }, 'Its whole id. Empty: all connections.'),
        ),
        h(
          'form',
          { class: 'card ask', role: 'search', 'aria-label': 'Look a topic up', onsubmit: go('topic', this.#topic) },
          h('label', { for: 'topic' }, 'Topic'),
          h('div', { class: 'row' }, this.#topic, h('button', { type: 'submit' }, 'Look up')),
          h('p', { class: 'note' }, 'The beginning of its name. Empty: all topics.'),
        ),
      ),
      this.#said,
      this.#result,
    );
  }

  /** Shows what the address asks for. */
  async open(query) {
    const [device, topic, subscribers] = ['device', 'topic', 'subscribers'].map((name) => query.get(name));
    this.#device.value = device ?? '';
    this.#topic.value = topic ?? subscribers ?? '';
    if (device) {
      await this.#show(() => this.#lookAtDevice(device));
    } else if (subscribers) {
      await this.#show(() => this.#lookAtSubscribers(subscribers));
    } else if (topic !== null) {
      await this.#show(() => this.#listTopics(topic));
    } else {
      await this.#show(() => this.#listConnections({}));
    }
  }

  async #show(look) {
    this.#asked += 1;
    const asked = this.#asked;
    const began = performance.now();
    try {
      const { text, elements } = await look();
      if (asked === this.#asked) {
        say(this.#said, `${text} (${format.count(performance.now() - began)} ms)`);
        this.#result.replaceChildren(...elements);
      }
    } catch (error) {
      if (asked === this.#asked) {
        say(this.#said, sentence(error.message));
        this.#result.replaceChildren();
      }
    }
  }

  async #lookAtDevice(device) {
    const answer = await get(`/v1/devices/${segment(device)}`);
    const { connections, stored } = answer;
    const again = () => this.#show(() => this.#lookAtDevice(device));
    const push = h('a', { class: 'button', href: `#${withQuery('/push', { device })}` }, 'Push to it …');
    const ends = h('a', { class: 'button', href: `#${withQuery('/ends', { device })}` }, 'Its ends');
    const revoke = action(
      this.#session,
      'devices',
      'Revoke …',
      () => this.#revoke(device, connections.length, again),
      'danger',
    );
    return {
      text: connections.length === 0 ? 'Known, and not connected' : format.plural(connections.length, 'connection'),
      elements: [
        h(
          'div',
          { class: 'card' },
          h(
            'div',
            { class: 'row between' },
            h('h2', { class: 'id' }, device),
            h('div', { class: 'row' }, push, ends, revoke),
          ),
          ...missing(answer),
          stored === null ? h('p', { class: 'empty' }, 'It is not in the device store.') : record(stored),
          connections.length === 0 ? undefined : h('h3', {}, 'Connections'),
          connections.length === 0 ? undefined : this.#connections(connections, again),
        ),
      ],
    };
  }

  async #lookAtSubscribers(topic) {
    const [{ topics }, page] = await Promise.all([
      get(withQuery('/v1/topics', { prefix: topic, limit: 1 })),
      get(withQuery('/v1/connections', { topic, limit: PAGE })),
    ]);
    const info = topics.find(({ topic: name }) => name === topic);
    const push = h('a', { class: 'button', href: `#${withQuery('/push', { topic })}` }, 'Push to it …');
    return {
      text: info === undefined ? 'No topic of this name exists now' : format.plural(info.subscribers, 'subscriber'),
      elements: [
        h(
          'div',
          { class: 'card' },
          h('div', { class: 'row between' }, h('h2', { class: 'id' }, topic), push),
          info === undefined
            ? undefined
            : facts([
                ['subscribers here', format.count(info.subscribers)],
                ['offset', format.count(info.offset)],
                ['retained messages', format.count(info.retained_messages)],
                ['class', info.class],
                ['epoch', info.epoch],
              ]),
          this.#paged({ topic }, page),
        ),
      ],
    };
  }

  async #listTopics(prefix) {
    const { topics, next_cursor: more } = await get(withQuery('/v1/topics', { prefix, limit: PAGE }));
    const columns = [
      {
        title: 'topic',
        of: ({ topic }) => h('a', { class: 'id', href: `#${withQuery('/look-up', { subscribers: topic })}` }, topic),
      },
      { title: 'subscribers', of: ({ subscribers }) => format.count(subscribers), kind: 'number' },
      { title: 'offset', of: ({ offset }) => format.count(offset), kind: 'number' },
      { title: 'retained', of: ({ retained_messages: kept }) => format.count(kept), kind: 'number' },
      { title: 'class', of: ({ class: pattern }) => h('code', {}, pattern) },
    ];
    const list = this.#growing('Topics', columns, topics, more, 'topics', (cursor) =>
      withQuery('/v1/topics', { prefix, limit: PAGE, cursor }),
    );
    const found =
      topics.length === 0
        ? 'No topic begins so'
        : `${format.plural(topics.length, 'topic')}${more === null ? '' : ' and more'}`;
    return { text: found, elements: [h('div', { class: 'card' }, list)] };
  }

  async #listConnections(filter) {
    const page = await get(withQuery('/v1/connections', { ...filter, limit: PAGE }));
    const found = `${format.plural(page.connections.length, 'connection')}${page.next_cursor === null ? '' : ' and more'}`;
    return { text: found, elements: [h('div', { class: 'card' }, this.#paged(filter, page))] };
  }

  #paged(filter, page) {
    const again = () => this.open(new URLSearchParams(location.hash.split('?')[1] ?? ''));
    const next = (cursor) => withQuery('/v1/connections', { ...filter, limit: PAGE, cursor });
    return this.#growing(
      'Connections',
      this.#columns(again, true),
      page.connections,
      page.next_cursor,
      'connections',
      next,
    );
  }

  /** A list with a button for its next page. */
  #growing(caption, columns, rows, cursor, member, path) {
    const place = h('div', { class: 'list' });
    const draw = () => {
      const more = h(
        'button',
        {
          type: 'button',
          onclick: async () => {
            more.disabled = true;
            try {
              const page = await get(path(cursor));
              rows = [...rows, ...page[member]];
              cursor = page.next_cursor;
              draw();
            } catch (error) {
              say(this.#said, sentence(error.message));
              more.disabled = false;
            }
          },
        },
        'More',
      );
      place.replaceChildren(table(caption, columns, rows, `No ${member}.`), ...(cursor === null ? [] : [more]));
    };
    draw();
    return place;
  }

  #connections(connections, again) {
    return h('div', { class: 'list' }, table('Connections', this.#columns(again, false), connections));
  }

  #columns(again, withDevice) {
    const device = {
      title: 'device',
      of: ({ device: id }) => h('a', { class: 'id', href: `#${withQuery('/look-up', { device: id })}` }, id),
    };
    return [
      ...(withDevice ? [device] : []),
      { title: 'connection', of: ({ id }) => h('code', {}, id) },
      {
        title: 'speaks',
        of: ({ transport, protocol, client }) => [
          transport === 'tls' ? `${protocol}, TLS` : protocol,
          client ? h('span', { class: 'sub' }, client) : '',
        ],
      },
      {
        title: 'from',
        of: ({ peer, source, node }) => [
          peer ?? source ?? '–',
          node === undefined ? '' : h('span', { class: 'sub' }, `node ${node}`),
        ],
      },
      { title: 'age', of: ({ age_ms: age }) => format.span(age), kind: 'number' },
      { title: 'idle', of: ({ idle_ms: idle }) => format.span(idle), kind: 'number' },
      {
        title: 'queued',
        of: ({ queued_bytes: queued, stalled_ms: stalled }) =>
          stalled === undefined ? format.bytes(queued) : `${format.bytes(queued)}, stalled for ${format.span(stalled)}`,
        kind: 'number',
      },
      { title: 'topics', of: ({ topics }) => topicsOf(topics) },
      {
        title: '',
        of: (connection) => action(this.#session, 'operate', 'Close', () => this.#close(connection, again), 'small'),
        kind: 'act',
      },
    ];
  }

  async #close({ id, device }, again) {
    const isSure = await confirmed({
      title: 'Close this connection?',
      text: [`Connection ${id} of device “${device}” ends with closed_by_operator. The device may connect again.`],
      verb: 'Close it',
      isDangerous: true,
    });
    if (isSure) {
      await this.#do(() => remove(`/v1/connections/${id}`), `Connection ${id} is told to close.`, again);
    }
  }

  async #revoke(device, connected, again) {
    const isSure = await confirmed({
      title: 'Revoke this device?',
      text: [
        `“${device}” loses its credentials in the device store, and its ${format.plural(connected, 'connection')} close with revoked.`,
        'Credentials from the configuration and signed tokens stay valid.',
      ],
      verb: 'Revoke it',
      isDangerous: true,
    });
    if (isSure) {
      const answered = (answer) =>
        answer === undefined
          ? `Device ${device} is revoked.`
          : `Device ${device} is revoked here and at nodes ${answer.confirmed.join(', ')}; not confirmed: ${answer.missing_nodes?.join(', ') ?? 'unknown nodes'}.`;
      await this.#do(() => post(`/v1/devices/${segment(device)}/revoke`), answered, again);
    }
  }

  /** Does it, shows the new state, and says what happened. */
  async #do(act, done, again) {
    let said;
    try {
      const answer = await act();
      said = typeof done === 'string' ? done : done(answer);
      // It takes a moment until a closed connection is gone from the list.
      await new Promise((resolve) => setTimeout(resolve, 300));
      await again();
    } catch (error) {
      said = sentence(error.message);
    }
    say(this.#said, said);
  }
}

const PAGE = 50;

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;

/** Says that nodes did not answer, if so. */
function missing({ missing_nodes: nodes, nodes_unknown: areUnknown }) {
  if (areUnknown) {
    return [
      h('p', { class: 'warning' }, 'The broker does not tell which nodes there are; this is what this node knows.'),
    ];
  }
  return nodes?.length > 0 ? [h('p', { class: 'warning' }, `These nodes did not answer: ${nodes.join(', ')}.`)] : [];
}

function record(stored) {
  const labels = Object.entries(stored.labels ?? {}).map(([name, value]) => `${name}=${value}`);
  return facts([
    ['state', stored.state],
    ['labels', labels.length === 0 ? undefined : labels.join(', ')],
    ['created', format.moment(stored.created_ms)],
    ['activated', format.moment(stored.activated_ms)],
    ['seen', format.moment(stored.seen_ms)],
    ['token ends', format.moment(stored.token_expires_ms)],
    ['generation', format.count(stored.generation)],
  ]);
}

function topicsOf(topics) {
  const link = (topic) => h('a', { class: 'id', href: `#${withQuery('/look-up', { subscribers: topic })}` }, topic);
  if (topics.length <= TOPICS_SHOWN) {
    return topics.length === 0
      ? '–'
      : h(
          'ul',
          { class: 'plain' },
          topics.map((topic) => h('li', {}, link(topic))),
        );
  }
  return h(
    'details',
    {},
    h('summary', {}, format.plural(topics.length, 'topic')),
    h(
      'ul',
      { class: 'plain' },
      topics.map((topic) => h('li', {}, link(topic))),
    ),
  );
}

const TOPICS_SHOWN = 2;
