//! Tests of the errors of tokens of the admin API with bad values.

use super::*;
use crate::token_hash;

fn with_tokens(before: &str, tokens: &[String]) -> String {
    said(&format!(r#"{{{before}"admin": {{"token": "all", "tokens": [{}]}}}}"#, tokens.join(",")))
}

fn token(name: &str, secret: &str, may: &str) -> String {
    format!(r#"{{"name": "{name}", "hash": "{}", "may": [{may}]}}"#, token_hash(secret))
}

#[test]
fn named_tokens() {
    let long = "n".repeat(64);
    let good = [token("ci", "c", r#""read""#), token(&long, "o", r#""publish", "operate""#)];
    assert_eq!(with_tokens("", &good), "");
    let services = r#""auth": {"services": [{"token": "s", "name": "chat", "may": ["events"]}]}, "#;
    let visible = "1 to 64 visible ASCII characters, without spaces";
    let hash = "(hidden): allowed is";
    for (token, expected) in [
        (token("", "c", r#""read""#), format!("name = \"\": allowed is {visible}")),
        (token("two words", "c", r#""read""#), format!("name = \"two words\": allowed is {visible}")),
        (token("caf\u{e9}", "c", r#""read""#), format!("name = \"caf\u{e9}\": allowed is {visible}")),
        (
            token(&format!("{long}n"), "c", r#""read""#),
            format!("name = \"{long}n\": allowed is {visible}"),
        ),
        (
            token("nobody", "c", r#""read""#),
            "name = \"nobody\": allowed is a name that the audit log does not give to others, as it does to \
             admin, anyone and nobody"
                .to_owned(),
        ),
        (
            token("chat", "c", r#""read""#),
            "name = \"chat\": allowed is a name of its own: auth.services[0] has this one".to_owned(),
        ),
        (
            token("first", "c", r#""read""#),
            "name = \"first\": allowed is a name of its own: admin.tokens[0] has this one".to_owned(),
        ),
        (
            r#"{"name": "ci", "hash": "the-token-itself", "may": ["read"]}"#.to_owned(),
            format!(
                "hash = {hash} sha256: and the 64 hexadecimal digits of the token's SHA-256, as `weir token` prints it"
            ),
        ),
        (token("ci", "", r#""read""#), format!("hash = {hash} the hash of a token, not of an empty text")),
        (
            token("ci", "f", r#""read""#),
            format!("hash = {hash} the hash of a token of its own: admin.tokens[0].hash is the same token"),
        ),
        (
            token("ci", "all", r#""read""#),
            format!("hash = {hash} the hash of a token of its own: admin.token is the same token"),
        ),
        (
            token("ci", "s", r#""read""#),
            format!("hash = {hash} the hash of a token of its own: auth.services[0].token is the same token"),
        ),
        (
            token("ci", "c", ""),
            "may = []: allowed is at least one of read, publish, operate and devices".to_owned(),
        ),
        (
            token("ci", "c", r#""read", "operate", "read""#),
            "may[2] = \"read\": allowed is each word once, and this one is repeated".to_owned(),
        ),
    ] {
        let first = self::token("first", "f", r#""read""#);
        let message = with_tokens(services, &[first, token.clone()]);
        assert_eq!(message, format!("admin.tokens[1].{expected}"), "{token}");
    }
}

#[test]
fn there_are_at_most_64_tokens() {
    let many = |count: u32| {
        let tokens =
            (0..count).map(|number| token(&number.to_string(), &format!("t{number}"), r#""read""#));
        with_tokens("", &tokens.collect::<Vec<_>>())
    };
    assert_eq!(many(64), "");
    let refused = many(65);
    assert!(refused.starts_with("admin.tokens = (65 tokens): allowed is at most 64"), "{refused}");
}

#[test]
fn an_address_beyond_loopback_needs_a_token() {
    let with = |admin: &str| {
        said(&format!(r#"{{"listen": {{"admin": "0.0.0.0:7090"}}, "admin": {admin}}}"#))
    };
    assert_eq!(with(r#"{"token": "t"}"#), "");
    assert_eq!(with(&format!(r#"{{"tokens": [{}]}}"#, token("ci", "c", r#""read""#))), "");
    let refused = with("{}");
    let says = "admin.token = \"\": allowed is a token, here or in [[admin.tokens]]";
    assert!(refused.starts_with(says), "{refused}");
}
