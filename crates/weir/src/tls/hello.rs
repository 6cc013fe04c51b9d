//! A look into a ClientHello before the handshake begins: is it complete, and does it resume a
//! session?
//!
//! The look decides which handshake goes first, and finds some faults that rustls does not look
//! for. rustls reads the same bytes again and decides everything else. This file needs only the
//! standard library, so that the fuzzer can use it alone.

/// The kind of the bytes received so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Look {
    /// The beginning of a ClientHello.
    ReadBuffer,
    /// A complete ClientHello.
    Whole(ClientHello),
    /// Something else, or a malformed ClientHello.
    Other,
}

/// What a ClientHello offers (RFC 8446 section 4.1.2, RFC 5246 section 7.4.1.2).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClientHello {
    /// A pre-shared key; in TLS 1.3 that is a ticket.
    pub(crate) has_psk: bool,
    /// A ticket of TLS 1.2.
    pub(crate) has_ticket: bool,
    /// The client takes tickets of TLS 1.2, whether or not it has one.
    pub(crate) takes_tickets: bool,
    /// A session id of TLS 1.2. In TLS 1.3 every client sends one without a meaning.
    pub(crate) has_session_id: bool,
    /// This id, if it is as long as those of stored sessions.
    pub(crate) session_id: Option<StoredId>,
    /// The offered versions include TLS 1.3.
    pub(crate) offers_tls13: bool,
    /// A fault that rustls would accept.
    pub(crate) fault: Option<Fault>,
    /// The first offered suite is one of ChaCha20-Poly1305, as for devices without AES in hardware.
    pub(crate) is_chacha_first: bool,
    /// The host that the client asks for.
    pub(crate) server_name: Option<Box<str>>,
}

/// The id of a stored session. rustls makes each of 32 random bytes.
pub(crate) type StoredId = [u8; 32];

/// A fault in a ClientHello that rustls does not look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// TLS 1.3: key shares without the list of groups (RFC 8446 section 9.2).
    LacksGroups,
    /// The client says that TLS 1.3 failed, and offers only 1.2 (RFC 7507): an attacker may have
    /// caused that.
    FallenBack,
    /// The client claims an earlier handshake on this connection (RFC 5746 section 3.6).
    Renegotiates,
}

impl ClientHello {
    /// Whether it looks like a resumption, which needs only a part of the work.
    pub(crate) fn is_resumption(&self) -> bool {
        self.has_psk || self.has_ticket || self.has_session_id
    }

    /// The id of the session that it wants to resume, if a server may have stored it. Sessions of
    /// clients that take tickets are not stored.
    pub(crate) fn stored_session(&self) -> Option<StoredId> {
        self.session_id.filter(|_| !self.takes_tickets)
    }

    fn set_session_id(&mut self, id: &[u8]) {
        (self.has_session_id, self.session_id) = (!id.is_empty(), id.try_into().ok());
    }

    /// Nobody has stored its session.
    pub(crate) fn set_session_unknown(&mut self) {
        (self.has_session_id, self.session_id) = (false, None);
    }
}

/// Looks at the first records of a connection.
///
/// Limits: a ClientHello has at most [`HELLO_BYTES_MAX`] bytes, and with its records' headers
/// [`RECORDS_BYTES_MAX`].
/// Cost: bounded by the bytes. It allocates for the server's name, and for a ClientHello in several
/// records.
pub(crate) fn look(bytes: &[u8]) -> Look {
    let bytes = &bytes[..bytes.len().min(RECORDS_BYTES_MAX)];
    let mut records = bytes;
    let mut message = Vec::new();
    loop {
        let (content, rest) = match first_record(records) {
            Record::Whole(content, rest) => (content, rest),
            Record::ReadBuffer if bytes.len() < RECORDS_BYTES_MAX => return Look::ReadBuffer,
            Record::ReadBuffer | Record::Other => return Look::Other,
        };
        // A message in one record, as nearly always, is not copied.
        let received = if message.is_empty() && rest.is_empty() {
            content
        } else {
            message.extend_from_slice(content);
            &message
        };
        match message_bytes(received) {
            Some(Ok(length)) if length <= received.len() => return parsed(&received[..length]),
            Some(Err(NoHello)) => return Look::Other,
            Some(Ok(_)) | None => {}
        }
        if message.is_empty() {
            return Look::ReadBuffer;
        }
        records = rest;
    }
}

struct NoHello;

enum Record<'a> {
    Whole(&'a [u8], &'a [u8]),
    ReadBuffer,
    Other,
}

/// The first record's content, and the bytes after it.
fn first_record(bytes: &[u8]) -> Record<'_> {
    let [kind, major, ..] = bytes else {
        let begins = bytes.first().is_none_or(|kind| *kind == HANDSHAKE);
        return if begins { Record::ReadBuffer } else { Record::Other };
    };
    if (*kind, *major) != (HANDSHAKE, MAJOR_VERSION) {
        return Record::Other;
    }
    let Some(([_, _, _, high, low], behind)) = bytes.split_first_chunk::<5>() else {
        return Record::ReadBuffer;
    };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    if length == 0 || length > RECORD_BYTES_MAX {
        return Record::Other;
    }
    match behind.split_at_checked(length) {
        Some((content, rest)) => Record::Whole(content, rest),
        None => Record::ReadBuffer,
    }
}

/// Length of the handshake message with its header, once the header is there.
fn message_bytes(message: &[u8]) -> Option<Result<usize, NoHello>> {
    if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Some(Err(NoHello));
    }
    let ([_, length @ ..], _) = message.split_first_chunk::<4>()?;
    let length =
        4 + usize::try_from(u32::from_be_bytes([0, length[0], length[1], length[2]])).ok()?;
    Some(if length > HELLO_BYTES_MAX { Err(NoHello) } else { Ok(length) })
}

fn parsed(message: &[u8]) -> Look {
    parse(Reader(&message[4..])).map_or(Look::Other, Look::Whole)
}

fn parse(mut body: Reader<'_>) -> Option<ClientHello> {
    let mut hello = ClientHello::default();
    body.take(VERSION_AND_RANDOM_BYTES)?;
    let session_id = body.vector8()?;
    let suites = body.vector16()?;
    hello.is_chacha_first = is_chacha_first(suites);
    body.vector8()?;
    if body.0.is_empty() {
        let has_fallen_back = suites.chunks_exact(2).any(|suite| suite == FALLBACK_SCSV);
        hello.fault = has_fallen_back.then_some(Fault::FallenBack);
        hello.set_session_id(session_id);
        return Some(hello);
    }
    let mut extensions = Reader(body.vector16()?);
    let (mut has_groups, mut has_shares) = (false, false);
    while !extensions.0.is_empty() {
        let kind = extensions.number16()?;
        let content = extensions.vector16()?;
        match kind {
            SERVER_NAME => hello.server_name = server_name(content),
            SESSION_TICKET => {
                (hello.takes_tickets, hello.has_ticket) = (true, !content.is_empty());
            }
            PRE_SHARED_KEY => hello.has_psk = !content.is_empty(),
            SUPPORTED_VERSIONS => {
                let versions = Reader(content).vector8()?;
                hello.offers_tls13 = versions.chunks_exact(2).any(|version| version == TLS13);
            }
            SUPPORTED_GROUPS => has_groups = true,
            KEY_SHARE => has_shares = true,
            RENEGOTIATION_INFO if content != [0] => hello.fault = Some(Fault::Renegotiates),
            _ => {}
        }
    }
    if !hello.offers_tls13 {
        hello.set_session_id(session_id);
    }
    if hello.offers_tls13 && has_shares && !has_groups {
        hello.fault = Some(Fault::LacksGroups);
    }
    if !hello.offers_tls13 && suites.chunks_exact(2).any(|suite| suite == FALLBACK_SCSV) {
        hello.fault = Some(Fault::FallenBack);
    }
    body.0.is_empty().then_some(hello)
}

/// Reserved values (GREASE, RFC 8701) do not count; clients send them to keep servers tolerant.
fn is_chacha_first(suites: &[u8]) -> bool {
    let is_real = |suite: &[u8; 2]| suite[0] != suite[1] || suite[0] & 0x0f != 0x0a;
    let suites = suites.chunks_exact(2).filter_map(|suite| suite.first_chunk::<2>());
    suites.copied().find(is_real).is_some_and(|first| CHACHA20_SUITES.contains(&first))
}

/// The only name of type "host name" (RFC 6066 section 3). rustls refuses invalid ones.
fn server_name(content: &[u8]) -> Option<Box<str>> {
    let mut list = Reader(Reader(content).vector16()?);
    let kind = list.take(1)?;
    let name = std::str::from_utf8(list.vector16()?).ok()?;
    let is_name = kind == [0] && name.len() <= NAME_BYTES_MAX && name.is_ascii();
    is_name.then(|| name.into())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number16(&mut self) -> Option<u16> {
        let (number, rest) = self.0.split_first_chunk::<2>()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*number))
    }

    fn vector8(&mut self) -> Option<&'a [u8]> {
        let length = self.take(1)?[0];
        self.take(usize::from(length))
    }

    fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = self.number16()?;
        self.take(usize::from(length))
    }
}

/// A ClientHello with a post-quantum key share has 1.8 KB. A ticket that contains a certificate
/// chain adds some more.
pub(crate) const HELLO_BYTES_MAX: usize = 16 * 1024;
/// The same with headers: in one record, or in several if not all are tiny.
pub(crate) const RECORDS_BYTES_MAX: usize = HELLO_BYTES_MAX + 1024;
const RECORD_BYTES_MAX: usize = 16 * 1024;
const HANDSHAKE: u8 = 22;
const MAJOR_VERSION: u8 = 3;
const CLIENT_HELLO: u8 = 1;
const VERSION_AND_RANDOM_BYTES: usize = 2 + 32;
/// The longest name that DNS knows.
const NAME_BYTES_MAX: usize = 255;
const SERVER_NAME: u16 = 0;
const SUPPORTED_GROUPS: u16 = 10;
const SESSION_TICKET: u16 = 35;
const PRE_SHARED_KEY: u16 = 41;
const SUPPORTED_VERSIONS: u16 = 43;
const KEY_SHARE: u16 = 51;
const RENEGOTIATION_INFO: u16 = 0xff01;
const FALLBACK_SCSV: [u8; 2] = [0x56, 0x00];
const TLS13: [u8; 2] = [3, 4];
/// The suites of TLS 1.3, and of TLS 1.2 with ECDSA and RSA (RFC 7905).
const CHACHA20_SUITES: [[u8; 2]; 3] = [[0x13, 0x03], [0xcc, 0xa9], [0xcc, 0xa8]];

/// The rules for any bytes at all: no panic, and no other answer once more bytes have come.
#[cfg(any(test, fuzzing))]
pub(crate) fn check(bytes: &[u8]) {
    let whole = look(bytes);
    assert!(whole != Look::ReadBuffer || bytes.len() < RECORDS_BYTES_MAX, "waits for ever");
    for end in 0..bytes.len() {
        let cut = look(&bytes[..end]);
        assert!(cut == Look::ReadBuffer || cut == whole, "cut at {end}: {cut:?}, whole: {whole:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_corpus_of_the_fuzz_target() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/client_hello");
        let mut inputs = 0;
        for entry in fs::read_dir(corpus).expect("a corpus") {
            let path = entry.expect("a readable corpus").path();
            println!("{}", path.display());
            check(&fs::read(&path).expect("a readable input"));
            inputs += 1;
        }
        assert!(inputs > 0);
    }

    #[test]
    fn what_comes_back_with_a_session() {
        let check = |session_id: &[u8], extensions: &[(u16, &[u8])], expected: bool| {
            let Look::Whole(hello) = look(&records(&hello(session_id, extensions), 1 << 14)) else {
                panic!("no hello")
            };
            assert_eq!(hello.is_resumption(), expected, "{session_id:?} {extensions:?}");
            let names_tickets = extensions.iter().any(|(kind, _)| *kind == SESSION_TICKET);
            assert_eq!(hello.takes_tickets, names_tickets, "{extensions:?}");
        };
        let versions: (u16, &[u8]) = (SUPPORTED_VERSIONS, &[4, 3, 4, 3, 3]);
        check(&[], &[], false);
        check(&[7; 32], &[], true);
        check(&[7; 32], &[versions], false);
        check(&[7; 32], &[(SUPPORTED_VERSIONS, &[2, 3, 3])], true);
        check(&[], &[(SESSION_TICKET, &[])], false);
        check(&[], &[(SESSION_TICKET, &[1])], true);
        check(&[7; 32], &[versions, (PRE_SHARED_KEY, &[1])], true);
    }

    #[test]
    fn which_session_may_be_stored() {
        let check = |session_id: &[u8], extensions: &[(u16, &[u8])], expected: Option<StoredId>| {
            let Look::Whole(hello) = look(&records(&hello(session_id, extensions), 1 << 14)) else {
                panic!("no hello")
            };
            assert_eq!(hello.stored_session(), expected, "{session_id:?} {extensions:?}");
        };
        check(&[], &[], None);
        check(&[7; 32], &[], Some([7; 32]));
        check(&[7; 31], &[], None);
        check(&[7; 32], &[(SESSION_TICKET, &[])], None);
        check(&[7; 32], &[(SUPPORTED_VERSIONS, &[4, 3, 4, 3, 3])], None);
        check(&[7; 32], &[(SUPPORTED_VERSIONS, &[2, 3, 3])], Some([7; 32]));
    }

    #[test]
    fn a_session_that_nobody_has_stored_is_not_resumed() {
        let bytes = records(&hello(&[7; 32], &[]), 1 << 14);
        let Look::Whole(mut hello) = look(&bytes) else { panic!("no hello") };
        assert!(hello.is_resumption());
        hello.set_session_unknown();
        assert!(!hello.is_resumption());
        assert_eq!(hello.stored_session(), None);
    }

    #[test]
    fn the_name_that_is_asked_for() {
        let check = |content: &[u8], expected: Option<&str>| {
            let bytes = records(&hello(&[], &[(SERVER_NAME, content)]), 1 << 14);
            let Look::Whole(hello) = look(&bytes) else { panic!("no hello") };
            assert_eq!(hello.server_name.as_deref(), expected, "{content:?}");
        };
        check(b"\0\x06\0\0\x03a.b", Some("a.b"));
        check(b"\0\x06\x01\0\x03a.b", None);
        check(b"\0\x06\0\0\x04a.b", None);
        check(b"\0\x04\0\0\x01\xff", None);
        check(b"", None);
    }

    #[test]
    fn faults_that_rustls_does_not_look_for() {
        let check = |extensions: &[(u16, &[u8])], expected: Option<Fault>| {
            let Look::Whole(hello) = look(&records(&hello(&[], extensions), 1 << 14)) else {
                panic!("no hello")
            };
            assert_eq!(hello.fault, expected, "{extensions:?}");
        };
        let versions: (u16, &[u8]) = (SUPPORTED_VERSIONS, &[4, 3, 4, 3, 3]);
        let groups: (u16, &[u8]) = (SUPPORTED_GROUPS, &[0, 2, 0, 29]);
        let shares: (u16, &[u8]) = (KEY_SHARE, &[0, 0]);
        check(&[versions, shares], Some(Fault::LacksGroups));
        check(&[versions, shares, groups], None);
        check(&[versions, groups], None);
        check(&[versions], None);
        check(&[shares], None);
        check(&[(RENEGOTIATION_INFO, &[0])], None);
        check(&[(RENEGOTIATION_INFO, &[2, 7, 7])], Some(Fault::Renegotiates));
        check(&[(RENEGOTIATION_INFO, &[])], Some(Fault::Renegotiates));
    }

    #[test]
    fn who_has_fallen_back() {
        let check = |extensions: &[(u16, &[u8])], expected: Option<Fault>| {
            let mut message = hello(&[], extensions);
            // In place of the one suite that it offers.
            message[41..43].copy_from_slice(&FALLBACK_SCSV);
            let Look::Whole(hello) = look(&records(&message, 1 << 14)) else { panic!("no hello") };
            assert_eq!(hello.fault, expected, "{extensions:?}");
        };
        check(&[], Some(Fault::FallenBack));
        check(&[(SUPPORTED_VERSIONS, &[2, 3, 3])], Some(Fault::FallenBack));
        check(&[(SUPPORTED_VERSIONS, &[4, 3, 4, 3, 3])], None);
        // Without a word of extensions.
        let mut message = hello(&[], &[]);
        message[41..43].copy_from_slice(&FALLBACK_SCSV);
        message.truncate(message.len() - 2);
        message[3] -= 2;
        let Look::Whole(hello) = look(&records(&message, 1 << 14)) else { panic!("no hello") };
        assert_eq!(hello.fault, Some(Fault::FallenBack));
    }

    #[test]
    fn what_is_too_long_is_not_waited_for() {
        let mut long = records(&hello(&[], &[(21, &[0; HELLO_BYTES_MAX])]), 1 << 14);
        assert_eq!(look(&long), Look::Other);
        // One byte a record: 16 KB of headers.
        long = records(&hello(&[], &[(21, &[0; 4000])]), 1);
        assert_eq!(look(&long[..RECORDS_BYTES_MAX]), Look::Other);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn random_bytes(bytes in vec(any::<u8>(), 0..64)) {
            check(&bytes);
        }

        #[test]
        fn bytes_behind_a_header(body in vec(any::<u8>(), 0..200)) {
            let mut message = vec![CLIENT_HELLO, 0, 0, u8::try_from(body.len()).unwrap()];
            message.extend(body);
            check(&records(&message, 1 << 14));
        }

        #[test]
        fn however_it_is_cut_into_records(
            session_id in vec(any::<u8>(), 0..33),
            extensions in vec((0_u16..60, vec(any::<u8>(), 0..40)), 0..6),
            record in 1_usize..300,
            behind in vec(any::<u8>(), 0..9),
        ) {
            let extensions: Vec<_> =
                extensions.iter().map(|(kind, content)| (*kind, content.as_slice())).collect();
            let message = hello(&session_id, &extensions);
            let (one, mut many) = (records(&message, 1 << 14), records(&message, record));
            prop_assert_ne!(look(&one), Look::ReadBuffer);
            many.extend(behind);
            prop_assert_eq!(look(&one), look(&many));
            check(&many);
        }
    }

    fn hello(session_id: &[u8], extensions: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; VERSION_AND_RANDOM_BYTES];
        body.push(u8::try_from(session_id.len()).unwrap());
        body.extend(session_id);
        body.extend([0, 2, 0x13, 1, 1, 0]);
        let mut all = Vec::new();
        for (kind, content) in extensions {
            all.extend(kind.to_be_bytes());
            all.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
            all.extend(*content);
        }
        body.extend(u16::try_from(all.len()).unwrap().to_be_bytes());
        body.extend(all);
        let mut message = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
        message[0] = CLIENT_HELLO;
        message.extend(body);
        message
    }

    fn records(message: &[u8], record_bytes: usize) -> Vec<u8> {
        let mut records = Vec::new();
        for content in message.chunks(record_bytes) {
            records.extend([HANDSHAKE, MAJOR_VERSION, 1]);
            records.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
            records.extend(content);
        }
        records
    }
}
