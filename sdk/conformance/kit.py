#!/usr/bin/env python3
"""Leads a client through the conversations that each client must pass, against a real gateway.

    kit.py --weir PROGRAM --transport tcp|websocket [--only NAME]... -- ADAPTER [ARGUMENT]...

The adapter is a small program that an author writes around the client. docs/client-authors.md
describes its commands and events, and each conversation.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from conversations import CONVERSATIONS, Failure, Unable
from relay import Relay
from wire import TRANSPORTS, encode, varint

CONFIGURATION = """
[listen]
tcp = ["127.0.0.1:{tcp}"]
http = ["127.0.0.1:{http}"]
udp = []
admin = "127.0.0.1:{admin}"

[store]
kind = "none"

[connection]
heartbeat = "2s"
heartbeat_min = "2s"

[[auth.tokens]]
token = "the-token-of-the-kit"

[[topic_classes]]
pattern = "kept/*"
publish = ["devices"]
retention_messages = 100

[[topic_classes]]
pattern = "plain/*"
publish = ["devices"]

[[topic_classes]]
pattern = "tick/*"
tick = "500ms"
retention_messages = 100
"""

TOKEN = "the-token-of-the-kit"


class Gateway:
    """A gateway of its own, with short heartbeats."""

    def __init__(self, program, directory):
        found = shutil.which(program)
        if found is None:
            sys.exit(f"kit: there is no program {program!r}: name it with --weir")
        for _ in range(5):
            ports = dict(zip(("tcp", "http", "admin"), free_ports(3)))
            path = os.path.join(directory, "weir.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(CONFIGURATION.format(**ports))
            with open(os.path.join(directory, "log"), "a", encoding="utf-8") as log:
                self.process = subprocess.Popen(
                    [os.path.abspath(found), "--config", path], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    cwd=directory)
            self.ports = ports
            if self.is_ready():
                return
        with open(os.path.join(directory, "log"), encoding="utf-8") as log:
            sys.exit(f"kit: {program} does not start:\n{log.read()}")

    def is_ready(self):
        deadline = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                if self.ask("GET", "/readyz")[0] == 200:
                    return True
            # Another program may have taken the port meanwhile, and then this gateway ends.
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.05)
        return False

    def ask(self, method, path, body=None):
        """The status and the answer of the admin API."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports['admin']}{path}", method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"})
        try:
            with DIRECT.open(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


# No proxy of the environment stands before this machine.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


class Adapter:
    """The client under test."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        self.events, self.changed = [], threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": "invalid", "line": line}
            with self.changed:
                self.events.append(event)
                self.changed.notify_all()
        with self.changed:
            self.events.append({"event": "exited"})
            self.changed.notify_all()

    def tell(self, **command):
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Failure(f"the adapter does not read its commands: {error}") from error

    def of(self, name, **members):
        with self.changed:
            return [event for event in self.events if event.get("event") == name
                    and all(event.get(key) == value for key, value in members.items())]

    def wait(self, condition, seconds):
        deadline = time.monotonic() + seconds
        with self.changed:
            while not (value := condition()):
                for name in ("exited", "invalid"):
                    if self.of(name):
                        raise Failure(f"the adapter has {name}: {self.of(name)[0]}")
                left = deadline - time.monotonic()
                if left <= 0:
                    return value
                self.changed.wait(left)
            return value

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Case:
    """What a conversation works with."""

    def __init__(self, name, gateway, options):
        self.name, self.gateway, self.patience = name, gateway, options.patience
        self.transport = transport = options.transport
        self.device = f"kit-{name}"
        target = gateway.ports["tcp" if transport == "tcp" else "http"]
        self.relay = Relay(transport, ("127.0.0.1", target))
        self.adapter = Adapter(options.adapter)

    def connect(self, *topics, token=TOKEN, **more):
        address = f"127.0.0.1:{self.relay.port}"
        self.adapter.tell(do="connect", address=address, device=self.device, token=token,
                          topics=list(topics), **more)

    def publish(self, topic, text):
        status, answer = self.gateway.ask("POST", "/v1/publish", {"topic": topic, "text": text})
        if status != 200:
            raise AssertionError(f"the gateway refuses a message of the kit: {status} {answer}")

    def texts(self, topic):
        return [event["text"] for event in self.adapter.of("message", topic=topic)]

    def second_device(self):
        """A connection of the kit itself, as the same device."""
        device = socket.create_connection(("127.0.0.1", self.gateway.ports["tcp"]))
        hello = {"hello": {"deviceId": self.device, "token": TOKEN}}
        body = encode("ClientMessage", hello)
        device.sendall(varint(len(body)) + body)
        return device

    def close(self):
        self.adapter.close()
        self.relay.close()


def run(name, gateway, options):
    """The outcome of a conversation, and why."""
    case = Case(name, gateway, options)
    try:
        CONVERSATIONS[name](case)
        return "ok", ""
    except Unable as error:
        return "skipped", str(error)
    except Failure as error:
        return "FAILED", str(error)
    finally:
        case.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weir", default="weir", help="the program of the gateway")
    parser.add_argument("--transport", choices=sorted(TRANSPORTS), default="tcp")
    parser.add_argument("--only", action="append", choices=CONVERSATIONS, metavar="NAME",
                        help="holds this conversation alone; may be repeated")
    parser.add_argument("--patience", type=float, default=30, metavar="SECONDS",
                        help="how long the client may take for anything that it must do")
    parser.add_argument("--list", action="store_true", help="lists the conversations")
    parser.add_argument("adapter", nargs="*", help="the command of the adapter")
    options = parser.parse_args()
    if options.list:
        for name, conversation in CONVERSATIONS.items():
            print(f"{name}: {conversation.__doc__}")
        return
    if not options.adapter:
        parser.error("the command of the adapter is missing: kit.py … -- COMMAND")
    names = options.only or list(CONVERSATIONS)
    with tempfile.TemporaryDirectory() as directory:
        gateway = Gateway(options.weir, directory)
        try:
            with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
                outcomes = pool.map(lambda name: run(name, gateway, options), names)
                failures = 0
                for name, (outcome, why) in zip(names, outcomes):
                    failures += outcome == "FAILED"
                    print(f"{outcome:7} {name}{': ' if why else ''}{why}", flush=True)
        finally:
            gateway.process.kill()
            gateway.process.wait()
    print(f"{len(names)} conversations, {failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
