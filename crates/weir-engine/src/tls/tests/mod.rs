//! Sessions against each other.

mod peer;
mod vectors;
mod violations;

use std::collections::HashSet;
use std::io::IoSlice;

use super::*;

const CIPHERS: [Cipher; 3] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

/// Both ends of a connection. The second one is the peer's.
fn pair(version: Version, cipher: Cipher) -> (Session, Session) {
    let (ours, theirs) = ([1; 48], [2; 48]);
    let made = match version {
        Version::Tls13 => {
            let bytes = cipher.secret_bytes();
            let (ours, theirs) = ((&ours[..bytes], 3), (&theirs[..bytes], 5));
            (Session::tls13(cipher, ours, theirs), Session::tls13(cipher, theirs, ours))
        }
        Version::Tls12 => {
            let bytes = cipher.key_bytes();
            let ours = (Keys12 { key: &ours[..bytes], iv: &ours[..12] }, 3);
            let theirs = (Keys12 { key: &theirs[..bytes], iv: &theirs[..12] }, 5);
            (Session::tls12(cipher, ours, theirs), Session::tls12(cipher, theirs, ours))
        }
    };
    (made.0.unwrap(), made.1.unwrap())
}

fn every_pair() -> impl Iterator<Item = (Session, Session)> {
    [Version::Tls12, Version::Tls13]
        .into_iter()
        .flat_map(|version| CIPHERS.map(|cipher| pair(version, cipher)))
}

#[test]
fn what_one_end_seals_the_other_opens() {
    for (mut a, mut b) in every_pair() {
        let mut out = Vec::new();
        let parts = [IoSlice::new(b"hello"), IoSlice::new(b""), IoSlice::new(b" world")];
        assert_eq!(a.seal(&parts, &mut out), Ok(11));
        let first = out.len();
        assert_eq!(a.seal(&[IoSlice::new(&[7; 20_000])], &mut out), Ok(16_384));
        let end = out.len();
        assert_eq!(b.record_bytes(&out), Ok(Some(first)));
        let opened = b.open(&mut out[..end - 1]).unwrap();
        assert_eq!(opened, Opened { plaintext: 11, used: first, is_end: false });
        assert_eq!(&out[..11], b"hello world");
        let opened = b.open(&mut out[first..]).unwrap();
        assert_eq!(opened, Opened { plaintext: 16_384, used: end - first, is_end: false });
        assert!(out[first..][..16_384].iter().all(|byte| *byte == 7));
    }
}

#[test]
fn the_end_is_the_end() {
    for (mut a, mut b) in every_pair() {
        let mut out = Vec::new();
        a.seal(&[IoSlice::new(b"bye")], &mut out).unwrap();
        a.seal_alert(Alert::CloseNotify, &mut out).unwrap();
        assert_eq!(a.seal(&[IoSlice::new(b"more")], &mut out), Err(Exhausted));
        let bytes = out.len();
        a.seal_alert(Alert::InternalError, &mut out).unwrap();
        assert_eq!(out.len(), bytes);
        out.extend_from_slice(b"what is this");
        let opened = b.open(&mut out).unwrap();
        assert_eq!(opened, Opened { plaintext: 3, used: out.len(), is_end: true });
        assert_eq!(b.open(&mut out), Ok(Opened { plaintext: 0, used: out.len(), is_end: true }));
    }
}

#[test]
fn in_pieces_or_at_once_it_is_the_same() {
    for (mut a, mut b) in every_pair() {
        let mut sent = Vec::new();
        for piece in [b"one".as_slice(), b"two", b"three"] {
            a.seal(&[IoSlice::new(piece)], &mut sent).unwrap();
        }
        let mut got = Vec::new();
        let mut waiting = Vec::new();
        for byte in sent {
            waiting.push(byte);
            let opened = b.open(&mut waiting).unwrap();
            got.extend_from_slice(&waiting[..opened.plaintext]);
            waiting.drain(..opened.used);
        }
        assert!(waiting.is_empty());
        assert_eq!(got, b"onetwothree");
    }
}

#[test]
fn keys_change_before_their_limit() {
    for cipher in CIPHERS {
        let (mut a, mut b) = pair(Version::Tls13, cipher);
        a.set_records_log2(5);
        seals::record();
        let mut got = 0;
        for round in 0..100_u8 {
            let mut out = Vec::with_capacity(Session::SEALED_BYTES_MAX);
            a.seal(&[IoSlice::new(&[round])], &mut out).unwrap();
            let opened = b.open(&mut out).unwrap();
            assert_eq!((opened.plaintext, out[0]), (1, round));
            assert!(!b.is_due(), "our own update wants no answer");
            got += 1;
        }
        assert_eq!(got, 100);
        // The first key was at 3; every key seals 30 records and its update.
        assert_eq!((a.take_key_changes(), b.take_key_changes(), a.take_key_changes()), (3, 3, 0));
        let seals = seals::take();
        let keys: HashSet<u64> = seals.iter().map(|seal| seal.key).collect();
        let nonces: HashSet<_> = seals.iter().map(|seal| (seal.key, seal.nonce)).collect();
        assert_eq!((keys.len(), nonces.len(), seals.len()), (4, 103, 103));
        assert!(seals.iter().all(|seal| seal.sequence < 32));
    }
}

#[test]
fn keys_that_cannot_change_end() {
    for cipher in CIPHERS {
        let (mut a, mut b) = pair(Version::Tls12, cipher);
        a.set_records_log2(5);
        let mut out = Vec::new();
        let sealed = (0..100).take_while(|_| {
            let is_late = a.is_nearly_exhausted();
            let sealed = a.seal(&[IoSlice::new(b"x")], &mut out);
            assert!(sealed.is_ok() || is_late, "announced before it comes");
            sealed.is_ok()
        });
        // From 3 on. The last of 32 is kept for an alert.
        assert_eq!(sealed.count(), 28);
        assert_eq!(a.seal_alert(Alert::NoRenegotiation, &mut out), Err(Exhausted));
        assert_eq!(a.seal_alert(Alert::CloseNotify, &mut out), Ok(()));
        let opened = b.open(&mut out).unwrap();
        assert_eq!((opened.plaintext, opened.is_end), (28, true));
    }
}

#[test]
fn a_session_does_not_begin_beyond_its_limit() {
    let secret = [0; 32];
    let with = |cipher, sent| Session::tls13(cipher, (&secret, sent), (&secret, 0)).is_some();
    assert!(with(Cipher::Aes128Gcm, (1 << 24) - 2));
    assert!(!with(Cipher::Aes128Gcm, (1 << 24) - 1));
    assert!(with(Cipher::ChaCha20Poly1305, 1 << 62));
    assert!(!with(Cipher::ChaCha20Poly1305, u64::MAX));
    assert!(!with(Cipher::Aes256Gcm, 0), "its secrets are longer");
}

#[test]
fn what_is_left_behind_neither_seals_nor_opens() {
    for (mut a, mut b) in every_pair() {
        let mut out = Vec::new();
        assert!(a.holds_secrets());
        let mut taken = a.take();
        assert!(!a.holds_secrets() && taken.holds_secrets());
        assert_eq!(a.seal(&[IoSlice::new(b"x")], &mut out), Err(Exhausted));
        assert!(!a.is_due() && out.is_empty());
        b.seal(&[IoSlice::new(b"x")], &mut out).unwrap();
        assert_eq!(a.open(&mut out.clone()).map(|opened| opened.plaintext), Ok(0));
        assert_eq!(taken.open(&mut out).map(|opened| opened.plaintext), Ok(1));
        // As bytes: no part of a secret is left.
        let debug = format!("{a:?}");
        assert!(debug.contains("Session") && !debug.contains("secret"), "{debug}");
    }
}
