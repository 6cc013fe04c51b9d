//! The rows of the articles that Weir answers, and of SPECIFICATION.md, with what is measured.

use super::beside::ALL;
use super::results::Results;
use crate::plot::number;

/// A row: what is said, and what is measured; the latter is empty if nothing is.
pub(super) struct Row {
    pub(super) said: &'static str,
    pub(super) measured: String,
}

/// A row for each headline figure of the articles.
pub(super) fn articles(results: &Results) -> Vec<Row> {
    let row = |said, measured: Option<String>| Row { said, measured: measured.unwrap_or_default() };
    let bytes = |piece: &str, name: &str| median(results, piece, name, "bytes_per_connection");
    let text = |piece: &str, start: &str| lines(results, piece, start);
    vec![
        row(
            "1,492,758 connections, 5.7 GB (3.8 KB each)",
            held(results, "connections-1000000").zip(bytes("idle", "weir")).map(|(held, bytes)| {
                let netty = bytes_beside(results, "idle");
                format!("{held}; {} B each, idle, at 15,000{netty}", number(bytes))
            }),
        ),
        row(
            "TLS: 24 KB of heap each, 3.1 KB of byte arrays after patching",
            held(results, "million-half-tls").zip(bytes("idle-tls", "weir")).map(
                |(held, bytes)| {
                    let netty = bytes_beside(results, "idle-tls");
                    format!("{held}; {} B each, idle, all TLS, at 15,000{netty}", number(bytes))
                },
            ),
        ),
        row(
            "10,000 at 1 message a second: 3 % of 4 cores, in one process",
            cpu_share(10_000, median(results, "broadcast", "weir", "cpu_us_per_message")),
        ),
        row(
            "30,000 at 1 message a second: 7 % of 4 cores, in one process",
            cpu_share(30_000, results.figure("connections-18000", "cpu_us_per_message")).map(
                |share| {
                    share + ", measured at 18,000, for which one table of descriptors has room here"
                },
            ),
        ),
        row("`ab -c 100`: HTTPS 500/s, HTTP 8,000/s", text("ab", "http")),
        row("HTTP 112,307/s (`wrk -t8 -c32`)", text("wrk", "weir   32")),
        row(
            "HTTP 36,276/s with an asynchronous log, 17,049/s with a synchronous one",
            text("access-log", "o"),
        ),
        row("through a network of 400 Mbit/s", text("link", "weir")),
        row("activation 27,059/s, p50 2.1 ms", activation(results)),
        row("1,000,000 calls by datagram in 12.66 s", datagrams(results)),
        row("echo, 16,384 connections × 256 B: garbage and pauses", echo(results)),
    ]
}

/// How many connections one process held, and what each took.
fn held(results: &Results, piece: &str) -> Option<String> {
    let figure = |field| results.figure(piece, field);
    let (count, bytes) = (figure("connections")?, figure("bytes_per_connection")?);
    let tls = figure("tls_connections").filter(|count| *count > 0.0);
    let tls = tls.map_or(String::new(), |count| format!(" ({} of them with TLS)", number(count)));
    let gigabytes = (figure("rss_anon_after")? / 1e7).round() / 100.0;
    Some(format!(
        "{}{tls} in {gigabytes} GB of process memory ({} B each) and {} B of the kernel's each, for \
         both ends",
        number(count),
        number(bytes),
        number(figure("kernel_bytes_per_connection")?)
    ))
}

fn activation(results: &Results) -> Option<String> {
    let figure = |field| results.figure("activate", field).map(number);
    Some(format!(
        "{}/s on one processor, durable, embedded store, p50 {} ms with 1,024 in flight; {} µs of CPU \
         each",
        figure("answers_per_second")?,
        figure("p50_ms")?,
        figure("gateway_us_per_answer")?
    ))
}

fn datagrams(results: &Results) -> Option<String> {
    let figure = |field| results.figure("udp-million", field).map(number);
    let (seconds, us) = (figure("wall_seconds")?, figure("cpu_us_per_call")?);
    Some(format!("{seconds} s, {us} µs of CPU each, on one processor"))
}

fn echo(results: &Results) -> Option<String> {
    let figure = |field| results.figure("echo-16384", field).map(number);
    let netty = |field| median(results, "echo", "netty", field).map(number);
    let bytes = figure("allocated_bytes_per_message")?;
    let turn = figure("longest_counted_turn_ms").unwrap_or_else(|| "–".to_owned());
    let beside = netty("allocated_bytes_per_message").zip(netty("collection_ms"));
    let beside = beside.map_or(String::new(), |(bytes, pause)| {
        format!(" (Netty beside it: {bytes} B a message, {pause} ms of collections a round)")
    });
    Some(format!(
        "{bytes} B allocated a message, longest turn of a shard at most {turn} ms{beside}"
    ))
}

/// A row for each promise or missed goal with a ratio.
pub(super) fn promises(results: &Results) -> Vec<Row> {
    let figure = |piece: &str, field: &str| results.figure(piece, field);
    let of = |piece: &str, field: &str| figure(piece, field).map(|value| format!("{value:.2}"));
    let against = |one: &str, other: &str| {
        let field = "cpu_us_per_message";
        figure(one, field)
            .zip(figure(other, field))
            .map(|(one, other)| format!("{:.2}", one / other))
    };
    let two = |one: Option<String>, other: Option<String>| {
        one.zip(other).map(|(one, other)| format!("{one}; {other}"))
    };
    let share =
        |one: Option<f64>, of: Option<f64>| one.zip(of).map(|(one, of)| format!("{:.2}", one / of));
    let rung = |name: &str| rung(results, name);
    let measured: [Option<String>; PROMISES.len()] = [
        of("delivery", "ratio"),
        against("delivery-tls", "delivery"),
        two(against("mixed", "delivery"), against("mixed-tls", "delivery-tls")),
        of("echo-16384", "ratio"),
        of("handshake-rsa", "ratio"),
        two(of("http2", "ratio_to_hyper"), of("http2", "ratio_to_nginx")),
        of("http1-tls", "ratio_to_nginx"),
        lines(results, "access-log", "on "),
        two(of("udp-million", "cpu_ratio_mmsg"), of("udp-million", "cpu_ratio_single")),
        share(rung("log+embedded"), rung("log")),
        gateway_share(results),
        of("priorities", "lag_ratio"),
        of("churn", "lag_ratio"),
        of("storm", "lag_ratio"),
        of("siege", "lag_ratio"),
        of("http1", "ratio_to_epoll"),
        of("http1", "ratio_to_nginx"),
        of("udp-million", "paced_lost"),
    ];
    let rows = PROMISES.into_iter().zip(measured);
    rows.map(|(said, measured)| Row { said, measured: measured.unwrap_or_default() }).collect()
}

/// The beginnings of rows of SPECIFICATION.md.
const PROMISES: [&str; 18] = [
    "A delivered message costs at most 1.15 times the CPU of a bare `send` loop",
    "A message to 10,000 TLS connections costs at most 1.25 times the CPU of a plain one",
    "A message to 2,500 connections each of TCP, WebSocket with protobuf, WebSocket with JSON, and events",
    "Echo of 256 B at 16,384 connections reaches at least 0.95 times the throughput of a bare epoll echo",
    "A full handshake with RSA-2048, from accept to `Welcome` and close, costs at most 1.25 times a baseline",
    "`GET /rest/hello` over HTTP/2, on 16 connections of 32 streams, costs at most 1.25 times the CPU of bare hyper",
    "`GET /rest/hello` over HTTP/1.1 with TLS, on kept connections, costs less CPU than nginx",
    "With the access log, `GET /rest/hello` is answered at nearly the rate without it",
    "A call by datagram, from each of 1,024 devices in turn, costs at most 1.35 times the CPU",
    "A durable activation on the embedded store, with 1,024 in flight, is answered at no less than half the rate",
    "In front of MongoDB's protocol and Redis, the gateway takes less than half of all CPU",
    "When 10,000 connections are flooded, 100 of high priority among them keep their p99 lag within 1.5 times",
    "2,000 connects a second leave no memory behind",
    "When 5,000 devices come back at once, all of them settle",
    "18 attacks run at once for two minutes",
    "`GET /rest/hello` over HTTP/1.1, on kept connections, costs at most 1.2 times the CPU of a bare epoll responder",
    "The same request costs less CPU than nginx",
    "At 80 % of the rate that the server can answer, no call by datagram is lost",
];

/// The lines of a script's output that begin so, one behind the other.
fn lines(results: &Results, piece: &str, start: &str) -> Option<String> {
    let text = results.get(piece)?.get("text")?.as_str()?;
    let found = text.lines().filter(|line| line.starts_with(start));
    let found = found.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let found: Vec<String> = found.collect();
    (!found.is_empty()).then(|| found.join("; "))
}

/// CPU of a delivery to so many connections each second, as a part of four cores.
fn cpu_share(connections: u32, us: Option<f64>) -> Option<String> {
    let us = us?;
    let percent = us * f64::from(connections) / 1e6 / 4.0 * 100.0;
    Some(format!("{} % of 4 cores, at {} µs a delivery", number(percent), number(us)))
}

fn bytes_beside(results: &Results, piece: &str) -> String {
    let netty = median(results, piece, "netty", "bytes_per_connection");
    netty.map_or(String::new(), |bytes| format!(" (Netty beside it: {} B)", number(bytes)))
}

fn median(results: &Results, piece: &str, name: &str, figure: &str) -> Option<f64> {
    let contestants = results.get(piece)?.get("contestants")?.as_array()?;
    contestants.iter().find(|one| one["name"] == name)?["medians"].get(figure)?.as_f64()
}

/// Answers a second of a set of stages.
fn rung(results: &Results, name: &str) -> Option<f64> {
    let rungs = results.get("stages")?.get("rungs")?.as_array()?;
    rungs.iter().find(|rung| rung["stages"] == name)?.get("answers_per_second")?.as_f64()
}

fn gateway_share(results: &Results) -> Option<String> {
    let rungs = results.get("stages")?.get("rungs")?.as_array()?;
    let rung = rungs.iter().find(|rung| rung["stages"] == "log+redis+mongodb")?;
    Some(format!("{:.2}", rung.get("gateway_share")?.as_f64()?))
}

/// The aims of issue and design for which a peer is the measure: Weir's CPU as a multiple of theirs.
pub(super) fn aims(results: &Results) -> Vec<(String, f64)> {
    let mut aims = Vec::new();
    for comparison in &ALL {
        for name in ["netty", "nginx", "nats", "mosquitto", "pingora"] {
            if let Some(ratio) = comparison.weir_to(results, name) {
                aims.push((format!("{}, {name}", comparison.piece()), ratio));
            }
        }
    }
    aims
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::process;

    #[test]
    fn every_promise_is_one_of_the_specification() {
        let text = std::fs::read_to_string(process::root().join("SPECIFICATION.md"));
        let text = text.expect("the specification");
        for promise in PROMISES {
            assert!(text.contains(&format!("\n| {promise}")), "{promise}");
        }
        // Each row whose proof is a ratio of a run is there.
        for row in text.lines().filter(|line| line.starts_with("| ") && line.contains("ratio")) {
            if row.contains("weir-bench") {
                let is_known = PROMISES.iter().any(|promise| row[2..].starts_with(promise));
                assert!(is_known, "not in the report: {row}");
            }
        }
    }

    #[test]
    fn rows_without_a_result_are_empty() {
        let nothing = Results::of(&[]);
        assert!(articles(&nothing).iter().all(|row| row.measured.is_empty()));
        assert!(promises(&nothing).iter().all(|row| row.measured.is_empty()));
        let some = Results::of(&[
            ("delivery", json!({ "ratio": 1.05, "cpu_us_per_message": 8.0 })),
            ("delivery-tls", json!({ "cpu_us_per_message": 8.8 })),
            ("ab", json!({ "text": "ab -n 1\nhttp   900 requests/s\nhttps  800 requests/s\n" })),
        ]);
        let rows = promises(&some);
        assert_eq!((&*rows[0].measured, &*rows[1].measured), ("1.05", "1.10"));
        let ab = &articles(&some)[4];
        assert_eq!(ab.measured, "http 900 requests/s; https 800 requests/s");
    }
}
