//! Which route a request takes, what the service learns, and what it costs a client to be too much.

use std::net::SocketAddr;

use anyhow::Result;
use weir_tests::{Answer, Server};

use crate::backend::{Backend, echo};

const TOKENS: &str = "[auth]\nanonymous = true\n\
    [[auth.services]]\ntoken = \"of-a-service\"\nname = \"till\"\nmay = [\"publish\"]\n\
    [[auth.tokens]]\ntoken = \"of-a-device\"\ndevice = \"d 1\"\n";

fn ask(http: SocketAddr, path: &str, headers: &str) -> Result<Answer> {
    Answer::ask(
        http,
        &format!("GET {path} HTTP/1.1\r\nHost: a:81\r\nConnection: close\r\n{headers}\r\n"),
    )
}

fn route(rest: &str) -> String {
    format!("[[http.routes]]\nupstream = \"api\"\n{rest}\n")
}

#[test]
fn a_token_opens_a_route_and_names_its_owner_to_the_service() -> Result<()> {
    let backend = Backend::start(echo)?;
    let routes = [route("prefix = \"/\""), route("prefix = \"/own\"\nauth = \"token\"")].concat();
    let server = Server::start_with_http(&[TOKENS, &backend.upstream(&routes)].concat())?;
    let http = server.http()?;
    let answer = ask(http, "/own", "Weir-Device: root\r\n")?;
    assert_eq!(answer.status, 401, "{answer:?}");
    assert!(answer.body.contains("urn:problem-type:weir:unauthorized"), "{answer:?}");
    assert_eq!(ask(http, "/own", "Authorization: Bearer wrong\r\n")?.status, 401);
    // Other spellings of the path do not evade it.
    for path in ["//own", "/%6fwn/x", "/own;x", "/x/..%2fown"] {
        let status = ask(http, path, "")?.status;
        assert!(matches!(status, 400 | 401), "{path}: {status}");
    }
    assert!(backend.requests().is_empty(), "{:?}", backend.requests());
    for token in ["of-a-service", "of-a-device"] {
        let headers =
            format!("Authorization: Bearer {token}\r\nWeir-Service: root\r\nWeir_Device: x\r\n");
        assert_eq!(ask(http, "/own/1?x=%20", &headers)?.status, 200);
    }
    // Elsewhere the token is the service's affair.
    ask(http, "/", "Authorization: Bearer theirs\r\nWeir-Device: root\r\n")?;
    let seen = backend.requests();
    let told: Vec<_> = seen
        .iter()
        .map(|request| {
            ["weir-device", "weir-service", "authorization"].map(|name| request.header(name))
        })
        .collect();
    assert_eq!(
        told,
        [
            [None, Some("till"), None],
            [Some("d%201"), None, None],
            [None, None, Some("Bearer theirs")]
        ]
    );
    assert_eq!(seen[0].line, "GET /own/1?x=%20 HTTP/1.1");
    let forwarded = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "host"];
    let forwarded = forwarded.map(|name| seen[0].header(name).unwrap_or_default());
    assert_eq!(forwarded, ["127.0.0.1", "http", "a:81", "a:81"]);
    let metrics = server.metrics()?;
    let count = |route, status| {
        metrics.sum_of("weir_route_requests_total", &[("route", route), ("status", status)])
    };
    assert_eq!((count("/own", "2xx"), count("/", "2xx")), (2.0, 1.0));
    assert!(count("/own", "4xx") >= 2.0);
    Ok(())
}

#[test]
fn each_sender_has_its_own_rate_on_a_route() -> Result<()> {
    let backend = Backend::start(echo)?;
    let rates = route(
        "prefix = \"/own\"\nauth = \"token\"\nrequests_per_identity_per_second = 1\nrequests_per_identity_burst = 2",
    );
    let by_source =
        route("prefix = \"/\"\nrequests_per_source_per_second = 1\nrequests_per_source_burst = 3");
    let server = Server::start_with_http(
        &[TOKENS, &backend.upstream(&[rates, by_source].concat())].concat(),
    )?;
    let http = server.http()?;
    let statuses = |path: &str, headers: &str, count: usize| -> Result<Vec<u16>> {
        (0..count).map(|_| Ok(ask(http, path, headers)?.status)).collect()
    };
    let limited = |statuses: &[u16]| statuses.iter().filter(|status| **status == 429).count();
    let token = |token: &str| format!("Authorization: Bearer {token}\r\n");
    // One more may come back in each second that passes meanwhile.
    let service = statuses("/own", &token("of-a-service"), 40)?;
    assert_eq!(service[..2], [200, 200]);
    assert!(limited(&service) > 0, "{service:?}");
    assert_eq!(statuses("/own", &token("of-a-device"), 2)?, [200, 200]);
    let source = statuses("/", "", 40)?;
    assert_eq!(source[..3], [200, 200, 200]);
    assert!(limited(&source) > 0, "{source:?}");
    let failures = server.metrics()?.sum("weir_route_failures_total", "cause=\"rate_limited\"");
    assert!(failures >= 2.0, "{failures}");
    Ok(())
}

#[test]
fn weir_answers_its_own_paths_and_a_reload_moves_the_others() -> Result<()> {
    let backend = Backend::start(echo)?;
    let config = backend.upstream(&route("prefix = \"/\"\nbody_bytes_max = 10"));
    let server = Server::start_with_http(&config)?;
    let http = server.http()?;
    assert_eq!(ask(http, "/openapi.json", "")?.status, 200);
    assert_eq!(ask(http, "/v1/publish", "")?.status, 405);
    assert!(backend.requests().is_empty());
    for path in ["/", "/rest/hello", "/v1/other"] {
        assert_eq!(ask(http, path, "")?.body, format!("GET {path} HTTP/1.1"));
    }
    let long = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
    let announced = Answer::ask(http, &format!("{long}Content-Length: 11\r\n\r\nhello world"))?;
    let chunked = Answer::ask(
        http,
        &format!("{long}Transfer-Encoding: chunked\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n"),
    )?;
    assert_eq!((announced.status, chunked.status), (413, 413));
    // Nobody listens there.
    let path = server.config();
    let text = std::fs::read_to_string(&path)?;
    let gone = weir_tests::free_port()?;
    std::fs::write(&path, text.replace(&backend.addr.to_string(), &format!("127.0.0.1:{gone}")))?;
    let reloaded = Answer::post(server.admin, "/v1/reload", "")?;
    assert_eq!(reloaded.status, 200, "{reloaded:?}");
    let answer = ask(http, "/x", "")?;
    assert_eq!(answer.status, 502, "{answer:?}");
    assert!(answer.body.contains("service-unreachable"), "{answer:?}");
    assert!(!answer.body.contains("127.0.0.1"), "{answer:?}");
    std::fs::write(&path, text.replace("prefix = \"/\"", "prefix = \"/moved\""))?;
    assert_eq!(Answer::post(server.admin, "/v1/reload", "")?.status, 200);
    assert_eq!(ask(http, "/x", "")?.status, 404);
    assert_eq!(ask(http, "/moved/x", "")?.status, 200);
    assert_eq!(ask(http, "/rest/hello", "")?.body, "Hello World");
    // A configuration that is wrong changes nothing.
    std::fs::write(&path, text.replace("upstream = \"api\"", "upstream = \"other\""))?;
    let refused = Answer::post(server.admin, "/v1/reload", "")?;
    assert!(
        refused.status == 422 && refused.body.contains("http.routes[0].upstream"),
        "{refused:?}"
    );
    assert_eq!(ask(http, "/moved/x", "")?.status, 200);
    Ok(())
}
