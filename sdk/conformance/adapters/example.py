#!/usr/bin/env python3
"""A small client with its adapter, as an example for authors.

`--fault NAME` has it break one rule, for the test of the kit.
"""

import argparse
import json
import pathlib
import random
import select
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from wire import Frames, encode, kind_of, read_varint, varint  # noqa: E402

# Each fault with the conversation that must fail.
FAULTS = {
    "forgets-positions": "resume",
    "resumes-one-early": "resume",
    "counts-half-messages": "cut-inside",
    "drops-last-of-batch": "batch",
    "hides-loss": "lost",
    "ignores-delay": "goodbye-later",
    "knows-only-its-codes": "unknown-code",
    "fights-replacement": "replaced",
    "repeats-wrong-token": "wrong-token",
    "comes-back-in-a-loop": "outage",
    "sends-no-ping": "heartbeat",
    "waits-for-ever": "silence",
    "reads-whole-packets": "fragments",
    "unknown-is-fatal": "unknown",
    "keeps-topics": "unsubscribe",
    "publishes-again": "publish",
    "sends-too-much-again": "largest",
    "ignores-calls": "calls",
    "ignores-expiring": "refresh",
    "hands-out-backwards": "hello",
}

FRAME_BYTES_MAX = 65_536
STEP_MIN, STEP_MAX = 0.5, 8.0
KNOWN_CODES = {4004, 4006, 4100, 4101, 4102, 4103, 4200, 4201, 4300, 4303}


def tell(**event):
    print(json.dumps(event), flush=True)


class Over(Exception):
    """The connection has ended; how long to wait, None for ever."""

    def __init__(self, delay):
        super().__init__()
        self.delay = delay


class Client:
    """Stays connected, and keeps the position of each topic."""

    def __init__(self, fault, command):
        self.fault, self.command = fault, command
        self.host, port = command["address"].split(":")
        self.port, self.token = int(port), command["token"]
        # By topic: the epoch and the offset of the last message handed out, or None.
        self.topics = dict.fromkeys(command["topics"])
        self.waiting = {}
        self.socket, self.step, self.heartbeat = None, STEP_MIN, 60

    def run(self):
        while True:
            began = time.monotonic()
            try:
                self.connect()
                while True:
                    self.turn()
            except Over as over:
                delay = over.delay
            except OSError:
                delay = self.backoff()
            self.socket = None
            if self.fault != "publishes-again":
                for number in self.waiting:
                    tell(event="failed", id=number, code="connection_lost")
                self.waiting.clear()
            if delay is None:
                tell(event="ended")
                delay = float("inf")
            if time.monotonic() - began > self.step:
                self.step = STEP_MIN
            if self.fault == "comes-back-in-a-loop":
                delay = 0.01
            self.pause(delay)

    def backoff(self):
        """A random part of a step that doubles."""
        delay = self.step * (0.5 + random.random() / 2)
        self.step = min(2 * self.step, STEP_MAX)
        return delay

    def connect(self):
        self.socket = socket.create_connection((self.host, self.port))
        self.frames = Frames("ServerMessage")
        self.heard = self.pinged = time.monotonic()
        topics = [self.subscription(topic) for topic in self.topics]
        self.say({"hello": {
            "deviceId": self.command["device"], "token": self.token, "client": "example/1",
            "topics": topics, "calls": 1 if self.command.get("calls") else 0}})
        if self.fault in ("publishes-again", "sends-too-much-again"):
            for publish in self.waiting.values():
                self.say({"publish": publish})

    def subscription(self, topic):
        position = self.topics[topic]
        if position is None or self.fault == "forgets-positions":
            return {"topic": topic}
        epoch, offset = position
        if self.fault == "resumes-one-early":
            offset = max(offset - 1, 0)
        return {"topic": topic, "position": {"epoch": epoch, "offset": offset}}

    def say(self, message):
        body = encode("ClientMessage", message)
        self.socket.sendall(varint(len(body)) + body)

    def turn(self):
        """Waits for the gateway, the program or the clock."""
        ready = select.select([self.socket, sys.stdin], [], [], self.heartbeat / 4)[0]
        if sys.stdin in ready:
            self.obey(json.loads(sys.stdin.readline() or sys.exit()))
        if self.socket in ready:
            data = self.socket.recv(65536)
            if not data:
                self.count_half()
                raise Over(self.backoff())
            self.heard = time.monotonic()
            self.read(data)
        now = time.monotonic()
        if now - self.heard > 2 * self.heartbeat and self.fault != "waits-for-ever":
            raise Over(self.backoff())
        if now - self.pinged > self.heartbeat / 2 and self.fault != "sends-no-ping":
            self.pinged = now
            self.say({"ping": {}})

    def read(self, data):
        if self.fault == "reads-whole-packets":
            # Each packet counts as one frame; the rest of a longer frame is lost.
            self.frames.buffer = b""
            found = read_varint(data, 0)
            if found is None or len(data) != found[0] + found[1]:
                return
        for unit, message in self.frames.feed(data):
            if not message and self.fault == "unknown-is-fatal":
                raise Over(None)
            handle = getattr(self, f"hear_{kind_of(message)}", None)
            if handle:
                handle(message[kind_of(message)])

    def count_half(self):
        if self.fault == "counts-half-messages" and self.frames.buffer:
            for topic, position in self.topics.items():
                if position:
                    self.topics[topic] = (position[0], position[1] + 1)

    def pause(self, delay):
        """Waits before the next connection; the program may speak meanwhile."""
        until = time.monotonic() + delay
        while (left := until - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], min(left, 3600))[0]:
                self.obey(json.loads(sys.stdin.readline() or sys.exit()))

    def obey(self, command):
        topic = command.get("topic")
        if command["do"] == "subscribe":
            self.topics.setdefault(topic, None)
            if self.socket:
                self.say({"subscribe": {"topic": topic}})
        elif command["do"] == "unsubscribe":
            if self.fault != "keeps-topics":
                self.topics.pop(topic, None)
            if self.socket:
                self.say({"unsubscribe": {"topic": topic}})
        elif command["do"] == "publish":
            self.publish(topic, command["text"], command["id"])

    def publish(self, topic, text, number):
        message = {"topic": topic, "text": text, "request": number}
        is_too_large = len(text.encode()) > FRAME_BYTES_MAX - 1024
        if not self.socket or is_too_large and self.fault != "sends-too-much-again":
            tell(event="failed", id=number, code="too_large" if is_too_large else "not_connected")
            return
        self.waiting[number] = message
        self.say({"publish": message})

    def hear_welcome(self, welcome):
        self.heartbeat = welcome["heartbeatMs"] / 1000

    def hear_subscribed(self, told):
        topic, position = told["topic"], told.get("position", {})
        position = (position.get("epoch", 0), position.get("offset", 0))
        asked = self.topics.get(topic)
        if asked and not told.get("recovered") and asked != position and self.fault != "hides-loss":
            tell(event="lost", topic=topic)
        if topic in self.topics:
            self.topics[topic] = position

    def hear_push(self, push):
        self.hand_out(push.get("topic", ""), push)

    def hear_batch(self, batch):
        messages = batch["messages"]
        if self.fault == "drops-last-of-batch":
            messages = messages[:-1]
        for push in messages:
            self.hand_out(batch["topic"], push)

    def hand_out(self, topic, push):
        text = push.get("text", "")
        if self.fault == "hands-out-backwards":
            text = {"1": "3", "3": "1"}.get(text, text)
        tell(event="message", topic=topic, text=text)
        if self.topics.get(topic):
            self.topics[topic] = (self.topics[topic][0], push["offset"])

    def hear_published(self, told):
        self.waiting.pop(told["request"], None)
        tell(event="published", id=told["request"])

    def hear_error(self, error):
        if error.get("request"):
            self.waiting.pop(error["request"], None)
            tell(event="failed", id=error["request"], code=error["code"])

    def hear_call(self, call):
        if self.fault != "ignores-calls":
            self.say({"answer": {"id": call["id"], "code": "unsupported"}})

    def hear_expiring(self, _):
        if self.fault != "ignores-expiring" and self.command.get("next_token"):
            self.token = self.command["next_token"]
            self.say({"refresh": {"token": self.token}})

    def hear_goodbye(self, goodbye):
        code, asked = goodbye["code"], goodbye.get("retryAfterMs", 0) / 1000
        delay = self.backoff()
        is_misread = self.fault == "knows-only-its-codes" and code not in KNOWN_CODES
        if self.fault == "ignores-delay" or is_misread:
            raise Over(delay)
        if code == 4303 and self.fault == "fights-replacement":
            raise Over(delay)
        if code == 4301 and self.fault == "sends-too-much-again":
            raise Over(delay)
        if code == 4200 and self.fault == "repeats-wrong-token":
            raise Over(0.2)
        if code >= 4200:
            raise Over(None)
        raise Over(asked + delay if code >= 4100 else delay)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--faults", action="store_true",
                        help="lists the faults, each with the conversation that it fails")
    options = parser.parse_args()
    if options.faults:
        for fault, conversation in FAULTS.items():
            print(fault, conversation)
        return
    # `select` must see each line.
    sys.stdin = open(0, "rb", buffering=0)
    command = json.loads(sys.stdin.readline() or sys.exit())
    Client(options.fault, command).run()


if __name__ == "__main__":
    main()
