"""The messages of weir.v1 as dictionaries, and the two forms in which connections carry them."""

import json
import struct

# The fields of each message, by number: name and type. "*" stands before a repeated one. A message
# that the kit does not look into is not listed, and its bytes are passed on as they came.
MESSAGES = {
    "ClientMessage": {
        1: ("hello", "Hello"), 2: ("ping", "Ping"), 3: ("subscribe", "Subscribe"),
        4: ("unsubscribe", "Unsubscribe"), 5: ("publish", "Publish"), 6: ("refresh", "Refresh"),
        8: ("call", "Call"), 9: ("answer", "Answer"), 10: ("cancel", "Cancel"),
    },
    "ServerMessage": {
        1: ("welcome", "Welcome"), 2: ("pong", "Ping"), 3: ("push", "Push"), 4: ("batch", "Batch"),
        5: ("subscribed", "Subscribed"), 6: ("unsubscribed", "Unsubscribed"),
        7: ("published", "Published"), 8: ("error", "Error"), 9: ("expiring", "Expiring"),
        10: ("goodbye", "Goodbye"), 11: ("refreshed", "Expiring"), 13: ("call", "Call"),
        14: ("answer", "Answer"), 15: ("cancel", "Cancel"),
    },
    "Hello": {
        1: ("deviceId", "string"), 2: ("token", "string"), 3: ("client", "string"),
        4: ("heartbeatMs", "number"), 5: ("topics", "*Subscribe"), 6: ("calls", "number"),
    },
    "Position": {1: ("epoch", "fixed64"), 2: ("offset", "number")},
    "Ping": {1: ("data", "bytes")},
    "Subscribe": {1: ("topic", "string"), 2: ("position", "Position"), 3: ("presence", "number")},
    "Unsubscribe": {1: ("topic", "string")},
    "Publish": {
        1: ("topic", "string"), 2: ("text", "string"), 3: ("data", "bytes"),
        4: ("contentType", "string"), 5: ("key", "string"), 6: ("request", "number"),
    },
    "Refresh": {1: ("token", "string")},
    "Welcome": {
        1: ("connectionId", "fixed64"), 2: ("heartbeatMs", "number"), 3: ("serverTimeMs", "number"),
    },
    "Push": {
        1: ("topic", "string"), 2: ("text", "string"), 3: ("data", "bytes"),
        4: ("contentType", "string"), 5: ("key", "string"), 6: ("messageId", "fixed64"),
        7: ("offset", "number"), 8: ("sender", "fixed64"), 90: ("someday", "string"),
    },
    "Batch": {
        1: ("topic", "string"), 2: ("firstOffset", "number"), 3: ("lastOffset", "number"),
        4: ("messages", "*Push"),
    },
    "Subscribed": {1: ("topic", "string"), 2: ("position", "Position"), 3: ("recovered", "number")},
    "Unsubscribed": {1: ("topic", "string"), 2: ("reason", "string"), 3: ("position", "Position")},
    "Published": {
        1: ("request", "number"), 2: ("messageId", "fixed64"), 3: ("offset", "number"),
        4: ("connections", "number"), 5: ("epoch", "fixed64"),
    },
    "Call": {
        1: ("id", "number"), 2: ("method", "string"), 3: ("text", "string"), 4: ("data", "bytes"),
        5: ("contentType", "string"), 6: ("deadlineMs", "number"),
    },
    "Answer": {
        1: ("id", "number"), 2: ("code", "string"), 3: ("text", "string"), 4: ("data", "bytes"),
        5: ("contentType", "string"), 6: ("message", "string"), 7: ("status", "number"),
    },
    "Cancel": {1: ("id", "number")},
    "Error": {
        1: ("code", "string"), 2: ("message", "string"), 3: ("request", "number"),
        4: ("topic", "string"),
    },
    "Expiring": {1: ("expiresAtMs", "number")},
    "Goodbye": {1: ("code", "number"), 2: ("reason", "string"), 3: ("retryAfterMs", "number")},
}

# A kind that no version knows yet, as protobuf (field 100) and as JSON.
UNKNOWN = bytes([0xA2, 0x06, 0x02, 0x08, 0x07])
UNKNOWN_JSON = '{"someday":{"number":7}}'


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data, at):
    """The number at a place, and the place behind it; None if it is not complete."""
    number = shift = 0
    while at < len(data):
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    return None


def encode(name, message):
    """A message as protobuf."""
    out = b""
    numbers = {field: (number, kind) for number, (field, kind) in MESSAGES[name].items()}
    for field, value in message.items():
        number, kind = numbers[field]
        for item in value if kind.startswith("*") else [value]:
            out += encode_field(number, kind.lstrip("*"), item)
    return out


def encode_field(number, kind, value):
    if kind == "number":
        return varint(number << 3) + varint(int(value))
    if kind == "fixed64":
        return varint(number << 3 | 1) + struct.pack("<Q", int(value))
    if kind == "string":
        value = value.encode()
    elif kind != "bytes":
        value = encode(kind, value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def decode(name, data):
    """A message from protobuf. Fields that are not known are left out."""
    message, at = {}, 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, at = read_varint(data, at)
        elif wire_type == 1:
            value, at = struct.unpack_from("<Q", data, at)[0], at + 8
        elif wire_type == 2:
            length, at = read_varint(data, at)
            value, at = data[at:at + length], at + length
        else:
            value, at = struct.unpack_from("<I", data, at)[0], at + 4
        field, kind = MESSAGES[name].get(number, (None, None))
        if field is None:
            continue
        if wire_type == 2:
            kind_of_one = kind.lstrip("*")
            if kind_of_one == "string":
                value = value.decode()
            elif kind_of_one != "bytes":
                value = decode(kind_of_one, value)
        if kind.startswith("*"):
            message.setdefault(field, []).append(value)
        else:
            message[field] = value
    return message


class Frames:
    """One direction of a connection that carries protobuf behind its length."""

    def __init__(self, name):
        self.name, self.buffer = name, b""

    def feed(self, data):
        """The complete units in the bytes so far: the bytes of each, and its message."""
        self.buffer += data
        units = []
        while (found := read_varint(self.buffer, 0)) is not None:
            length, at = found
            if len(self.buffer) < at + length:
                break
            unit, self.buffer = self.buffer[:at + length], self.buffer[at + length:]
            units.append((unit, decode(self.name, unit[at:])))
        return units

    def unit(self, message):
        body = UNKNOWN if message == "unknown" else encode(self.name, message)
        return varint(len(body)) + body


class WebSocket:
    """One direction of a WebSocket that carries JSON. What comes before its first frame, the head
    of HTTP, is a unit without a message."""

    def __init__(self, name):
        self.name, self.buffer, self.is_open = name, b"", False

    def feed(self, data):
        self.buffer += data
        units = []
        while (unit := self.next()) is not None:
            units.append(unit)
        return units

    def next(self):
        if not self.is_open:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return None
            unit, self.buffer, self.is_open = self.buffer[:end + 4], self.buffer[end + 4:], True
            return unit, None
        if len(self.buffer) < 2:
            return None
        opcode, length, at = self.buffer[0] & 0x0F, self.buffer[1] & 0x7F, 2
        if length >= 126:
            size = 2 if length == 126 else 8
            length, at = int.from_bytes(self.buffer[2:2 + size], "big"), 2 + size
        is_masked = self.buffer[1] & 0x80
        mask = self.buffer[at:at + 4] if is_masked else bytes(4)
        at += 4 if is_masked else 0
        if len(self.buffer) < at + length:
            return None
        unit, self.buffer = self.buffer[:at + length], self.buffer[at + length:]
        body = bytes(byte ^ mask[index % 4] for index, byte in enumerate(unit[at:]))
        if opcode != 1:
            names = {8: "wsClose", 9: "wsPing", 10: "wsPong"}
            return unit, {names.get(opcode, "wsOther"): {}}
        return unit, json.loads(body)

    def unit(self, message):
        body = (UNKNOWN_JSON if message == "unknown" else json.dumps(message)).encode()
        head = bytes([0x81])
        length = len(body)
        if length < 126:
            head += bytes([length])
        elif length < 65536:
            head += bytes([126]) + length.to_bytes(2, "big")
        else:
            head += bytes([127]) + length.to_bytes(8, "big")
        return head + body


TRANSPORTS = {"tcp": Frames, "websocket": WebSocket}


def kind_of(message):
    """The name of a message's kind; "" for a message without one."""
    return next(iter(message), "") if message else ""


__all__ = ["TRANSPORTS", "Frames", "WebSocket", "decode", "encode", "kind_of", "varint"]
