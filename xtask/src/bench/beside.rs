//! Weir beside other servers: tables, bars, and what others do better.

use std::fmt::Write as _;

use serde_json::Value;

use super::results::{Results, Spread};
use crate::plot::{Bar, Bars, number};

/// A piece with several servers.
pub(super) struct Comparison {
    piece: &'static str,
    title: &'static str,
    figures: &'static [Figure],
}

/// A figure that all its servers have.
struct Figure {
    name: &'static str,
    label: &'static str,
    is_more_better: bool,
}

/// A server with the figures of its rounds.
struct Contestant<'a> {
    name: &'a str,
    rounds: Vec<&'a Value>,
    /// In a result of `http` or `proxy`, figures of all servers stand in one object for each round.
    prefix: String,
}

/// All comparisons, in the order of the report.
pub(super) const ALL: [Comparison; 17] = [
    Comparison {
        piece: "idle",
        title: "Memory of an idle connection",
        figures: &[BYTES, Figure::less("rss_anon_after_mb", "process in all, MB"), CONNECTS],
    },
    Comparison {
        piece: "idle-tls",
        title: "Memory of an idle TLS connection",
        figures: &[BYTES, Figure::less("rss_anon_after_mb", "process in all, MB"), CONNECTS],
    },
    Comparison {
        piece: "broadcast",
        title: "Broadcast of 256 B to 10,000 connections",
        figures: &[
            Figure::less("cpu_us_per_message", "CPU per delivery, µs"),
            Figure::less("lag_p50_ms", "lag p50, ms"),
            Figure::less("lag_p99_ms", "lag p99, ms"),
        ],
    },
    Comparison {
        piece: "echo",
        title: "Echo of 256 B on 16,384 connections",
        figures: &[
            Figure::less("cpu_us_per_message", "CPU per message, µs"),
            Figure::more("messages_per_second", "messages a second"),
            Figure::less("p99_ms", "p99, ms"),
            Figure::less("max_ms", "longest, ms"),
            Figure::less("allocated_bytes_per_message", "allocated per message, B"),
            Figure::less("collection_ms", "collections in a round, ms"),
        ],
    },
    http("http1", "GET /rest/hello, HTTP/1.1, connections kept"),
    http("http1-tls", "The same over TLS 1.3"),
    http("http2", "GET /rest/hello, HTTP/2, 16 connections of 32 streams"),
    http("https-full-tls12", "HTTPS, a connection a request, TLS 1.2, full"),
    http("https-resumed-tls12", "HTTPS, a connection a request, TLS 1.2, resumed"),
    http("https-full-tls13", "HTTPS, a connection a request, TLS 1.3, full"),
    http("https-resumed-tls13", "HTTPS, a connection a request, TLS 1.3, resumed"),
    Comparison {
        piece: "handshake-tls12",
        title: "TLS 1.2 handshake up to Welcome",
        figures: HANDSHAKE,
    },
    Comparison {
        piece: "handshake-tls13",
        title: "TLS 1.3 handshake up to Welcome",
        figures: HANDSHAKE,
    },
    Comparison {
        piece: "udp",
        title: "JSON call by datagram",
        figures: &[
            Figure::less("cpu_us_per_call", "CPU per call, µs"),
            Figure::more("calls_per_second", "calls a second"),
            Figure::less("p99_ms", "p99, ms"),
        ],
    },
    http("proxy-1k", "Reverse proxy, HTTP/1.1, answers of 1 KiB"),
    http("proxy-64k", "Reverse proxy, HTTP/1.1, answers of 64 KiB"),
    http("proxy-http2", "Reverse proxy, HTTP/2 to HTTP/1.1, answers of 1 KiB"),
];

const BYTES: Figure = Figure::less("bytes_per_connection", "per connection, B");
const CONNECTS: Figure = Figure::more("connects_per_second", "connects a second");
const HANDSHAKE: &[Figure] = &[
    Figure::less("full_us", "full: CPU, µs"),
    Figure::less("resumed_us", "resumed: CPU, µs"),
    Figure::more("full_per_second", "full a second"),
    Figure::more("resumed_per_second", "resumed a second"),
];
const HTTP: &[Figure] =
    &[Figure::less("us", "CPU per request, µs"), Figure::more("per_second", "requests a second")];

const fn http(piece: &'static str, title: &'static str) -> Comparison {
    Comparison { piece, title, figures: HTTP }
}

impl Figure {
    const fn less(name: &'static str, label: &'static str) -> Figure {
        Figure { name, label, is_more_better: false }
    }

    const fn more(name: &'static str, label: &'static str) -> Figure {
        Figure { name, label, is_more_better: true }
    }
}

impl Comparison {
    /// The table of this comparison; `None`: not measured.
    pub(super) fn table(&self, results: &Results) -> Option<String> {
        let contestants = contestants(results.get(self.piece)?);
        let mut text = format!("### {}\n\n| server |", self.title);
        for figure in self.figures {
            let _ = write!(text, " {} | × Weir |", figure.label);
        }
        text.push_str("\n|---|");
        text.push_str(&"---:|---:|".repeat(self.figures.len()));
        text.push('\n');
        for contestant in &contestants {
            let _ = write!(text, "| {} |", shown_name(contestant.name));
            for figure in self.figures {
                let cell = contestant.spread(figure.name).map_or("–".to_owned(), shown);
                let ratio = contestants.first().and_then(|weir| contestant.ratio(weir, figure));
                let ratio = ratio.filter(|_| contestant.name != WEIR);
                let ratio = ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
                let _ = write!(text, " {cell} | {ratio} |");
            }
            text.push('\n');
        }
        Some(text)
    }

    /// What other servers do better than Weir, a line each.
    pub(super) fn losses(&self, results: &Results) -> Vec<String> {
        let Some(result) = results.get(self.piece) else { return Vec::new() };
        let contestants = contestants(result);
        let Some((weir, others)) = contestants.split_first() else { return Vec::new() };
        let mut losses = Vec::new();
        for other in others.iter().filter(|other| !BASELINES.contains(&other.name)) {
            for figure in self.figures {
                let Some((ours, theirs)) = weir.spread(figure.name).zip(other.spread(figure.name))
                else {
                    continue;
                };
                let Some(ratio) = other.ratio(weir, figure) else { continue };
                let is_better = if figure.is_more_better { ratio > 1.0 } else { ratio < 1.0 };
                if is_better {
                    // Rounds that overlap say little.
                    let overlap = ours.least <= theirs.most && theirs.least <= ours.most;
                    let doubt = if overlap { "; the rounds overlap" } else { "" };
                    losses.push(format!(
                        "{}, {}: {} {}, Weir {} ({ratio:.2} times{doubt})",
                        self.title,
                        figure.label,
                        shown_name(other.name),
                        number(theirs.median),
                        number(ours.median)
                    ));
                }
            }
        }
        losses
    }

    /// Bars of the first figure.
    pub(super) fn bars(&self, results: &Results) -> Option<Bars> {
        let contestants = contestants(results.get(self.piece)?);
        let figure = self.figures.first()?;
        let bars = contestants.iter().filter_map(|contestant| {
            let Spread { median, least, most } = contestant.spread(figure.name)?;
            let colour = match contestant.name {
                WEIR => "#1f77b4",
                name if BASELINES.contains(&name) => "#bbb",
                _ => "#ff9f4a",
            };
            let name = shown_name(contestant.name).to_owned();
            Some(Bar { name, colour, value: median, least, most })
        });
        let (title, label) = (self.title.to_owned(), figure.label.to_owned());
        Some(Bars { title, label, bars: bars.collect() })
    }

    /// The piece's ratio of Weir to a server in its first figure.
    pub(super) fn weir_to(&self, results: &Results, name: &str) -> Option<f64> {
        let contestants = contestants(results.get(self.piece)?);
        let other = contestants.iter().find(|one| one.name == name)?;
        other.ratio(contestants.first()?, self.figures.first()?).map(|ratio| 1.0 / ratio)
    }

    /// Name of the piece.
    pub(super) fn piece(&self) -> &'static str {
        self.piece
    }
}

/// Versions and settings of the servers, each once.
pub(super) fn descriptions(results: &Results) -> Vec<(String, Vec<String>)> {
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    let mut add = |name: &str, lines: &Value| {
        let lines = lines.as_array().into_iter().flatten().filter_map(Value::as_str);
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        if !lines.is_empty() && !all.iter().any(|(known, _)| known == name) {
            all.push((name.to_owned(), lines));
        }
    };
    for comparison in &ALL {
        let Some(result) = results.get(comparison.piece) else { continue };
        for contestant in result["contestants"].as_array().into_iter().flatten() {
            add(contestant["name"].as_str().unwrap_or_default(), &contestant["description"]);
        }
        for (name, lines) in result["descriptions"].as_object().into_iter().flatten() {
            add(name, lines);
        }
    }
    all
}

fn contestants(result: &Value) -> Vec<Contestant<'_>> {
    let is_http = result["scenario"] == "http" || result["scenario"] == "proxy";
    let all = result["contestants"].as_array().into_iter().flatten();
    let all = all.map(|one| {
        let name = one["name"].as_str().unwrap_or_default();
        let (rounds, prefix) = if is_http {
            (&result["rounds"], format!("{name}_"))
        } else {
            (&one["rounds"], String::new())
        };
        let rounds = rounds.as_array().into_iter().flatten().collect();
        let name = if name == "server" { WEIR } else { name };
        Contestant { name, rounds, prefix }
    });
    all.collect()
}

impl Contestant<'_> {
    fn value(&self, round: usize, figure: &str) -> Option<f64> {
        self.rounds.get(round)?.get(format!("{}{figure}", self.prefix))?.as_f64()
    }

    fn spread(&self, figure: &str) -> Option<Spread> {
        Spread::of((0..self.rounds.len()).filter_map(|round| self.value(round, figure)))
    }

    /// This server's figure as a multiple of the other's, round by round: the median.
    fn ratio(&self, other: &Contestant<'_>, figure: &Figure) -> Option<f64> {
        let ratios = (0..self.rounds.len()).filter_map(|round| {
            let (own, their) = (self.value(round, figure.name)?, other.value(round, figure.name)?);
            (their > 0.0).then(|| own / their)
        });
        Spread::of(ratios).map(|spread| spread.median)
    }
}

/// Median, and the ends if there are several rounds.
fn shown(spread: Spread) -> String {
    let Spread { median, least, most } = spread;
    if least < most {
        format!("{} ({} to {})", number(median), number(least), number(most))
    } else {
        number(median)
    }
}

fn shown_name(name: &str) -> &str {
    match name {
        WEIR => "Weir",
        "netty" => "Netty",
        "nats" => "NATS",
        "mosquitto" => "Mosquitto",
        "bare" => "bare loop",
        "epoll" => "bare epoll",
        "hyper" => "bare hyper",
        "direct" => "the backend alone",
        other => other,
    }
}

const WEIR: &str = "weir";
/// Programs of the bench that do only the necessary work; `direct` is the backend of proxies.
const BASELINES: [&str; 4] = ["bare", "direct", "epoll", "hyper"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn udp(weir: [f64; 3], netty: [f64; 3]) -> Results {
        let rounds = |values: [f64; 3]| {
            values.map(|us| json!({ "cpu_us_per_call": us, "calls_per_second": 1e6 / us }))
        };
        let contestants = json!([
            { "name": "weir", "rounds": rounds(weir) },
            { "name": "netty", "rounds": rounds(netty), "description": ["netty 4"] },
            { "name": "bare", "rounds": rounds([1.0; 3]) },
        ]);
        Results::of(&[("udp", json!({ "scenario": "peers", "contestants": contestants }))])
    }

    fn comparison(piece: &str) -> &'static Comparison {
        ALL.iter().find(|comparison| comparison.piece == piece).expect("known")
    }

    #[test]
    fn a_server_that_is_better_is_named_and_a_baseline_is_not() {
        let results = udp([4.0, 4.2, 4.1], [3.0, 3.1, 2.9]);
        let losses = comparison("udp").losses(&results);
        assert_eq!(losses.len(), 2, "{losses:?}");
        assert!(losses[0].contains("Netty 3, Weir 4.1"), "{losses:?}");
        assert!(!losses[0].contains("overlap"), "{losses:?}");
        let losses = comparison("udp").losses(&udp([3.0, 4.2, 4.1], [3.5, 3.9, 3.9]));
        assert!(losses.iter().all(|line| line.contains("the rounds overlap")), "{losses:?}");
        assert!(comparison("udp").losses(&udp([3.0; 3], [4.0; 3])).is_empty());
    }

    #[test]
    fn a_table_has_a_row_for_each_server() {
        let results = udp([4.0, 4.2, 4.1], [2.0, 2.1, 2.05]);
        let table = comparison("udp").table(&results).expect("measured");
        assert!(table.contains("| Weir | 4.1 (4 to 4.2) | – |"), "{table}");
        assert!(table.contains("| Netty | 2.05 (2 to 2.1) | 0.50 |"), "{table}");
        assert!(comparison("echo").table(&results).is_none());
        assert_eq!(comparison("udp").bars(&results).map(|bars| bars.bars.len()), Some(3));
        assert_eq!(descriptions(&results), [("netty".to_owned(), vec!["netty 4".to_owned()])]);
    }

    #[test]
    fn figures_of_http_stand_in_its_rounds() {
        let rounds =
            json!([{ "server_us": 6.0, "nginx_us": 3.0 }, { "server_us": 8.0, "nginx_us": 4.0 }]);
        let contestants = json!([{ "name": "server" }, { "name": "nginx" }]);
        let result = json!({ "scenario": "http", "contestants": contestants, "rounds": rounds });
        let results = Results::of(&[("http1", result)]);
        assert_eq!(comparison("http1").weir_to(&results, "nginx"), Some(2.0));
        let losses = comparison("http1").losses(&results);
        assert!(losses[0].contains("nginx 3.5, Weir 7"), "{losses:?}");
    }
}
