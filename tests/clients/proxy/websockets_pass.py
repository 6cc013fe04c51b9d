"""A WebSocket server on a free port, and clients that reach it through the gateway."""

import asyncio
import sys

import websockets
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

LONG = 1_000_000


async def echo(websocket):
    async for message in websocket:
        if message == "close":
            await websocket.close(4001, "as you wish")
            return
        await websocket.send(message)


async def main():
    async with serve(echo, "127.0.0.1", 0, max_size=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        gateway = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        url = f"ws://{gateway.strip()}/socket?x=1"
        async with connect(url, max_size=None) as websocket:
            for message in ["hello", b"\x00\x01", "", "ä" * LONG, b"x" * LONG]:
                await websocket.send(message)
                answer = await websocket.recv()
                assert answer == message, (message[:10], answer[:10])
            await (await websocket.ping())
            print("echo", flush=True)
            await websocket.send("close")
            try:
                await websocket.recv()
                raise SystemExit("it stays open")
            except websockets.ConnectionClosed as closed:
                assert (closed.rcvd.code, closed.rcvd.reason) == (4001, "as you wish"), closed
        print("closed", flush=True)

        async def talk(number):
            async with connect(url) as websocket:
                for count in range(20):
                    await websocket.send(f"{number}-{count}")
                    assert await websocket.recv() == f"{number}-{count}"

        await asyncio.gather(*(talk(number) for number in range(50)))
        print("fifty", flush=True)
    print("done", flush=True)


asyncio.run(main())
