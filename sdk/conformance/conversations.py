"""The conversations. Each one leads a client to a point where a rule of the protocol counts, and
names the rule that the client breaks.

A wait has a generous bound, because only a client that never does the expected thing should reach
it. A pause, in which the client must not do something, is short.
"""

import time

# Seconds in which a client must not do something.
PAUSE = 3
# The heartbeat of the kit's gateway, in seconds.
HEARTBEAT = 2


class Failure(Exception):
    """The client breaks a rule."""


class Unable(Exception):
    """The client does not have this feature, and its adapter says so."""


def expect(condition, text):
    if not condition:
        raise Failure(text)


def subscribed(case, count=1, after=0):
    """Waits until the gateway has answered so many subscriptions."""
    found = case.relay.wait(
        lambda: len(case.relay.find("subscribed", "server", after)) >= count, case.patience)
    expect(found, "the client has not subscribed to its topics")


def delivered(case, topic, texts, why):
    """Waits for the messages, and compares all that came."""
    case.adapter.wait(lambda: len(case.texts(topic)) >= len(texts), case.patience)
    # Twice is too often: what follows too much is still on its way.
    time.sleep(0.3)
    found = case.texts(topic)
    missing = [text for text in texts if text not in found]
    twice = sorted({text for text in found if found.count(text) > 1})
    expect(not missing, f"{why}: the program has not got {missing}")
    expect(not twice, f"{why}: the program has got {twice} twice")
    expect(found == texts, f"{why}: the program has got {found}, expected {texts}")


def next_connection(case, after, why):
    """The connection after the one with this number."""
    found = case.relay.wait(lambda: len(case.relay.connections) > after, case.patience)
    expect(found, f"{why}: the client has not connected again")
    return case.relay.connections[after]


def stays_away(case, why):
    """The client must give up: no further connection, and its program hears so."""
    count = len(case.relay.connections)
    time.sleep(PAUSE)
    more = len(case.relay.connections) - count
    expect(more == 0, f"{why}: the client has connected {more} more times")
    expect(case.adapter.wait(lambda: case.adapter.of("ended"), case.patience),
           f"{why}: the program has not heard that the client gave up (event `ended`)")


def greeted(case, topic, **more):
    case.connect(topic, **more)
    subscribed(case)


def hello(case):
    """greets, subscribes, and hands messages out in order"""
    topic = "kept/hello"
    greeted(case, topic)
    with case.relay.changed:
        first = next(seen for seen in case.relay.seen if seen.direction == "client")
    expect(first.kind == "hello", f"the first message must be Hello, not {first.kind}")
    expect(first.body.get("deviceId") == case.device, "Hello does not name the device")
    for text in "123":
        case.publish(topic, text)
    delivered(case, topic, ["1", "2", "3"], "three messages were published")


def wrong_token(case):
    """gives up after code 4200, instead of showing the same token again"""
    case.connect("kept/wrong-token", token="a-wrong-token")
    expect(case.relay.wait(lambda: case.relay.find("goodbye", "server"), case.patience),
           "the client has not shown its token")
    # One attempt with another token is allowed.
    time.sleep(PAUSE)
    shown = len(case.relay.find("hello", "client"))
    expect(shown <= 2, f"Goodbye 4200 (unauthorized): the client has shown a wrong token {shown} "
                       f"times")
    stays_away(case, "Goodbye 4200 (unauthorized)")


def resume(case):
    """continues after a cut where it was: nothing is lost, and nothing comes twice"""
    topic, texts = "kept/resume", []

    def publish(*more):
        for text in more:
            texts.append(text)
            case.publish(topic, text)

    greeted(case, topic)
    publish("1", "2", "3")
    delivered(case, topic, texts, "before the cut")
    for text in ("4", "6"):
        count = len(case.relay.connections)
        case.relay.is_refusing = True
        case.relay.last().cut()
        publish(text, str(int(text) + 1))
        case.relay.is_refusing = False
        next_connection(case, count, "after a cut")
        delivered(case, topic, texts, "after a cut, with the position of the last message")


def cut_inside(case):
    """does not count a message that came only in part"""
    topic = "kept/cut-inside"
    greeted(case, topic)
    case.publish(topic, "1")
    delivered(case, topic, ["1"], "before the cut")

    def change(seen, unit):
        if seen.direction == "server" and seen.body.get("text") == "2":
            case.relay.change = None
            seen.connection.write("server", unit[:-2])
            time.sleep(0.2)
            seen.connection.cut()
            return []
        return None

    case.relay.change = change
    case.publish(topic, "2")
    next_connection(case, 1, "after a cut inside a message")
    subscribed(case, after=1)
    case.publish(topic, "3")
    delivered(case, topic, ["1", "2", "3"], "the cut was inside message 2")


def batch(case):
    """hands out each message of a batch, and continues after the batch"""
    topic, texts = "tick/batch", []
    greeted(case, topic)
    while not any(len(seen.body.get("messages", [])) > 2
                  for seen in case.relay.find("batch", "server")):
        for _ in range(5):
            texts.append(str(len(texts) + 1))
            case.publish(topic, texts[-1])
        delivered(case, topic, texts, "five messages were published in a tick")
    case.relay.last().cut()
    next_connection(case, 1, "after a cut")
    subscribed(case, after=1)
    texts.append("last")
    case.publish(topic, "last")
    delivered(case, topic, texts, "after a batch and a cut")


def lost(case):
    """tells its program that messages are lost (`recovered` is false, at another position)"""
    topic = "plain/lost"
    greeted(case, topic)
    case.publish(topic, "1")
    delivered(case, topic, ["1"], "before the cut")
    case.relay.is_refusing = True
    case.relay.last().cut()
    case.publish(topic, "2")
    case.relay.is_refusing = False
    subscribed(case, after=1)
    expect(case.adapter.wait(lambda: case.adapter.of("lost", topic=topic), case.patience),
           "Subscribed has told of a gap, and the program has not heard of it (event `lost`)")
    case.publish(topic, "3")
    delivered(case, topic, ["1", "3"], "after a gap")


def goodbye_later(case):
    """waits as long as Goodbye 4100 (draining) asks, and then resumes"""
    topic, delay = "kept/goodbye-later", 2.5
    greeted(case, topic)
    case.publish(topic, "1")
    delivered(case, topic, ["1"], "before Goodbye")
    told = time.monotonic()
    case.relay.last().inject(
        {"goodbye": {"code": 4100, "reason": "draining", "retryAfterMs": int(delay * 1000)}})
    time.sleep(0.2)
    case.relay.last().cut()
    case.publish(topic, "2")
    came = next_connection(case, 1, "Goodbye 4100 (draining)").at - told
    # A clock of the client may differ by some milliseconds.
    expect(came > delay - 0.1,
           f"Goodbye 4100 asked for a delay of {delay} s; the client came back after {came:.2f} s")
    delivered(case, topic, ["1", "2"], "after Goodbye 4100")


def unknown_code(case):
    """obeys the range of a code that it does not know: 4399 means no return"""
    greeted(case, "kept/unknown-code")
    case.relay.last().inject({"goodbye": {"code": 4399, "reason": "someday"}})
    time.sleep(0.2)
    case.relay.last().cut()
    stays_away(case, "Goodbye 4399, which is in the range 4300 to 4399")


def replaced(case):
    """does not come back after Goodbye 4303: another connection of the device has replaced it"""
    greeted(case, "kept/replaced")
    other = case.second_device()
    expect(case.relay.wait(lambda: case.relay.find("goodbye", "server"), case.patience),
           "the client does not use the device id of its command")
    stays_away(case, "Goodbye 4303 (replaced)")
    other.close()


def outage(case):
    """comes back after an outage, and waits longer after each failure"""
    topic = "kept/outage"
    greeted(case, topic)
    case.relay.is_refusing = True
    case.relay.last().cut()
    time.sleep(5)
    attempts = len(case.relay.connections) - 1
    expect(attempts > 0, "the client has not tried to come back in 5 s")
    expect(attempts <= 20,
           f"the gateway was away for 5 s: the client has tried {attempts} times, without a "
           "growing delay")
    case.relay.is_refusing = False
    subscribed(case, after=1)
    case.publish(topic, "1")
    delivered(case, topic, ["1"], "after an outage")


def heartbeat(case):
    """gives a sign of life in each heartbeat, so that an idle connection stays"""
    topic = "kept/heartbeat"
    greeted(case, topic)
    time.sleep(3.5 * HEARTBEAT)
    expect(not case.relay.find("goodbye", "server") and len(case.relay.connections) == 1,
           f"the connection was idle for {3.5 * HEARTBEAT} s and has ended: no Ping came within "
           f"the heartbeat of {HEARTBEAT} s that Welcome tells")
    case.publish(topic, "1")
    delivered(case, topic, ["1"], "after an idle time")


def silence(case):
    """notices a gateway that does not answer any more, and connects again"""
    topic = "kept/silence"
    greeted(case, topic)
    case.relay.last().is_muted = True
    case.publish(topic, "1")
    found = case.relay.wait(lambda: len(case.relay.connections) > 1, 6 * HEARTBEAT)
    expect(found, f"nothing came for {6 * HEARTBEAT} s, with a heartbeat of {HEARTBEAT} s; the "
                  f"client still waits")
    delivered(case, topic, ["1"], "after a silent connection")


def fragments(case):
    """reads messages whose bytes come one by one"""
    topic = "kept/fragments"

    def change(seen, unit):
        if seen.direction == "server" and seen.kind != "welcome":
            for at in range(len(unit)):
                seen.connection.write("server", unit[at:at + 1])
                time.sleep(0.002)
            return []
        return None

    case.relay.change = change
    greeted(case, topic)
    for text in "12":
        case.publish(topic, text)
    delivered(case, topic, ["1", "2"], "the bytes came one by one")


def unknown(case):
    """ignores fields and messages that it does not know"""
    topic = "kept/unknown"
    greeted(case, topic)

    def change(seen, unit):
        if seen.direction == "server" and seen.kind == "push":
            return [seen.connection.unit({"push": {**seen.body, "someday": "later"}})]
        return None

    case.relay.last().inject("unknown")
    case.relay.change = change
    case.publish(topic, "1")
    delivered(case, topic, ["1"], "after a message of an unknown kind, and with an unknown field")
    expect(len(case.relay.connections) == 1 and not case.adapter.of("ended"),
           "the client has ended the connection because of a message or field that it does not "
           "know")


def unsubscribe(case):
    """leaves a topic for good"""
    topic, other = "kept/unsubscribe", "kept/unsubscribe-other"
    case.connect(topic, other)
    subscribed(case, 2)
    case.adapter.tell(do="unsubscribe", topic=topic)
    expect(case.relay.wait(lambda: case.relay.find("unsubscribed", "server"), case.patience),
           "the client has not left the topic")
    case.publish(topic, "1")
    case.relay.last().cut()
    next_connection(case, 1, "after a cut")
    subscribed(case, after=1)
    case.publish(topic, "2")
    case.publish(other, "3")
    delivered(case, other, ["3"], "in the topic that it has not left")
    expect(not case.texts(topic),
           "the client has left the topic, and it came back after a reconnect")


def publish(case):
    """reports the answer to a publish, and does not repeat one whose answer was lost"""
    topic = "kept/publish"
    greeted(case, topic)
    case.adapter.tell(do="publish", topic=topic, text="1", id=1)
    expect(case.adapter.wait(lambda: case.adapter.of("published", id=1), case.patience),
           "the program has not heard of the answer to its publish")

    def change(seen, _):
        if seen.direction == "server" and seen.kind == "published":
            case.relay.change = None
            seen.connection.cut()
            return []
        return None

    case.relay.change = change
    case.adapter.tell(do="publish", topic=topic, text="2", id=2)
    next_connection(case, 1, "after a cut")
    subscribed(case, after=1)
    time.sleep(1)
    sent = [seen for seen in case.relay.find("publish", "client") if seen.body.get("text") == "2"]
    expect(len(sent) == 1,
           f"the answer to a publish was lost: the client has published it {len(sent)} times, "
           f"and it is in the topic twice")
    expect(case.adapter.wait(lambda: case.adapter.of("failed", id=2), case.patience),
           "the answer to a publish was lost, and the program has not heard so (event `failed`)")
    delivered(case, topic, ["1", "2"], "after a publish whose answer was lost")


def largest(case):
    """reads a message of 60,000 bytes, and reports that one of 70,000 cannot be published"""
    topic = "kept/largest"
    greeted(case, topic)
    case.publish(topic, "m" * 60_000)
    delivered(case, topic, ["m" * 60_000], "a frame has at most 65,536 bytes")
    case.adapter.tell(do="publish", topic=topic, text="n" * 70_000, id=1)
    expect(case.adapter.wait(lambda: case.adapter.of("failed", id=1), case.patience),
           "a message of 70,000 bytes exceeds a frame, and the program has not heard so (event "
           "`failed`)")
    time.sleep(PAUSE)
    sent = [seen for seen in case.relay.find("publish", "client")
            if len(seen.body.get("text", "")) == 70_000]
    expect(len(sent) <= 1, f"a message over the limit was refused: the client has sent it "
                           f"{len(sent)} times")
    # A WebSocket ends with 1009 instead, which does not forbid to come back.
    expect(case.transport != "tcp" or len(case.relay.connections) == 1,
           "a message over the limit was refused (4301: do not return), and the client came back")


def calls(case):
    """answers a call whose method it does not know with `unsupported`"""
    greeted(case, "kept/calls", calls=True)
    if not case.relay.find("hello", "client")[0].body.get("calls"):
        raise Unable("the client does not announce calls in Hello")
    status, answer = case.gateway.ask(
        "POST", f"/v1/devices/{case.device}/call",
        {"method": "kit/unknown", "text": "?", "deadline_ms": 8_000})
    found = [seen.body.get("code") for seen in case.relay.find("answer", "client")]
    expect(found == ["unsupported"],
           f"a call of an unknown method: the client has answered {found}, expected unsupported "
           f"({status} {answer})")


def refresh(case):
    """shows another token when the credentials are about to end"""
    greeted(case, "kept/refresh", next_token="another-token")

    def change(seen, _):
        if seen.direction == "client" and seen.kind == "refresh":
            seen.connection.inject({"refreshed": {}})
            return []
        return None

    def tokens():
        seen = case.relay.find("refresh", "client") + case.relay.find("hello", "client", 1)
        return [one.body.get("token") for one in seen]

    case.relay.change = change
    ends = int((time.time() + 20) * 1000)
    case.relay.last().inject({"expiring": {"expiresAtMs": ends}})
    found = case.relay.wait(tokens, 18)
    expect(found, "Expiring was told: the client has neither sent Refresh nor connected with "
                  "another token")
    expect(found[0] == "another-token", f"Expiring was told: the client has shown {found[0]!r} "
                                        f"again")


CONVERSATIONS = {
    conversation.__name__.replace("_", "-"): conversation
    for conversation in (
        hello, wrong_token, resume, cut_inside, batch, lost, goodbye_later, unknown_code, replaced,
        outage, heartbeat, silence, fragments, unknown, unsubscribe, publish, largest, calls,
        refresh)
}
