// Requests to the admin API. Its answers and its problem documents; nothing else is asked.

/** A refusal, in the words of the gateway. */
export class Refusal extends Error {
  constructor(status, problem) {
    super(problem?.detail ?? problem?.title ?? `the gateway answered ${status}`);
    this.status = status;
    this.field = problem?.field;
  }
}

/** The gateway did not answer. */
export class Silence extends Error {
  constructor() {
    super('the gateway does not answer');
  }
}

let onSignedOut = () => {};

/** Calls `listener` when the gateway asks for a token. */
export function whenSignedOut(listener) {
  onSignedOut = listener;
}

/** Sends a request; the answer's document, `undefined` if it has none. */
export async function ask(method, path, body, headers = {}) {
  const options = { method, headers: { Accept: 'application/json', ...headers }, cache: 'no-store' };
  if (method === 'POST') {
    options.headers['Content-Type'] = 'application/json';
    options.body = JSON.stringify(body ?? {});
  }
  let response;
  let document;
  try {
    response = await fetch(path, options);
    const text = await response.text();
    document = text === '' ? undefined : JSON.parse(text);
  } catch {
    if (response === undefined || response.ok) {
      throw new Silence();
    }
  }
  if (response.ok) {
    return document;
  }
  if (response.status === 401 && path !== '/v1/session') {
    onSignedOut();
  }
  throw new Refusal(response.status, document);
}

export const get = (path) => ask('GET', path);
export const post = (path, body, headers) => ask('POST', path, body, headers);
export const remove = (path) => ask('DELETE', path);

/** A path with parameters; empty ones are left out. */
export function withQuery(path, parameters) {
  const known = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== '' && value !== null);
  const query = new URLSearchParams(known).toString();
  return query === '' ? path : `${path}?${query}`;
}

/** A device's id or a topic's name as a part of a path. */
export const segment = (text) => encodeURIComponent(text);
