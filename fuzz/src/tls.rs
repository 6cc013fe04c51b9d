//! What the fuzzer and the plain tests demand of the records of an established TLS connection.
//!
//! Random bytes open never. So an input is a script: which version and cipher, how the stream is cut, and records that
//! are sealed with the right keys, whatever they contain.

use std::io::IoSlice;

use weir_engine::tls::{Cipher, Keys12, PLAINTEXT_BYTES_MAX, Session, Version, Violation};

/// The key changes behind this record.
const NEW_KEYS: u8 = 1;
/// The content is sent as it is, unsealed.
const RAW: u8 = 2;
/// The content is repeated so often, which fills a record and more.
const LONG: u8 = 4;
const LONG_TIMES: usize = 100;
/// There is padding, as much as the next byte says, times this; with `LONG`, times that too.
const PADDING_TIMES: usize = 2;

const DATA: u8 = 23;

/// However the stream is cut, the same comes out of it; what comes out was put in; an honest peer is understood; and
/// whatever the peer does, what we seal for it opens.
pub fn records(data: &[u8]) {
    let Some((&[kind, cut], script)) = data.split_first_chunk() else { return };
    let Some((mut ours, mut theirs)) = pair(kind) else { return };
    let mut twin = ours.take();
    ours = pair(kind).map_or(ours, |pair| pair.0);
    let script = Script::play(script, &mut theirs);

    let mut at_once = script.stream.clone();
    let whole = ours.open(&mut at_once);
    let (pieces, got) = in_pieces(&mut twin, &script.stream, usize::from(cut).max(1));
    assert!(script.data.starts_with(&got), "plaintext that nobody sent");
    match whole {
        Ok(opened) => {
            assert_eq!(pieces, Ok(opened.is_end));
            assert_eq!(got, at_once[..opened.plaintext]);
            assert!(opened.plaintext <= opened.used && opened.used <= script.stream.len());
        }
        Err(violation) => {
            assert_eq!(pieces, Err(violation));
            assert!(!script.is_honest, "{violation} by an honest peer");
        }
    }
    if script.is_honest {
        assert_eq!(got, script.data);
    }
    answered(&mut ours, &mut theirs);
    answered(&mut twin, &mut pair(kind).map_or(theirs, |pair| pair.1));
}

/// Both ends of a connection: the second is the peer's.
fn pair(kind: u8) -> Option<(Session, Session)> {
    let (ours, theirs) = ([1; 48], [2; 48]);
    let (cipher, secret, key) = match kind / 2 % 3 {
        0 => (Cipher::Aes128Gcm, 32, 16),
        1 => (Cipher::Aes256Gcm, 48, 32),
        _ => (Cipher::ChaCha20Poly1305, 32, 32),
    };
    if kind.is_multiple_of(2) {
        let (ours, theirs) = ((&ours[..secret], 0), (&theirs[..secret], 0));
        Session::tls13(cipher, ours, theirs).zip(Session::tls13(cipher, theirs, ours))
    } else {
        let ours = (Keys12 { key: &ours[..key], iv: &ours[..12] }, 0);
        let theirs = (Keys12 { key: &theirs[..key], iv: &theirs[..12] }, 0);
        Session::tls12(cipher, ours, theirs).zip(Session::tls12(cipher, theirs, ours))
    }
}

/// What a peer has sent.
struct Script {
    stream: Vec<u8>,
    /// The content of all records of application data.
    data: Vec<u8>,
    /// It has sent nothing but application data, of which there was some in each record.
    is_honest: bool,
}

impl Script {
    /// Each record: flags, type, padding, length of the content, content.
    fn play(mut script: &[u8], theirs: &mut Session) -> Script {
        let mut played = Script { stream: Vec::new(), data: Vec::new(), is_honest: true };
        while let Some((&[flags, kind, padding, bytes], rest)) = script.split_first_chunk() {
            let (content, rest) = rest.split_at(rest.len().min(usize::from(bytes)));
            script = rest;
            let times = if flags & LONG == 0 { 1 } else { LONG_TIMES };
            let content = content.repeat(times);
            if flags & RAW != 0 {
                played.stream.extend_from_slice(&content);
                played.is_honest = false;
                continue;
            }
            let padding = usize::from(padding) * PADDING_TIMES * times;
            theirs.forge(kind, &content, padding, &mut played.stream);
            if let Some(data) = as_data(theirs.version(), kind, &content) {
                played.data.extend_from_slice(data);
            }
            played.is_honest &= kind == DATA
                && !content.is_empty()
                && content.len() + padding <= PLAINTEXT_BYTES_MAX
                && flags & NEW_KEYS == 0;
            if flags & NEW_KEYS != 0 {
                theirs.forge_new_keys();
            }
        }
        played
    }
}

/// What a record brings if it is application data. In TLS 1.3 the type is the last byte that is not zero: a type of
/// zero is padding, and the content has the type.
fn as_data(version: Version, kind: u8, content: &[u8]) -> Option<&[u8]> {
    let (kind, content) = match version {
        Version::Tls13 if kind == 0 => {
            let at = content.iter().rposition(|byte| *byte != 0)?;
            (content[at], &content[..at])
        }
        Version::Tls12 | Version::Tls13 => (kind, content),
    };
    (kind == DATA).then_some(content)
}

/// Whether the peer has ended, or what it broke; and the plaintext until then.
fn in_pieces(
    session: &mut Session,
    stream: &[u8],
    piece: usize,
) -> (Result<bool, Violation>, Vec<u8>) {
    let (mut waiting, mut got) = (Vec::new(), Vec::new());
    let mut is_end = false;
    for piece in stream.chunks(piece) {
        waiting.extend_from_slice(piece);
        match session.open(&mut waiting) {
            Ok(opened) => {
                got.extend_from_slice(&waiting[..opened.plaintext]);
                waiting.drain(..opened.used);
                is_end = opened.is_end;
            }
            Err(violation) => return (Err(violation), got),
        }
    }
    (Ok(is_end), got)
}

/// What is sealed after all that, answers included, opens.
fn answered(ours: &mut Session, theirs: &mut Session) {
    let mut out = Vec::new();
    let sealed = ours.seal(&[IoSlice::new(b"pong")], &mut out);
    assert_eq!(sealed, Ok(4));
    assert!(out.len() <= Session::SEALED_BYTES_MAX && !ours.is_due());
    let opened = theirs.open(&mut out).expect("what we seal opens");
    assert_eq!(&out[..opened.plaintext], b"pong");
}
