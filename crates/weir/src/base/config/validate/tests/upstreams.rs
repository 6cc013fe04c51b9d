//! `[[upstreams]]`.

use super::check_all;

#[test]
fn keys_that_need_another_one() {
    let upstream = |members: &str| {
        format!(r#"{{"upstreams": [{{"name": "a", "addresses": ["a:80"], {members}}}]}}"#)
    };
    for (members, expected) in [
        (r#""tls": true, "tls_ca": "/a", "tls_server_name": "a""#, ""),
        (r#""tls_ca": "/a""#, "tls_ca = (set): allowed is nothing without tls = true"),
        (r#""tls_key": "/a""#, "tls_key = (set): allowed is nothing without tls = true"),
        (
            r#""tls": true, "tls_key": "/a""#,
            "tls_certificate = \"\": allowed is the PEM file of the certificate that belongs to tls_key",
        ),
        (r#""proxy": "socks5://p:1080", "proxy_user": "u", "proxy_password": "p""#, ""),
        (
            r#""proxy_password": "geheim""#,
            "proxy_password = (set): allowed is nothing without proxy",
        ),
        (r#""proxy_resolves": true"#, "proxy_resolves = (set): allowed is nothing without proxy"),
        (r#""dns_servers": ["127.0.0.1:5353", "::1"], "dns_families": "ipv4""#, ""),
        (
            r#""dns_servers": ["dns"]"#,
            "dns_servers = \"dns\": allowed is an IP address, with or without a port",
        ),
        (r#""dns_ttl_min": "10m""#, "dns_ttl_min = 600s: allowed is at most dns_ttl_max (300s)"),
        (r#""connections_max": 4, "connections_min": 4"#, ""),
        (
            r#""connections_max": 4, "connections_min": 5"#,
            "connections_min = 5: allowed is at most connections_max (4)",
        ),
        (r#""connections_max": 0"#, "connections_max = 0: allowed is 1 to 65536"),
        (r#""tries_max": 11"#, "tries_max = 11: allowed is 1 to 10"),
        (r#""retry_percent_max": 101"#, "retry_percent_max = 101: allowed is 0 to 100"),
        (r#""ejection_failures": 0, "waiting_max": 0"#, ""),
        (r#""endpoints_max": 0"#, "endpoints_max = 0: allowed is 1 to 1024"),
    ] {
        let expected = match expected {
            "" => String::new(),
            expected => format!("upstreams[0].{expected}"),
        };
        check_all(&[(&upstream(members), &expected)]);
    }
}
