//! Clients' certificates: the admitted ones, and the devices that they name.

use super::authority::Leaf;
use super::*;
use crate::base::config::{ClientAuth, ClientIdentity};

const DAY: i64 = 86_400;

/// A gateway that asks clients for certificates of `authority`.
fn asking(authority: &Authority, client_auth: ClientAuth) -> Config {
    let mut config = config(vec![authority.files("c", &["gate.example"])]);
    config.tls.client_auth = client_auth;
    config.tls.client_ca = authority.bundle();
    config
}

/// A handshake with a client that shows this certificate.
fn shown(
    contexts: &Contexts,
    authority: &Authority,
    leaf: &Leaf<'_>,
) -> Result<Pair, rustls::Error> {
    let client = ClientOf { identity: Some(authority.identity(leaf)), ..ClientOf::default() };
    shake(contexts, &client.config(authority), "gate.example")
}

#[test]
fn who_has_to_show_a_certificate_has_to_show_a_valid_one() {
    let (authority, stranger) = (Authority::new("ca"), Authority::new("stranger"));
    let good = || authority.identity(&Leaf::default());
    let expired = || authority.identity(&Leaf { valid_secs: Some(-DAY), ..Leaf::default() });
    let foreign = || stranger.identity(&Leaf::default());
    use ClientAuth::{Off, Optional, Required};
    for (auth, identity, is_let_in) in [
        (Off, None, true),
        (Off, Some(foreign()), true),
        (Optional, None, true),
        (Optional, Some(good()), true),
        (Optional, Some(foreign()), false),
        (Required, None, false),
        (Required, Some(good()), true),
        (Required, Some(expired()), false),
        (Required, Some(foreign()), false),
    ] {
        let contexts = contexts(&asking(&authority, auth));
        for version in TlsVersion::ALL {
            let identity = identity.as_ref().map(|(chain, key)| (chain.clone(), key.clone_key()));
            let client = ClientOf { identity, version: Some(version), ..ClientOf::default() };
            let shaken = shake(&contexts, &client.config(&authority), "gate.example");
            assert_eq!(shaken.is_ok(), is_let_in, "{auth:?} {:?}", shaken.err());
        }
    }
}

#[test]
fn revoked_certificates_are_refused_and_so_is_everyone_when_the_list_has_ended() {
    let authority = Authority::new("ca");
    let with_list = |list: &str| {
        let mut config = asking(&authority, ClientAuth::Optional);
        config.tls.client_crl = authority.write("crl.pem", list);
        config
    };
    let good = Leaf { serial: 7, ..Leaf::default() };
    let bad = Leaf { serial: 8, ..Leaf::default() };
    let fresh = contexts(&with_list(&authority.revocation_list(&[8], DAY)));
    assert!(shown(&fresh, &authority, &good).is_ok());
    assert!(shown(&fresh, &authority, &bad).is_err());
    let ended = contexts(&with_list(&authority.revocation_list(&[], -60)));
    assert!(shown(&ended, &authority, &good).is_err());
    assert!(shake(&ended, &client(&authority), "gate.example").is_ok());

    let foreign = Authority::new("stranger").revocation_list(&[], DAY);
    for (list, expected) in [
        (
            foreign.as_str(),
            "holds no list of the authority \"CN=ca\" of tls.client_ca: its clients would all be refused",
        ),
        ("", "holds no \"BEGIN X509 CRL\" section"),
        ("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "a list cannot be read: "),
    ] {
        let said = refused(&with_list(list), authority.path());
        let expected = format!("tls.client_crl: crl.pem: {expected}");
        assert!(said.starts_with(&expected), "{said}\n not {expected}");
    }
}

#[test]
fn a_bundle_that_is_none_is_refused() {
    let authority = Authority::new("ca");
    for (text, expected) in [
        ("", "holds no \"BEGIN CERTIFICATE\" section"),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "an authority cannot be used: ",
        ),
    ] {
        let mut config = asking(&authority, ClientAuth::Required);
        config.tls.client_ca = authority.write("bundle.pem", text);
        let said = refused(&config, authority.path());
        let expected = format!("tls.client_ca: bundle.pem: {expected}");
        assert!(said.starts_with(&expected), "{said}\n not {expected}");
    }
}

#[test]
fn a_certificate_names_a_device() {
    let authority = Authority::new("ca");
    let long = "d".repeat(129);
    let full = Leaf {
        names: &["dns-1", "dns-2"],
        common_name: Some("van-7"),
        uris: &["urn:dev:1", "urn:dev:2"],
        ..Leaf::default()
    };
    let bare = Leaf { common_name: Some(""), ..Leaf::default() };
    let too_long = Leaf { common_name: Some(&long), ..Leaf::default() };
    let unsayable = Leaf { common_name: Some("van\n7"), ..Leaf::default() };
    let expired = Leaf { common_name: Some("van-7"), valid_secs: Some(-DAY), ..Leaf::default() };
    use ClientIdentity::{CommonName, None as Nobody, SanDns, SanUri};
    use NoIdentity::{BadName, Expired, NoName};
    for (part, leaf, expected) in [
        (Nobody, &full, Ok(None)),
        (CommonName, &full, Ok(Some("van-7"))),
        (SanDns, &full, Ok(Some("dns-1"))),
        (SanUri, &full, Ok(Some("urn:dev:1"))),
        (CommonName, &bare, Err(BadName)),
        (SanDns, &bare, Err(NoName)),
        (SanUri, &bare, Err(NoName)),
        (CommonName, &too_long, Err(BadName)),
        (CommonName, &unsayable, Err(BadName)),
        (CommonName, &expired, Err(Expired)),
        (Nobody, &expired, Err(Expired)),
    ] {
        let mut config = asking(&authority, ClientAuth::Optional);
        config.tls.client_identity = part;
        let (chain, _) = authority.identity(leaf);
        let identity = contexts(&config).identity(&chain);
        assert_eq!(identity.as_ref().map(Option::as_deref), expected.as_ref().map(|it| *it));
    }
    let mut config = asking(&authority, ClientAuth::Optional);
    config.tls.client_identity = CommonName;
    assert_eq!(contexts(&config).identity(&[]), Ok(None));
    assert_eq!(contexts(&config).identity(&[vec![0; 9].into()]), Err(NoName));
}
