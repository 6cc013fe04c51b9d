//! Tests of the errors of tokens, services, classes and limits with bad values, one by one.

use crate::base::config::Config;
use crate::base::config::tests::machine;
use crate::{MemoryLimit, Resources};

fn said(json: &str) -> String {
    let config: Config = serde_json::from_str(json).unwrap_or_else(|e| panic!("{json}: {e}"));
    match config.validate_for(&machine()).and_then(|()| config.check_admits()) {
        Ok(()) => String::new(),
        Err(error) => error.to_string(),
    }
}

/// Each configuration and its error; empty for a valid configuration.
fn check_all(cases: &[(&str, &str)]) {
    for (json, expected) in cases {
        assert_eq!(said(json), *expected, "{json}");
    }
}

/// One class with these members, and a token that carries the label `driver`.
fn check_class(cases: &[(&str, &str)]) {
    for (members, expected) in cases {
        let json = format!(
            r#"{{"auth": {{"tokens": [{{"token": "t", "labels": ["driver", "dispatcher"]}}]}},
                "topic_classes": [{{{members}}}]}}"#
        );
        assert_eq!(said(&json), *expected, "{members}");
    }
}

#[test]
fn networks_of_proxies() {
    check_all(&[
        (
            r#"{"listen": {"proxy_networks": ["10.0.0.0/8", "fd00::/8", "192.0.2.1/32"]},
                "auth": {"anonymous": true}}"#,
            "",
        ),
        (
            r#"{"listen": {"proxy_networks": ["127.0.0.1/32"]}, "auth": {"tokens": [{"token": "t"}]}}"#,
            "auth.anonymous = (absent): allowed is true or false, and not absent while \
             listen.proxy_networks is set: absent means true on loopback, but connections through a proxy \
             come from elsewhere",
        ),
        (
            r#"{"listen": {"proxy_networks": ["10.0.0.0/8", "0.0.0.0/0"]}}"#,
            "listen.proxy_networks[1] = \"0.0.0.0/0\": allowed is only the networks of your proxies: this \
             one contains every address, so anyone could claim any address in a PROXY header",
        ),
        (
            r#"{"listen": {"proxy_networks": ["::/0"]}}"#,
            "listen.proxy_networks[0] = \"::/0\": allowed is only the networks of your proxies: this one \
             contains every address, so anyone could claim any address in a PROXY header",
        ),
        (
            r#"{"listen": {"proxy_networks": ["10.1.2.3/8"]}}"#,
            "listen.proxy_networks[0] = \"10.1.2.3/8\": allowed is \"10.0.0.0/8\", or a longer prefix: the address \
             has bits beyond the prefix",
        ),
    ]);
    let many = vec!["\"10.0.0.0/8\""; 257].join(",");
    check_all(&[(
        &format!(r#"{{"listen": {{"proxy_networks": [{many}]}}}}"#),
        "listen.proxy_networks = (257 networks): allowed is at most 256: every accept compares them all",
    )]);
}

#[test]
fn limits_and_memory() {
    for (key, range) in [
        ("connections_per_source_max", "0 to 16777216"),
        ("connects_per_source_per_second", "0 to 1000000"),
        ("connects_per_source_burst", "1 to 1000000"),
        ("publishes_per_second", "0 to 1000000"),
        ("publish_burst", "1 to 1000000"),
        ("frames_per_second", "0 to 1000000"),
        ("frame_burst", "1 to 1000000"),
        ("conflation_keys_max", "1 to 1048576"),
    ] {
        let (min, max): (u32, u32) = (range[..1].parse().unwrap(), range[5..].parse().unwrap());
        let limit = |value: u32| said(&format!(r#"{{"limits": {{"{key}": {value}}}}}"#));
        for beyond in [min.checked_sub(1), Some(max + 1)].into_iter().flatten() {
            assert_eq!(limit(beyond), format!("limits.{key} = {beyond}: allowed is {range}"));
        }
        assert_eq!([limit(min), limit(max)], ["", ""], "{key}");
    }
    check_all(&[
        (r#"{"memory": {"budget_bytes": 8388608, "retention_bytes": 4194304}}"#, ""),
        (
            r#"{"memory": {"budget_bytes": 8388608, "retention_bytes": 4194305}}"#,
            "memory.retention_bytes = 4194305: allowed is 0 (a quarter of the budget) to 4194304, half of the budget \
             (memory.budget_bytes): the rest is for messages on their way",
        ),
        (
            r#"{"memory": {"retention_bytes": 33554433}}"#,
            "memory.retention_bytes = 33554433: allowed is 0 (a quarter of the budget) to 33554432, half of the budget \
             (memory.budget_bytes): the rest is for messages on their way",
        ),
    ]);
}

#[test]
fn patterns() {
    let long = "n".repeat(256);
    check_class(&[
        (r#""pattern": "*""#, ""),
        (r#""pattern": "fleet/{device}/*""#, ""),
        (r#""pattern": "{device}""#, ""),
        (
            r#""pattern": """#,
            "topic_classes[0].pattern = \"\": allowed is 1 to 255 bytes (limits.topic_bytes_max)",
        ),
        (
            &format!(r#""pattern": "{long}""#),
            &format!(
                "topic_classes[0].pattern = \"{long}\": allowed is 1 to 255 bytes (limits.topic_bytes_max)"
            ),
        ),
        (
            r#""pattern": "room\u0000""#,
            "topic_classes[0].pattern = \"room\\0\": allowed is a pattern without control characters",
        ),
        (
            r#""pattern": "room/#""#,
            "topic_classes[0].pattern = \"room/#\": allowed is a pattern without + and #, which no topic \
             name may contain; * stands for any characters",
        ),
        (
            r#""pattern": "room/+/x""#,
            "topic_classes[0].pattern = \"room/+/x\": allowed is a pattern without + and #, which no topic \
             name may contain; * stands for any characters",
        ),
        (
            r#""pattern": "fleet/{devices}""#,
            "topic_classes[0].pattern = \"fleet/{devices}\": allowed is a pattern with braces in {device} only",
        ),
        (
            r#""pattern": "fleet/}""#,
            "topic_classes[0].pattern = \"fleet/}\": allowed is a pattern with braces in {device} only",
        ),
        (
            r#""pattern": "{device}/to/{device}""#,
            "topic_classes[0].pattern = \"{device}/to/{device}\": allowed is {device} at most once",
        ),
        (
            r#""pattern": "room/**""#,
            "topic_classes[0].pattern = \"room/**\": allowed is one * instead of two in a row",
        ),
        (
            r#""pattern": "fleet/{device}*""#,
            "topic_classes[0].pattern = \"fleet/{device}*\": allowed is {device} with a character between \
             it and *; otherwise the device id would be ambiguous",
        ),
        (
            r#""pattern": "*/{device}/*""#,
            "topic_classes[0].pattern = \"*/{device}/*\": allowed is {device} with * on one side only; \
             otherwise the device id would be ambiguous",
        ),
        (
            r#""pattern": "*{device}""#,
            "topic_classes[0].pattern = \"*{device}\": allowed is {device} with a character between it and \
             *; otherwise the device id would be ambiguous",
        ),
    ]);
}

#[test]
fn every_class_has_names_of_its_own() {
    let classes = |patterns: &[&str]| {
        let classes: Vec<_> =
            patterns.iter().map(|pattern| format!(r#"{{"pattern": "{pattern}"}}"#)).collect();
        said(&format!(r#"{{"topic_classes": [{}]}}"#, classes.join(",")))
    };
    for (patterns, expected) in [
        (&["room/1/*", "room/*", "*"][..], ""),
        (
            &["a", "room/*", "b", "room/*"],
            "topic_classes[3].pattern = \"room/*\": allowed is a pattern that no earlier class has, and \
             topic_classes[1] has this one",
        ),
        (
            &["a", "*", "room/*"],
            "topic_classes[2].pattern = \"room/*\": allowed is a pattern that can still match: \
             topic_classes[1].pattern = \"*\" matches all its names, and the first matching class counts; \
             put this class before it",
        ),
        (
            &["room/*", "room/1"],
            "topic_classes[1].pattern = \"room/1\": allowed is a pattern that can still match: \
             topic_classes[0].pattern = \"room/*\" matches all its names, and the first matching class \
             counts; put this class before it",
        ),
    ] {
        assert_eq!(classes(patterns), expected, "{patterns:?}");
    }
    let many: Vec<String> = (0..257).map(|number| format!("t{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(classes(&many[..256]), "");
    assert_eq!(
        classes(&many),
        "topic_classes = (257 classes): allowed is at most 256: a new topic's name is compared with them all"
    );
}

#[test]
fn ticks_and_sizes() {
    check_class(&[
        (r#""pattern": "a", "tick": "0s", "tick_bytes_max": 1"#, ""),
        (r#""pattern": "a", "tick": "10ms", "tick_bytes_max": 65536"#, ""),
        (r#""pattern": "a", "tick": "60s", "tick_bytes_max": 67108864"#, ""),
        (r#""pattern": "a", "tick": "10ms", "tick_bytes_max": 64, "message_bytes_max": 64"#, ""),
        (
            r#""pattern": "a", "tick": "9ms""#,
            "topic_classes[0].tick = 9ms: allowed is 10ms to 60s, or 0s for none",
        ),
        (
            r#""pattern": "a", "tick": "61s""#,
            "topic_classes[0].tick = 61s: allowed is 10ms to 60s, or 0s for none",
        ),
        (
            r#""pattern": "a", "tick": "1s", "tick_bytes_max": 65535"#,
            "topic_classes[0].tick_bytes_max = 65535: allowed is 65536 (a message of the largest size) to 67108864: \
             one tick is held and copied in one piece",
        ),
        (
            r#""pattern": "a", "tick": "1s", "tick_bytes_max": 999, "message_bytes_max": 1000"#,
            "topic_classes[0].tick_bytes_max = 999: allowed is 1000 (a message of the largest size) to 67108864: \
             one tick is held and copied in one piece",
        ),
        (
            r#""pattern": "a", "tick_bytes_max": 67108865"#,
            "topic_classes[0].tick_bytes_max = 67108865: allowed is 1 to 67108864: one tick is held and copied in one \
             piece",
        ),
        (r#""pattern": "a", "message_bytes_max": 64"#, ""),
        (r#""pattern": "a", "message_bytes_max": 65536"#, ""),
        (
            r#""pattern": "a", "message_bytes_max": 63"#,
            "topic_classes[0].message_bytes_max = 63: allowed is 0 or 64 to 65536 (limits.frame_bytes_max)",
        ),
        (
            r#""pattern": "a", "message_bytes_max": 65537"#,
            "topic_classes[0].message_bytes_max = 65537: allowed is 0 or 64 to 65536 (limits.frame_bytes_max)",
        ),
        (r#""pattern": "a", "conflation": true, "tick": "1s""#, ""),
        (r#""pattern": "a", "conflation": true, "slow": "conflate""#, ""),
        (
            r#""pattern": "a", "conflation": true, "slow": "drop""#,
            "topic_classes[0].conflation = true: allowed is true only with a tick or with slow = \"conflate\": \
             without both, no message waits that a newer one could replace",
        ),
    ]);
}

#[test]
fn retention() {
    let least = weir_engine::Message::occupied_by(65_536);
    check_class(&[
        (r#""pattern": "a", "retention_messages": 1000000"#, ""),
        (&format!(r#""pattern": "a", "retention_messages": 1, "retention_bytes": {least}"#), ""),
        (r#""pattern": "a", "retention_messages": 1, "retention_bytes": 16777216"#, ""),
        (r#""pattern": "a", "retention_ttl": "1s""#, ""),
        (r#""pattern": "a", "retention_ttl": "168h""#, ""),
        // Without messages to retain, the default need not fit.
        (r#""pattern": "a", "retention_bytes": 1"#, ""),
        (r#""pattern": "a", "retention_messages": 1, "history": true"#, ""),
        (
            r#""pattern": "a", "history": true"#,
            "topic_classes[0].history = true: allowed is true only with retention_messages: without them no \
             message is retained",
        ),
        (
            r#""pattern": "a", "retention_messages": 1000001"#,
            "topic_classes[0].retention_messages = 1000001: allowed is 0 to 1000000",
        ),
        (
            r#""pattern": "a", "retention_messages": 1, "retention_bytes": 65536"#,
            &format!(
                "topic_classes[0].retention_bytes = 65536: allowed is {least} (a message of the largest \
                 size, with the bytes that it occupies in addition to its frame) to 16777216 \
                 (memory.retention_bytes, the limit of all topics together)"
            ),
        ),
        (
            r#""pattern": "a", "retention_messages": 1, "retention_bytes": 16777217"#,
            &format!(
                "topic_classes[0].retention_bytes = 16777217: allowed is {least} (a message of the largest \
                 size, with the bytes that it occupies in addition to its frame) to 16777216 \
                 (memory.retention_bytes, the limit of all topics together)"
            ),
        ),
        (
            r#""pattern": "a", "retention_ttl": "999ms""#,
            "topic_classes[0].retention_ttl = 999ms: allowed is 1s to 604800s (7 days)",
        ),
        (
            r#""pattern": "a", "retention_ttl": "169h""#,
            "topic_classes[0].retention_ttl = 608400s: allowed is 1s to 604800s (7 days)",
        ),
    ]);
}

#[test]
fn rights_and_rates() {
    check_class(&[
        (r#""pattern": "a", "publish": [], "subscribe": []"#, ""),
        (r#""pattern": "a", "publish": ["devices", "services", "label:driver"]"#, ""),
        (
            r#""pattern": "a", "publish": ["devices", "label:drivers"]"#,
            "topic_classes[0].publish[1] = \"label:drivers\": allowed is a label of a token in auth.tokens: \
             dispatcher, driver",
        ),
        (
            r#""pattern": "a", "subscribe": ["label:drivers"]"#,
            "topic_classes[0].subscribe[0] = \"label:drivers\": allowed is a label of a token in auth.tokens: \
             dispatcher, driver",
        ),
        (
            r#""pattern": "a", "publish": ["label:driver", "devices", "label:driver"]"#,
            "topic_classes[0].publish[2] = \"label:driver\": allowed is each word once, and this one is repeated",
        ),
        (r#""pattern": "a", "publishes_per_second": 1000000, "publish_burst": 1000000"#, ""),
        (
            r#""pattern": "a", "publishes_per_second": 1000001"#,
            "topic_classes[0].publishes_per_second = 1000001: allowed is 0 to 1000000",
        ),
        (
            r#""pattern": "a", "publish_burst": 0"#,
            "topic_classes[0].publish_burst = 0: allowed is 1 to 1000000",
        ),
    ]);
    check_all(&[(
        r#"{"topic_classes": [{"pattern": "a", "publish": ["label:driver"]}]}"#,
        "topic_classes[0].publish[0] = \"label:driver\": allowed is a label of a token, but no token in \
         auth.tokens has labels",
    )]);
}

#[test]
fn what_would_never_match_is_refused() {
    check_all(&[
        (
            r#"{"listen": {"proxy_networks": ["::ffff:10.0.0.0/104"]}, "auth": {"anonymous": true}}"#,
            "listen.proxy_networks[0] = \"::ffff:10.0.0.0/104\": allowed is \"10.0.0.0/8\": IPv4 peers are \
             compared in this form",
        ),
        (
            r#"{"listen": {"proxy_networks": ["::ffff:0.0.0.0/96"]}, "auth": {"anonymous": true}}"#,
            "listen.proxy_networks[0] = \"::ffff:0.0.0.0/96\": allowed is only the networks of your \
             proxies: this one contains every address, so anyone could claim any address in a PROXY header",
        ),
        (r#"{"admin": {"hosts": ["gate.example", "gate.example:7090", "[::1]:7090"]}}"#, ""),
        (r#"{"http": {"hosts": ["gate.example", "gate.example:8080", "[::1]:8080"]}}"#, ""),
    ]);
    for host in ["", "http://gate.example", "gate example", "me@gate.example", "gate.example:port"]
    {
        for section in ["admin", "http"] {
            let message = said(&format!(r#"{{"{section}": {{"hosts": ["fine", "{host}"]}}}}"#));
            let expected = format!("{section}.hosts[1] = \"{host}\": allowed is a host name");
            assert!(message.starts_with(&expected), "{message:?}");
        }
    }
    let many = serde_json::json!({"http": {"hosts": vec!["a"; 257]}}).to_string();
    let message = said(&many);
    assert!(message.starts_with("http.hosts = (257 names): allowed is at most 256"), "{message}");
}

#[test]
fn a_budget_that_the_machine_decides_is_enough() {
    let limit = MemoryLimit::AddressSpace;
    let small = Resources { memory_bytes: 2 << 20, memory_limit: limit, ..machine() };
    let error = Config::default().validate_for(&small).unwrap_err();
    assert_eq!(error.key, "memory.budget_bytes");
    assert_eq!(error.value, "0 (524288, a quarter of 2097152: RLIMIT_AS (ulimit -v))");
    assert!(error.allowed.contains("connection.high_watermark_bytes"), "{error}");
}

mod admin;
mod auth;
mod calls;
mod cluster;
mod hooks;
mod http;
mod jwt;
mod receivers;
mod routes;
mod tls;
mod udp;
mod upstreams;
