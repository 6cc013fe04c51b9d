//! Pages of the embedding program.

use super::http::Server;
use crate::{AdminConfig, AdminPage, Config};

#[tokio::test]
async fn a_page_needs_no_token_and_may_do_little() {
    let admin = AdminConfig { token: "s3cret".to_owned(), ..AdminConfig::default() };
    let page = AdminPage {
        path: "/demo".to_owned(),
        content_type: "text/html; charset=utf-8".to_owned(),
        body: b"<p>Hello".to_vec(),
        connects_to: vec!["ws://127.0.0.1:8080".to_owned()],
    };
    let config = Config { admin, ..Config::default() };
    let server = Box::pin(Server::start_with(config, |builder| builder.page(page))).await;
    let answer = server.ask("GET /demo?name=a", "").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "<p>Hello"));
    assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = answer.header("content-security-policy").unwrap_or_default();
    for part in ["default-src 'none'", "connect-src 'self' ws://127.0.0.1:8080"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    let head = server.ask("HEAD /demo", "").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    for (request, status) in [
        ("POST /demo", 405),
        ("GET /demo/", 401),
        ("GET /demo\nOrigin: http://evil.example", 403),
        ("GET /v1/connections", 401),
    ] {
        assert_eq!(server.ask(request, "").await.status, status, "{request}");
    }
    server.stop().await;
}
