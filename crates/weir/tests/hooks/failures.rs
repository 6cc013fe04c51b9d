//! Questions without an answer: each way to fail, and both rules for that.

use serde_json::json;
use weir::{Gateway, OnFailure};

use super::backend::{Backend, Reply};
use super::common::{Peer, start};
use super::{MOMENT, config, hear_text, publishing, questions, subscribe};

async fn gateway_of(backend: &Backend, on_failure: OnFailure) -> Gateway {
    let mut config = config();
    backend.serves(&mut config);
    config.hooks.answer_bytes_max = 1_024;
    config.hooks.subscribe.upstream = "api".to_owned();
    config.hooks.subscribe.on_failure = on_failure;
    config.hooks.publish.upstream = "api".to_owned();
    config.hooks.publish.on_failure = on_failure;
    for timeout in [&mut config.hooks.subscribe.timeout, &mut config.hooks.publish.timeout] {
        // Long enough for an answer on a slow machine, except from a backend that is silent.
        *timeout = 40 * MOMENT;
    }
    Box::pin(start(config)).await
}

/// The topics name the failures.
fn fail(question: &serde_json::Value) -> Reply {
    match question["topic"].as_str() {
        Some("room/timed_out") => Reply::Never,
        Some("room/status") => Reply::Text(503, r#"{"allow":true}"#.to_owned()),
        Some("room/malformed") => Reply::Text(200, "yes".to_owned()),
        Some("room/too_long") => {
            Reply::Text(200, format!("{{\"allow\":true{}}}", " ".repeat(1_024)))
        }
        _ => Reply::Json(json!({"allow": true})),
    }
}

const FAILURES: [&str; 4] = ["timed_out", "status", "malformed", "too_long"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_refuses_if_the_rule_says_so() {
    let backend = Backend::start(fail).await;
    let gateway = Box::pin(gateway_of(&backend, OnFailure::Refuse)).await;
    let mut peer = Peer::settled(&gateway, "d1", &["room/1"]).await;
    for failure in FAILURES {
        let topic = format!("room/{failure}");
        peer.say(subscribe(&topic)).await;
        let error = peer.error().await;
        assert_eq!((&*error.code, &error.topic), ("busy", &topic));
        peer.say(publishing(&topic, "x", 7)).await;
        let error = peer.error().await;
        assert_eq!((&*error.code, error.request), ("busy", 7), "{topic}");
        for hook in ["subscribe", "publish"] {
            assert_eq!(questions(&gateway, hook, failure), 1, "{hook} {failure}");
        }
    }
    let cause = "{cause=\"hook_unavailable\"}";
    for name in ["weir_subscribe_refused_total", "weir_publish_refused_total"] {
        assert_eq!(super::metric(&gateway, &format!("{name}{cause}")), 4);
    }
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_permits_if_the_rule_says_so() {
    let backend = Backend::start(fail).await;
    let gateway = Box::pin(gateway_of(&backend, OnFailure::Allow)).await;
    let mut peer = Peer::settled(&gateway, "d1", &[]).await;
    for failure in FAILURES {
        let topic = format!("room/{failure}");
        peer.say(subscribe(&topic)).await;
        assert_eq!(peer.subscribed().await.0, topic);
        peer.say(publishing(&topic, failure, 0)).await;
        assert_eq!(hear_text(&mut peer).await, failure);
    }
    // The class still decides.
    peer.say(subscribe("vip/1")).await;
    assert_eq!(peer.error().await.code, "not_permitted");
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_is_not_there_is_a_failure() {
    let backend = Backend::start(fail).await;
    let mut config = config();
    backend.serves(&mut config);
    // Nothing listens on port 1.
    config.upstreams[0].addresses = vec!["127.0.0.1:1".to_owned()];
    config.hooks.subscribe.upstream = "api".to_owned();
    let gateway = start(config).await;
    let mut peer = Peer::settled(&gateway, "d1", &[]).await;
    peer.say(subscribe("room/1")).await;
    assert_eq!(peer.error().await.code, "busy");
    assert_eq!(questions(&gateway, "subscribe", "unreachable"), 1);
    gateway.shutdown().await;
}
