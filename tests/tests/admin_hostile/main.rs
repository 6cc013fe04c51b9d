//! The admin API attacked: each attempt is refused, stands in the audit log and in the log, and opens nothing.

mod house;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_tests::{Answer, PATIENCE, now, rest};

use house::{House, OPERATOR, bearer};

/// What a method of a path needs: a scope, `any` token of the admin API, or nothing (`open`). The queries and bodies are
/// such that nothing happens even if the request is admitted.
const OPERATIONS: [(&str, &str, &str); 32] = [
    ("POST", "/v1/publish", "publish"),
    ("GET", "/v1/events?type=x", "read"),
    ("GET", "/v1/connections", "read"),
    ("GET", "/v1/connections/{id}", "read"),
    ("DELETE", "/v1/connections/{id}", "operate"),
    ("GET", "/v1/closes", "read"),
    ("GET", "/v1/topics", "read"),
    ("GET", "/v1/topics/{topic}/presence", "read"),
    ("GET", "/v1/devices", "read"),
    ("POST", "/v1/devices", "devices"),
    ("GET", "/v1/devices/export", "devices"),
    ("GET", "/v1/devices/{id}", "read"),
    ("POST", "/v1/devices/{id}/revoke", "devices"),
    ("POST", "/v1/devices/{id}/call", "publish"),
    ("GET", "/v1/nodes", "read"),
    ("GET", "/v1/drain", "read"),
    ("POST", "/v1/drain?share=1", "operate"),
    ("DELETE", "/v1/drain", "operate"),
    ("POST", "/v1/reload", "operate"),
    ("GET", "/v1/stats", "read"),
    ("GET", "/v1/stats/stream?x", "read"),
    ("GET", "/v1/debug/memory", "read"),
    ("GET", "/v1/debug/retention", "read"),
    ("GET", "/v1/debug/cpu?seconds=61", "operate"),
    ("GET", "/v1/debug/heap", "operate"),
    ("GET", "/healthz", "open"),
    ("GET", "/readyz", "open"),
    ("GET", "/metrics", "read"),
    ("GET", "/openapi.json", "read"),
    ("GET", "/v1/session", "any"),
    ("GET", "/v1/audit", "operate"),
    ("GET", "/v1/hooks/{id}/notices", "operate"),
];
/// These two are for sessions themselves.
const SIGN_IN: (&str, &str) = ("POST", "/v1/session");
const SIGN_OUT: (&str, &str) = ("DELETE", "/v1/session");

/// The path with something in the place of its parameter.
fn concrete(path: &str) -> String {
    path.replace("{topic}", "none")
        .replace("/devices/{id}", "/devices/none")
        .replace("{id}", "00000000000000ff")
}

fn bare(path: &str) -> &str {
    path.split('?').next().unwrap_or(path)
}

/// The description of the API names the same operations and scopes.
#[test]
fn the_table_of_this_test_is_whole() -> Result<()> {
    let house = House::new()?;
    let answer = house.ask("GET", "/openapi.json", &bearer(OPERATOR), "")?;
    let document: Value = serde_json::from_str(&answer.body)?;
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().context("paths")? {
        for (method, operation) in item.as_object().context("operations")? {
            let ways = operation["security"].as_array().context("security")?;
            let scopes = ways.iter().find_map(|way| way["token"].as_array());
            let needs = match scopes.map(Vec::as_slice) {
                None => "open",
                Some([]) => "any",
                Some([scope, ..]) => scope.as_str().context("a scope")?,
            };
            described.insert((method.to_uppercase(), path.clone(), needs.to_owned()));
        }
    }
    let mut tested: BTreeSet<_> = OPERATIONS
        .iter()
        .map(|(method, path, needs)| {
            ((*method).to_owned(), bare(path).to_owned(), (*needs).to_owned())
        })
        .collect();
    for ((method, path), needs) in [(SIGN_IN, "open"), (SIGN_OUT, "any")] {
        tested.insert((method.to_owned(), path.to_owned(), needs.to_owned()));
    }
    assert_eq!(described, tested);
    Ok(())
}

#[test]
fn without_a_token_nothing_answers_but_health() -> Result<()> {
    let house = House::new()?;
    for (method, path, needs) in OPERATIONS.iter().filter(|(.., needs)| *needs != "open") {
        let path = concrete(path);
        let what = format!("{method} {}", bare(&path));
        let answer = house
            .refused((401, "no_token"), &what, || house.ask(method, &path, "", "{\"share\":2}"))?;
        assert!(answer.head.contains("www-authenticate: Bearer"), "{needs}: {answer:?}");
    }
    house.refused((401, "no_token"), "DELETE /v1/session", || {
        house.ask("DELETE", "/v1/session", "", "")
    })?;
    house.refused((401, "no_token"), "GET /nowhere", || house.ask("GET", "/nowhere", "", ""))?;
    for (head, outcome) in [
        (bearer("").as_str(), "wrong_token"),
        (&bearer("the-operators-ow"), "wrong_token"),
        (&bearer("the-operators-ownx"), "wrong_token"),
        ("Authorization: Basic dGhlLW9wZXJhdG9ycy1vd24=\r\n", "wrong_token"),
        (&[bearer(OPERATOR), bearer(OPERATOR)].concat(), "no_token"),
    ] {
        house
            .refused((401, outcome), "GET /v1/nodes", || house.ask("GET", "/v1/nodes", head, ""))?;
    }
    // A hash opens nothing, so the configuration is no key.
    for hash in &house.hashes {
        for shown in [hash.as_str(), &hash["sha256:".len()..]] {
            house.refused((401, "wrong_token"), "GET /v1/topics", || {
                house.ask("GET", "/v1/topics", &bearer(shown), "")
            })?;
        }
    }
    house.is_unharmed()
}

#[test]
fn a_token_opens_its_scope_and_no_other() -> Result<()> {
    let house = House::new()?;
    let left_out =
        || Ok::<_, anyhow::Error>(house.metrics()?.sum("weir_audit_left_out_total", "wrong_scope"));
    let mut attempts = 0.0;
    for (method, path, needs) in OPERATIONS {
        let path = concrete(path);
        for (scope, token) in &house.tokens {
            let answer = house.ask(method, &path, &bearer(token), "{\"share\":2}")?;
            if matches!(needs, "any" | "open") || needs == *scope {
                assert!(
                    !matches!(answer.status, 401 | 403),
                    "{method} {path} as {scope}: {answer:?}"
                );
                continue;
            }
            assert_eq!(answer.status, 403, "{method} {path} as {scope}: {answer:?}");
            let lacks = format!("the token \\\"{scope}\\\" lacks the scope \\\"{needs}\\\"");
            assert!(answer.body.contains(&lacks), "{answer:?}");
            attempts += 1.0;
        }
        let answer = house.ask(method, &path, &bearer(OPERATOR), "{\"share\":2}")?;
        assert!(!matches!(answer.status, 401 | 403), "{method} {path}: {answer:?}");
        for (service, own) in [("mouth", "/v1/publish"), ("ears", "/v1/events")] {
            let answer = house.ask(method, &path, &bearer(service), "{}")?;
            let is_heard = service == "ears" && path.starts_with("/v1/hooks/");
            let is_open = needs == "open" || bare(&path) == own || is_heard;
            assert_eq!(answer.status == 403, !is_open, "{method} {path} as {service}: {answer:?}");
            attempts += if is_open { 0.0 } else { 1.0 };
        }
    }
    assert_eq!(house.count("wrong_scope")?, attempts);
    let audit = house.audit()?;
    let entered =
        audit.iter().filter(|entry| entry["outcome"] == "wrong_scope" && entry["who"] != "nobody");
    assert_eq!(
        entered.count() as f64 + left_out()?,
        attempts,
        "each is an entry, or is counted as left out"
    );
    // Nobody is a caller that a session could be opened for, or that has got into one.
    for (who, token) in [("mouth-service", "mouth"), ("ears-service", "ears")] {
        let body = json!({"token": token}).to_string();
        let answer = house.refused((403, "wrong_scope"), "POST /v1/session", || {
            house.ask("POST", "/v1/session", "", &body)
        })?;
        assert!(answer.body.contains(who) && !answer.head.contains("set-cookie"), "{answer:?}");
    }
    house.is_unharmed()
}

#[test]
fn other_pages_get_nothing_by_the_cookie_of_a_reader() -> Result<()> {
    let house = House::new()?;
    let cookie = house.sign_in(OPERATOR, "")?;
    let with = |head: &str| format!("{cookie}{head}");
    let ask = |method: &str, path: &str, head: &str| {
        house.ask(method, path, &with(head), "{\"share\":2}")
    };
    assert_eq!(ask("GET", "/v1/nodes", "Sec-Fetch-Site: same-origin\r\n")?.status, 200);
    assert_eq!(ask("POST", "/v1/drain", "Origin: http://localhost\r\n")?.status, 400);
    for (method, path, head) in [
        ("POST", "/v1/drain", "Origin: http://evil.example\r\n"),
        ("POST", "/v1/drain", "Origin: http://localhost:3000\r\n"),
        ("POST", "/v1/drain", "Origin: https://localhost\r\n"),
        ("POST", "/v1/drain", "Origin: null\r\n"),
        ("POST", "/v1/drain", "Origin: http://localhost\r\nOrigin: http://evil.example\r\n"),
        ("POST", "/v1/drain", ""),
        ("POST", "/v1/drain", "Content-Type: text/plain\r\n"),
        (
            "POST",
            "/v1/drain",
            "Content-Type: application/x-www-form-urlencoded\r\nSec-Fetch-Site: same-site\r\n",
        ),
        ("DELETE", "/v1/drain", "Sec-Fetch-Site: cross-site\r\n"),
        ("DELETE", "/v1/session", "Sec-Fetch-Site: none\r\n"),
        (
            "GET",
            "/v1/debug/cpu?seconds=1",
            "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n",
        ),
        (
            "GET",
            "/v1/devices/export",
            "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n",
        ),
        (
            "OPTIONS",
            "/v1/drain",
            "Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n",
        ),
    ] {
        let what = format!("{method} {}", bare(path));
        let answer = house.refused((403, "foreign_origin"), &what, || ask(method, path, head))?;
        assert!(!answer.head.contains("access-control-"), "{answer:?}");
    }
    // A form or a script elsewhere signs nobody in either.
    let body = json!({"token": OPERATOR}).to_string();
    house.refused((403, "foreign_origin"), "POST /v1/session", || {
        house.ask("POST", "/v1/session", "Origin: http://evil.example\r\n", &body)
    })?;
    house.refused((415, "invalid"), "POST /v1/session", || {
        house.ask("POST", "/v1/session", "Content-Type: text/plain\r\n", &body)
    })?;
    // A name that points here now is no name of this server. The health checks say nothing to a page.
    for (path, head) in [
        ("/v1/nodes", "Host: evil.example\r\n"),
        ("/readyz", "Host: evil.example\r\nOrigin: http://evil.example\r\n"),
        ("/healthz", "Host: evil.example\r\nSec-Fetch-Site: same-origin\r\n"),
    ] {
        house.refused((421, "unknown_host"), &format!("GET {path}"), || ask("GET", path, head))?;
    }
    let ready = ask("GET", "/readyz", "Host: evil.example\r\n")?;
    assert_eq!((ready.status, ready.body.as_str()), (200, r#"{"ready":true,"parts":[]}"#));
    assert_eq!(ask("GET", "/v1/session", "")?.status, 200, "the session is still there");
    house.is_unharmed()
}

#[test]
fn a_session_is_neither_chosen_nor_kept_by_others() -> Result<()> {
    let house = House::new()?;
    let look = |head: &str| house.ask("GET", "/v1/session", head, "");
    // Fixation: the id that comes with the request is not the one that is opened.
    let planted = "Cookie: weir_session=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\r\n";
    let cookie = house.sign_in(OPERATOR, planted)?;
    assert_ne!(cookie, planted);
    let wrong = (401, "wrong_token");
    house.refused(wrong, "GET /v1/session", || look(planted))?;
    // A stolen cookie is worth nothing behind the sign-out, nor behind another sign-in.
    let next = house.sign_in(&house.tokens["read"], &cookie)?;
    house.refused(wrong, "GET /v1/session", || look(&cookie))?;
    assert!(look(&next)?.body.contains("\"name\":\"read\""));
    let own = format!("{next}Sec-Fetch-Site: same-origin\r\n");
    assert_eq!(house.ask("DELETE", "/v1/session", &own, "")?.status, 204);
    for _ in 0..3 {
        house.refused(wrong, "GET /v1/session", || look(&next))?;
    }
    // Several cookies, of which one is right.
    let cookie = house.sign_in(OPERATOR, "")?;
    let value = cookie.trim_start_matches("Cookie: ").trim_end();
    for head in [
        format!("Cookie: weir_session=x; {value}\r\n"),
        format!("Cookie: {value}; weir_session=x\r\n"),
        format!("{cookie}{planted}"),
        format!("{cookie}{cookie}"),
        format!("Cookie: {value}x\r\n"),
        format!("Cookie: {}\r\n", value.to_uppercase()),
        format!("Cookie: {}\r\n", value.replace('=', "=\"")),
        format!("Cookie: {}\r\n", &value[..value.len() - 1]),
        format!("Cookie: weir_session={OPERATOR}\r\n"),
        format!("{cookie}{}", bearer("wrong")),
    ] {
        let answer = look(&head)?;
        assert_eq!(answer.status, 401, "{head}: {answer:?}");
    }
    assert_eq!(look(&format!("Cookie: a=b; {value}; c=d\r\n"))?.status, 200);
    house.is_unharmed()
}

#[test]
fn tokens_are_not_guessed_by_signing_in() -> Result<()> {
    let house = House::new()?;
    let (stranger, other) = (Ipv4Addr::new(127, 0, 0, 77), Ipv4Addr::new(127, 0, 0, 78));
    let guess = |from: Ipv4Addr, token: &str| {
        let body = json!({"token": token}).to_string();
        let length = body.len();
        let request = format!(
            "POST /v1/session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        Answer::ask_from(from, house.server.admin, &request)
    };
    let mut statuses = BTreeMap::new();
    for number in 0..60 {
        *statuses.entry(guess(stranger, &format!("guess-{number}"))?.status).or_insert(0) += 1;
    }
    assert!(statuses[&401] >= 10 && statuses[&401] < 20, "{statuses:?}");
    assert!(statuses[&429] > 40 && statuses.len() == 2, "{statuses:?}");
    // The right one does not show among the guesses.
    let answer = house.refused((429, "limited"), "POST /v1/session", || {
        while guess(stranger, "another")?.status != 429 {}
        guess(stranger, OPERATOR)
    })?;
    assert!(
        answer.head.contains("retry-after:") && !answer.head.contains("set-cookie"),
        "{answer:?}"
    );
    assert_eq!(guess(other, OPERATOR)?.status, 200, "another address is not locked out");
    let entry = house.audit()?.into_iter().find(|entry| entry["outcome"] == "limited");
    assert_eq!(entry.context("an entry")?["from"], "127.0.0.77");
    // Guesses of sessions are hopeless, and are counted.
    let before = house.count("wrong_token")?;
    for number in 0..200 {
        let cookie = format!("Cookie: weir_session={number:043}\r\n");
        assert_eq!(house.ask("GET", "/v1/session", &cookie, "")?.status, 401);
    }
    assert_eq!(house.count("wrong_token")?, before + 200.0);
    assert!(house.metrics()?.sum("weir_audit_left_out_total", "") > 0.0);
    house.server.await_log("more attempts were left out", 1)?;
    house.is_unharmed()
}

#[test]
fn no_spelling_of_a_path_or_target_goes_round_the_guard() -> Result<()> {
    let house = House::new()?;
    for target in [
        "//v1/nodes",
        "/v1//nodes",
        "/v1/./nodes",
        "/v1/x/../nodes",
        "/v1/%2e%2e/v1/nodes",
        "/v1%2fnodes",
        "/V1/nodes",
        "/v1/nodes/",
        "/v1/nodes%00",
        "/v1/nodes%20",
        "/v1/nodes;x=1",
        "/healthz/../v1/nodes",
        "/healthz%2f..%2fv1%2fnodes",
        "/healthz/v1/nodes",
        "/v1/devices/none/export",
    ] {
        let what = format!("GET {target}");
        house.refused((401, "no_token"), &what, || house.ask("GET", target, "", ""))?;
        house
            .refused((404, "invalid"), &what, || house.ask("GET", target, &bearer(OPERATOR), ""))?;
    }
    // Encoded, the name of another path is only a device's.
    for target in ["/v1/devices/%65xport", "/v1/devices/..%2fexport", "/v1/devices/export%2f"] {
        let answer = house.ask("GET", target, &bearer(&house.tokens["read"]), "")?;
        assert!(answer.status == 404 && answer.body.contains("not known here"), "{answer:?}");
    }
    let nodes = || bearer(OPERATOR);
    for (target, head) in [
        ("http://evil.example/v1/nodes", nodes()),
        ("http://localhost:1/v1/nodes", nodes()),
        ("http://localhost/v1/nodes", nodes() + "Host: evil.example\r\n"),
    ] {
        let answer = house.ask("GET", target, &head, "")?;
        assert!(matches!(answer.status, 400 | 421), "{target}: {answer:?}");
    }
    house.refused((401, "no_token"), "GET /v1/nodes", || {
        house.ask("GET", "http://localhost/v1/nodes", "", "")
    })?;
    assert_eq!(house.ask("GET", "http://localhost/v1/nodes", &nodes(), "")?.status, 200);
    house.refused((405, "invalid"), "PUT /v1/nodes", || {
        house.ask("PUT", "/v1/nodes", &nodes(), "")
    })?;
    // What no HTTP library would send.
    for line in [
        "GET /v1/nodes\0 HTTP/1.1",
        "GET /v1/no des HTTP/1.1",
        "GET v1/nodes HTTP/1.1",
        "\u{16}\u{3}\u{1}",
    ] {
        let before = house.count("invalid")?;
        let mut stream = TcpStream::connect(house.server.admin)?;
        write!(stream, "{line}\r\nHost: localhost\r\n{}\r\n", nodes())?;
        let deadline = now() + PATIENCE;
        while house.count("invalid")? == before {
            ensure!(now() < deadline, "{line:?} is not counted");
            rest();
        }
    }
    house.is_unharmed()
}

#[test]
fn what_is_too_large_is_refused_and_noted() -> Result<()> {
    let house = House::new()?;
    let large = |bytes: usize| json!({"token": "x".repeat(bytes)}).to_string();
    house.refused((413, "invalid"), "POST /v1/session", || {
        house.ask("POST", "/v1/session", "", &large(40_000))
    })?;
    house.refused((413, "invalid"), "POST /v1/publish", || {
        house.ask("POST", "/v1/publish", &bearer(OPERATOR), &large(1 << 20))
    })?;
    house.refused((401, "no_token"), "POST /v1/publish", || {
        house.ask("POST", "/v1/publish", "", &large(100_000))
    })?;
    for head in [
        format!("{}X: {}\r\n", bearer(OPERATOR), "x".repeat(20_000)),
        format!("{}{}", bearer(OPERATOR), "X: x\r\n".repeat(100)),
        format!("Cookie: {}\r\n", "weir_session=x; ".repeat(2_000)),
    ] {
        house.refused((431, "invalid"), "a head that is too long", || {
            house.ask("GET", "/v1/nodes", &head, "")
        })?;
    }
    let coded = format!("{}Transfer-Encoding: gzip, chunked\r\n", bearer(OPERATOR));
    let request = format!(
        "POST /v1/drain HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{coded}\r\n0\r\n\r\n"
    );
    let answer = Answer::ask(house.server.admin, &request)?;
    assert!(matches!(answer.status, 400 | 501), "{answer:?}");
    house.is_unharmed()
}
