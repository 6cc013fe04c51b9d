//! Tests of `[auth.jwt]`.

use super::*;

/// Checks the error of a section with these members.
fn check_jwt(cases: &[(&str, &str)]) {
    for (members, expected) in cases {
        assert_eq!(
            said(&format!(r#"{{"auth": {{"jwt": {{{members}}}}}}}"#)),
            *expected,
            "{members}"
        );
    }
}

fn key(members: &str) -> String {
    format!(r#"{{"algorithm": "ES256", {members}}}"#)
}

#[test]
fn keys_and_claims() {
    let named = key(r#""file": "a.pem", "kid": "a""#);
    let plain = key(r#""file": "a.pem""#);
    let list = |keys: &[&str]| format!(r#""keys": [{}]"#, keys.join(","));
    check_jwt(&[
        (&list(&[&plain, &plain, &named]), ""),
        (
            &list(&[&named, &plain, &named]),
            "auth.jwt.keys[2].kid = \"a\": allowed is a name of its own: auth.jwt.keys[0] has this one",
        ),
        (
            &list(&[&key(r#""file": "a.pem", "kid": """#)]),
            "auth.jwt.keys[0].kid = \"\": allowed is 1 to 1024 bytes without control characters, or absent",
        ),
        (
            &list(&[&key(r#""file": """#)]),
            "auth.jwt.keys[0].file = \"\": allowed is the path of a file with the key",
        ),
        (
            &list(&[&*plain; 17]),
            "auth.jwt.keys = (17 keys): allowed is at most 16: a token without a kid may need all of them",
        ),
        (
            r#""device_claim": """#,
            "auth.jwt.device_claim = \"\": allowed is 1 to 128 bytes without control characters",
        ),
        (
            r#""labels_claim": "sub""#,
            "auth.jwt.labels_claim = \"sub\": allowed is a claim of its own, and auth.jwt.device_claim has this one",
        ),
        (
            r#""issuer": "a\n""#,
            "auth.jwt.issuer = \"a\\n\": allowed is empty, or at most 1024 bytes without control characters",
        ),
        (r#""token_bytes_max": 511"#, "auth.jwt.token_bytes_max = 511: allowed is 512 to 65536"),
        (r#""leeway": "301s""#, "auth.jwt.leeway = 301s: allowed is 0ns to 300s (5 minutes)"),
        (
            r#""reload_interval": "999ms""#,
            "auth.jwt.reload_interval = 999ms: allowed is 1s to 86400s",
        ),
    ]);
}

#[test]
fn issuers() {
    let with = |auth: &str, issuers: &[&str]| {
        let issuers = issuers.join(",");
        said(&format!(
            r#"{{"upstreams": [{{"name": "login", "addresses": ["127.0.0.1:1"]}}],
                "auth": {{"jwt": {{{auth} "issuers": [{issuers}]}}}}}}"#
        ))
    };
    let named =
        |name: &str, rest: &str| format!(r#"{{"issuer": "{name}", "upstream": "login"{rest}}}"#);
    let (one, two) = (named("a", ""), named("b", r#", "path": "/k?of=weir", "audience": "w""#));
    assert_eq!(with("", &[&one, &two]), "");
    let issuers = |issuer: &str| with("", &[&one, issuer]);
    for (refused, expected) in [
        (
            issuers(&named("a", "")),
            "issuers[1].issuer = \"a\": allowed is an issuer of its own: auth.jwt.issuers[0] has this one",
        ),
        (
            with(r#""issuer": "a","#, &[&one]),
            "issuers[0].issuer = \"a\": allowed is an issuer of its own: auth.jwt.issuer has this one",
        ),
        (
            issuers(&named("", "")),
            "issuers[1].issuer = \"\": allowed is 1 to 1024 bytes without control characters",
        ),
        (
            issuers(r#"{"issuer": "b", "upstream": "logn"}"#),
            "issuers[1].upstream = \"logn\": allowed is the name of one of [[upstreams]]: login",
        ),
        (
            issuers(&named("b", r#", "path": "keys""#)),
            "issuers[1].path = \"keys\": allowed is a path that begins with /, of 1024 bytes at most, without #",
        ),
        (
            issuers(&named("b", r#", "path": "/a b""#)),
            "issuers[1].path = \"/a b\": allowed is a path that begins with /, of 1024 bytes at most, without #",
        ),
        (
            issuers(&named("b", r#", "audience": "a\n""#)),
            "issuers[1].audience = \"a\\n\": allowed is empty, or at most 1024 bytes without control characters",
        ),
        (
            issuers(&named("b", r#", "refresh": "25h""#)),
            "issuers[1].refresh = 90000s: allowed is 1s to 86400s",
        ),
    ] {
        assert_eq!(refused, format!("auth.jwt.{expected}"));
    }
}

#[test]
fn who_issues_tokens_may_know_other_labels() {
    let class = r#""topic_classes": [{"pattern": "a", "subscribe": ["label:LABEL"]}]"#;
    let with =
        |label: &str, auth: &str| said(&format!("{{{}{auth}}}", class.replace("LABEL", label)));
    let keys = format!(r#", "auth": {{"jwt": {{"keys": [{}]}}}}"#, key(r#""file": "a.pem""#));
    let issuers = r#", "upstreams": [{"name": "u", "addresses": ["127.0.0.1:1"]}],
        "auth": {"jwt": {"issuers": [{"issuer": "i", "upstream": "u"}]}}"#;
    assert!(with("vip", "").contains("no token in auth.tokens has labels"));
    assert_eq!(with("vip", &keys), "");
    assert_eq!(with("vip", issuers), "");
    // A column of imported devices.
    assert_eq!(with("role=driver", ""), "");
    assert_eq!(
        said(r#"{"auth": {"expiring_notice": "25h"}}"#),
        "auth.expiring_notice = 90000s: allowed is 0ns to 86400s (a day)"
    );
}
