//! `[cluster]`, and what classes say of it.

use super::{check_all, check_class, said};
use crate::base::config::{ClusterConfig, Config, Scope, TopicClass};

/// A cluster with these members beside `redis`.
fn cluster(members: &str) -> String {
    format!(r#"{{"cluster": {{"redis": "redis://a:6379"{members}}}}}"#)
}

#[test]
fn redis_is_named_by_urls() {
    check_all(&[
        (r#"{"cluster": {"redis": ""}}"#, ""),
        (r#"{"cluster": {"redis": "redis://a"}}"#, ""),
        (r#"{"cluster": {"redis": "rediss://u:p@a:6380/3"}}"#, ""),
        (r#"{"cluster": {"redis": ["redis://a:1", "redis://[::1]:2/0"]}}"#, ""),
        (r#"{"cluster": {"redis": "rediss://a", "ca": "/etc/weir/redis.pem"}}"#, ""),
    ]);
    let config: Config =
        serde_json::from_str(r#"{"cluster": {"redis": "redis://a:1, redis://b:2"}}"#).unwrap();
    assert_eq!(config.cluster.redis.0, ["redis://a:1", "redis://b:2"]);
    for bad in
        ["a:6379", "http://a", "redis://", "redis://:6379", "redis://u:secret@", "redis://a/x"]
    {
        let json = serde_json::json!({"cluster": {"redis": [bad]}}).to_string();
        let expected = format!(
            "cluster.redis[0] = ({} bytes): allowed is redis://[[user]:password@]host[:port][/database], or \
             rediss://… over TLS",
            bad.len()
        );
        assert_eq!(said(&json), expected);
    }
    check_all(&[
        (
            r#"{"cluster": {"redis": ["redis://a", "rediss://b"]}}"#,
            "cluster.redis = (2 URLs): allowed is all over TLS (rediss://) or none: passwords and messages go to each \
             of them",
        ),
        (
            r#"{"cluster": {"redis": ["redis://a", "redis://b/2"]}}"#,
            "cluster.redis[1] = (database 2): allowed is a URL without a database, or with 0: a Redis Cluster has no \
             other",
        ),
        (
            r#"{"cluster": {"redis": "redis://a", "ca": "x.pem"}}"#,
            "cluster.ca = \"x.pem\": allowed is \"\" while no URL of cluster.redis is rediss://: nothing would be \
             checked with it",
        ),
    ]);
    let many = vec!["\"redis://a\""; 65].join(",");
    check_all(&[(
        &format!(r#"{{"cluster": {{"redis": [{many}]}}}}"#),
        "cluster.redis = (65 URLs): allowed is at most 64",
    )]);
}

#[test]
fn nothing_shows_a_password() {
    let json =
        r#"{"cluster": {"redis": "redis://u:hunter2@a", "user": "v", "password": "hunter3"}}"#;
    let config: Config = serde_json::from_str(json).unwrap();
    for shown in [format!("{config:?}"), format!("{:?}", config.cluster.redis), said(json)] {
        assert!(!shown.contains("hunter"), "{shown}");
    }
    assert_eq!(
        said(json),
        "cluster.user = \"v\": allowed is \"\" while a URL of cluster.redis has one: it would not be clear which counts"
    );
}

#[test]
fn credentials_are_said_once() {
    let with =
        |url: &str, rest: &str| said(&format!(r#"{{"cluster": {{"redis": "{url}", {rest}}}}}"#));
    assert_eq!(with("redis://a", r#""user": "u", "password": "p""#), "");
    assert_eq!(with("redis://u@a", r#""password": "p""#), "");
    assert_eq!(with("redis://:p@a", r#""user": "u""#), "");
    assert_eq!(
        with("redis://:p@a", r#""password": "q""#),
        "cluster.password = (1 bytes): allowed is \"\" while a URL of cluster.redis has one: it would not be clear \
         which counts"
    );
    assert_eq!(
        with("redis://a", r#""user": "u""#),
        "cluster.user = \"u\": allowed is \"\" without a password: Redis lets nobody in by a name alone"
    );
}

#[test]
fn names_fit_into_keys_and_lists() {
    for name in ["", "a b", "{a}", "a*", "ä", &"x".repeat(65)] {
        let message = said(&cluster(&format!(r#", "prefix": "{name}""#)));
        assert!(message.starts_with("cluster.prefix = "), "{name:?}: {message:?}");
    }
    for key in ["id", "node"] {
        for name in ["a b", "ä", &"x".repeat(65)] {
            let message = said(&cluster(&format!(r#", "{key}": "{name}""#)));
            assert!(message.starts_with(&format!("cluster.{key} = ")), "{name:?}: {message:?}");
        }
        assert_eq!(said(&cluster(&format!(r#", "{key}": "gate-7.example""#))), "");
    }
    let default = ClusterConfig::default();
    assert_eq!((default.id(), default.is_set()), ("weir", false));
    assert!(!default.node().is_empty(), "a host has a name");
    let named = ClusterConfig { id: "eu".into(), node: "gate-7".into(), ..default };
    assert_eq!((named.id(), named.node().as_str()), ("eu", "gate-7"));
}

#[test]
fn times_and_limits_of_a_cluster() {
    for (members, expected) in [
        (r#", "timeout": "9ms""#, "cluster.timeout = 9ms: allowed is 10ms to 10s"),
        (r#", "timeout": "11s""#, "cluster.timeout = 11s: allowed is 10ms to 10s"),
        (
            r#", "publish_timeout": "400ms""#,
            "cluster.publish_timeout = 400ms: allowed is 500ms to 60s, and not below cluster.timeout: a publish is one \
             call at the least",
        ),
        (
            r#", "node_ttl": "1900ms""#,
            "cluster.node_ttl = 1.9s: allowed is 2s to 60s, four times cluster.timeout or longer: one late answer is \
             no dead node",
        ),
        (r#", "timeout": "10s", "publish_timeout": "10s", "node_ttl": "40s""#, ""),
        (r#", "leave_delay": "601s""#, "cluster.leave_delay = 601s: allowed is 0ns to 600s"),
        (r#", "leave_delay": "0s""#, ""),
        (r#", "waiting_max": 0"#, "cluster.waiting_max = 0: allowed is 1 to 1000000"),
        (r#", "flush_delay_us": 10001"#, "cluster.flush_delay_us = 10001: allowed is 0 to 10000"),
        (r#", "wait_replicas": 17"#, "cluster.wait_replicas = 17: allowed is 0 to 16"),
        (
            r#", "waiting_bytes_max": 65535"#,
            "cluster.waiting_bytes_max = 65535: allowed is 65536 (limits.frame_bytes_max) to 1073741824",
        ),
        (
            r#", "waiting_bytes_max": 1073741825"#,
            "cluster.waiting_bytes_max = 1073741825: allowed is 65536 (limits.frame_bytes_max) to 1073741824",
        ),
    ] {
        assert_eq!(said(&cluster(members)), expected, "{members}");
    }
}

#[test]
fn classes_belong_to_a_node_or_to_the_cluster() {
    check_class(&[
        (r#""pattern": "a", "scope": "node", "presence": true"#, ""),
        (
            r#""pattern": "a", "scope": "cluster""#,
            "topic_classes[0].scope = \"cluster\": allowed is \"node\", or absent, while cluster.redis is empty: this \
             node belongs to no cluster",
        ),
    ]);
    check_all(&[(
        r#"{"cluster": {"redis": "redis://a"}, "topic_classes": [{"pattern": "a", "scope": "cluster"}]}"#,
        "",
    )]);
    let alone = Config::default();
    let mut joined = Config::default();
    joined.cluster.redis.0 = vec!["redis://a".into()];
    let class = |scope| TopicClass { scope, ..TopicClass::default() };
    for (scope, is_alone, is_joined) in [
        (None, Scope::Node, Scope::Cluster),
        (Some(Scope::Node), Scope::Node, Scope::Node),
        (Some(Scope::Cluster), Scope::Cluster, Scope::Cluster),
    ] {
        assert_eq!(
            (alone.scope(&class(scope)), joined.scope(&class(scope))),
            (is_alone, is_joined)
        );
    }
}

#[test]
fn resumes_begin_at_the_oldest_where_something_is_kept() {
    check_class(&[
        (r#""pattern": "a", "retention_messages": 1, "resume_from_oldest": true"#, ""),
        (r#""pattern": "a", "retention_messages": 1, "resume_from_oldest": false"#, ""),
        (r#""pattern": "a", "resume_from_oldest": false"#, ""),
        (
            r#""pattern": "a", "resume_from_oldest": true"#,
            "topic_classes[0].resume_from_oldest = true: allowed is true only with retention_messages: without them \
             nothing is kept to begin at",
        ),
    ]);
    for (retention_messages, resume_from_oldest, expected) in
        [(0, None, false), (1, None, true), (1, Some(false), false), (1, Some(true), true)]
    {
        let class = TopicClass { retention_messages, resume_from_oldest, ..TopicClass::default() };
        assert_eq!(class.resumes_from_oldest(), expected);
    }
}
