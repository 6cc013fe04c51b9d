//! Tests of the configuration.

use std::net::SocketAddr;

use super::*;
use crate::{MemoryLimit, Resources};

/// Changes the default configuration, and expects an error at `key`, or none if `key` is empty.
fn check(change: impl FnOnce(&mut Config), key: &str, allowed: &str) {
    let mut config = Config::default();
    change(&mut config);
    match config.validate_for(&machine()).and_then(|()| config.check_admits()) {
        Ok(()) => assert_eq!(key, "", "accepted"),
        Err(error) => {
            assert_eq!(error.key, key, "{error}");
            assert!(error.allowed.contains(allowed), "{allowed:?} is not in {error}");
        }
    }
}

/// Two processors, and memory for a budget of 64 MiB and a quarter of that for retention.
pub(super) fn machine() -> Resources {
    Resources {
        processors: vec![0, 1],
        cpu_quota: None,
        memory_bytes: 256 << 20,
        memory_limit: MemoryLimit::Machine,
    }
}

fn token(token: &str, device: Option<&str>) -> TokenConfig {
    TokenConfig {
        token: token.to_owned(),
        device: device.map(str::to_owned),
        ..TokenConfig::default()
    }
}

fn addrs(list: &[&str]) -> Vec<SocketAddr> {
    list.iter().map(|addr| addr.parse().unwrap()).collect()
}

#[test]
fn who_may_connect_from_where() {
    let exposed = || addrs(&["127.0.0.1:0", "0.0.0.0:7070"]);
    check(|_| {}, "", "");
    check(|c| (c.listen.tcp, c.listen.http) = (vec![], vec![]), "listen.tcp", "at least one");
    check(|c| c.listen.tcp = vec![], "", "");
    check(|c| c.listen.http = exposed(), "auth.tokens", "0.0.0.0:7070 of listen.http");
    let https = |c: &mut Config| {
        c.listen.https = addrs(&["[::]:1"]);
        c.tls.development_certificate_anywhere = true;
    };
    check(https, "auth.tokens", "[::]:1 of listen.https");
    check(|c| c.listen.tcp = exposed(), "auth.tokens", "0.0.0.0:7070");
    let tokens = || vec![token("t", None)];
    check(|c| (c.listen.tcp, c.auth.tokens) = (exposed(), tokens()), "", "");
    check(
        |c| (c.listen.tcp, c.auth.anonymous) = (exposed(), Some(true)),
        "auth.anonymous",
        "set auth.tokens",
    );
    check(|c| c.auth.anonymous = Some(true), "", "");
    check(|c| c.auth.anonymous = Some(false), "auth.tokens", "at least one token");
    check(|c| (c.auth.anonymous, c.auth.tokens) = (Some(false), tokens()), "", "");
    check(|c| c.listen.tcp = addrs(&["[::1]:0", "127.3.4.5:0"]), "", "");
    check(|c| c.listen.tcp = addrs(&["[::]:0"]), "auth.tokens", "[::]:0");
    check(|c| c.listen.admin = Some(addrs(&["0.0.0.0:1"])[0]), "admin.token", "a token");
    check(
        |c| {
            c.listen.admin = Some(addrs(&["0.0.0.0:1"])[0]);
            c.admin.token = "secret".to_owned();
        },
        "",
        "",
    );
    check(|c| c.listen.admin = None, "", "");
    for never_shown in [" secret", "sec ret", "secret\n", "geheim\u{e4}"] {
        check(|c| c.admin.token = never_shown.to_owned(), "admin.token", "printable ASCII");
    }
}

#[test]
fn tokens_are_checked_and_never_shown() {
    check(|c| c.auth.tokens = vec![token("", None)], "auth.tokens[0].token", "1 to");
    let twice = vec![token("secret", None), token("secret", Some("d"))];
    check(|c| c.auth.tokens = twice.clone(), "auth.tokens[1].token", "a token of its own");
    let unnamed = vec![token("t", Some(""))];
    check(|c| c.auth.tokens = unnamed, "auth.tokens[0].device", "or absent");
    let unsayable = vec![token("t", Some("d\n"))];
    check(|c| c.auth.tokens = unsayable, "auth.tokens[0].device", "control characters");
    let mut config = Config::default();
    config.auth.tokens = twice;
    config.admin.token = "secret".to_owned();
    let error = config.validate().unwrap_err();
    assert!(!format!("{config:?} {error} {error:?}").contains("secret"));
}

#[test]
fn every_number_has_its_range() {
    check(|c| c.listen.accept_backlog = 0, "listen.accept_backlog", "1 to 65535");
    check(|c| c.threads.shards = 256, "", "");
    check(|c| c.threads.shards = 257, "threads.shards", "0 to 256");
    check(|c| c.threads.front = 9, "threads.front", "0 to 8");
    check(|c| c.memory.budget_bytes = 1000, "memory.budget_bytes", "at least 1048576");
    check(|c| c.memory.budget_bytes = 8 << 20, "", "");
    check(|c| c.limits.connections_max = 0, "limits.connections_max", "1 to 16777216");
    check(|c| c.limits.unsettled_connections_max = 0, "limits.unsettled_connections_max", "1 to");
    check(|c| c.limits.connections_per_device_max = 0, "limits.connections_per_device_max", "1 to");
    check(|c| c.limits.topics_max = 0, "limits.topics_max", "1 to");
    check(|c| c.limits.topics_per_connection_max = 0, "limits.topics_per_connection_max", "1 to");
    check(|c| c.limits.topic_bytes_max = 1025, "limits.topic_bytes_max", "1 to 1024");
    check(|c| c.limits.device_id_bytes_max = 0, "limits.device_id_bytes_max", "1 to 1024");
    check(|c| c.limits.frame_bytes_max = 1023, "limits.frame_bytes_max", "1024 to");
    check(|c| c.limits.hello_bytes_max = 1023, "limits.hello_bytes_max", "1024 to 16777216");
    check(|c| c.tcp.notsent_lowat_bytes = 0, "tcp.notsent_lowat_bytes", "1024 to");
    check(|c| c.tcp.send_buffer_bytes = 0, "tcp.send_buffer_bytes", "4096 to");
    check(|c| c.tcp.recv_buffer_bytes = 0, "tcp.recv_buffer_bytes", "4096 to");
}

#[test]
fn times_and_watermarks_fit_together() {
    const MS: Duration = Duration::from_millis(1);
    check(|c| c.connection.hello_timeout = 99 * MS, "connection.hello_timeout", "100ms to");
    check(|c| c.connection.frame_timeout = Duration::ZERO, "connection.frame_timeout", "100ms");
    check(|c| c.connection.stall_timeout = Duration::MAX, "connection.stall_timeout", "3600s");
    check(|c| c.connection.drain_timeout = Duration::ZERO, "", "");
    check(|c| c.connection.heartbeat_min = MS, "connection.heartbeat_min", "200ms to");
    check(|c| c.connection.heartbeat_max = 1000 * MS, "connection.heartbeat_max", "15s to");
    check(|c| c.connection.heartbeat = 1000 * MS, "connection.heartbeat", "15s to 900s");
    check(|c| c.connection.low_watermark_bytes = 0, "connection.low_watermark_bytes", "1024 to");
    check(
        |c| c.connection.high_watermark_bytes = 32_768 + 65_535,
        "connection.high_watermark_bytes",
        "98304 (low_watermark_bytes + limits.frame_bytes_max",
    );
    check(|c| c.connection.high_watermark_bytes = 98_304, "", "");
    check(
        |c| c.connection.high_watermark_bytes = usize::MAX,
        "connection.high_watermark_bytes",
        "98304",
    );
    check(|c| c.limits.frame_bytes_max = 1 << 20, "connection.high_watermark_bytes", "1081344");
    check(
        |c| c.tcp.user_timeout = 10_000 * MS,
        "tcp.user_timeout",
        "above connection.stall_timeout",
    );
    check(|c| c.tcp.user_timeout = 10_001 * MS, "", "");
}

#[test]
fn durations_are_numbers_with_a_unit() {
    for (text, expected) in [
        ("0s", Some(0)),
        ("500ms", Some(500)),
        ("10s", Some(10_000)),
        ("15m", Some(900_000)),
        ("2h", Some(7_200_000)),
        ("", None),
        ("10", None),
        ("s", None),
        ("1.5s", None),
        ("-1s", None),
        ("10 s", None),
        ("1d", None),
        ("18446744073709551615h", None),
        ("99999999999999999999s", None),
    ] {
        assert_eq!(parse_duration(text).ok(), expected.map(Duration::from_millis), "{text:?}");
    }
}

#[test]
fn sections_are_read_and_unknown_keys_refused() {
    let json = r#"{"listen": {"tcp": ["[::1]:1"], "admin": ""},
        "auth": {"tokens": [{"token": "t", "device": "d"}]},
        "connection": {"stall_timeout": "500ms"}}"#;
    let config: Config = serde_json::from_str(json).unwrap();
    assert_eq!(config.listen.tcp, addrs(&["[::1]:1"]));
    assert_eq!(config.listen.admin, None);
    assert_eq!(config.auth.tokens, [token("t", Some("d"))]);
    assert_eq!(config.connection.stall_timeout, Duration::from_millis(500));
    assert_eq!(config.connection.heartbeat, ConnectionConfig::default().heartbeat);
    for (json, says) in [
        (r#"{"limits": {"topic_max": 1}}"#, "unknown field `topic_max`"),
        (r#"{"log": {}}"#, "unknown field `log`"),
        (r#"{"connection": {"heartbeat": "60"}}"#, "allowed is a duration such as"),
        (r#"{"listen": {"admin": "localhost"}}"#, "allowed is an address such as"),
        (r#"{"auth": {"tokens": [{"device": "d"}]}}"#, "missing field `token`"),
    ] {
        let error = serde_json::from_str::<Config>(json).unwrap_err().to_string();
        assert!(error.contains(says), "{json}: {error}");
    }
}

#[test]
fn an_access_log_has_room_and_a_share() {
    check(|c| c.access_log.path = "/var/log/weir".into(), "", "");
    check(|c| c.access_log.sample = 0, "access_log.sample", "1 to 1000000");
    check(|c| c.access_log.sample = 1_000_001, "access_log.sample", "1 to 1000000");
    let key = "access_log.queue_bytes";
    check(|c| c.access_log.queue_bytes = (1 << 20) - 1, key, "1048576 to 1073741824");
    check(|c| c.access_log.queue_bytes = (1 << 30) + 1, key, "1048576 to 1073741824");
}
