"""Conversations that hold a server against TLS 1.2 and 1.3: which it serves, and how it ends the others.

usage: conversations.py HOST:PORT
The server speaks HTTP behind TLS, and has a certificate with an RSA key. Each conversation becomes a line: PASS or
FAIL, its name, and what came instead of what was wanted.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.dont_write_bytecode = True

from altered import (
    ALERT,
    CERTIFICATE,
    CERTIFICATE_VERIFY,
    CHANGE,
    CHANGE_OF_CIPHERS,
    CLIENT_HELLO,
    DATA,
    FINISHED,
    HANDSHAKE,
    KEY_EXCHANGE,
    Hello,
    converse,
    message,
    on,
    on_hello,
    plain_alert,
    record,
    settings,
    unaltered,
    with_length,
)

VERSIONS = {"1.2": (3, 3), "1.3": (3, 4)}
CIPHERS = ["aes128gcm", "aes256gcm", "chacha20-poly1305"]
GROUPS = {"x25519": 29, "secp256r1": 23, "secp384r1": 24}
SERVER_NAME, GROUP_LIST, SIGNATURES, ALPN, MASTER_SECRET = 0, 10, 13, 16, 23
PRE_SHARED_KEY, VERSION_LIST, KEY_MODES, KEY_SHARE, RENEGOTIATION = 41, 43, 45, 51, 0xFF01


def steps_of(version):
    """The messages that a client sends."""
    steps = {"ClientHello": CLIENT_HELLO, "Finished": FINISHED}
    return steps | ({"ClientKeyExchange": KEY_EXCHANGE} if version == "1.2" else {})


def served():
    for name, version in VERSIONS.items():
        for cipher in CIPHERS:
            for group in GROUPS:
                yield f"{name} {cipher} {group}", "served", settings(version, group, cipher)
    for group in GROUPS:
        asked = settings(VERSIONS["1.3"], group, keyShares=[])
        yield f"1.3 no share of {group}, then the one that is asked for", "served", asked
    both = settings(VERSIONS["1.3"], minVersion=VERSIONS["1.2"])
    yield "1.3 where both versions are offered", "served", both


def cut_into_records():
    def cut(count):
        def records(_client, sent):
            return [(HANDSHAKE, sent[at : at + count]) for at in range(0, len(sent), count)]

        return records

    for name, version in VERSIONS.items():
        for step, kind in steps_of(name).items():
            for count in (1, 3, 20):
                title = f"{name} {step} in records of {count} bytes"
                yield title, "served", settings(version), on(kind, cut(count))


def between_fragments():
    others = {
        "a warning": (ALERT, b"\x01\x5a"),
        "data": (DATA, b"x"),
        "a change of ciphers": (CHANGE, b"\x01"),
    }
    for name, version in VERSIONS.items():
        for step, kind in steps_of(name).items():
            for what, other in others.items():
                def apart(_client, sent, other=other):
                    return [(HANDSHAKE, sent[:5]), other, (HANDSHAKE, sent[5:])]

                title = f"{name} {what} amid {step}"
                yield title, "unexpected_message", settings(version), on(kind, apart)


def out_of_order():
    strays = {
        "HelloRequest": message(0, b""),
        "ServerHelloDone": message(14, b""),
        "EndOfEarlyData": message(5, b""),
        "KeyUpdate": message(24, b"\0"),
        "CertificateVerify": message(CERTIFICATE_VERIFY, b"\4\3\0\0"),
        "NextProtocol": message(67, b"\0\0"),
        "a message of type 99": message(99, b""),
    }
    in_each = {
        "1.2": {"NewSessionTicket": message(4, bytes(6)), "Certificate": message(CERTIFICATE, bytes(3))},
        "1.3": {
            "NewSessionTicket": message(4, bytes(9) + b"\0\1x\0\0"),
            "Certificate": message(CERTIFICATE, bytes(4)),
        },
    }
    for name, version in VERSIONS.items():
        for step, kind in steps_of(name).items():
            # Before it is known which version it will be, messages are read as of 1.2.
            form = "1.2" if kind == CLIENT_HELLO else name
            for what, stray in (strays | in_each[form]).items():
                def before(_client, sent, stray=stray):
                    return [(HANDSHAKE, stray), (HANDSHAKE, sent)]

                title = f"{name} {what} before {step}"
                yield title, "unexpected_message", settings(version), on(kind, before)
    old = settings(VERSIONS["1.2"])
    for what, kind in {"ClientKeyExchange": KEY_EXCHANGE, "change of ciphers": CHANGE_OF_CIPHERS}.items():
        # Without its change of ciphers a sealed Finished is read as it is.
        wanted = "unexpected_message|bad_record_mac|decode_error"
        twice = on(kind, lambda _client, sent, kind=kind: 2 * [(CHANGE if kind < 0 else HANDSHAKE, sent)])
        yield f"1.2 two of {what}", wanted, old, twice
        without = on(kind, lambda _client, _sent: [])
        yield f"1.2 no {what}", wanted, old, without
    for what, content in {"0": b"\0", "2": b"\2", "two bytes": b"\1\1"}.items():
        wrong = on(CHANGE_OF_CIPHERS, lambda _client, _sent, content=content: [(CHANGE, content)])
        wanted = "decode_error|illegal_parameter|unexpected_message"
        yield f"1.2 a change of ciphers with {what}", wanted, old, wrong

        def before_the_end(_client, sent, content=content):
            return [(CHANGE, content), (HANDSHAKE, sent)]

        new = settings(VERSIONS["1.3"])
        title = f"1.3 a change of ciphers with {what}"
        yield title, "unexpected_message", new, on(FINISHED, before_the_end)


def finished():
    for name, version in VERSIONS.items():
        chosen = settings(version)
        for at in range(12 if name == "1.2" else 32):
            def wrong(_client, sent, at=at):
                changed = bytearray(sent)
                changed[4 + at] ^= 1 << (at % 8)
                return [(HANDSHAKE, bytes(changed))]

            yield f"{name} Finished, byte {at} changed", "decrypt_error", chosen, on(FINISHED, wrong)
        for count in (1, 4, 12):
            def shorter(_client, sent, count=count):
                return [(HANDSHAKE, message(FINISHED, sent[4:-count]))]

            def longer(_client, sent, count=count):
                return [(HANDSHAKE, message(FINISHED, sent[4:] + b"\0" * count))]

            title = f"{name} Finished, {count} bytes"
            yield f"{title} too short", "decode_error", chosen, on(FINISHED, shorter)
            yield f"{title} too long", "decode_error", chosen, on(FINISHED, longer)
        for at in (-1, -8, -16, -17, -20, -30):
            for bit in (0, 7):
                def broken(client, sent, at=at, bit=bit):
                    def change(data):
                        data[at] ^= 1 << bit
                        return data

                    client.wire.change = change
                    return [(HANDSHAKE, sent)]

                title = f"{name} Finished, bit {bit} of byte {at} changed when it is sealed"
                yield title, "bad_record_mac", chosen, on(FINISHED, broken)


def lengths_of_hello():
    for name, version in VERSIONS.items():
        chosen = settings(version)
        for count in range(1, 31):
            def shorter(hello, count=count):
                return message(CLIENT_HELLO, hello.body()[:-count])

            title = f"{name} ClientHello, {count} bytes too short"
            yield title, "decode_error", chosen, on_hello(shorter)
        for count in (1, 2, 16, 300):
            def longer(hello, count=count):
                return message(CLIENT_HELLO, hello.body() + b"\0" * count)

            yield f"{name} ClientHello, {count} bytes too long", "decode_error", chosen, on_hello(longer)


def fields_of_hello():
    def put(**fields):
        return lambda hello: vars(hello).update(fields)

    unknown = b"".join(suite.to_bytes(2, "big") for suite in range(0xFA00, 0xFA80))
    for name, version in VERSIONS.items():
        is_new = name == "1.3"
        cases = {
            "a session id of 33 bytes": (put(session_id=b"\1" * 33), "decode_error|illegal_parameter"),
            "a session id of 255 bytes": (put(session_id=b"\1" * 255), "decode_error|illegal_parameter"),
            "no suites": (put(suites=b""), "decode_error|illegal_parameter|handshake_failure"),
            "one and a half suites": (put(suites=b"\x13\x01\x13"), "decode_error"),
            "unknown suites alone": (put(suites=unknown), "handshake_failure"),
            "suites without encryption": (put(suites=b"\0\0\0\1\0\2"), "handshake_failure"),
            "unknown suites beside known ones": (
                lambda hello: vars(hello).update(suites=unknown + hello.suites),
                "served",
            ),
            "no method of compression": (put(methods=b""), "decode_error|illegal_parameter"),
            "compression alone": (put(methods=b"\1"), "illegal_parameter|decode_error|handshake_failure"),
            "compression beside none": (
                put(methods=b"\1\0"),
                "illegal_parameter" if is_new else "served",
            ),
        }
        for version_bytes in (b"\3\0", b"\3\1", b"\3\2", b"\3\4", b"\3\x20", b"\4\0"):
            is_served = is_new or version_bytes > b"\3\3"
            wanted = "served" if is_served else "protocol_version"
            cases[f"legacy version {version_bytes.hex()}"] = (put(version=version_bytes), wanted)
        for what, (change, wanted) in cases.items():
            yield f"{name} ClientHello with {what}", wanted, settings(version), on_hello(change)


def extensions():
    def replaced(kind, content):
        return lambda hello: hello.replace(kind, content)

    def added(*more):
        # In front, for a pre-shared key has to be last.
        return lambda hello: hello.extensions.__setitem__(slice(0, 0), more)

    def doubled(kind):
        return lambda hello: hello.extensions.insert(0, (kind, hello.extension(kind)))

    for name, version in VERSIONS.items():
        chosen = settings(version)
        known = {"supported_groups": GROUP_LIST, "signature_algorithms": SIGNATURES}
        if name == "1.3":
            known |= {"key_share": KEY_SHARE, "supported_versions": VERSION_LIST}
            known |= {"psk_key_exchange_modes": KEY_MODES}
        for what, kind in known.items():
            title = f"{name} {what}"
            yield f"{title}, twice", "illegal_parameter|decode_error", chosen, on_hello(doubled(kind))
            yield f"{title}, empty", "decode_error", chosen, on_hello(replaced(kind, b""))

            def trailing(hello, kind=kind):
                hello.replace(kind, hello.extension(kind) + b"\0")

            yield f"{title}, a byte too long", "decode_error", chosen, on_hello(trailing)

            def cut(hello, kind=kind):
                hello.replace(kind, hello.extension(kind)[:-1])

            yield f"{title}, a byte too short", "decode_error", chosen, on_hello(cut)
        some = [(kind, bytes(kind % 7)) for kind in range(0x2A2A, 0x2A2A + 60)]
        yield f"{name} 60 unknown extensions", "served", chosen, on_hello(added(*some))
        large = added((0x2A2A, b"\1" * 15_000))
        yield f"{name} an unknown extension of 15,000 bytes", "served", chosen, on_hello(large)
        none = b"\0\4\xfe\1\xfe\2"
        for what, kind in {"groups": GROUP_LIST, "signatures": SIGNATURES}.items():
            yield f"{name} unknown {what} alone", "handshake_failure", chosen, on_hello(replaced(kind, none))
        names = {
            "of another server": (b"\0\x0e\0\0\x0bexample.org", "served"),
            "in an empty list": (b"\0\0", "decode_error"),
            "of no bytes": (b"\0\3\0\0\0", "decode_error|illegal_parameter"),
            "that is cut": (b"\0\5\0\0\5ab", "decode_error"),
            "with a zero": (b"\0\6\0\0\3a\0b", "decode_error|illegal_parameter"),
        }
        for what, (content, wanted) in names.items():
            yield f"{name} a server name {what}", wanted, chosen, on_hello(replaced(SERVER_NAME, content))
        protocols = {
            "unknown": (b"\0\4\3foo", "no_application_protocol"),
            "in an empty list": (b"\0\0", "decode_error|illegal_parameter"),
            "with an empty name": (b"\0\1\0", "decode_error|illegal_parameter"),
        }
        for what, (content, wanted) in protocols.items():
            yield f"{name} protocols {what}", wanted, chosen, on_hello(added((ALPN, content)))
        offered = [b"foo", b"http/1.1"]
        yield f"{name} protocols unknown, and HTTP/1.1", "served", chosen, unaltered, None, offered
    old, new = settings(VERSIONS["1.2"]), settings(VERSIONS["1.3"])
    demanded = {"key_share": KEY_SHARE, "supported_groups": GROUP_LIST}
    for what, kind in (demanded | {"signature_algorithms": SIGNATURES}).items():
        yield f"1.3 no {what}", "missing_extension", new, on_hello(replaced(kind, None))
    unknown = replaced(VERSION_LIST, b"\4\3\x20\xfa\xfa")
    yield "1.3 unknown versions alone", "protocol_version", new, on_hello(unknown)
    plain = settings(VERSIONS["1.2"], useExtendedMasterSecret=False)
    yield "1.2 no extended master secret", "served", plain
    filled = on_hello(replaced(MASTER_SECRET, b"\0"))
    yield "1.2 an extended master secret with content", "decode_error", old, filled

    def falls_back(hello):
        hello.suites += b"\x56\0"

    yield "1.2 a client that has fallen back", "inappropriate_fallback", old, on_hello(falls_back)

    def renegotiates(hello):
        hello.suites = hello.suites.replace(b"\0\xff", b"")
        hello.replace(RENEGOTIATION, None)
        hello.extensions.append((RENEGOTIATION, b"\4abcd"))

    title = "1.2 a first handshake that claims another before it"
    yield title, "handshake_failure", old, on_hello(renegotiates)


def wrong_points(group):
    """Shares that are none, each with what is wrong with it and the alerts that say so."""
    if group == "x25519":
        sizes = {0: "decode_error", 1: "illegal_parameter", 31: "illegal_parameter", 33: "illegal_parameter"}
        for count, wanted in sizes.items():
            yield f"of {count} bytes", bytes([9] * count), wanted
        yield "of zeros", bytes(32), "illegal_parameter"
        yield "of low order", b"\1" + bytes(31), "illegal_parameter"
        return
    size = 32 if group == "secp256r1" else 48
    yield "of no bytes", b"", "decode_error"
    yield "at infinity", b"\0", "illegal_parameter"
    yield "at zero", b"\4" + bytes(2 * size), "illegal_parameter"
    yield "off the curve", b"\4" + bytes([5] * 2 * size), "illegal_parameter"
    yield "in compressed form", b"\2" + bytes([5] * size), "illegal_parameter"
    yield "in no form", b"\7" + bytes([5] * 2 * size), "illegal_parameter"
    yield "a byte too short", b"\4" + bytes([5] * (2 * size - 1)), "illegal_parameter"
    yield "a byte too long", b"\4" + bytes([5] * (2 * size + 1)), "illegal_parameter"


def shares():
    new = VERSIONS["1.3"]
    for group, number in GROUPS.items():
        named = number.to_bytes(2, "big")
        for what, point, wanted in wrong_points(group):
            content = with_length(named + with_length(point, 2), 2)
            change = on_hello(lambda hello, content=content: hello.replace(KEY_SHARE, content))
            yield f"1.3 a share of {group} {what}", wanted, settings(new, group), change
            exchange = message(KEY_EXCHANGE, with_length(point, 1))
            change = on(KEY_EXCHANGE, lambda _client, _sent, exchange=exchange: [(HANDSHAKE, exchange)])
            yield f"1.2 a share of {group} {what}", wanted, settings(VERSIONS["1.2"], group), change

        def twice(hello):
            content = hello.extension(KEY_SHARE)[2:]
            hello.replace(KEY_SHARE, with_length(2 * content, 2))

        yield f"1.3 two shares of {group}", "illegal_parameter", settings(new, group), on_hello(twice)

    def unknown(hello):
        content = hello.extension(KEY_SHARE)[2:]
        hello.replace(KEY_SHARE, with_length(b"\xfe\1\0\5abcde" + content, 2))

    yield "1.3 a share of an unknown group", "served", settings(new), on_hello(unknown)
    for what, body in {"nothing": b"", "half a length": b"\x20", "a byte too many": b"\x01ab"}.items():
        exchange = message(KEY_EXCHANGE, body)
        change = on(KEY_EXCHANGE, lambda _client, _sent, exchange=exchange: [(HANDSHAKE, exchange)])
        yield f"1.2 a ClientKeyExchange of {what}", "decode_error", settings(VERSIONS["1.2"]), change


def resumed(addr):
    """Conversations behind a first one, whose session each may go on with."""
    for name, version in VERSIONS.items():
        kept = []

        def keep(client):
            client.close()
            kept.append(client.session)
            return "served"

        chosen = settings(version)
        outcome = converse(addr, chosen, look=keep)
        yield f"{name} a first handshake", "served", outcome
        if not kept:
            continue
        look = lambda client: "resumed" if client.resumed else "served anew"
        ask = lambda alter=unaltered: converse(addr, chosen, alter, session=kept[0], look=look)
        if name == "1.2":
            yield "1.2 a session that goes on", "resumed", ask()
            continue
        # A ticket of TLS 1.3 is not spent: the server keeps nothing of it.
        yield "1.3 a ticket", "resumed", ask()

        def binder(hello):
            changed = bytearray(hello.extension(PRE_SHARED_KEY))
            changed[-1] ^= 1
            hello.replace(PRE_SHARED_KEY, bytes(changed))

        def not_last(hello):
            hello.extensions.insert(0, hello.extensions.pop())

        def other_ticket(hello):
            changed = bytearray(hello.extension(PRE_SHARED_KEY))
            changed[20] ^= 1
            hello.replace(PRE_SHARED_KEY, bytes(changed))

        yield "1.3 a ticket with a wrong binder", "decrypt_error", ask(on_hello(binder))
        yield "1.3 a ticket that is not last", "illegal_parameter", ask(on_hello(not_last))
        modes = on_hello(lambda hello: hello.replace(KEY_MODES, None))
        yield "1.3 a ticket without its modes", "missing_extension", ask(modes)
        yield "1.3 a ticket that nobody gave", "served anew", ask(on_hello(other_ticket))


def in_plaintext(addr):
    """Records that begin a connection and are no ClientHello, or too much of one."""
    hellos = []
    for version in VERSIONS.values():
        capture = on(CLIENT_HELLO, lambda _client, sent: hellos.append(sent) or [(HANDSHAKE, sent)])
        converse(addr, settings(version), capture)
    old, new = hellos[:2]
    padded = Hello(new)
    padded.extensions.insert(0, (21, b""))
    padded.replace(21, bytes(16_385 - len(padded.message())))
    cases = {
        "HTTP": (b"GET / HTTP/1.1\r\n\r\n", "decode_error"),
        "SSL 2": (b"\x80\x2e\1\3\1\0\x15\0\0\0\x10" + bytes(40), "decode_error"),
        "a record of version 2": (record(HANDSHAKE, new, b"\2\0"), "decode_error|protocol_version"),
        "a heartbeat": (record(24, b"\1\0\1x"), "decode_error|unexpected_message"),
        "a record of type 99": (record(99, b"x"), "decode_error|unexpected_message"),
        "data": (record(DATA, b"x"), "unexpected_message"),
        "a warning and data": (record(ALERT, b"\1\x5a") + record(DATA, b"x"), "unexpected_message"),
        "half an alert": (record(ALERT, b"\2"), "decode_error"),
        "an alert of three bytes": (record(ALERT, b"\2\x28\0"), "decode_error"),
        "an empty alert": (record(ALERT, b""), "unexpected_message"),
        "an alert of no level": (record(ALERT, b"\3\x5a"), "illegal_parameter"),
        "a fatal alert": (record(ALERT, b"\2\x28"), "closed"),
        "a Finished": (record(HANDSHAKE, message(FINISHED, bytes(32))), "unexpected_message"),
        "a ClientHello of 16 MB": (record(HANDSHAKE, b"\1\xff\xff\xff"), "decode_error"),
        "a record of 16,385 bytes": (record(HANDSHAKE, padded.message()), "record_overflow"),
        "a record of 18,433 bytes": (record(HANDSHAKE, new + bytes(18_433 - len(new))), "record_overflow"),
        "two ClientHellos of 1.2": (2 * record(HANDSHAKE, old), "unexpected_message"),
    }
    for what, (sent, wanted) in cases.items():
        yield f"a beginning with {what}", wanted, plain_alert(addr, sent)


def marked(addr):
    """Whether a client that knows TLS 1.3 learns that it was offered by nobody (RFC 8446 section 4.1.3)."""
    seen = []

    def look(client):
        seen.append(bytes(client._serverRandom)[-8:] == b"DOWNGRD\1")
        return "served"

    outcome = converse(addr, settings(VERSIONS["1.2"]), look=look)
    yield "1.2 is marked in the server's random", "marked", "marked" if seen == [True] else outcome


FAMILIES = [
    served,
    cut_into_records,
    between_fragments,
    out_of_order,
    finished,
    lengths_of_hello,
    fields_of_hello,
    extensions,
    shares,
]
DIRECT = [resumed, in_plaintext, marked]


def outcomes(addr):
    for family in FAMILIES:
        for name, wanted, *arguments in family():
            yield name, wanted, converse(addr, *arguments)
    for family in DIRECT:
        yield from family(addr)


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    for name, wanted, came in outcomes((host, int(port))):
        if came in wanted.split("|"):
            print(f"PASS\t{name}", flush=True)
        else:
            print(f"FAIL\t{name}\t{came}, wanted {wanted}", flush=True)


if __name__ == "__main__":
    main()
