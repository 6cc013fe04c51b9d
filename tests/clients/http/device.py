"""Devices on the library `websockets`: whole conversations with a server, by both subprotocols.

usage: device.py URL ADMIN_HOST:ADMIN_PORT [CA_FILE]
The server knows the token "right", of the device "d1", and lets pages of https://app.example in; nobody is anonymous.
"""

import base64
import json
import ssl
import sys
import urllib.request
from pathlib import Path

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.dont_write_bytecode = True

from wire import field, fields_of

PATIENCE_SECS = 60
JSON, PROTOBUF = "weir.v1.json", "weir.v1.protobuf"
RIGHT = {"Authorization": "Bearer right"}


KINDS = {1: "welcome", 2: "pong", 3: "push", 5: "subscribed", 8: "error", 10: "goodbye"}


class Device:
    def __init__(self, url, context, protocol, device="d1", token="", **options):
        self.protocol = protocol
        options.setdefault("subprotocols", [protocol])
        self.socket = connect(
            url, ssl=context, proxy=None, open_timeout=PATIENCE_SECS, close_timeout=PATIENCE_SECS, **options
        )
        assert self.socket.subprotocol == protocol, self.socket.subprotocol
        if protocol == JSON:
            topics = [{"topic": "news"}]
            self.say({"hello": {"deviceId": device, "token": token, "topics": topics}})
        else:
            credentials = field(1, device) + (field(2, token) if token else b"")
            self.say(field(1, credentials + field(5, field(1, "news"))))

    def say(self, message):
        self.socket.send(json.dumps(message) if self.protocol == JSON else message)

    def hear(self):
        """Kind of the next message, and what is in it."""
        message = self.socket.recv(timeout=PATIENCE_SECS)
        if self.protocol == JSON:
            assert isinstance(message, str)
            [(kind, message)] = json.loads(message).items()
            return kind, message
        assert isinstance(message, bytes)
        [(number, message)] = fields_of(message).items()
        return KINDS[number], fields_of(message)

    def settle(self):
        assert self.hear()[0] == "welcome"
        assert self.hear()[0] == "subscribed"
        return self

    def code(self):
        """The code with which the server closes it."""
        try:
            self.socket.recv(timeout=PATIENCE_SECS)
        except ConnectionClosed as closed:
            return closed.rcvd.code, closed.rcvd.reason
        raise AssertionError("it is not closed")

    def close(self, code=1000):
        self.socket.close(code, "bye")
        assert self.socket.protocol.close_rcvd.code == code, self.socket.protocol.close_rcvd


def post(admin, path, message):
    request = urllib.request.Request(
        f"http://{admin}{path}", json.dumps(message).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=PATIENCE_SECS).read()


def converse(url, context, admin, protocol):
    device = Device(url, context, protocol, additional_headers=RIGHT).settle()
    for text in ["one", "größer", "x" * 60_000]:
        post(admin, "/v1/publish", {"topic": "news", "text": text})
        kind, push = device.hear()
        heard = push["text"] if protocol == JSON else push[2].decode()
        assert (kind, heard) == ("push", text), (kind, push)
    # Of the protocol, and of ours; and what comes in fragments with a ping between.
    assert device.socket.ping(b"are you there").wait(PATIENCE_SECS)
    device.say({"ping": {"data": "aGk="}} if protocol == JSON else field(2, field(1, b"hi")))
    kind, pong = device.hear()
    assert kind == "pong" and (pong == {"data": "aGk="} or pong == {1: b"hi"}), pong
    def pieces():
        whole = '{"ping":{"data":"aGk="}}' if protocol == JSON else field(2, field(1, b"hi"))
        for at in range(0, len(whole), 5):
            yield whole[at : at + 5]
    device.socket.send(pieces())
    assert device.hear()[0] == "pong"
    device.close()
    # The codes of the end, each side's.
    Device(url, context, protocol, additional_headers=RIGHT).settle().close(3001)
    wrong = Device(url, context, protocol, additional_headers=RIGHT).settle()
    wrong.socket.send(b"{}" if protocol == JSON else "{}")
    assert wrong.code()[0] == 1003
    large = Device(url, context, protocol, additional_headers=RIGHT).settle()
    large.say({"ping": {"data": "A" * 70_000}} if protocol == JSON else b"\x12" * 70_000)
    assert large.code()[0] == 1009
    revoked = Device(url, context, protocol, additional_headers=RIGHT).settle()
    post(admin, "/v1/devices/d1/revoke", {})
    assert revoked.hear()[0] == "goodbye"
    assert revoked.code() == (4201, "revoked")


def status(url, context, protocol, **options):
    """What an upgrade is refused with."""
    try:
        Device(url, context, protocol, **options)
    except InvalidStatus as refused:
        return refused.response.status_code
    raise AssertionError("it is not refused")


def named(protocol, token):
    encoded = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
    return [f"weir.token.{encoded}", protocol]


def show_tokens(url, context, protocol):
    for options in [
        {"additional_headers": RIGHT},
        {"subprotocols": named(protocol, "right")},
        {"token": "right"},
        {"token": "right", "additional_headers": RIGHT},
        {"device": "", "token": "right"},
    ]:
        Device(url, context, protocol, **options).settle().close()
    for options in [
        {"additional_headers": {"Authorization": "Bearer wrong"}},
        {"additional_headers": {"Authorization": "Basic cmlnaHQ6"}},
        {"subprotocols": named(protocol, "wrong")},
        {"subprotocols": [protocol, "weir.token.!"]},
        {"subprotocols": named(protocol, "right"), "additional_headers": RIGHT},
    ]:
        assert status(url, context, protocol, **options) == 401, options
    for options in [
        {"token": "wrong"},
        {},
        {"device": "d2", "token": "right"},
        {"device": "d2", "additional_headers": RIGHT},
        # That of the message counts.
        {"token": "wrong", "additional_headers": RIGHT},
    ]:
        refused = Device(url, context, protocol, **options)
        kind, goodbye = refused.hear()
        assert kind == "goodbye", (options, kind)
        assert refused.code() == (4200, "unauthorized"), options


def come_from_pages(url, context, protocol):
    for origin in ["https://evil.example", "http://app.example", "null"]:
        options = {"additional_headers": RIGHT, "origin": origin}
        assert status(url, context, protocol, **options) == 403, origin
    options = {"additional_headers": RIGHT, "origin": "https://app.example"}
    Device(url, context, protocol, **options).settle().close()


def main(url, admin, authority=None):
    context = ssl.create_default_context(cafile=authority) if authority else None
    if context:
        # The library reads on a thread of its own. What comes behind a handshake of TLS 1.3 is read while the request is
        # written, which Python's ssl does not stand: now and then the request never leaves.
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    for protocol in [JSON, PROTOBUF]:
        converse(url, context, admin, protocol)
        show_tokens(url, context, protocol)
        come_from_pages(url, context, protocol)
    # Of both the first counts.
    options = {"subprotocols": ["mqtt", PROTOBUF, JSON], "additional_headers": RIGHT}
    Device(url, context, PROTOBUF, **options).settle().close()
    assert status(url, context, JSON, subprotocols=["mqtt"]) == 400
    print("done")


main(*sys.argv[1:])
