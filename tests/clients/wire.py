"""As much of protobuf as the messages of devices need."""


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data, at):
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return number, at


def field(number, value):
    """A field of protobuf: bytes, text or a whole number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields_of(data):
    """The fields of a message by number; of those that come again, the last."""
    fields, at = {}, 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value, at = read_varint(data, at)
        else:
            length, at = {1: (8, at), 5: (4, at)}.get(key & 7) or read_varint(data, at)
            value, at = data[at : at + length], at + length
        fields[key >> 3] = value
    return fields
