// Compiled, never run: the types as a program meets them.

import { WeirClient, WeirError, formatPosition, parsePosition } from '@weir/client';
import type { Message, Publication, WeirClientOptions } from '@weir/client';

const options: WeirClientOptions = {
  url: 'https://gate.example',
  getToken: async () => (await fetch('/token')).text(),
  WebSocket: globalThis.WebSocket,
  fetch: globalThis.fetch,
};
const client = new WeirClient(options);
client.on('notRecovered', ({ topic, asked }) => console.log(topic, formatPosition(asked)));
client.on('message', ({ topic }) => {
  const position = client.positions().get(topic);
  if (position) localStorage.setItem(topic, formatPosition(position));
});
const stored = localStorage.getItem('news');
client.subscribe('news', { position: stored ? parsePosition(stored) : undefined });

// @ts-expect-error no such event
client.on('massage', () => {});
// @ts-expect-error text or data, not both
export const both: Publication = { topic: 'news', text: 'x', data: new Uint8Array() };

export function length(message: Message): number {
  return message.text === undefined ? message.data.length : message.text.length;
}

export async function publish(publication: Publication): Promise<bigint> {
  try {
    await client.connect();
    const { offset, connections } = await client.publish(publication);
    return offset + BigInt(connections);
  } catch (error) {
    throw error instanceof WeirError && error.code === 'busy' ? error.retryAfterMs : error;
  }
}
