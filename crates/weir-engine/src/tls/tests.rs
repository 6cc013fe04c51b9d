//! Sessions against each other.

use std::io::IoSlice;

use super::*;

const CIPHERS: [Cipher; 3] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

/// Both ends of a connection: the second is the peer's.
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
