//! The development certificate.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use rustls::pki_types::pem::PemObject as _;

use super::*;

#[test]
fn it_is_made_once_and_for_its_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.tls.development_directory = directory.path().join("state/weir");
    let first = contexts(&config);
    let made = first.development().unwrap().clone();
    assert_eq!(made.path, directory.path().join("state/weir/development.pem"));
    assert_eq!(fs::metadata(&made.path).unwrap().permissions().mode() & 0o777, 0o600);
    let of_directory = fs::metadata(made.path.parent().unwrap()).unwrap();
    assert_eq!(of_directory.permissions().mode() & 0o777, 0o700);
    assert_eq!(made.fingerprint.len(), 32 * 3 - 1);

    // A client that trusts it reaches this machine by all its names.
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&made.path).unwrap()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Arc::new(client);
    for name in ["localhost", "127.0.0.1", "::1"] {
        shake(&first, &client, name).unwrap();
    }
    assert_eq!(contexts(&config).development(), Some(&made));
}

#[test]
fn all_who_start_at_the_same_time_take_the_same() {
    for _ in 0..8 {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.tls.development_directory = directory.path().to_owned();
        let make = || contexts(&config).development().unwrap().fingerprint.clone();
        let made: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(|fingerprint| *fingerprint == made[0]), "{made:?}");
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }
}

#[test]
fn one_that_all_but_expired_is_made_anew() {
    let authority = Authority::new("ca");
    let leaf = authority::Leaf { valid_secs: Some(29 * 86_400), ..authority::Leaf::default() };
    let (certificate, key) = authority.sign(&leaf);
    let path = authority
        .write("development.pem", &format!("{}{}", certificate.pem(), key.serialize_pem()));
    let inode = fs::metadata(&path).unwrap().ino();
    let mut config = Config::default();
    config.tls.development_directory = authority.path().to_owned();
    contexts(&config);
    assert_ne!(fs::metadata(&path).unwrap().ino(), inode);
    let names: Vec<_> = fs::read_dir(authority.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn what_hinders_it_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let mut config = Config::default();
    config.tls.development_directory = file.join("weir");
    let said = refused(&config, directory.path());
    assert!(
        said.starts_with("tls.development_directory: file/weir/development.pem: cannot be "),
        "{said}"
    );
    config.tls.development_directory = directory.path().to_owned();
    fs::write(directory.path().join("development.pem"), "").unwrap();
    assert_eq!(
        refused(&config, directory.path()),
        "tls.development_directory: development.pem: holds no \"BEGIN CERTIFICATE\" section"
    );
}
