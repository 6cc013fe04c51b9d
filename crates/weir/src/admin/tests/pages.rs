//! The static files of the dashboard.

use std::path::Path;

use super::check;
use super::http::Server;
use crate::{AdminConfig, Config};

/// A request for a page, held against what every page has.
async fn page(server: &Server, request: &str, status: u16) -> super::http::Answer {
    let answer = server.ask(request, "").await;
    assert_eq!(answer.status, status, "{request}\n{answer:?}");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
        ("cross-origin-opener-policy", "same-origin"),
        (
            "content-security-policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
             frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
        ),
    ] {
        assert_eq!(answer.header(name), Some(value), "{request}");
    }
    answer
}

#[tokio::test]
async fn pages_need_no_token_and_data_does() {
    let token = "a-token-of-at-least-16-bytes".to_owned();
    let admin = AdminConfig { token, ..AdminConfig::default() };
    let server = Server::start(Config { admin, ..Config::default() }).await;
    let answer = page(&server, "GET /", 200).await;
    assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(answer.body.starts_with("<!doctype html>"), "{answer:?}");
    for (path, kind) in [
        ("/ui/main.js", "text/javascript; charset=utf-8"),
        ("/ui/dashboard.css", "text/css; charset=utf-8"),
        ("/ui/icon.svg", "image/svg+xml"),
        ("/ui/uplot/LICENSE", "text/plain; charset=utf-8"),
    ] {
        let answer = page(&server, &format!("GET {path}"), 200).await;
        assert_eq!(answer.header("content-type"), Some(kind));
    }
    for path in ["/v1/stats", "/v1/stats/stream", "/ui", "/ui/", "/ui/none.js", "/ui/../main.js"] {
        check(&server, &format!("GET {path}"), "", 401, &[]).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_page_that_the_browser_has_is_not_sent_again() {
    let server = Server::start(Config::default()).await;
    let first = page(&server, "GET /ui/main.js", 200).await;
    let tag = first.header("etag").unwrap();
    for known in [tag.to_owned(), format!("\"x\", {tag}"), format!("W/{tag}")] {
        let again = page(&server, &format!("GET /ui/main.js\nIf-None-Match: {known}"), 304).await;
        assert_eq!((again.body.as_str(), again.header("etag")), ("", Some(tag)));
    }
    page(&server, "GET /ui/main.js\nIf-None-Match: \"x\"", 200).await;
    let head = page(&server, "HEAD /ui/main.js", 200).await;
    assert_eq!(head.body, "");
    assert_eq!(head.header("content-length"), first.header("content-length"));
    for (request, status) in [
        ("POST /\nContent-Type: application/json", 405),
        ("GET /?x=1", 400),
        ("GET /\nHost: evil.example", 421),
        ("GET /ui/main.js\nOrigin: http://evil.example", 403),
    ] {
        assert_eq!(server.ask(request, "").await.status, status, "{request}");
    }
    server.stop().await;
}

#[tokio::test]
async fn each_file_of_the_folder_is_served() {
    let server = Server::start(Config::default()).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/ui");
    for part in ["", "uplot/"] {
        for entry in std::fs::read_dir(folder.join(part)).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_file() && name != "index.html" {
                let text = std::fs::read_to_string(entry.path()).unwrap();
                let answer = page(&server, &format!("GET /ui/{part}{name}"), 200).await;
                assert!(answer.body == text, "{part}{name}");
            }
        }
    }
    server.stop().await;
}
