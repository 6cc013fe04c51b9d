//! Tests of the errors of calls and their routes.

use super::said;

/// Two upstreams, and one route with these members.
fn check_route(cases: &[(&str, &str)]) {
    for (members, expected) in cases {
        let json = format!(
            r#"{{"upstreams": [{{"name": "api", "addresses": ["127.0.0.1:1"]}},
                               {{"name": "h2", "addresses": ["127.0.0.1:1"], "protocol": "http2"}}],
                "auth": {{"tokens": [{{"token": "t", "labels": ["till"]}}]}},
                "calls": {{"routes": [{{{members}}}]}}}}"#
        );
        assert_eq!(said(&json), *expected, "{members}");
    }
}

#[test]
fn routes() {
    check_route(&[
        (r#""method": "orders/*", "upstream": "api", "callers": ["label:till"]"#, ""),
        (r#""method": "a.B/C", "upstream": "h2", "protocol": "grpc", "path": "/x/""#, ""),
        (
            r#""method": "a/../b", "upstream": "api""#,
            "calls.routes[0].method = \"a/../b\": allowed is 1 to 255 bytes: letters, digits, \".\", \"_\" \
             and \"-\", in segments joined by \"/\"; a \"*\" may stand at the end",
        ),
        (
            r#""method": "a", "upstream": "none""#,
            "calls.routes[0].upstream = \"none\": allowed is the name of one of [[upstreams]]: api, h2",
        ),
        (
            r#""method": "a", "upstream": "api", "protocol": "grpc""#,
            "calls.routes[0].protocol = \"grpc\": allowed is \"http\", or an upstream with protocol = \
             \"http2\": \"api\" speaks HTTP/1.1",
        ),
        (
            r#""method": "a", "upstream": "api", "path": "x""#,
            "calls.routes[0].path = \"x\": allowed is a path that begins with \"/\": letters, digits, \".\", \
             \"_\" and \"-\", in segments joined by \"/\", none of them \".\" or \"..\"",
        ),
        (
            r#""method": "a", "upstream": "api", "callers": ["label:other"]"#,
            "calls.routes[0].callers[0] = \"label:other\": allowed is a label of a token in auth.tokens: till",
        ),
        (
            r#""method": "a", "upstream": "api"}, {"method": "a", "upstream": "h2""#,
            "calls.routes[1].method = \"a\": allowed is a method that no other route has: calls.routes[0] \
             has this one",
        ),
    ]);
    let bytes = r#"{"limits": {"frame_bytes_max": 90000}, "calls": {"payload_bytes_max": 131072}}"#;
    let expected = "calls.payload_bytes_max = 131072: allowed is at least 180000: the payload of one call \
                    and of its answer (limits.frame_bytes_max)";
    assert_eq!(said(bytes), expected);
}
