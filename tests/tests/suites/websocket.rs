//! The cases of the Autobahn|Testsuite's sections 1 to 7 and 10, made anew for a server that has no echo.
//!
//! The suite itself needs Python 2. Its numbers are kept here, and what each case looks at; words and code are ours. A
//! message that the suite wants echoed is a `ping` of `weir.v1` here, whose `data` comes back. It is as long as the case
//! wants it, and holds the text that the case wants, in a field that the server passes over.

mod late;
mod texts;

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use weir_tests::{Server, Socket, Upgrade, close, masked};
use weir_wire::ProstMessage;
use weir_wire::v1::{self, client_message, server_message};

use crate::{Exception, Results};

const EXCEPTIONS: &[Exception] = &[
    ("6.4.1", TEXT_IS_READ_WHOLE),
    ("6.4.2", TEXT_IS_READ_WHOLE),
    ("6.4.3", TEXT_IS_READ_WHOLE),
    ("6.4.4", TEXT_IS_READ_WHOLE),
];

const TEXT_IS_READ_WHOLE: &str = "text is checked when the message is whole, which its size and connection.frame_timeout bound; the suite calls that \
     \"non-strict\"";

/// Cases of these sections of the suite.
const CASES: usize = 247;

/// One conversation.
struct Case {
    id: String,
    /// What the client says, in one line.
    what: String,
    format: Format,
    frames: Vec<Vec<u8>>,
    cut: Cut,
    /// What it hears, in this order.
    heard: Vec<Heard>,
    end: End,
}

#[derive(Debug, Clone, Copy)]
enum Format {
    Json,
    Protobuf,
}

/// How frames become writes.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// All of them in one.
    Once,
    /// A write for each.
    Frames,
    /// A write for so many bytes.
    By(usize),
}

#[derive(Debug, PartialEq)]
enum Heard {
    /// The `pong` to a message.
    Echo,
    /// The `error` to a message that cannot be read.
    Refusal,
    /// A frame that answers a ping frame.
    Pong(Vec<u8>),
}

/// How the connection ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The client closes behind what it has heard, and is answered.
    Client,
    /// The server closes with this code; 0: a Close frame without one.
    Server(u16),
}

#[test]
fn web_sockets_are_as_they_are_specified() -> Result<()> {
    let server = Server::start_with_http("")?;
    let http = server.http.context("it speaks HTTP")?;
    let mut results = Results::default();
    let sections = [section_1(), section_2(), section_3(), section_4(), section_5(), section_6()];
    for case in sections.into_iter().flatten().chain(section_7()).chain(section_10()) {
        let failure = case.run(http).err().map(|error| format!("{}: {error:#}", case.what));
        results.add(case.id, failure)?;
    }
    for (id, first, second) in late::CASES {
        let failure = (!late::is_failed_fast(http, id, *first, *second).context(*id)?)
            .then(|| "the text is found to be wrong at its end only".to_owned());
        results.add((*id).to_owned(), failure)?;
    }
    ensure!(!server.log().contains("panicked"), "{}", server.log());
    results.check("Autobahn's cases", CASES, EXCEPTIONS)
}

impl Case {
    /// A case in JSON that begins with these frames, each written by itself, and is heard and closed by the client.
    fn new(id: impl Into<String>, what: impl Into<String>, frames: Vec<Vec<u8>>) -> Case {
        let (format, cut) = (Format::Json, Cut::Frames);
        let (id, what) = (id.into(), what.into());
        Case { id, what, format, frames, cut, heard: Vec::new(), end: End::Client }
    }

    fn cut(self, cut: Cut) -> Case {
        Case { cut, ..self }
    }

    fn heard(self, heard: Vec<Heard>) -> Case {
        Case { heard, ..self }
    }

    fn ends(self, code: u16) -> Case {
        Case { end: End::Server(code), ..self }
    }

    fn run(&self, addr: SocketAddr) -> Result<()> {
        let mut socket = open(addr, &self.id, self.format)?;
        for piece in self.writes() {
            // The server may have closed; what it has said tells more.
            if socket.send(&piece).is_err() {
                break;
            }
        }
        for expected in &self.heard {
            let heard = hear(&mut socket, self.format)?;
            ensure!(heard == *expected, "wanted {expected:?}, heard {heard:?}");
        }
        let expected = match self.end {
            End::Client => {
                socket.send(&close(1000, b""))?;
                1000
            }
            End::Server(code) => code,
        };
        let (code, _) = socket.closed()?;
        ensure!(code == expected, "closed with {code}, wanted {expected}");
        Ok(())
    }

    fn writes(&self) -> Vec<Vec<u8>> {
        match self.cut {
            Cut::Frames => self.frames.clone(),
            Cut::Once => vec![self.frames.concat()],
            Cut::By(bytes) => self.frames.concat().chunks(bytes).map(<[u8]>::to_vec).collect(),
        }
    }
}

/// A WebSocket behind its `welcome`.
fn open(addr: SocketAddr, id: &str, format: Format) -> Result<Socket> {
    let device = format!("case-{id}");
    match format {
        Format::Json => Socket::greet(addr, &device, &[]),
        Format::Protobuf => {
            let upgrade = Upgrade::default();
            let headers = upgrade.headers.replace("weir.v1.json", "weir.v1.protobuf");
            let mut socket = Socket::open_by(addr, &Upgrade { headers: &headers, ..upgrade })?;
            let hello = v1::Hello { device_id: device, ..v1::Hello::default() };
            let kind = Some(client_message::Kind::Hello(hello));
            socket.send(&masked(BINARY, &v1::ClientMessage { kind }.encode_to_vec()))?;
            match socket.hear()? {
                Some((BINARY, body)) if is_welcome(&body) => Ok(socket),
                other => bail!("no welcome: {other:?}"),
            }
        }
    }
}

fn is_welcome(body: &[u8]) -> bool {
    let message = v1::ServerMessage::decode(body);
    message.is_ok_and(|message| matches!(message.kind, Some(server_message::Kind::Welcome(_))))
}

fn hear(socket: &mut Socket, format: Format) -> Result<Heard> {
    let (first, payload) = socket.hear()?.context("the end")?;
    match (first, format) {
        (PONG, _) => Ok(Heard::Pong(payload)),
        (TEXT, Format::Json) => {
            let message: Value = serde_json::from_slice(&payload)?;
            if message["pong"]["data"] == DATA_AS_JSON {
                Ok(Heard::Echo)
            } else if message["error"].is_object() {
                Ok(Heard::Refusal)
            } else {
                bail!("heard {message}")
            }
        }
        (BINARY, Format::Protobuf) => match v1::ServerMessage::decode(payload.as_slice())?.kind {
            Some(server_message::Kind::Pong(pong)) if pong.data == DATA => Ok(Heard::Echo),
            Some(server_message::Kind::Error(_)) => Ok(Heard::Refusal),
            other => bail!("heard {other:?}"),
        },
        _ => bail!("heard a frame of {first:#x}: {payload:?}"),
    }
}

/// A message that is echoed, and holds this text.
fn holding(text: &[u8]) -> Vec<u8> {
    let head = format!("{{\"ping\":{{\"data\":\"{DATA_AS_JSON}\"}},\"x\":\"");
    [head.as_bytes(), text, b"\"}"].concat()
}

/// A message that is echoed, of so many bytes.
fn text_of(bytes: usize) -> Vec<u8> {
    holding(&vec![b'*'; bytes - holding(b"").len()])
}

/// The same in protobuf: a field that is not known makes it as long.
fn binary_of(bytes: usize) -> Vec<u8> {
    let ping = v1::Ping { data: DATA.to_vec() };
    let kind = Some(client_message::Kind::Ping(ping));
    let mut message = v1::ClientMessage { kind }.encode_to_vec();
    // Field 100 with bytes, whose number and length take up to five.
    message.extend([0xa2, 0x06]);
    let more = bytes - message.len();
    let length =
        (1..=3).map(|bytes| more - bytes).find(|length| varint(*length).len() + length == more);
    let length = length.expect("a length that fits");
    message.extend(varint(length));
    message.resize(bytes, 0xfe);
    message
}

fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).expect("seven bits"));
    bytes
}

/// One message in as many fragments as there are pieces, its first byte with this opcode.
fn fragments(opcode: u8, pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let last = pieces.len() - 1;
    let frame = |(index, piece): (usize, &&[u8])| {
        let opcode = if index == 0 { opcode } else { 0 };
        masked(if index == last { opcode | 0x80 } else { opcode }, piece)
    };
    pieces.iter().enumerate().map(frame).collect()
}

/// An echoed message in two fragments.
fn halves() -> Vec<Vec<u8>> {
    let message = holding(b"first half, second half");
    let (first, second) = message.split_at(message.len() / 2);
    fragments(1, &[first, second])
}

/// Lengths of messages.
fn section_1() -> Vec<Case> {
    let mut cases = Vec::new();
    let lengths = [0, 125, 126, 127, 128, 65_535, 65_536, 65_536];
    for (index, bytes) in lengths.into_iter().enumerate() {
        let is_last = index + 1 == lengths.len();
        let cut = if is_last { Cut::By(997) } else { Cut::Frames };
        // What has no bytes has no kind.
        let heard = || vec![if bytes == 0 { Heard::Refusal } else { Heard::Echo }];
        let what = format!("{bytes} bytes, written {cut:?}");
        let text = if bytes == 0 { Vec::new() } else { text_of(bytes) };
        let frames = vec![masked(TEXT, &text)];
        let case = Case::new(format!("1.1.{}", index + 1), format!("text of {what}"), frames);
        cases.push(case.cut(cut).heard(heard()));
        let binary = if bytes == 0 { Vec::new() } else { binary_of(bytes) };
        let frames = vec![masked(BINARY, &binary)];
        let case = Case::new(format!("1.2.{}", index + 1), format!("binary of {what}"), frames);
        let case = case.cut(cut).heard(heard());
        cases.push(Case { format: Format::Protobuf, ..case });
    }
    cases
}

/// Pings and pongs.
fn section_2() -> Vec<Case> {
    let pong = |payload: &[u8]| vec![Heard::Pong(payload.to_vec())];
    let (long, odd) = ([0xfe; 125], [0, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0, 0xff]);
    let many: Vec<Vec<u8>> = (0..10).map(|index| format!("ping {index}").into_bytes()).collect();
    let pings = || many.iter().map(|payload| masked(PING, payload)).collect();
    let pongs = || many.iter().map(|payload| Heard::Pong(payload.clone())).collect();
    let unasked = || masked(PONG, b"nobody has asked");
    vec![
        Case::new("2.1", "a ping without a payload", vec![masked(PING, b"")]).heard(pong(b"")),
        Case::new("2.2", "a ping with text", vec![masked(PING, b"hello")]).heard(pong(b"hello")),
        Case::new("2.3", "a ping with bytes", vec![masked(PING, &odd)]).heard(pong(&odd)),
        Case::new("2.4", "a ping of 125 bytes", vec![masked(PING, &long)]).heard(pong(&long)),
        Case::new("2.5", "a ping of 126 bytes", vec![masked(PING, &[0xfe; 126])]).ends(1002),
        Case::new("2.6", "a ping of 125 bytes, byte by byte", vec![masked(PING, &long)])
            .cut(Cut::By(1))
            .heard(pong(&long)),
        Case::new("2.7", "a pong that answers nothing", vec![masked(PONG, b"")]),
        Case::new("2.8", "a pong with a payload that answers nothing", vec![unasked()]),
        Case::new("2.9", "such a pong, then a ping", vec![unasked(), masked(PING, b"hello")])
            .heard(pong(b"hello")),
        Case::new("2.10", "ten pings", pings()).heard(pongs()),
        Case::new("2.11", "ten pings, byte by byte", pings()).cut(Cut::By(1)).heard(pongs()),
    ]
}

/// Three frames: a message, one that is `wrong`, and a ping that is not answered any more.
fn amid(id: &str, what: &str, wrong: Vec<u8>, cut: Cut) -> Case {
    let frames = vec![masked(TEXT, &holding(b"good")), wrong, masked(PING, b"")];
    Case::new(id, format!("a message, {what}, a ping"), frames)
        .cut(cut)
        .heard(vec![Heard::Echo])
        .ends(1002)
}

/// Reserved bits.
fn section_3() -> Vec<Case> {
    let text = |bits: u8| masked(TEXT | (bits << 4), &holding(b"bits"));
    let one = |id, what, frame| Case::new(id, what, vec![frame]).ends(1002);
    vec![
        one("3.1", "text with bit 1", text(1)),
        amid("3.2", "one with bit 2", text(2), Cut::Once),
        amid("3.3", "one with bits 3, frame by frame", text(3), Cut::Frames),
        amid("3.4", "one with bit 4, byte by byte", text(4), Cut::By(1)),
        one("3.5", "binary with bits 5", masked(BINARY | (5 << 4), &[0, 0xff])),
        one("3.6", "a ping with bits 6", masked(PING | (6 << 4), b"hello")),
        one("3.7", "a Close frame with bits 7", masked(CLOSE | (7 << 4), b"")),
    ]
}

/// Reserved opcodes.
fn section_4() -> Vec<Case> {
    let mut cases = Vec::new();
    for (section, first) in [("4.1", 3), ("4.2", 11)] {
        for index in 0..5 {
            let (id, opcode) = (format!("{section}.{}", index + 1), 0x80 | (first + index));
            let payload: &[u8] = if [1, 3, 4].contains(&index) { b"reserved" } else { b"" };
            let what = format!("a frame with opcode {}", opcode & 0x0f);
            let frame = masked(opcode, payload);
            cases.push(match index {
                0 | 1 => Case::new(id, what, vec![frame]).ends(1002),
                4 => amid(&id, &format!("{what}, byte by byte"), frame, Cut::By(1)),
                _ => amid(&id, &what, frame, Cut::Once),
            });
        }
    }
    cases
}

/// Fragments, and what may come between them.
fn section_5() -> Vec<Case> {
    let cuts = [Cut::Once, Cut::Frames, Cut::By(1)];
    let mut cases = vec![
        Case::new("5.1", "a ping in fragments", fragments(9, &[b"one", b"two"])).ends(1002),
        Case::new("5.2", "a pong in fragments", fragments(10, &[b"one", b"two"])).ends(1002),
    ];
    let between = || {
        let [first, second] = <[_; 2]>::try_from(halves()).expect("two halves");
        vec![first, masked(PING, b"between"), second]
    };
    let text = || masked(TEXT, &holding(b"text"));
    let of_nothing = |first| masked(first, b"continues nothing");
    for (index, cut) in cuts.into_iter().enumerate() {
        let id = |first: usize| format!("5.{}", first + index);
        let pong = Heard::Pong(b"between".to_vec());
        cases.extend([
            Case::new(id(3), format!("two fragments, {cut:?}"), halves())
                .cut(cut)
                .heard(vec![Heard::Echo]),
            Case::new(id(6), format!("a ping between two fragments, {cut:?}"), between())
                .cut(cut)
                .heard(vec![pong, Heard::Echo]),
            Case::new(
                id(9),
                format!("the end of no message, then text, {cut:?}"),
                vec![of_nothing(0x80), text()],
            )
            .cut(cut)
            .ends(1002),
            Case::new(
                id(12),
                format!("a fragment of no message, then text, {cut:?}"),
                vec![of_nothing(0), text()],
            )
            .cut(cut)
            .ends(1002),
        ]);
    }
    let mut behind = halves();
    behind.extend([of_nothing(0), text()]);
    let twice =
        |first| [vec![of_nothing(first)], halves(), vec![of_nothing(first)], halves()].concat();
    cases.extend([
        Case::new("5.15", "a message, a fragment of none, text", behind)
            .cut(Cut::Once)
            .heard(vec![Heard::Echo])
            .ends(1002),
        Case::new("5.16", "a fragment of no message, and one in fragments; twice", twice(0))
            .ends(1002),
        Case::new("5.17", "the end of no message, and one in fragments; twice", twice(0x80))
            .ends(1002),
        Case::new(
            "5.18",
            "two fragments that both begin a message",
            vec![masked(0x01, b"first"), masked(TEXT, b"second")],
        )
        .cut(Cut::Once)
        .ends(1002),
        five_with_pings("5.19", Cut::Once),
        five_with_pings("5.20", Cut::Frames),
    ]);
    cases
}

fn five_with_pings(id: &str, cut: Cut) -> Case {
    let message = holding(b"a message in five fragments");
    let pieces: Vec<&[u8]> = message.chunks(message.len().div_ceil(5)).collect();
    let mut frames = fragments(1, &pieces);
    frames.insert(4, masked(PING, b"second"));
    frames.insert(2, masked(PING, b"first"));
    let pong = |payload: &[u8]| Heard::Pong(payload.to_vec());
    Case::new(id, format!("five fragments and two pings, {cut:?}"), frames).cut(cut).heard(vec![
        pong(b"first"),
        pong(b"second"),
        Heard::Echo,
    ])
}

/// Text, and what is none. 6.4 is [`late::CASES`].
fn section_6() -> Vec<Case> {
    let echoed = || vec![Heard::Echo];
    let each_byte = |message: &[u8]| fragments(1, &message.chunks(1).collect::<Vec<_>>());
    let empty: [&[u8]; 3] = [b""; 3];
    let middle = holding(b"in the middle");
    let (mixed, greek) =
        (holding("Hello-µ@ßöäüàá-UTF-8!!".as_bytes()), holding("κ\u{1f79}σμε".as_bytes()));
    let at = mixed.iter().position(|byte| *byte == 0xbc).expect("the last byte of ü") + 1;
    let (first, second) = mixed.split_at(at);
    let mut cases = vec![
        Case::new("6.1.1", "text of no bytes", vec![masked(TEXT, b"")]).heard(vec![Heard::Refusal]),
        Case::new("6.1.2", "three fragments of no bytes", fragments(1, &empty))
            .heard(vec![Heard::Refusal]),
        Case::new(
            "6.1.3",
            "a fragment between two of no bytes",
            fragments(1, &[b"", &middle, b""]),
        )
        .heard(echoed()),
        Case::new("6.2.1", "characters of one and two bytes", vec![masked(TEXT, &mixed)])
            .heard(echoed()),
        Case::new("6.2.2", "the same, cut between characters", fragments(1, &[first, second]))
            .heard(echoed()),
        Case::new("6.2.3", "the same, each byte a fragment", each_byte(&mixed)).heard(echoed()),
        Case::new("6.2.4", "Greek, each byte a fragment", each_byte(&greek)).heard(echoed()),
        Case::new("6.3.1", "a wrong character", vec![masked(TEXT, texts::BROKEN)]).ends(1007),
        Case::new("6.3.2", "the same, each byte a fragment", each_byte(texts::BROKEN)).ends(1007),
    ];
    for (section, (what, list)) in (5..).zip(texts::all()) {
        for (index, bytes) in list.into_iter().enumerate() {
            let id = format!("6.{section}.{}", index + 1);
            let what = format!("{what}: {bytes:02x?}");
            let is_text = std::str::from_utf8(&bytes).is_ok();
            let message = if is_text { holding(&bytes) } else { bytes.clone() };
            let case = Case::new(id, what, vec![masked(TEXT, &message)]);
            cases.push(match bytes.as_slice() {
                _ if !is_text => case.ends(1007),
                // Text, and read whole; but JSON has it in an escaped form only.
                [0] => case.heard(vec![Heard::Refusal]),
                _ => case.heard(echoed()),
            });
        }
    }
    cases
}

/// The end.
fn section_7() -> Vec<Case> {
    let code = |code: u16| close(code, b"");
    let text = || masked(TEXT, &holding(b"text"));
    let [half, rest] = <[_; 2]>::try_from(halves()).expect("two halves");
    let mut cases = vec![
        Case::new("7.1.1", "a message, and the end", vec![text()]).heard(vec![Heard::Echo]),
        Case::new("7.1.2", "two Close frames", vec![code(1000), masked(CLOSE, b"")]).ends(1000),
        Case::new("7.1.3", "a ping behind a Close frame", vec![code(1000), masked(PING, b"")])
            .ends(1000),
        Case::new("7.1.4", "a message behind a Close frame", vec![code(1000), text()]).ends(1000),
        Case::new("7.1.5", "a Close frame between fragments", vec![half, code(1000), rest])
            .ends(1000),
        // What is to come of it is not specified: here the message is over the limit.
        Case::new(
            "7.1.6",
            "256 KiB, a message, a Close frame, a ping",
            vec![masked(TEXT, &vec![b' '; 1 << 18]), text(), code(1000), masked(PING, b"")],
        )
        .ends(1009),
        Case::new("7.3.1", "a Close frame without a code", vec![masked(CLOSE, b"")]).ends(0),
        Case::new("7.3.2", "a Close frame of one byte", vec![masked(CLOSE, b"a")]).ends(1002),
        Case::new("7.3.3", "a Close frame with a code", vec![code(1000)]).ends(1000),
        Case::new("7.3.4", "one with a reason", vec![close(1000, b"That is all.")]).ends(1000),
        Case::new("7.3.5", "a reason of 123 bytes", vec![close(1000, &[b'*'; 123])]).ends(1000),
        Case::new("7.3.6", "a reason of 124 bytes", vec![close(1000, &[b'*'; 124])]).ends(1002),
        Case::new("7.5.1", "a reason that is no text", vec![close(1000, texts::BROKEN)]).ends(1007),
    ];
    let mut add = |section: &str, codes: &[u16], expected: fn(u16) -> u16| {
        for (index, sent) in codes.iter().enumerate() {
            let id = format!("{section}.{}", index + 1);
            let what = format!("a Close frame with {sent}");
            cases.push(Case::new(id, what, vec![code(*sent)]).ends(expected(*sent)));
        }
    };
    let good = [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999];
    add("7.7", &good, |code| code);
    add("7.9", &[0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999], |_| 1002);
    // What is to come of these is not specified.
    add("7.13", &[5000, 65_535], |_| 1002);
    cases
}

/// Many fragments.
fn section_10() -> Vec<Case> {
    let message = text_of(65_536);
    let pieces: Vec<&[u8]> = message.chunks(1300).collect();
    let case = Case::new("10.1.1", "65,536 bytes in fragments of 1300", fragments(1, &pieces));
    vec![case.heard(vec![Heard::Echo])]
}

/// What the numbered cases cannot see without an echo of text: that texts come back as they were sent.
#[test]
fn texts_come_back_as_they_were() -> Result<()> {
    let class = "[limits]\npublish_burst = 1000\n[[topic_classes]]\npattern = \"open/*\"\npublish = [\"devices\"]\n";
    let server = Server::start_with_http(class)?;
    let mut socket = Socket::greet(server.http.context("it speaks HTTP")?, "d1", &["open/echo"])?;
    let texts = texts::all().into_iter().flat_map(|(_, list)| list);
    for text in texts.filter_map(|bytes| String::from_utf8(bytes).ok()) {
        socket.say(&json!({"publish": {"topic": "open/echo", "text": text}}))?;
        assert_eq!(socket.expect("push")?["text"], text);
    }
    Ok(())
}

const TEXT: u8 = 0x81;
const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;
const DATA: &[u8] = b"echo";
const DATA_AS_JSON: &str = "ZWNobw==";
