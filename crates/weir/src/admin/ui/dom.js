// Elements from text. Nothing here reads HTML, so names and ids from devices stay text.

/** The element with this id, which index.html has. */
export const at = (id) => document.getElementById(id);

/** An element. `on…` attributes are listeners; `undefined`, `null` and `false` leave one out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) {
      element.addEventListener(name.slice(2), value);
    } else if (value !== undefined && value !== null && value !== false) {
      element.setAttribute(name, value === true ? '' : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null));
  return element;
}

/** Sets text only if it changes, so that a screen reader does not read it again. */
export function say(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

/**
 * A table. `columns` are `{ title, of, kind }`: `of` makes a cell's text or element from a row; the kind `number` stands
 * to the right. On a narrow screen each row becomes a card, whose lines carry the titles.
 */
export function table(caption, columns, rows, empty) {
  if (rows.length === 0 && empty !== undefined) {
    return h('p', { class: 'empty' }, empty);
  }
  const head = columns.map(({ title, kind }) =>
    title === '' ? h('td', {}) : h('th', { scope: 'col', class: kind }, title),
  );
  const body = rows.map((row) =>
    h(
      'tr',
      {},
      columns.map(({ title, of, kind }, index) => {
        const cell = of(row);
        const content = cell instanceof Node || Array.isArray(cell) ? cell : String(cell ?? '–');
        return index === 0
          ? h('th', { scope: 'row', class: kind, 'data-title': title }, content)
          : h('td', { class: kind, 'data-title': title }, content);
      }),
    ),
  );
  return h(
    'table',
    {},
    h('caption', { class: 'unseen' }, caption),
    h('thead', {}, h('tr', {}, head)),
    h('tbody', {}, body),
  );
}

/** Shows `make()` in a place, unless `key` is what it showed before. */
export function show(place, key, make) {
  if (place.shown !== key) {
    place.shown = key;
    place.replaceChildren(...[make()].flat());
  }
}

/** A list of names and values; values without a name are left out. */
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== undefined && value !== null);
  return h(
    'dl',
    { class: 'facts' },
    known.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))),
  );
}

/** Asks before something is done; `true` if it shall be done. */
export function confirmed({ title, text, verb, isDangerous = false }) {
  const dialog = at('confirmation');
  return new Promise((resolve) => {
    const end = (answer) => {
      resolve(answer);
      dialog.close();
    };
    const cancel = h('button', { type: 'button', autofocus: true, onclick: () => end(false) }, 'Cancel');
    const act = h(
      'button',
      { type: 'button', class: isDangerous ? 'main danger' : 'main', onclick: () => end(true) },
      verb,
    );
    dialog.replaceChildren(
      h('h2', { id: 'confirmation-title' }, title),
      ...[text].flat().map((line) => h('p', {}, line)),
      h('div', { class: 'row end' }, cancel, act),
    );
    // Escape closes it too.
    dialog.onclose = () => resolve(false);
    dialog.showModal();
  });
}

/**
 * A button for something that needs a scope of the caller. Without the scope it cannot be pressed, and says why beside
 * it.
 */
export function action(session, scope, label, run, kind = '') {
  const button = h('button', { type: 'button', class: kind, onclick: () => run(button) }, label);
  return allow(session, scope, button);
}

/** The button, and the reason why it cannot be pressed, if there is one. */
export function allow(session, scope, button) {
  if (session.may.includes(scope)) {
    return button;
  }
  button.disabled = true;
  const why = `needs the scope “${scope}”, which “${session.name}” lacks`;
  return h('span', { class: 'denied' }, button, h('span', { class: 'why' }, why));
}
