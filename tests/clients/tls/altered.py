"""A TLS client whose messages can be altered on their way, and what comes of a conversation with it.

tlslite-ng makes the handshake; what it is about to send passes through a function that may send something else.
"""

import socket

from tlslite.api import HandshakeSettings, TLSConnection
from tlslite.constants import AlertDescription, ContentType
from tlslite.errors import TLSAbruptCloseError, TLSError, TLSRemoteAlert
from tlslite.messages import Message

PATIENCE_SECS = 60

# Types of handshake messages, and one for all that are none.
CLIENT_HELLO, CERTIFICATE, KEY_EXCHANGE, CERTIFICATE_VERIFY, FINISHED = 1, 11, 16, 15, 20
CHANGE_OF_CIPHERS = -1

HANDSHAKE, ALERT, CHANGE, DATA = (
    ContentType.handshake,
    ContentType.alert,
    ContentType.change_cipher_spec,
    ContentType.application_data,
)


class Wire:
    """A socket that may change one record, sealed as it is."""

    def __init__(self, sock):
        self.sock, self.change = sock, None

    def send(self, data):
        self.sendall(data)
        return len(data)

    def sendall(self, data):
        if self.change is not None:
            data, self.change = self.change(bytearray(data)), None
        self.sock.sendall(data)

    def __getattr__(self, name):
        return getattr(self.sock, name)


class Altered(TLSConnection):
    """A connection. `alter` gets each step and what is to be sent, and returns records: types and contents."""

    def __init__(self, sock, alter):
        self.wire = Wire(sock)
        super().__init__(self.wire)
        self.alter = alter

    def _sendMsg(self, msg, randomizeFirstBlock=True, update_hashes=True):
        sent, kind = bytes(msg.write()), msg.contentType
        if kind == HANDSHAKE:
            step = sent[0]
        else:
            step = CHANGE_OF_CIPHERS if kind == CHANGE else None
        records = [(kind, sent)] if step is None else self.alter(self, step, kind, sent)
        if update_hashes and kind == HANDSHAKE:
            # A hello counts as it is sent, so that one which is accepted leads to an end that fits.
            hashed = sent
            if step == CLIENT_HELLO:
                hashed = b"".join(content for kind, content in records if kind == HANDSHAKE)
            self._handshake_hash.update(bytearray(hashed))
        for record_kind, content in records:
            yield from self._sendMsgThroughSocket(Message(record_kind, bytearray(content)))


def unaltered(_client, _step, kind, sent):
    return [(kind, sent)]


def settings(version, group="x25519", cipher="aes128gcm", **more):
    chosen = HandshakeSettings()
    chosen.minVersion = chosen.maxVersion = version
    chosen.cipherNames = [cipher]
    chosen.eccCurves = [group]
    chosen.keyShares = [group]
    chosen.dhGroups = []
    for name, value in more.items():
        setattr(chosen, name, value)
    return chosen


def converse(addr, chosen, alter=unaltered, session=None, alpn=None, name="localhost", look=None):
    """One conversation. Its outcome: "served", the name of the server's alert, or another end.

    `look` is shown the connection when it has been served.
    """
    with socket.create_connection(addr, PATIENCE_SECS) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Altered(sock, alter)
        try:
            client.handshakeClientCert(
                session=session, settings=chosen, serverName=name, alpn=alpn
            )
            # A server that speaks TLS 1.3 has refused nothing of the last message yet.
            client.write(b"GET /rest/hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b""
            while b"Hello World" not in answer:
                more = client.read(max=4096, min=1)
                if not more:
                    return f"answered {bytes(answer)!r}"
                answer += more
            return "served" if look is None else look(client)
        except TLSRemoteAlert as alert:
            return AlertDescription.toRepr(alert.description)
        except (TLSAbruptCloseError, ConnectionError):
            return "closed"
        except TLSError as error:
            return f"{type(error).__name__}: {error}"


def plain_alert(addr, records):
    """What answers records that are sent as they are: the name of an alert in plaintext, or "closed"."""
    with socket.create_connection(addr, PATIENCE_SECS) as sock:
        sock.sendall(records)
        heard = b""
        while True:
            try:
                more = sock.recv(4096)
            except ConnectionError:
                return "closed"
            heard += more
            while len(heard) >= 5 and len(heard) >= 5 + int.from_bytes(heard[3:5], "big"):
                bytes_of_record = 5 + int.from_bytes(heard[3:5], "big")
                record, heard = heard[:bytes_of_record], heard[bytes_of_record:]
                if record[0] == ALERT:
                    return AlertDescription.toRepr(record[6])
            if not more:
                return "closed"


class Hello:
    """A ClientHello taken apart, to be changed and put together again."""

    def __init__(self, message):
        at = 4
        self.version, at = message[at : at + 2], at + 2
        self.random, at = message[at : at + 32], at + 32
        self.session_id, at = vector(message, at, 1)
        self.suites, at = vector(message, at, 2)
        self.methods, at = vector(message, at, 1)
        body, _ = vector(message, at, 2)
        self.extensions, at = [], 0
        while at < len(body):
            kind = int.from_bytes(body[at : at + 2], "big")
            content, at = vector(body, at + 2, 2)
            self.extensions.append((kind, content))

    def extension(self, kind):
        return dict(self.extensions)[kind]

    def replace(self, kind, content):
        """Gives an extension another content, or with None takes it out."""
        self.extensions = [
            (known, content if known == kind else old)
            for known, old in self.extensions
            if known != kind or content is not None
        ]

    def body(self):
        extensions = b"".join(
            kind.to_bytes(2, "big") + with_length(content, 2) for kind, content in self.extensions
        )
        return (
            self.version
            + self.random
            + with_length(self.session_id, 1)
            + with_length(self.suites, 2)
            + with_length(self.methods, 1)
            + with_length(extensions, 2)
        )

    def message(self):
        return message(CLIENT_HELLO, self.body())


def vector(data, at, size):
    length = int.from_bytes(data[at : at + size], "big")
    return data[at + size : at + size + length], at + size + length


def with_length(content, size):
    return len(content).to_bytes(size, "big") + content


def message(kind, body):
    return bytes([kind]) + with_length(body, 3)


def record(kind, content, version=b"\x03\x03"):
    return bytes([kind]) + version + with_length(content, 2)


def on(wanted, change):
    """Alters one step by a function of its message to the records that are sent instead."""

    def alter(client, step, kind, sent):
        if step != wanted:
            return [(kind, sent)]
        return change(client, sent)

    return alter


def on_hello(change):
    """Alters each ClientHello by a function that changes its parts, or returns its bytes."""

    def altered(_client, sent):
        hello = Hello(sent)
        instead = change(hello)
        return [(HANDSHAKE, hello.message() if instead is None else instead)]

    return on(CLIENT_HELLO, altered)
