//! Tests of `[tls]` and of addresses with TLS.

use super::*;

/// Checks the error of a section `[tls]` with these members.
fn check_tls(cases: &[(&str, &str)]) {
    for (members, expected) in cases {
        assert_eq!(said(&format!(r#"{{"tls": {{{members}}}}}"#)), *expected, "{members}");
    }
}

#[test]
fn times_counts_and_secrets() {
    let long = "s".repeat(4_097);
    check_tls(&[
        (r#""ticket_secret": "0123456789abcdef0123456789abcdef""#, ""),
        (
            r#""ticket_secret": "0123456789abcdef0123456789abcde""#,
            "tls.ticket_secret = (31 bytes): allowed is 32 to 4096 bytes (openssl rand -hex 32), or an empty text for a \
             random one",
        ),
        (
            &format!(r#""ticket_secret": "{long}""#),
            "tls.ticket_secret = (4097 bytes): allowed is 32 to 4096 bytes (openssl rand -hex 32), or an empty text for \
             a random one",
        ),
        (r#""ticket_rotation": "999ms""#, "tls.ticket_rotation = 999ms: allowed is 1s to 302400s"),
        (r#""ticket_rotation": "85h""#, "tls.ticket_rotation = 306000s: allowed is 1s to 302400s"),
        (r#""reload_interval": "99ms""#, "tls.reload_interval = 99ms: allowed is 100ms to 3600s"),
        (
            r#""session_cache_max": 1000001"#,
            "tls.session_cache_max = 1000001: allowed is 0 to 1000000",
        ),
        (r#""handshake_threads": 257"#, "tls.handshake_threads = 257: allowed is 0 to 256"),
        (r#""handshake_queue_max": 0"#, "tls.handshake_queue_max = 0: allowed is 1 to 1000000"),
    ]);
}

#[test]
fn sessions_belong_to_a_node_or_to_the_cluster() {
    const SECRET: &str = r#""ticket_secret": "0123456789abcdef0123456789abcdef""#;
    const SHARED: &str = r#""session_cache": "cluster""#;
    let cluster = r#", "cluster": {"redis": "redis://a"}"#;
    for (members, section, expected) in [
        (r#""session_cache": "node""#.to_owned(), "", ""),
        (format!("{SHARED}, {SECRET}"), cluster, ""),
        (
            format!("{SHARED}, {SECRET}"),
            "",
            "tls.session_cache = \"cluster\": allowed is \"node\" while cluster.redis is empty: this node belongs to \
             no cluster",
        ),
        (
            SHARED.to_owned(),
            cluster,
            "tls.ticket_secret = (0 bytes): allowed is 32 to 4096 bytes (openssl rand -hex 32), the same at all nodes, \
             since tls.session_cache = \"cluster\": sessions are sealed with keys made from it",
        ),
        (
            format!(r#"{SHARED}, {SECRET}, "session_cache_max": 0"#),
            cluster,
            "tls.session_cache_max = 0: allowed is at least 1 while tls.session_cache = \"cluster\": with 0 no session \
             is kept",
        ),
    ] {
        let members = format!(r#"{{"tls": {{{members}}}{section}}}"#);
        assert_eq!(said(&members), expected, "{members}");
    }
}

#[test]
fn protocols() {
    let long = "p".repeat(256);
    let many: Vec<String> = (0..17).map(|number| format!("\"{number}\"")).collect();
    check_tls(&[
        (r#""alpn": []"#, ""),
        (r#""alpn": ["weir.v1", "h2"]"#, ""),
        (
            &format!(r#""alpn": [{}]"#, many.join(",")),
            "tls.alpn = (17 protocols): allowed is at most 16",
        ),
        (
            r#""alpn": ["a", ""]"#,
            "tls.alpn[1] = \"\": allowed is 1 to 255 bytes without control characters",
        ),
        (
            &format!(r#""alpn": ["{long}"]"#),
            &format!(
                "tls.alpn[0] = \"{long}\": allowed is 1 to 255 bytes without control characters"
            ),
        ),
        (
            r#""alpn": ["a", "b", "a"]"#,
            "tls.alpn[2] = \"a\": allowed is each word once, and this one is repeated",
        ),
    ]);
}

#[test]
fn clients() {
    const NOT_ASKED: &str =
        "while tls.client_auth = \"off\": clients are not asked for a certificate";
    check_tls(&[
        (r#""client_auth": "optional", "client_ca": "ca.pem", "client_crl": "crl.pem""#, ""),
        (r#""client_auth": "required", "client_ca": "ca.pem", "client_identity": "san_uri""#, ""),
        (
            r#""client_auth": "required""#,
            "tls.client_ca = \"\": allowed is the path of a PEM file with the authorities of clients' certificates, \
             since tls.client_auth = \"required\"",
        ),
        (
            r#""client_ca": "ca.pem""#,
            &format!("tls.client_ca = \"ca.pem\": allowed is an empty text {NOT_ASKED}"),
        ),
        (
            r#""client_crl": "crl.pem""#,
            &format!("tls.client_crl = \"crl.pem\": allowed is an empty text {NOT_ASKED}"),
        ),
        (
            r#""client_identity": "common_name""#,
            &format!("tls.client_identity = \"common_name\": allowed is \"none\" {NOT_ASKED}"),
        ),
    ]);
}

#[test]
fn certificates() {
    let many: Vec<&str> = vec![r#"{"certificate": "c", "key": "k"}"#; 1_025];
    check_tls(&[
        (r#""certificates": [{"certificate": "c.pem", "key": "c.key"}]"#, ""),
        (
            r#""certificates": [{"certificate": "", "key": "c.key"}]"#,
            "tls.certificates[0].certificate = \"\": allowed is the path of a PEM file",
        ),
        (
            r#""certificates": [{"certificate": "c.pem", "key": ""}]"#,
            "tls.certificates[0].key = \"\": allowed is the path of a PEM file",
        ),
        (
            &format!(r#""certificates": [{}]"#, many.join(",")),
            "tls.certificates = (1025 certificates): allowed is at most 1024",
        ),
    ]);
}

#[test]
fn addresses_with_tls() {
    let exposed = |tls: &str, auth: &str| {
        said(&format!(
            r#"{{"listen": {{"tls": ["0.0.0.0:7443"]}}, "tls": {{{tls}}}, "auth": {{{auth}}}}}"#
        ))
    };
    const CERTIFICATE: &str = r#""certificates": [{"certificate": "c", "key": "k"}]"#;
    const TOKEN: &str = r#""tokens": [{"token": "t"}]"#;
    let by_certificate = format!(
        r#"{CERTIFICATE}, "client_auth": "required", "client_ca": "ca", "client_identity": "san_dns""#
    );
    for (tls, auth, expected) in [
        (CERTIFICATE, TOKEN, ""),
        (r#""development_certificate_anywhere": true"#, TOKEN, ""),
        (&by_certificate, "", ""),
        (
            "",
            TOKEN,
            "tls.certificates = []: allowed is at least one certificate, since 0.0.0.0:7443 of listen.tls is not on \
             loopback: no authority has signed the development certificate; set [[tls.certificates]], or \
             tls.development_certificate_anywhere = true",
        ),
        (
            CERTIFICATE,
            "",
            "auth.tokens = []: allowed is at least one token, since 0.0.0.0:7443 of listen.tls is not on loopback; set \
             [[auth.tokens]]",
        ),
        (
            CERTIFICATE,
            r#""anonymous": true"#,
            "auth.anonymous = true: allowed is true only while every address of listen.tls is on loopback, and \
             0.0.0.0:7443 is not: set auth.tokens and leave auth.anonymous out, or listen on 127.0.0.1 or [::1]",
        ),
        (
            &format!(r#"{CERTIFICATE}, "ticket_secret": "REPLACE-with-openssl-rand-hex-32""#),
            TOKEN,
            "tls.ticket_secret = (hidden): allowed is a secret of your own (openssl rand -hex 32), since 0.0.0.0:7443 is \
             not on loopback: a text that begins with REPLACE- comes from a public example",
        ),
    ] {
        assert_eq!(exposed(tls, auth), expected, "{tls} {auth}");
    }
    check_all(&[
        (r#"{"listen": {"tcp": [], "tls": ["127.0.0.1:0"]}}"#, ""),
        (
            r#"{"listen": {"tcp": [], "http": []}}"#,
            "listen.tcp = []: allowed is at least one address, here or in listen.tls, listen.http or listen.https",
        ),
        (
            r#"{"listen": {"https": ["0.0.0.0:8443"]}, "auth": {"tokens": [{"token": "t"}]}}"#,
            "tls.certificates = []: allowed is at least one certificate, since 0.0.0.0:8443 of listen.https is not on \
             loopback: no authority has signed the development certificate; set [[tls.certificates]], or \
             tls.development_certificate_anywhere = true",
        ),
        // Devices with certificates connect over TLS.
        (
            &format!(
                r#"{{"listen": {{"tcp": [], "http": ["0.0.0.0:8080"], "tls": ["0.0.0.0:7443"]}}, "tls": {{{by_certificate}}}}}"#
            ),
            "auth.tokens = []: allowed is at least one token, since 0.0.0.0:7443 of listen.tls is not on loopback; set \
             [[auth.tokens]]",
        ),
        // Certificates do not identify connections without TLS.
        (
            &format!(
                r#"{{"listen": {{"tcp": ["0.0.0.0:0"], "tls": ["127.0.0.1:0"]}}, "tls": {{{by_certificate}}}}}"#
            ),
            "auth.tokens = []: allowed is at least one token, since 0.0.0.0:0 of listen.tcp is not on loopback; set \
             [[auth.tokens]]",
        ),
    ]);
}
