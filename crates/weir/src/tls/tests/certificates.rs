//! The choice of a certificate for a client, and the errors of bad files.

use rcgen::KeyPair;
use rustls::crypto::aws_lc_rs::cipher_suite as suite;
use rustls::{CipherSuite, ProtocolVersion};
use x509_parser::der_parser::parse_der;

use super::authority::Leaf;
use super::*;

/// The file of the certificate that a client got.
fn shown(pair: &Pair, files: &[&CertificateConfig]) -> String {
    let shown = &pair.client.peer_certificates().unwrap()[0];
    let file = files.iter().find(|file| {
        super::super::certificates::read_certificates("", &file.certificate).unwrap()[0] == *shown
    });
    file.unwrap().certificate.file_stem().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_client_is_shown_the_certificate_for_the_name_it_asks_for() {
    let authority = Authority::new("ca");
    // Each has the names of the others too, so that every client accepts its certificate.
    let all = ["gate.example", "Other.example", "*.wild.example", "a.wild.example", "127.0.0.1"];
    let exact = authority.files("exact", &["other.example", "a.wild.example"]);
    let wild = authority.files("wild", &["*.wild.example"]);
    let default = authority.files("default", &all);
    let files = [&default, &exact, &wild];
    for (order, name, expected) in [
        ([&default, &exact, &wild], "gate.example", "default"),
        ([&default, &exact, &wild], "127.0.0.1", "default"),
        ([&default, &exact, &wild], "other.example", "default"),
        ([&exact, &default, &wild], "other.example", "exact"),
        ([&exact, &wild, &default], "OTHER.example", "exact"),
        ([&exact, &wild, &default], "gate.example", "default"),
        ([&wild, &exact, &default], "a.wild.example", "exact"),
        ([&exact, &wild, &default], "b.wild.example", "wild"),
        ([&default, &wild, &exact], "b.wild.example", "default"),
    ] {
        let contexts = contexts(&config(order.into_iter().cloned().collect()));
        let pair = shake(&contexts, &client(&authority), name).unwrap();
        assert_eq!(shown(&pair, &files), expected, "{name}");
    }
}

/// A client that asks for an unknown name gets the first certificate, and decides itself.
#[test]
fn a_stranger_s_name_gets_the_first_certificate() {
    let authority = Authority::new("ca");
    let contexts = contexts(&config(vec![authority.files("one", &["one.example"])]));
    let error = shake(&contexts, &client(&authority), "two.example").err().unwrap();
    assert!(matches!(error, rustls::Error::InvalidCertificate(_)), "{error}");
}

#[test]
fn of_two_for_one_name_the_client_gets_what_it_can_check() {
    let authority = Authority::new("ca");
    let names: &[&str] = &["gate.example"];
    let rsa = authority.files_of("rsa", &Leaf { names, is_rsa: true, ..Leaf::default() });
    let ecdsa = authority.files("ecdsa", names);
    let contexts = contexts(&config(vec![ecdsa.clone(), rsa.clone()]));
    let only_rsa = CryptoProvider {
        cipher_suites: vec![suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256],
        ..aws_lc_rs::default_provider()
    };
    for (provider, expected) in [(None, "ecdsa"), (Some(only_rsa), "rsa")] {
        let is_limited = provider.is_some();
        let version = is_limited.then_some(TlsVersion::Tls12);
        let client = ClientOf { provider, version, ..ClientOf::default() };
        let pair = shake(&contexts, &client.config(&authority), "gate.example").unwrap();
        assert_eq!(shown(&pair, &[&ecdsa, &rsa]), expected);
    }
}

/// The key inside a PKCS #8 file, in the form of older tools.
fn bare(key: &KeyPair, label: &str) -> String {
    let der = key.serialize_der();
    let (_, pkcs8) = parse_der(&der).unwrap();
    let inner = pkcs8.as_sequence().unwrap()[2].as_slice().unwrap();
    let text = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, inner);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

#[test]
fn every_form_of_a_key_is_read() {
    let authority = Authority::new("ca");
    let names: &[&str] = &["gate.example"];
    for (is_rsa, label) in [(false, "EC PRIVATE KEY"), (true, "RSA PRIVATE KEY")] {
        let (certificate, key) = authority.sign(&Leaf { names, is_rsa, ..Leaf::default() });
        let certificate = authority.write("c.pem", &certificate.pem());
        for text in [key.serialize_pem(), bare(&key, label)] {
            let key = authority.write("c.key", &text);
            let files = CertificateConfig { certificate: certificate.clone(), key };
            let contexts = contexts(&config(vec![files]));
            shake(&contexts, &client(&authority), "gate.example").unwrap();
        }
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let authority = Authority::new("ca");
    let good = authority.files("good", &["gate.example"]);
    let other = authority.files("other", &["gate.example"]);
    let of = |certificate: PathBuf, key: PathBuf| {
        let second = CertificateConfig { certificate, key };
        refused(&config(vec![good.clone(), second]), authority.path())
    };
    let said = |text: &str, as_key: bool| {
        let file = authority.write("bad", text);
        match as_key {
            false => of(file, good.key.clone()),
            true => of(good.certificate.clone(), file),
        }
    };
    const NO_KEY: &str = "holds no private key: \"BEGIN PRIVATE KEY\", \"BEGIN EC PRIVATE KEY\" or \"BEGIN RSA PRIVATE \
                          KEY\", without a passphrase";
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let no_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    for (said, expected) in [
        (
            of(authority.path().join("absent"), good.key.clone()),
            "tls.certificates[1].certificate: absent: cannot be read: No such file or directory (os error 2)",
        ),
        (
            of(good.certificate.clone(), authority.path().join("absent")),
            "tls.certificates[1].key: absent: cannot be read: No such file or directory (os error 2)",
        ),
        (
            of(good.certificate.clone(), other.key.clone()),
            "tls.certificates[1].key: other.key: the key does not belong to the certificate in good.pem (keys may not \
             be consistent: KeyMismatch)",
        ),
        (
            said("", false),
            "tls.certificates[1].certificate: bad: holds no \"BEGIN CERTIFICATE\" section",
        ),
        (
            said("-----BEGIN CERTIFICATE-----\n", false),
            "tls.certificates[1].certificate: bad: is no PEM file: the section \"CERTIFICATE\" has no end",
        ),
        (
            said(garbage, false),
            "tls.certificates[1].certificate: bad: the first certificate cannot be read: ",
        ),
        (said("", true), &format!("tls.certificates[1].key: bad: {NO_KEY}")),
        (said(encrypted, true), &format!("tls.certificates[1].key: bad: {NO_KEY}")),
        (
            said(no_key, true),
            "tls.certificates[1].key: bad: the key is of no kind that can be used here: ",
        ),
    ] {
        assert!(said.starts_with(expected), "{said}\n not {expected}");
    }
}

#[test]
fn suites_are_chosen_by_us_but_for_chacha20_first() {
    let authority = Authority::new("ca");
    let contexts = contexts(&config(vec![authority.files("c", &["gate.example"])]));
    let aes = super::super::config::has_aes();
    for (version, chacha_first, expected) in [
        (TlsVersion::Tls13, false, CipherSuite::TLS13_AES_128_GCM_SHA256),
        (TlsVersion::Tls13, true, CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
        (TlsVersion::Tls12, false, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
        (TlsVersion::Tls12, true, CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ] {
        let client = ClientOf { version: Some(version), ..ClientOf::default() }.config(&authority);
        let server = contexts.current(Spoken::Frames, chacha_first, false);
        assert!(server.enable_secret_extraction && !server.send_half_rtt_data);
        assert_eq!(server.max_early_data_size, 0);
        let pair = shake_with(server, &client, "gate.example").unwrap();
        if aes || chacha_first {
            assert_eq!(pair.server.negotiated_cipher_suite().unwrap().suite(), expected);
        }
    }
}

#[test]
fn old_versions_and_protocols_are_as_configured() {
    let authority = Authority::new("ca");
    let mut config = config(vec![authority.files("c", &["gate.example"])]);
    let client = |version, alpn| {
        ClientOf { version: Some(version), alpn, ..ClientOf::default() }.config(&authority)
    };
    let (old, new) = (TlsVersion::Tls12, TlsVersion::Tls13);
    let both = contexts(&config);
    let pair = shake(&both, &client(old, &["weir.v1"]), "gate.example").unwrap();
    assert_eq!(pair.server.protocol_version(), Some(ProtocolVersion::TLSv1_2));
    assert_eq!(pair.server.alpn_protocol(), Some(&b"weir.v1"[..]));
    let pair = shake(&both, &client(new, &[]), "gate.example").unwrap();
    assert_eq!(pair.server.alpn_protocol(), None);
    assert!(shake(&both, &client(new, &["h2"]), "gate.example").is_err());
    config.tls.min_version = TlsVersion::Tls13;
    let new_only = contexts(&config);
    assert!(shake(&new_only, &client(old, &[]), "gate.example").is_err());
    assert!(shake(&new_only, &client(new, &[]), "gate.example").is_ok());
}
