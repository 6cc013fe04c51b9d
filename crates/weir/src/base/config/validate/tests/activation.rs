//! Rules of `activation.bench_stages`.

use super::{check_all, said};

#[test]
fn stages_are_left_out_on_loopback_only() {
    let exposed = |addr, key| {
        format!(
            "activation.bench_stages = [\"log\"]: allowed is [] since {addr} of {key} is not on loopback: with stages left \
             out, whoever asks is answered with a token"
        )
    };
    check_all(&[
        (r#"{"activation": {"bench_stages": ["nothing"]}}"#, ""),
        (r#"{"activation": {"bench_stages": ["log", "redis", "store"]}}"#, ""),
        (
            r#"{"activation": {"bench_stages": ["nothing", "log"]}}"#,
            "activation.bench_stages = [\"nothing\", \"log\"]: allowed is \"nothing\" alone, or some of the others",
        ),
    ]);
    for (listen, addr, key) in [
        (r#""http": ["127.0.0.1:1", "0.0.0.0:2"]"#, "0.0.0.0:2", "listen.http"),
        (r#""admin": "192.0.2.1:2""#, "192.0.2.1:2", "listen.admin"),
        (r#""udp": ["[::]:2"]"#, "[::]:2", "listen.udp"),
    ] {
        let json = |stages: &str| {
            format!(
                r#"{{"listen": {{{listen}}}, "udp": {{"cleartext": true}}, "admin": {{"token": "t"}},
                    "auth": {{"tokens": [{{"token": "u"}}]}}, "activation": {{"bench_stages": [{stages}]}}}}"#
            )
        };
        assert_eq!(said(&json("")), "");
        assert_eq!(said(&json(r#""log""#)), exposed(addr, key));
    }
}
