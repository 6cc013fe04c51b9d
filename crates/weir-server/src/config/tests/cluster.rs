//! `[cluster]`, and what it asks of the store.

use super::*;

#[test]
fn every_key_is_read() {
    let text = r#"
[cluster]
redis = ["rediss://a:1", "rediss://b:2"]
user = "u"
password = "p"
ca = "redis.pem"
prefix = "q"
id = "c"
node = "n"
timeout = "1s"
publish_timeout = "3s"
waiting_max = 10
waiting_bytes_max = 1048576
flush_delay_us = 11
wait_replicas = 1
node_ttl = "12s"
presence_kept = "14s"
leave_delay = "13s"
"#;
    let gateway = load(text, &[]).unwrap().gateway;
    let expected = weir::ClusterConfig {
        redis: weir::RedisUrls(vec!["rediss://a:1".to_owned(), "rediss://b:2".to_owned()]),
        user: "u".to_owned(),
        password: "p".to_owned(),
        ca: "redis.pem".into(),
        prefix: "q".to_owned(),
        id: "c".to_owned(),
        node: "n".to_owned(),
        timeout: Duration::from_secs(1),
        publish_timeout: Duration::from_secs(3),
        waiting_max: 10,
        waiting_bytes_max: 1 << 20,
        flush_delay_us: 11,
        wait_replicas: 1,
        node_ttl: Duration::from_secs(12),
        presence_kept: Duration::from_secs(14),
        leave_delay: Duration::from_secs(13),
    };
    assert_eq!(gateway.cluster, expected);
}

/// A text names the servers too, in the file and in a variable; no message shows what may be a password.
#[test]
fn redis_is_a_text_or_a_list() {
    let named = |settings: Settings| settings.gateway.cluster.redis.0;
    let text = "[cluster]\nredis = \"redis://a:1, redis://b:2\"\n";
    assert_eq!(load(text, &[]).map(named).unwrap(), ["redis://a:1", "redis://b:2"]);
    let variable = &[("WEIR_CLUSTER_REDIS", "redis://a:1,redis://b:2")];
    assert_eq!(load("", variable).map(named).unwrap(), ["redis://a:1", "redis://b:2"]);
    for text in [
        "[cluster]\nredis = 6379\n",
        "[cluster]\nredis = \"secret@a\"\n",
        "[cluster]\nredis = [\"redis://a\", 7]\n",
        "[cluster]\npasword = \"secret\"\n",
    ] {
        let said = load(text, &[]).unwrap_err();
        assert!(said.contains("f.toml:2:") && !said.contains("secret"), "{said}");
    }
}

/// Tokens from a file of one node admit nobody at the others: such a store is refused, unless it is meant.
#[test]
fn a_cluster_needs_a_store_for_all_nodes() {
    let kind = |store: &str| {
        let text = format!("[cluster]\nredis = \"redis://a\"\n[store]\n{store}");
        load(&text, &[]).map(|settings| settings.store_kind())
    };
    assert_eq!(load("", &[]).map(|settings| settings.store_kind()), Ok(StoreKind::Embedded));
    assert_eq!(kind(""), Ok(StoreKind::None));
    assert_eq!(kind("kind = \"none\"\n"), Ok(StoreKind::None));
    assert_eq!(kind("kind = \"embedded\"\nper_node = true\n"), Ok(StoreKind::Embedded));
    let mongodb = "kind = \"mongodb\"\n[store.mongodb]\nuri = \"mongodb://db\"\n";
    assert_eq!(kind(mongodb), Ok(StoreKind::Mongodb));
    let said = kind("kind = \"embedded\"\n").unwrap_err();
    let expected = "f.toml:4:8: store.kind = \"embedded\": allowed is \"mongodb\" or \"none\" with cluster.redis: tokens \
                    from a file of this node would admit nobody at the others; or set store.per_node = true if that is \
                    meant";
    assert!(said.starts_with(expected), "{said}");
}
