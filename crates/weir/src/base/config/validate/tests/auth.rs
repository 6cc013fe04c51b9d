//! Tests of the errors of tokens and services with bad values.

use super::*;

#[test]
fn tokens() {
    check_all(&[
        (r#"{"auth": {"tokens": [{"token": "t", "labels": ["driver"], "priority": "high"}]}}"#, ""),
        (
            r#"{"auth": {"tokens": [{"token": ""}]}}"#,
            "auth.tokens[0].token = (0 bytes): allowed is 1 to 4096 bytes",
        ),
        (
            r#"{"auth": {"tokens": [{"token": "t"}, {"token": "t"}]}}"#,
            "auth.tokens[1].token = (hidden): allowed is a token of its own: auth.tokens[0].token has the same one",
        ),
        (
            r#"{"admin": {"token": "t"}, "auth": {"tokens": [{"token": "t"}]}}"#,
            "auth.tokens[0].token = (hidden): allowed is a token of its own: admin.token has the same one",
        ),
        (
            r#"{"auth": {"tokens": [{"token": "t", "labels": ["driver", ""]}]}}"#,
            "auth.tokens[0].labels[1] = \"\": allowed is 1 to 64 bytes without control characters",
        ),
        (
            r#"{"auth": {"tokens": [{"token": "t", "labels": ["dri\nver"]}]}}"#,
            "auth.tokens[0].labels[0] = \"dri\\nver\": allowed is 1 to 64 bytes without control characters",
        ),
        (
            r#"{"auth": {"tokens": [{"token": "t", "labels": ["a", "b", "a"]}]}}"#,
            "auth.tokens[0].labels[2] = \"a\": allowed is each word once, and this one is repeated",
        ),
    ]);
    let many: Vec<String> = (0..17).map(|number| format!("\"{number}\"")).collect();
    check_all(&[(
        &format!(r#"{{"auth": {{"tokens": [{{"token": "t", "labels": [{}]}}]}}}}"#, many.join(",")),
        "auth.tokens[0].labels = (17 labels): allowed is at most 16: a look-up of rights compares them all",
    )]);
}

#[test]
fn services() {
    let service = |members: &str| {
        said(&format!(
            r#"{{"auth": {{"tokens": [{{"token": "t", "device": "game/1"}}],
                 "services": [{{"token": "s", "name": "chat", "may": ["subscribe"]}}, {{{members}}}]}}}}"#
        ))
    };
    let long = "n".repeat(129);
    let named_too_long = format!(r#""token": "u", "name": "{long}", "may": ["events"]"#);
    let too_long = format!(
        "auth.services[1].name = \"{long}\": allowed is 1 to 128 bytes (limits.device_id_bytes_max) without control \
         characters and without \"/\", which separates the name from the part that a connection adds"
    );
    for (members, expected) in [
        (r#""token": "u", "name": "bot", "may": ["subscribe", "publish", "events"]"#, ""),
        (
            r#""token": "", "name": "bot", "may": ["publish"]"#,
            "auth.services[1].token = (0 bytes): allowed is 1 to 4096 bytes",
        ),
        (
            r#""token": "t", "name": "bot", "may": ["publish"]"#,
            "auth.services[1].token = (hidden): allowed is a token of its own: auth.tokens[0].token has the same one",
        ),
        (
            r#""token": "s", "name": "bot", "may": ["publish"]"#,
            "auth.services[1].token = (hidden): allowed is a token of its own: auth.services[0].token has the same one",
        ),
        (
            r#""token": "with space", "name": "bot", "may": ["publish"]"#,
            "auth.services[1].token = (hidden): allowed is printable ASCII without spaces, because it is \
             sent in a header",
        ),
        (
            r#""token": "u", "name": "", "may": ["publish"]"#,
            "auth.services[1].name = \"\": allowed is 1 to 128 bytes (limits.device_id_bytes_max) without control \
             characters and without \"/\", which separates the name from the part that a connection adds",
        ),
        (
            r#""token": "u", "name": "a/b", "may": ["publish"]"#,
            "auth.services[1].name = \"a/b\": allowed is 1 to 128 bytes (limits.device_id_bytes_max) without control \
             characters and without \"/\", which separates the name from the part that a connection adds",
        ),
        (
            r#""token": "u", "name": "b\t", "may": ["publish"]"#,
            "auth.services[1].name = \"b\\t\": allowed is 1 to 128 bytes (limits.device_id_bytes_max) without control \
             characters and without \"/\", which separates the name from the part that a connection adds",
        ),
        (&named_too_long, &too_long),
        (
            r#""token": "u", "name": "chat", "may": ["publish"]"#,
            "auth.services[1].name = \"chat\": allowed is a name of its own: auth.services[0] has this one",
        ),
        (
            r#""token": "u", "name": "bot", "may": []"#,
            "auth.services[1].may = []: allowed is at least one of subscribe, publish and events",
        ),
        (
            r#""token": "u", "name": "bot", "may": ["publish", "events", "publish"]"#,
            "auth.services[1].may[2] = \"publish\": allowed is each word once, and this one is repeated",
        ),
        (
            r#""token": "u", "name": "game", "may": ["publish"]"#,
            "auth.tokens[0].device = \"game/1\": allowed is an id that no service uses: auth.services[1] has \
             \"game\" and all ids that begin with \"game/\"",
        ),
    ] {
        assert_eq!(service(members), expected, "{members}");
    }
}

/// A service needs no other way to be admitted.
#[test]
fn services_alone_are_enough() {
    check_all(&[
        (
            r#"{"listen": {"tcp": ["0.0.0.0:0"]}, "auth": {"services": [{"token": "s", "name": "n", "may": ["publish"]}]}}"#,
            "",
        ),
        (
            r#"{"listen": {"tcp": ["0.0.0.0:7070"]}}"#,
            "auth.tokens = []: allowed is at least one token, since 0.0.0.0:7070 of listen.tcp is not on loopback; set \
             [[auth.tokens]]",
        ),
    ]);
}

#[test]
fn the_tokens_of_the_example_stay_on_loopback() {
    let placed = |listen: &str, token: &str, service: &str, admin: &str| {
        said(&format!(
            r#"{{"listen": {listen}, "admin": {{"token": "{admin}"}}, "auth": {{"tokens": [{{"token": "{token}"}}],
                "services": [{{"token": "{service}", "name": "s", "may": ["publish"]}}]}}}}"#
        ))
    };
    let inside = r#"{"tcp": ["127.0.0.1:7070"]}"#;
    assert_eq!(placed(inside, "REPLACE-a", "REPLACE-b", "REPLACE-c"), "");
    for outside in [r#"{"tcp": ["[::1]:0", "0.0.0.0:7070"]}"#, r#"{"admin": "0.0.0.0:7090"}"#] {
        assert_eq!(placed(outside, "a", "b", "c"), "");
        for (tokens, key) in [
            (["REPLACE-a", "b", "c"], "auth.tokens[0].token"),
            (["a", "REPLACE-b", "c"], "auth.services[0].token"),
            (["a", "b", "REPLACE-c"], "admin.token"),
        ] {
            let message = placed(outside, tokens[0], tokens[1], tokens[2]);
            let expected = format!("{key} = (hidden): allowed is a secret of your own");
            assert!(message.starts_with(&expected), "{message:?}");
        }
    }
}
