//! `[[http.routes]]`.

use super::said;

const API: &str = r#""upstreams": [{"name": "api", "addresses": ["127.0.0.1:1"]}]"#;

fn with(routes: &str) -> String {
    said(&format!(r#"{{{API}, "http": {{"routes": [{routes}]}}}}"#))
}

#[test]
fn a_route_has_a_place_of_its_own_and_an_upstream() {
    let route = |rest: &str| format!(r#"{{"upstream": "api", {rest}}}"#);
    for right in [r#""prefix": "/""#, r#""prefix": "/a/b/", "host": "a.example:81""#] {
        assert_eq!(with(&route(right)), "");
    }
    for prefix in [
        "",
        "a",
        "/a//b",
        "/a/../b",
        "/a%20",
        "/a?b",
        "/a;b",
        "/a b",
        "/v1/publish",
        "/openapi.json/",
    ] {
        let said = with(&route(&format!(r#""prefix": "{prefix}""#)));
        assert!(said.starts_with(&format!("http.routes[0].prefix = {prefix:?}: ")), "{said}");
    }
    let said = with(&route(r#""prefix": "/", "host": "a/b""#));
    assert!(said.starts_with("http.routes[0].host = \"a/b\": "), "{said}");
    let twice = [route(r#""prefix": "/a""#), route(r#""prefix": "/a/""#)].join(", ");
    let said = with(&twice);
    assert!(said.starts_with("http.routes[1].prefix = \"/a/\": "), "{said}");
    let said = with(r#"{"prefix": "/", "upstream": "other"}"#);
    assert!(said.starts_with("http.routes[0].upstream = \"other\": "), "{said}");
}
