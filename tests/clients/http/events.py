"""Reads events with the library `requests`, as docs/http-api.md says, and prints the text of each message as it comes.

usage: events.py URL COUNT
"""

import json
import sys

import requests


def lines(answer):
    """The lines of an answer as soon as they are there."""
    rest = b""
    while piece := answer.raw.read1(65536):
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole


count = int(sys.argv[2])
with requests.get(sys.argv[1], stream=True, timeout=60) as answer:
    for line in lines(answer):
        if not line.startswith(b"data:"):
            continue
        message = json.loads(line[5:])
        if "connectionId" in message:
            print("welcome", flush=True)
        if "text" in message:
            print(message["text"], flush=True)
            count -= 1
        if count == 0:
            break
