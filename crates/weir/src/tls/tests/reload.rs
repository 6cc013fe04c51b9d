//! New files while handshakes go on.

use std::fs;

use super::super::expiry::ExpiryKind;
use super::*;
use crate::base::files::{Watch, Watched as _};

fn serial_shown(contexts: &Contexts, authority: &Authority) -> CertificateDer<'static> {
    let pair = shake(contexts, &client(authority), "gate.example").unwrap();
    pair.client.peer_certificates().unwrap()[0].clone()
}

#[test]
fn new_files_are_taken_up_when_they_have_settled() {
    let authority = Authority::new("ca");
    let contexts = contexts(&config(vec![authority.files("c", &["gate.example"])]));
    let mut watch = Watch::new(&contexts);
    let first = serial_shown(&contexts, &authority);
    assert!(!watch.look(&contexts, false));
    authority.files("c", &["gate.example"]);
    assert!(!watch.look(&contexts, false), "it may be half of what is to come");
    assert_eq!(serial_shown(&contexts, &authority), first);
    assert!(watch.look(&contexts, false));
    let second = serial_shown(&contexts, &authority);
    assert_ne!(second, first);
    assert!(!watch.look(&contexts, false), "once is enough");
    // A requested reload does not wait.
    authority.files("c", &["gate.example"]);
    assert!(watch.look(&contexts, true));
    assert_ne!(serial_shown(&contexts, &authority), second);
}

#[test]
fn files_that_cannot_be_used_leave_everything_as_it_is() {
    let authority = Authority::new("ca");
    let files = authority.files("c", &["gate.example"]);
    let contexts = contexts(&config(vec![files.clone()]));
    let mut watch = Watch::new(&contexts);
    let before = serial_shown(&contexts, &authority);
    let other = authority.files("other", &["gate.example"]);
    for hurt in [
        &|| fs::write(&files.certificate, "nonsense").unwrap(),
        &|| fs::remove_file(&files.certificate).unwrap(),
        &|| assert!(fs::copy(&other.certificate, &files.certificate).unwrap() > 0),
    ] as [&dyn Fn(); 3]
    {
        hurt();
        for _ in 0..3 {
            assert!(!watch.look(&contexts, false));
        }
        assert!(!watch.look(&contexts, true));
        assert_eq!(serial_shown(&contexts, &authority), before);
    }
    fs::copy(&other.key, &files.key).unwrap();
    assert!(!watch.look(&contexts, false) && watch.look(&contexts, false));
    assert_ne!(serial_shown(&contexts, &authority), before);
}

/// Handshakes that have begun end with the configuration they began with.
#[test]
fn the_configuration_of_a_handshake_outlives_a_reload() {
    let authority = Authority::new("ca");
    let contexts = contexts(&config(vec![authority.files("c", &["gate.example"])]));
    let begun = contexts.current(Spoken::Frames, false, false);
    authority.files("c", &["gate.example"]);
    contexts.reload().unwrap();
    shake_with(begun, &client(&authority), "gate.example").unwrap();
}

/// A new certificate resumes the sessions of the old one, since tickets are not bound to it.
#[test]
fn sessions_outlive_a_reload() {
    let authority = Authority::new("ca");
    let contexts = contexts(&config(vec![authority.files("c", &["gate.example"])]));
    for version in TlsVersion::ALL {
        let client = ClientOf { version: Some(version), ..ClientOf::default() }.config(&authority);
        shake(&contexts, &client, "gate.example").unwrap();
        authority.files("c", &["gate.example"]);
        contexts.reload().unwrap();
        let pair = shake(&contexts, &client, "gate.example").unwrap();
        assert_eq!(pair.server.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
    }
}

#[test]
fn the_ends_of_what_is_in_use_are_known() {
    let authority = Authority::new("ca");
    let leaf = authority::Leaf {
        names: &["gate.example"],
        valid_secs: Some(1_000),
        ..authority::Leaf::default()
    };
    let mut config = config(vec![authority.files_of("c", &leaf)]);
    config.tls.client_auth = crate::base::config::ClientAuth::Optional;
    config.tls.client_ca = authority.bundle();
    config.tls.client_crl = authority.write("crl.pem", &authority.revocation_list(&[], 2_000));
    let contexts = contexts(&config);
    let now = i64::try_from(crate::base::clock::unix_time().as_secs()).unwrap();
    let left: Vec<_> = contexts
        .expiries()
        .into_iter()
        .map(|expiry| (expiry.kind, expiry.file, (expiry.not_after - now + 20) / 1_000))
        .collect();
    let path = |name: &str| authority.path().join(name).display().to_string();
    assert_eq!(
        left,
        [
            (ExpiryKind::Certificate, path("c.pem"), 1),
            (ExpiryKind::RevocationList, path("crl.pem"), 2)
        ]
    );
}
