import { WeirClient } from './sdk/index.js';

const user = new URL(location.href).searchParams.get('user') ?? 'guest';
const byId = (id) => document.getElementById(id);
byId('user').textContent = user;

/** The user's token, and the gateway's address, from our own backend. */
async function ask() {
  const headers = { 'Content-Type': 'application/json' };
  const answer = await fetch('/token', { method: 'POST', headers, body: JSON.stringify({ user }) });
  return answer.json();
}

const { gateway, token } = await ask();
// The client asks for another token before this one ends, and connects again when it must.
const client = new WeirClient({ url: gateway, token, getToken: async () => (await ask()).token });
client.on('open', () => (byId('status').textContent = 'connected'));
client.on('close', ({ reason }) => (byId('status').textContent = reason));

client.subscribe('chat/lobby', {
  // No topic has this epoch: so everything that is retained comes first.
  position: { epoch: 1n, offset: 0n },
  onMessage: ({ text }) => {
    const said = JSON.parse(text);
    const line = document.createElement('li');
    // Text of other users is never HTML.
    line.textContent = `${said.user}: ${said.text}`;
    byId('log').append(line);
  },
});

byId('form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const text = JSON.stringify({ user, text: byId('text').value });
  try {
    await client.publish({ topic: 'chat/lobby', text, contentType: 'application/json' });
    byId('text').value = '';
  } catch (error) {
    // What was written stays in the field, to be sent again.
    byId('status').textContent = `not sent: ${error.message}`;
  }
});

await client.connect();
