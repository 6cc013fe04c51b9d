//! The servers that take turns in `http` and `proxy`, and the figures of their rounds.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::protocol::HttpTally;
use crate::report::Report;
use crate::stats::{Lags, median, milli, real};

/// One of the servers that are measured in turn.
pub(super) struct Contestant {
    pub(super) name: &'static str,
    pub(super) addr: SocketAddr,
    pub(super) pid: u32,
    pub(super) tallies: Vec<HttpTally>,
}

impl Contestant {
    /// One that was not measured yet.
    pub(super) fn new(name: &'static str, addr: SocketAddr, pid: u32) -> Contestant {
        Contestant { name, addr, pid, tallies: Vec::new() }
    }

    /// The median of the rounds.
    pub(super) fn middle(&self, of: fn(&HttpTally) -> Option<f64>) -> Option<f64> {
        median(self.tallies.iter().filter_map(of))
    }

    fn sum(&self, of: fn(&HttpTally) -> u64) -> u64 {
        self.tallies.iter().map(of).sum()
    }

    fn lags(&self) -> Lags {
        let mut lags = Lags::new();
        self.tallies.iter().for_each(|tally| lags.add(&tally.lags));
        lags
    }

    fn errors(&self) -> BTreeMap<&str, u64> {
        let mut all = BTreeMap::new();
        for (kind, count) in self.tallies.iter().flat_map(|tally| &tally.errors) {
            *all.entry(kind.as_str()).or_insert(0) += count;
        }
        all
    }

    /// The agreed suites and groups, for full and resumed handshakes.
    fn agreed(&self) -> Vec<&str> {
        let handshakes = self.tallies.iter().flat_map(|tally| tally.handshakes.keys());
        let words = |agreed: &'_ str| agreed.match_indices(' ').nth(2).map(|(at, _)| at);
        let mut all: Vec<&str> =
            handshakes.map(|agreed| &agreed[..words(agreed).unwrap_or(agreed.len())]).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn shown(&self) -> Value {
        let lags = self.lags();
        let figure = |of| self.middle(of).map(milli);
        let quantile = |quantile| lags.quantile_ms(quantile).map(milli);
        json!({
            "name": self.name,
            "cpu_us_per_request": figure(cpu_us),
            "requests_per_second": figure(per_second),
            "busy": figure(busy),
            "client_us_per_request": figure(client_us),
            "p50_ms": quantile(0.5),
            "p75_ms": quantile(0.75),
            "p90_ms": quantile(0.9),
            "p99_ms": quantile(0.99),
            "answer_bytes": self.tallies.first().map(|tally| tally.answer.len()),
            "answered": self.sum(|tally| tally.answered),
            "failed_by": self.errors(),
        })
    }
}

/// Nanoseconds of all answers as microseconds of one.
pub(super) fn each(nanos: u64, tally: &HttpTally) -> Option<f64> {
    (tally.answered > 0).then(|| real(nanos) / 1000.0 / real(tally.answered))
}

/// CPU time of the server for each answer.
pub(super) fn cpu_us(tally: &HttpTally) -> Option<f64> {
    tally.server_cpu_ns.and_then(|nanos| each(nanos, tally))
}

fn client_us(tally: &HttpTally) -> Option<f64> {
    each(tally.client_cpu_ns, tally)
}

fn per_second(tally: &HttpTally) -> Option<f64> {
    (tally.seconds > 0.0).then(|| real(tally.answered) / tally.seconds)
}

/// CPUs that the server kept busy.
fn busy(tally: &HttpTally) -> Option<f64> {
    let nanos = tally.server_cpu_ns?;
    (tally.seconds > 0.0).then(|| real(nanos) / 1e9 / tally.seconds)
}

/// CPU time of the server divided by that of a rival, round by round.
pub(super) fn ratio(server: &Contestant, rival: &Contestant) -> Option<f64> {
    let pairs = server.tallies.iter().zip(&rival.tallies);
    median(pairs.filter_map(|(server, rival)| Some(cpu_us(server)? / cpu_us(rival)?)))
}

/// Adds the figures of the measured server.
pub(super) fn fill(report: &mut Report, server: &Contestant) {
    let lags = server.lags();
    report.set("answered", server.sum(|tally| tally.answered));
    report.set("failed_by", json!(server.errors()));
    report.set("reopened", server.sum(|tally| tally.reopened));
    report.figure("requests_per_second", server.middle(per_second));
    report.figure("cpu_us_per_request", server.middle(cpu_us));
    report.figure("busy", server.middle(busy));
    report.figure("client_us_per_request", server.middle(client_us));
    report.figure("p50_ms", lags.quantile_ms(0.5));
    report.figure("p75_ms", lags.quantile_ms(0.75));
    report.figure("p90_ms", lags.quantile_ms(0.9));
    report.figure("p99_ms", lags.quantile_ms(0.99));
    report.figure("max_ms", lags.max_ms());
    let bytes = |of: fn(&HttpTally) -> u64| {
        let tallies = server.tallies.iter().filter(|tally| tally.answered > 0);
        median(tallies.map(|tally| real(of(tally)) / real(tally.answered)))
    };
    report.figure("received_bytes_per_request", bytes(|tally| tally.received_bytes));
    report.figure("sent_bytes_per_request", bytes(|tally| tally.sent_bytes));
    report.set("answer_bytes", server.tallies.first().map(|tally| tally.answer.len()));
}

/// Adds the figures of all servers and of each round, and fails the run if something went wrong.
pub(super) fn fill_rounds(report: &mut Report, contestants: &[Contestant], skipped: &[String]) {
    if contestants.len() > 1 || !skipped.is_empty() {
        report.set("contestants", contestants.iter().map(Contestant::shown).collect::<Vec<_>>());
        report.set("skipped", skipped.to_vec());
    }
    let rounds = contestants.first().map_or(0, |server| server.tallies.len());
    report.set("rounds", (0..rounds).map(|round| shown(contestants, round)).collect::<Vec<_>>());
    check(report, contestants);
}

fn shown(contestants: &[Contestant], round: usize) -> Value {
    let figures = contestants.iter().flat_map(|contestant| {
        let tally = contestant.tallies.get(round);
        let figure = |of: fn(&HttpTally) -> Option<f64>| Value::from(tally.and_then(of).map(milli));
        let name = contestant.name;
        [(format!("{name}_us"), figure(cpu_us)), (format!("{name}_per_second"), figure(per_second))]
    });
    Value::Object(figures.collect())
}

fn check(report: &mut Report, contestants: &[Contestant]) {
    for contestant in contestants {
        let (name, errors) = (contestant.name, contestant.errors());
        report.check(errors.is_empty(), || format!("{name}: errors: {errors:?}"));
        report.check(contestant.tallies.iter().all(|tally| tally.answered > 0), || {
            format!("{name}: a round without answers")
        });
        let (own, first) = (contestant.agreed(), contestants[0].agreed());
        report.check(own == first, || {
            format!("{name} agreed on {own:?}, {} on {first:?}", contestants[0].name)
        });
    }
}
