//! Resumption of sessions: where it is possible, and where it must not be.

use rustls::HandshakeKind;
use rustls::client::Tls12Resumption;
use weir_wire::ProstMessage as _;
use weir_wire::handover::v1;

use super::authority::Leaf;
use super::*;
use crate::base::config::ClientAuth;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn with_secret(authority: &Authority, secret: &str) -> Config {
    let mut config = config(vec![authority.files("c", &["gate.example"])]);
    config.tls.ticket_secret = secret.to_owned();
    config
}

/// A full handshake with one gateway, then one with another.
fn second_kind(first: &Contexts, second: &Contexts, client: &Arc<ClientConfig>) -> HandshakeKind {
    let kind = |contexts| shake(contexts, client, "gate.example").unwrap().server.handshake_kind();
    assert_eq!(kind(first), Some(HandshakeKind::Full));
    kind(second).unwrap()
}

#[test]
fn a_session_is_resumed_by_every_node_with_the_secret() {
    let authority = Authority::new("ca");
    for version in TlsVersion::ALL {
        let client =
            || ClientOf { version: Some(version), ..ClientOf::default() }.config(&authority);
        let node = || contexts(&with_secret(&authority, SECRET));
        let random = || contexts(&with_secret(&authority, ""));
        let itself = random();
        assert_eq!(second_kind(&node(), &node(), &client()), HandshakeKind::Resumed);
        assert_eq!(second_kind(&itself, &itself, &client()), HandshakeKind::Resumed);
        assert_eq!(second_kind(&random(), &random(), &client()), HandshakeKind::Full);
        assert_eq!(second_kind(&node(), &random(), &client()), HandshakeKind::Full);
    }
}

/// A ticket does not bypass rules that have changed.
#[test]
fn a_session_is_not_resumed_under_other_rules_for_clients() {
    let authority = Authority::new("ca");
    let leaf = Leaf { serial: 8, ..Leaf::default() };
    let mut config = with_secret(&authority, SECRET);
    config.tls.client_auth = ClientAuth::Optional;
    config.tls.client_ca = authority.bundle();
    let lax = contexts(&config);
    for version in TlsVersion::ALL {
        let client = |identity| {
            ClientOf { identity, version: Some(version), ..ClientOf::default() }.config(&authority)
        };
        // No anonymous client's ticket passes if a certificate is required.
        config.tls.client_auth = ClientAuth::Required;
        let strict = contexts(&config);
        let stranger = client(None);
        assert!(shake(&lax, &stranger, "gate.example").is_ok());
        assert!(shake(&strict, &stranger, "gate.example").is_err());
        // Nor does a ticket of a certificate that has been revoked meanwhile.
        let device = client(Some(authority.identity(&leaf)));
        assert_eq!(second_kind(&strict, &strict, &device), HandshakeKind::Resumed);
        let mut revoking = config.clone();
        revoking.tls.client_crl =
            authority.write("crl.pem", &authority.revocation_list(&[8], 86_400));
        assert!(shake(&contexts(&revoking), &device, "gate.example").is_err());
    }
}

/// A resumption does not look into revocation lists. Once a list has ended, all clients are checked
/// again, and refused.
#[test]
fn no_session_is_resumed_when_a_revocation_list_has_ended() {
    let authority = Authority::new("ca");
    let mut config = with_secret(&authority, SECRET);
    config.tls.client_auth = ClientAuth::Optional;
    config.tls.client_ca = authority.bundle();
    for (valid_secs, expected) in [(3_600, HandshakeKind::Resumed), (-60, HandshakeKind::Full)] {
        let list = authority.revocation_list(&[], valid_secs);
        config.tls.client_crl = authority.write("crl.pem", &list);
        let contexts = contexts(&config);
        for version in TlsVersion::ALL {
            for of_tls12 in [Tls12Resumption::SessionIdOnly, Tls12Resumption::SessionIdOrTickets] {
                let client = ClientOf { version: Some(version), ..ClientOf::default() };
                let mut client = (*client.config(&authority)).clone();
                client.resumption = Resumption::in_memory_sessions(8).tls12_resumption(of_tls12);
                let kind = second_kind(&contexts, &contexts, &Arc::new(client));
                assert_eq!(kind, expected, "{version:?} {of_tls12:?}");
            }
        }
    }
}

/// Clients that take tickets do not displace the sessions of other clients.
#[test]
fn sessions_are_kept_for_clients_without_tickets_only() {
    let authority = Authority::new("ca");
    let mut config = with_secret(&authority, SECRET);
    config.tls.session_cache_max = 1;
    let contexts = contexts(&config);
    let client = |of_tls12| {
        let client = ClientOf { version: Some(TlsVersion::Tls12), ..ClientOf::default() };
        let mut client = (*client.config(&authority)).clone();
        client.resumption = Resumption::in_memory_sessions(8).tls12_resumption(of_tls12);
        Arc::new(client)
    };
    let shake = |client: &Arc<ClientConfig>, takes_tickets| {
        let config = contexts.current(Spoken::Frames, false, takes_tickets);
        shake_with(config, client, "gate.example").unwrap().server.handshake_kind().unwrap()
    };
    let by_id = client(Tls12Resumption::SessionIdOnly);
    shake(&by_id, false);
    for _ in 0..20 {
        let by_ticket = client(Tls12Resumption::SessionIdOrTickets);
        assert_eq!(shake(&by_ticket, true), HandshakeKind::Full);
        assert_eq!(shake(&by_ticket, true), HandshakeKind::Resumed);
    }
    assert_eq!(shake(&by_id, false), HandshakeKind::Resumed);
}

/// After a resumption the server still knows the client.
#[test]
fn a_resumed_session_has_the_client_s_certificate() {
    let authority = Authority::new("ca");
    let mut config = with_secret(&authority, SECRET);
    config.tls.client_auth = ClientAuth::Required;
    config.tls.client_ca = authority.bundle();
    let contexts = contexts(&config);
    let identity = authority.identity(&Leaf::default());
    let chain = identity.0.clone();
    let client = ClientOf { identity: Some(identity), ..ClientOf::default() }.config(&authority);
    shake(&contexts, &client, "gate.example").unwrap();
    let pair = shake(&contexts, &client, "gate.example").unwrap();
    assert_eq!(pair.server.handshake_kind(), Some(HandshakeKind::Resumed));
    assert_eq!(pair.server.peer_certificates(), Some(&chain[..]));
}

/// The contexts of a process that takes over from another.
fn moved(first: &Contexts, config: &Config) -> Contexts {
    let bytes = first.export().encode_to_vec();
    let second = contexts(config);
    second.import(v1::TlsSessions::decode(&*bytes).unwrap()).unwrap();
    second
}

#[test]
fn sessions_are_resumed_by_the_process_that_takes_over() {
    let authority = Authority::new("ca");
    for (secret, next) in [("", ""), (SECRET, SECRET), (SECRET, ""), ("", SECRET)] {
        for version in TlsVersion::ALL {
            for of_tls12 in [Tls12Resumption::SessionIdOnly, Tls12Resumption::SessionIdOrTickets] {
                let first = contexts(&with_secret(&authority, secret));
                let client = ClientOf { version: Some(version), ..ClientOf::default() };
                let mut client = (*client.config(&authority)).clone();
                client.resumption = Resumption::in_memory_sessions(8).tls12_resumption(of_tls12);
                let client = Arc::new(client);
                let kind = |contexts: &Contexts| {
                    shake(contexts, &client, "gate.example").unwrap().server.handshake_kind()
                };
                assert_eq!(kind(&first), Some(HandshakeKind::Full));
                let second = moved(&first, &with_secret(&authority, next));
                // Sessions move whatever the secret is.
                let is_stored = version == TlsVersion::Tls12
                    && matches!(of_tls12, Tls12Resumption::SessionIdOnly);
                let expected = match secret == next || is_stored {
                    true => HandshakeKind::Resumed,
                    false => HandshakeKind::Full,
                };
                assert_eq!(kind(&second), Some(expected), "{version:?} {of_tls12:?} {next:?}");
                assert_eq!(kind(&second), Some(HandshakeKind::Resumed));
                // Neither do they get lost on the way back.
                let third = moved(&second, &with_secret(&authority, next));
                assert_eq!(kind(&third), Some(HandshakeKind::Resumed));
            }
        }
    }
}

#[test]
fn a_policy_that_the_new_process_does_not_have_resumes_nothing() {
    let authority = Authority::new("ca");
    let lax = with_secret(&authority, "");
    let mut strict = lax.clone();
    strict.tls.client_auth = ClientAuth::Required;
    strict.tls.client_ca = authority.bundle();
    for version in TlsVersion::ALL {
        let first = contexts(&lax);
        let client = ClientOf { version: Some(version), ..ClientOf::default() }.config(&authority);
        assert!(shake(&first, &client, "gate.example").is_ok());
        assert!(shake(&moved(&first, &strict), &client, "gate.example").is_err());
    }
}

#[test]
fn damaged_sessions_are_refused() {
    let authority = Authority::new("ca");
    let config = with_secret(&authority, "");
    let exported = contexts(&config).export();
    let damages: &[fn(&mut v1::TlsSessions)] = &[
        |sessions| sessions.ticket_secret.truncate(31),
        |sessions| sessions.ids.push(vec![0; 32]),
        |sessions| (sessions.ids, sessions.states) = (vec![vec![0; 33]], vec![vec![0]]),
    ];
    for (nth, damage) in damages.iter().enumerate() {
        let mut sessions = exported.clone();
        damage(&mut sessions);
        assert!(contexts(&config).import(sessions).is_err(), "damage {nth}");
    }
    // rustls does not know this state, and makes a full handshake.
    let mut odd = exported;
    (odd.ids, odd.states) = (vec![vec![7; 32]], vec![vec![1, 2, 3]]);
    contexts(&config).import(odd).unwrap();
}
