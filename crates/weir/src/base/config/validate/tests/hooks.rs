//! `[hooks]`.

use super::{check_all, said};

const API: &str = r#""upstreams": [{"name": "api", "addresses": ["127.0.0.1:1"]}]"#;

#[test]
fn a_secret_is_long_or_absent() {
    let allowed = "allowed is 32 to 4096 bytes (openssl rand -hex 32), or an empty text for requests \
                   without a signature";
    for (bytes, is_allowed) in [(0, true), (31, false), (32, true), (4_096, true), (4_097, false)] {
        let secret = "s".repeat(bytes);
        let expected = match is_allowed {
            true => String::new(),
            false => format!("hooks.secret = ({bytes} bytes): {allowed}"),
        };
        assert_eq!(said(&format!(r#"{{"hooks": {{"secret": "{secret}"}}}}"#)), expected);
    }
}

#[test]
fn each_hook_names_an_upstream_and_a_path() {
    for hook in ["connect", "refresh", "subscribe", "publish"] {
        let with = |keys: &str| said(&format!(r#"{{{API}, "hooks": {{"{hook}": {{{keys}}}}}}}"#));
        assert_eq!(with(r#""upstream": "api", "path": "/ask?version=1""#), "");
        assert_eq!(
            with(r#""upstream": "other""#),
            format!(
                "hooks.{hook}.upstream = \"other\": allowed is the name of one of [[upstreams]]: api"
            )
        );
        for path in ["", "ask", "/a b", "/a#b", &format!("/{}", "a".repeat(1_024))] {
            let said = with(&format!(r#""path": "{path}""#));
            let expected = format!(
                "hooks.{hook}.path = {path:?}: allowed is a path that begins with /, of at most 1024 bytes"
            );
            assert!(said.starts_with(&expected), "{said}");
        }
        for (key, low, high) in [("timeout", "9ms", "61s"), ("in_flight_max", "0", "100001")] {
            for value in [low, high] {
                let json = if key == "timeout" { format!("\"{value}\"") } else { value.to_owned() };
                let said = with(&format!(r#""{key}": {json}"#));
                assert!(said.starts_with(&format!("hooks.{hook}.{key} = {value}: ")), "{said}");
            }
        }
    }
}

#[test]
fn a_hook_admits_devices_and_gives_labels() {
    let hook = r#""hooks": {"connect": {"upstream": "api"}}"#;
    let class = r#""topic_classes": [{"pattern": "a", "subscribe": ["label:vip"]}]"#;
    let closed = r#""auth": {"anonymous": false}"#;
    check_all(&[
        (&format!("{{{API}, {hook}, {closed}, {class}}}"), ""),
        (
            &format!("{{{API}, {closed}}}"),
            "auth.tokens = []: allowed is at least one token while auth.anonymous is false",
        ),
        (
            r#"{"hooks": {"answer_bytes_max": 1023}}"#,
            "hooks.answer_bytes_max = 1023: allowed is 1024 to 67108864",
        ),
        (
            r#"{"hooks": {"subscribe": {"on_failure": "allow"}, "publish": {"on_failure": "allow"}}}"#,
            "",
        ),
    ]);
}
