"""The relay between a client and the gateway: it passes messages on, writes them down, and does
what a network does.
"""

import socket
import threading
import time

from wire import TRANSPORTS, kind_of


class Seen:
    """A message on its way: when, on which connection, in which direction."""

    def __init__(self, connection, direction, message):
        self.at, self.connection, self.direction = time.monotonic(), connection, direction
        self.kind, self.message = kind_of(message), message
        self.body = message.get(self.kind, {})


class Connection:
    """A connection of the client, and its counterpart to the gateway."""

    def __init__(self, relay, client, number):
        self.relay, self.client, self.number = relay, client, number
        self.server = None
        self.at, self.ended_at = time.monotonic(), None
        self.is_muted = False
        self.lock = threading.Lock()

    def run(self):
        # Refused connections are counted, and end at once.
        if self.relay.is_refusing:
            self.cut()
            return
        try:
            self.server = socket.create_connection(self.relay.target)
            threading.Thread(target=self.pump, args=(self.server, "server"), daemon=True).start()
            self.pump(self.client, "client")
        except OSError:
            self.cut()

    def pump(self, source, direction):
        name = "ClientMessage" if direction == "client" else "ServerMessage"
        parser = TRANSPORTS[self.relay.transport](name)
        try:
            while data := source.recv(65536):
                for unit, message in parser.feed(data):
                    self.pass_on(direction, unit, message)
        except OSError:
            pass
        self.cut()

    def pass_on(self, direction, unit, message):
        if message is None:
            self.write(direction, unit)
            return
        seen = Seen(self, direction, message)
        change = self.relay.note(seen)
        if direction == "server" and self.is_muted:
            return
        if change is None or (changed := change(seen, unit)) is None:
            self.write(direction, unit)
            return
        for part in changed:
            self.write(direction, part)

    def write(self, direction, data):
        with self.lock:
            (self.server if direction == "client" else self.client).sendall(data)

    def inject(self, message):
        """Sends a message to the client that the gateway did not send."""
        self.write("server", self.unit(message))

    def unit(self, message):
        """A message of the gateway as bytes."""
        return TRANSPORTS[self.relay.transport]("ServerMessage").unit(message)

    def cut(self):
        """Ends both sides without a word."""
        for side in (self.client, self.server):
            if side is not None:
                try:
                    side.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                side.close()
        if self.ended_at is None:
            self.ended_at = time.monotonic()
        with self.relay.changed:
            self.relay.changed.notify_all()


class Relay:
    """Listens for one client."""

    def __init__(self, transport, target):
        self.transport, self.target = transport, target
        self.is_refusing = False
        # Called with each message and its bytes; answers with the bytes to send instead, or None.
        self.change = None
        self.connections, self.seen = [], []
        self.changed = threading.Condition()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with self.changed:
                connection = Connection(self, client, len(self.connections) + 1)
                self.connections.append(connection)
                self.changed.notify_all()
            threading.Thread(target=connection.run, daemon=True).start()

    def note(self, seen):
        with self.changed:
            self.seen.append(seen)
            self.changed.notify_all()
            return self.change

    def last(self):
        return self.connections[-1]

    def find(self, kind, direction, after=0):
        """The messages of a kind on connections after the one with this number."""
        with self.changed:
            return [seen for seen in self.seen
                    if (seen.kind, seen.direction) == (kind, direction)
                    and seen.connection.number > after]

    def wait(self, condition, seconds):
        """Waits until a condition holds; returns its value, or a false one."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while not (value := condition()):
                left = deadline - time.monotonic()
                if left <= 0:
                    return value
                self.changed.wait(min(left, 0.1))
            return value

    def close(self):
        self.listener.close()
        for connection in self.connections:
            connection.cut()
