//! `[udp]` and `listen.udp`.

use super::{check_all, said};

#[test]
fn what_is_in_the_clear_is_told_so() {
    let in_the_clear = "udp.cleartext = false: allowed is true, since [::]:7070 of listen.udp is not on loopback, and keys \
                        and tokens travel there in the clear: anyone on the path can read them. Or listen on \
                        127.0.0.1 or [::1]";
    check_all(&[
        (r#"{"listen": {"udp": ["127.0.0.9:7070", "[::1]:7070"]}}"#, ""),
        (r#"{"listen": {"udp": ["127.0.0.1:7070", "[::]:7070"]}}"#, in_the_clear),
        (r#"{"listen": {"udp": ["[::]:7070"]}, "udp": {"cleartext": true}}"#, ""),
        (r#"{"listen": {"udp": []}}"#, ""),
    ]);
}

#[test]
fn limits_of_datagrams() {
    for (key, low, high) in [
        ("datagram_bytes_max", 255_u64, 8_193),
        ("recv_buffer_bytes", 65_535, 1_073_741_825),
        ("send_buffer_bytes", 65_535, 1_073_741_825),
        ("queue_max", 0, 65_537),
        ("token_cache_max", 1, 1_000_001),
        ("duplicates_max", 0, 1_000_001),
        ("datagrams_per_source_burst", 0, 100_000_001),
    ] {
        for value in [low, high] {
            let expected = format!("udp.{key} = {value}: allowed is {} to {}", low + 1, high - 1);
            assert_eq!(said(&format!(r#"{{"udp": {{"{key}": {value}}}}}"#)), expected);
        }
        for value in [low + 1, high - 1] {
            assert_eq!(said(&format!(r#"{{"udp": {{"{key}": {value}}}}}"#)), "");
        }
    }
    check_all(&[
        (r#"{"udp": {"threads": 257}}"#, "udp.threads = 257: allowed is 0 to 256"),
        (r#"{"udp": {"datagrams_per_source_per_second": 0}}"#, ""),
        (
            r#"{"udp": {"duplicate_window": "0s"}}"#,
            "udp.duplicate_window = 0ns: allowed is 10ms to 3600s",
        ),
        (
            r#"{"udp": {"token_cache_ttl": "61s"}}"#,
            "udp.token_cache_ttl = 61s: allowed is 10ms to 60s",
        ),
    ]);
}
