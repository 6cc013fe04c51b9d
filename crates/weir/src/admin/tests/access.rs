//! Named tokens, sessions and the audit log.

use std::time::Duration;

use super::*;
use crate::{AdminScope, AdminTokenConfig, token_hash};

fn named(name: &str, secret: &str, may: &[AdminScope]) -> AdminTokenConfig {
    AdminTokenConfig { name: name.to_owned(), hash: token_hash(secret), may: may.to_vec() }
}

async fn start() -> Server {
    let admin = AdminConfig {
        token: "s3cret".to_owned(),
        tokens: vec![named("eye", "seldom", &[AdminScope::Read])],
        hosts: vec!["gate.example".to_owned()],
        ..AdminConfig::default()
    };
    Server::start(Config { admin, ..Config::default() }).await
}

/// Signs in, and returns the cookie.
async fn sign_in(server: &Server, token: &str, headers: &str) -> String {
    let request = format!("{}{headers}", post("/v1/session"));
    let body = json!({"token": token}).to_string();
    let answer = check(server, &request, &body, 200, &["expires_at_ms"]).await;
    let cookie = answer.header("set-cookie").expect("a cookie");
    let (cookie, attributes) = cookie.split_once("; ").expect("attributes");
    assert!(attributes.starts_with("HttpOnly; SameSite=Strict; Path=/"), "{attributes}");
    let is_secure = headers.contains("https://");
    assert_eq!(attributes.contains("; Secure"), is_secure, "{attributes}");
    cookie.to_owned()
}

#[tokio::test]
async fn a_session_stands_for_its_token_until_it_is_ended() {
    let server = start().await;
    let cookie = sign_in(&server, "seldom", "").await;
    let own = format!("Cookie: {cookie}\nSec-Fetch-Site: same-origin");
    let session = check(&server, &format!("GET /v1/session\n{own}"), "", 200, &[]).await.json();
    assert_eq!((&session["name"], &session["may"]), (&json!("eye"), &json!(["read"])));
    let left_ms = session["expires_at_ms"].as_u64().unwrap() - crate::unix_millis();
    assert!((3_590_000..=3_600_000).contains(&left_ms), "{left_ms}");
    check(&server, &format!("GET /v1/topics\n{own}"), "", 200, &["topics"]).await;
    let lacks = r#"the token \"eye\" lacks the scope \"publish\" (admin.tokens, may)"#;
    check(&server, &format!("{}\n{own}", post("/v1/publish")), "{}", 403, &[lacks]).await;
    let bearer = "GET /v1/session\nAuthorization: Bearer s3cret";
    check(&server, bearer, "", 200, &[r#""name":"admin""#, r#""expires_at_ms":null"#]).await;
    let out = check(&server, &format!("DELETE /v1/session\n{own}"), "", 204, &[]).await;
    assert!(out.header("set-cookie").unwrap().starts_with("weir_session=; "), "{out:?}");
    check(&server, &format!("GET /v1/topics\n{own}"), "", 401, &["has ended"]).await;
    check(&server, "GET /v1/session", "", 401, &["sign in"]).await;
    let metrics = "GET /metrics\nAuthorization: Bearer s3cret";
    let says = ["weir_admin_sessions 0\n", "weir_admin_acts_total{outcome=\"wrong_scope\"} 1\n"];
    check(&server, metrics, "", 200, &says).await;
    server.stop().await;
}

#[tokio::test]
async fn a_cookie_is_secure_behind_a_proxy_with_tls() {
    let server = start().await;
    let proxied = "\nHost: gate.example\nOrigin: https://gate.example";
    let cookie = sign_in(&server, "s3cret", proxied).await;
    let fixed = format!("\nCookie: {cookie}; weir_session=planted");
    let other = sign_in(&server, "s3cret", &fixed).await;
    assert_ne!(cookie, other);
    // The earlier session has ended with the new one.
    let earlier = format!("GET /v1/topics\nCookie: {cookie}");
    check(&server, &earlier, "", 401, &[]).await;
    server.stop().await;
}

#[tokio::test]
async fn a_removed_token_ends_its_session_and_breaks_its_stream_off() {
    let server = start().await;
    let cookie = sign_in(&server, "seldom", "").await;
    let mut streams = Vec::new();
    for header in [format!("Cookie: {cookie}"), "Authorization: Bearer seldom".to_owned()] {
        let mut stream = server.connect().await;
        let head = format!("GET /v1/events HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n");
        stream.send(&head).await;
        stream.hear(":\n\n").await;
        streams.push(stream);
    }
    let mut other = Config::default();
    other.admin.token = "s3cret".to_owned();
    let reloaded = server.handle().reload(other.clone()).await.expect("it is allowed");
    assert!(reloaded.changed.iter().any(|change| change.key.starts_with("admin.tokens")));
    other.admin.tokens = vec![named("two words", "x", &[])];
    assert!(server.handle().reload(other).await.is_err(), "it changes nothing");
    for mut stream in streams {
        stream.hear_end().await;
    }
    check(&server, &format!("GET /v1/topics\nCookie: {cookie}"), "", 401, &[]).await;
    check(&server, "GET /v1/topics\nAuthorization: Bearer seldom", "", 401, &[]).await;
    check(&server, "GET /v1/topics\nAuthorization: Bearer s3cret", "", 200, &[]).await;
    check(
        &server,
        "GET /v1/topics\nAuthorization: Bearer s3cret\nHost: gate.example",
        "",
        421,
        &[],
    )
    .await;
    server.stop().await;
}

#[tokio::test]
async fn failures_to_sign_in_are_limited_and_others_are_not_locked_out() {
    let server = start().await;
    let (request, wrong) = (&post("/v1/session"), r#"{"token":"wrong"}"#);
    for body in ["", "{}", "[]", r#"{"token":5}"#, r#"{"token":"s3cret","x":1}"#] {
        for _ in 0..4 {
            check(&server, request, body, 400, &[]).await;
        }
    }
    for _ in 0..10 {
        let answer = check(&server, request, wrong, 401, &["not the one"]).await;
        assert!(
            answer.header("set-cookie").is_none() && answer.header("www-authenticate").is_some()
        );
    }
    let limited = check(&server, request, r#"{"token":"s3cret"}"#, 429, &["retry_after_ms"]).await;
    assert!(limited.header("retry-after").is_some());
    check(&server, "GET /v1/topics\nAuthorization: Bearer s3cret", "", 200, &[]).await;
    let audit = "GET /v1/audit?limit=1000\nAuthorization: Bearer s3cret";
    let audit = check(&server, audit, "", 200, &[]).await.json();
    let outcomes: Vec<_> = audit["entries"].as_array().unwrap().iter().collect();
    let newest = outcomes[0];
    assert_eq!((&newest["act"], &newest["outcome"]), (&json!("sign_in"), &json!("limited")));
    assert_eq!((&newest["who"], &newest["from"]), (&json!("nobody"), &json!("127.0.0.1")));
    server.stop().await;
}

#[tokio::test]
async fn the_audit_log_tells_who_did_what() {
    let server = start().await;
    let mut device = Device::connect(server.device_addr(), "a/b", &["news"]).await;
    let id = format!("{:016x}", device.connection_id);
    let token = "\nAuthorization: Bearer s3cret";
    let publish = format!("{}{token}", post("/v1/publish"));
    for _ in 0..5 {
        check(&server, &publish, r#"{"topic":"news","text":"t"}"#, 200, &[]).await;
        device.push().await;
    }
    let lacks = format!("DELETE /v1/connections/{id}\nAuthorization: Bearer seldom");
    check(&server, &lacks, "", 403, &["lacks the scope"]).await;
    check(&server, &format!("DELETE /v1/connections/{id}{token}"), "", 204, &[]).await;
    device.goodbye().await;
    check(&server, &format!("{}{token}", post("/v1/devices/a%2Fb/revoke")), "", 404, &[]).await;
    let begin = format!("{}{token}", post("/v1/drain"));
    check(&server, &begin, r#"{"share":0.5,"lead":"0s","over":"1s"}"#, 202, &[]).await;
    check(&server, &format!("DELETE /v1/drain{token}"), "", 200, &[]).await;
    check(&server, &format!("GET /nowhere{token}"), "", 404, &[]).await;
    let audit = format!("GET /v1/audit{token}");
    let audit = check(&server, &audit, "", 200, &[]).await.json();
    let shown = audit["entries"].as_array().unwrap().iter().rev().map(|entry| {
        let of = |member: &str| entry[member].as_str().unwrap().to_owned();
        assert!(entry["at_ms"].as_u64().is_some(), "{entry}");
        ["who", "act", "what", "outcome"].map(of).join(" | ")
    });
    let expected = [
        "admin | publish | topic news | done".to_owned(),
        format!("eye | close | DELETE /v1/connections/{id} | wrong_scope"),
        format!("admin | close | connection {id} | done"),
        "admin | revoke | device a/b | failed".to_owned(),
        "admin | drain | POST /v1/drain | done".to_owned(),
        "admin | cancel_drain | DELETE /v1/drain | done".to_owned(),
        "admin | other | GET /nowhere | invalid".to_owned(),
    ];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    check(&server, "GET /v1/audit\nAuthorization: Bearer seldom", "", 403, &["operate"]).await;
    server.stop().await;
}

#[tokio::test]
async fn what_is_not_http_is_noted() {
    let server = start().await;
    for bytes in
        ["\u{16}\u{3}\u{1}\r\n\r\n", &format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(20_000))]
    {
        let mut peer = server.connect().await;
        peer.send(bytes).await;
        while !peer.is_closed().await {}
    }
    let audit = || async {
        let request = "GET /v1/audit\nAuthorization: Bearer s3cret";
        let audit = check(&server, request, "", 200, &[]).await.json();
        names(audit["entries"].as_array().unwrap(), "what").join("; ")
    };
    let expected = "a head that is not HTTP/1.1; a head that is too long";
    while audit().await != expected {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.stop().await;
}
