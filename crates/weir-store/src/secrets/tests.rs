//! Tests of the secrets: hashes that must differ, and valid and invalid key files.

use std::os::unix::fs::MetadataExt as _;

use super::*;

fn serial(text: &str) -> Serial {
    Serial::new(text).unwrap()
}

#[test]
fn hashes_are_what_they_were() {
    // From a store of an earlier version. These hashes may never change.
    let secrets = Secrets::new(&[7; SECRET_BYTES]);
    let key = blake3::keyed_hash(
        &blake3::derive_key("weir 2026-11-22 device keys", &[7; 32]),
        b"\x03addabc",
    );
    assert_eq!(secrets.key_hash(&serial("add"), "abc"), Hash(*key.as_bytes()));
    let token = blake3::keyed_hash(
        &blake3::derive_key("weir 2026-11-22 device tokens", &[7; 32]),
        &[0xff; 16],
    );
    assert_eq!(secrets.token_hash("_____________________w"), Some(Hash(*token.as_bytes())));
}

#[test]
fn a_key_belongs_to_its_serial_and_its_secrets() {
    let secrets = Secrets::new(&[7; SECRET_BYTES]);
    let hash = secrets.key_hash(&serial("a"), "bc");
    assert_eq!(hash, secrets.key_hash(&serial("a"), "bc"));
    assert_ne!(hash, secrets.key_hash(&serial("ab"), "c"));
    assert_ne!(hash, secrets.key_hash(&serial("b"), "bc"));
    assert_ne!(hash, secrets.key_hash(&serial("a"), ""));
    assert_ne!(hash, Secrets::new(&[8; SECRET_BYTES]).key_hash(&serial("a"), "bc"));
    let longest = "ü".repeat(64);
    assert_ne!(hash, secrets.key_hash(&serial(&longest), &"k".repeat(10_000)));
}

#[test]
fn a_token_is_its_hash_again_and_no_other_is() {
    let secrets = Secrets::new(&[7; SECRET_BYTES]);
    let (token, hash) = secrets.new_token().unwrap();
    let (another, other) = secrets.new_token().unwrap();
    assert_eq!(token.as_str().len(), Token::CHARS);
    assert_eq!(secrets.token_hash(token.as_str()), Some(hash));
    assert_ne!(token, another);
    assert_ne!(hash, other);
    assert_eq!(format!("{token:?} {secrets:?}"), "Token Secrets");
}

#[test]
fn a_fingerprint_is_of_one_secret_and_is_neither_key() {
    let secrets = Secrets::new(&[7; SECRET_BYTES]);
    let expected = blake3::derive_key("weir 2026-11-22 fingerprint", &[7; 32]);
    assert_eq!(secrets.fingerprint(), Hash(expected));
    assert_ne!(secrets.fingerprint(), Secrets::new(&[8; SECRET_BYTES]).fingerprint());
    assert!(![secrets.keys, secrets.tokens].contains(&expected));
}

#[test]
fn what_is_no_token_has_no_hash() {
    let secrets = Secrets::new(&[7; SECRET_BYTES]);
    let good = "AAAAAAAAAAAAAAAAAAAAAA";
    assert!(secrets.token_hash(good).is_some());
    for bad in [
        "",
        "AAAAAAAAAAAAAAAAAAAAA",
        "AAAAAAAAAAAAAAAAAAAAAAA",
        "AAAAAAAAAAAAAAAAAAAAA=",
        // Unused bits are set: another spelling of the valid token.
        "AAAAAAAAAAAAAAAAAAAAAB",
        "AAAAAAAAAAAAAAAAAAAA+/",
        "AAAAAAAAAAAAAAAAAAAA\0A",
        "üüüüüüüüüüü",
    ] {
        assert_eq!(secrets.token_hash(bad), None, "{bad:?}");
    }
}

#[test]
fn a_key_file_is_made_once_and_for_its_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.key");
    let made = Secrets::load_or_create(&path).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.len(), metadata.nlink()), (0o600, 32, 1));
    let read = Secrets::load_or_create(&path).unwrap();
    assert_eq!(made.key_hash(&serial("a"), "b"), read.key_hash(&serial("a"), "b"));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no draft is left behind");
}

#[test]
fn all_that_make_a_key_file_at_once_have_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.key");
    let hash = || Secrets::load_or_create(&path).unwrap().key_hash(&serial("a"), "b");
    let hashes: Vec<Hash> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(hash)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(hashes.iter().all(|hash| *hash == hashes[0]));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_bad_key_file_is_named_with_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.key");
    let check = |expected: &str| {
        let error = Secrets::load_or_create(&path).unwrap_err().to_string();
        assert!(error.contains("store.key: ") && error.contains(expected), "{error}");
    };
    let write = |bytes: &[u8], mode| {
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    write(&[1; 31], 0o600);
    check("has 31 bytes; it must have 32");
    write(&[1; 1000], 0o600);
    check("has more than 32 bytes");
    write(&[], 0o600);
    check("has 0 bytes");
    write(&[1; 32], 0o644);
    check("has mode 0644");
    write(&[1; 32], 0o660);
    check("has mode 0660");
    write(&[1; 32], 0o440);
    assert!(Secrets::load_or_create(&path).is_ok());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    check("is not a file");
}

#[test]
fn a_key_file_that_cannot_be_made_is_said_to_be_so() {
    let directory = tempfile::tempdir().unwrap();
    let error = Secrets::load_or_create(&directory.path().join("gone/store.key")).unwrap_err();
    assert!(error.to_string().contains("cannot be made"), "{error}");
    fs::write(directory.path().join("file"), "").unwrap();
    let error = Secrets::load_or_create(&directory.path().join("file/store.key")).unwrap_err();
    assert!(error.to_string().contains("cannot be read"), "{error}");
}
