"""A device on Python's ssl: plays whole conversations with a server, and fails where an answer is not as it must be.

usage: device.py HOST:PORT ADMIN_HOST:ADMIN_PORT CA_FILE 1.2|1.3 [steps]
The server's certificate is for "localhost"; devices may publish to topics "open/*".
With "steps", it waits for lines: at each it hears so many numbers of the topic "news" as the line says, sends in small
and large records, and writes the line back.
"""

import json
import socket
import ssl
import sys
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.dont_write_bytecode = True

from wire import field, fields_of, read_varint, varint

PATIENCE_SECS = 60


def frame(kind, *fields):
    message = field(kind, b"".join(fields))
    return varint(len(message)) + message


def hello(device, *topics):
    return frame(1, field(1, device), *(field(5, field(1, topic)) for topic in topics))


def ping(data):
    return frame(2, field(1, data))


def subscribe(topic):
    return frame(3, field(1, topic))


def publish(topic, data, request):
    return frame(5, field(1, topic), field(3, data), field(6, request))


WELCOME, PONG, PUSH, SUBSCRIBED, PUBLISHED = 1, 2, 3, 5, 7


class Device:
    """A connection whose records and packets are cut as one likes: TLS writes to memory, and memory to the socket."""

    def __init__(self, context, address, session=None):
        self.socket = socket.create_connection(address, PATIENCE_SECS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self.incoming, self.outgoing, server_hostname="localhost", session=session
        )
        self.received = b""
        while not self.step(self.tls.do_handshake):
            pass

    def step(self, operation):
        """Whether `operation` could be done; if not, sends what waits and reads on.

        What the last step of a handshake leaves to be sent stays, and goes together with the first records.
        """
        try:
            operation()
            return True
        except ssl.SSLWantReadError:
            self.flush()
            data = self.socket.recv(65536)
            self.incoming.write(data) if data else self.incoming.write_eof()
            return False

    def flush(self, piece_bytes=1 << 20):
        data = self.outgoing.read()
        for at in range(0, len(data), piece_bytes):
            self.socket.sendall(data[at : at + piece_bytes])

    def say(self, data, record_bytes=16384, piece_bytes=1 << 20):
        for at in range(0, len(data), record_bytes):
            self.tls.write(data[at : at + record_bytes])
        self.flush(piece_bytes)

    def hear(self, kind):
        """The next message, which must be of this kind."""
        heard, message = self.hear_any()
        assert heard == kind, f"wanted kind {kind}, heard {heard}: {message}"
        return message

    def hear_any(self):
        while True:
            end = next((i for i, byte in enumerate(self.received[:5]) if byte < 128), None)
            if end is not None:
                length, start = read_varint(self.received, 0)
                if len(self.received) >= start + length:
                    message = fields_of(self.received[start : start + length])
                    self.received = self.received[start + length :]
                    [(kind, message)] = message.items()
                    return kind, fields_of(message)
            self.step(self.read)

    def read(self):
        data = self.tls.read(65536)
        assert data, "the server has ended the connection"
        self.received += data

    def end(self):
        """Says close_notify, and expects the server's end."""
        try:
            self.tls.unwrap()
        except ssl.SSLWantReadError:
            pass
        self.flush()
        while self.socket.recv(65536):
            pass
        self.socket.close()


def from_backend(admin, message):
    request = urllib.request.Request(
        f"http://{admin}/v1/publish",
        json.dumps(message).encode(),
        {"Content-Type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request, timeout=PATIENCE_SECS))


def converse(context, address, admin, device_id):
    """Greets, subscribes, hears a push and a large one."""
    device = Device(context, address)
    device.say(hello(device_id))
    device.hear(WELCOME)
    device.say(subscribe("news"))
    assert device.hear(SUBSCRIBED)[1] == b"news"
    assert from_backend(admin, {"topic": "news", "text": "one"})["connections"] == 1
    push = device.hear(PUSH)
    assert (push[1], push[2]) == (b"news", b"one"), push
    large = "0123456789abcdef" * 3840
    assert from_backend(admin, {"topic": "news", "text": large})["connections"] == 1
    assert device.hear(PUSH)[2] == large.encode()
    return device


def large_frame_in_small_records(device):
    device.say(subscribe("open/a"))
    device.hear(SUBSCRIBED)
    data = bytes(number % 251 for number in range(60 * 1024))
    # Records and packets begin and end anywhere in one another.
    for request, (record, piece) in enumerate([(97, 1 << 20), (97, 1009), (16384, 1 << 20)], 1):
        device.say(publish("open/a", data, request), record, piece)
        # Which of the two comes first does not matter.
        answers = dict([device.hear_any(), device.hear_any()])
        assert answers[PUSH][3] == data
        assert answers[PUBLISHED][1] == request


def many_frames_in_one_record(device, count=1500):
    words = [f"{number:04}".encode() for number in range(count)]
    device.say(b"".join(map(ping, words)))
    for word in words:
        assert device.hear(PONG)[1] == word


def resumed(context, address, session, device_id):
    """What is said right behind the handshake's last message, in one packet with it."""
    device = Device(context, address, session)
    assert device.tls.session_reused, "the session was not resumed"
    many = b"".join(ping(b"%d" % number) for number in range(100))
    device.say(hello(device_id, "news") + many, record_bytes=50)
    device.hear(WELCOME)
    heard = [device.hear_any() for _ in range(101)]
    # Which of the pongs it comes between does not matter.
    assert [message[1] for kind, message in heard if kind == SUBSCRIBED] == [b"news"]
    pongs = [message[1] for kind, message in heard if kind == PONG]
    assert pongs == [b"%d" % number for number in range(100)]
    return device


def step_by_step(device):
    """Lives on one connection, whatever becomes of the server meanwhile."""
    large_frame_in_small_records(device)
    print("ready", flush=True)
    next_number = 0
    for line in sys.stdin:
        for _ in range(int(line)):
            push = device.hear(PUSH)
            assert (push[1], push[2]) == (b"news", b"%d" % next_number), (push, next_number)
            next_number += 1
        many_frames_in_one_record(device, 50)
        device.say(publish("open/b", b"x" * 40_000, 1), record_bytes=997)
        assert device.hear(PUBLISHED)[1] == 1
        print(line, end="", flush=True)


def main(address, admin, authority, version, steps=None):
    host, port = address.rsplit(":", 1)
    address = (host, int(port))
    context = ssl.create_default_context(cafile=authority)
    context.minimum_version = context.maximum_version = {
        "1.2": ssl.TLSVersion.TLSv1_2,
        "1.3": ssl.TLSVersion.TLSv1_3,
    }[version]
    context.set_alpn_protocols(["weir.v1"])
    device = converse(context, address, admin, f"python-{version}")
    assert device.tls.version() == f"TLSv{version}"
    assert device.tls.selected_alpn_protocol() == "weir.v1"
    if steps:
        step_by_step(device)
        return
    large_frame_in_small_records(device)
    many_frames_in_one_record(device)
    second = resumed(context, address, device.tls.session, f"python-{version}-again")
    many_frames_in_one_record(second)
    second.end()
    device.end()
    print("done")


main(*sys.argv[1:])
