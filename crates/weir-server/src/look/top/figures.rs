//! The figures of `weir top`: the shown parts of `GET /v1/stats`, and what has changed between two
//! of them.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::output::age_of;

/// The shown parts of the document. A member that a gateway of another version does not have is 0.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Figures {
    time_ms: u64,
    version: String,
    node: Node,
    uptime_ms: u64,
    ready: bool,
    parts: Vec<Part>,
    process: Process,
    connections: Connections,
    messages: Messages,
    times: Times,
    budget: Budget,
    shards: Vec<Shard>,
    upstreams: Vec<Upstream>,
}

type Counts = BTreeMap<String, u64>;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Node {
    number: u16,
    name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Part {
    part: String,
    state: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Process {
    cpu_ms: u64,
    resident_bytes: Option<u64>,
    open_fds: Option<u64>,
    fds_max: Option<u64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Connections {
    transports: BTreeMap<String, States>,
    protocols: Counts,
    http: Counts,
    stalled: u64,
    settled_max: u64,
    devices: u64,
    topics: u64,
    memberships: u64,
    accepted: u64,
    closed: Counts,
    refused: Counts,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct States {
    settled: u64,
    unsettled: u64,
    lingering: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Messages {
    published: Counts,
    publish_refused: Counts,
    delivered: u64,
    dropped: Counts,
    received_frames: u64,
    sent_bytes: u64,
    received_bytes: u64,
    retained: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Times {
    bounds_s: Vec<f64>,
    fanout: Histogram,
    lag: BTreeMap<String, Histogram>,
    settle: Histogram,
    turn: Histogram,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Histogram {
    counts: Vec<u64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Budget {
    used_bytes: u64,
    bytes_max: u64,
    cut: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Shard {
    connections: u64,
    stalled: u64,
    busy_s: f64,
    queued_bytes: u64,
    delivered: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Upstream {
    name: String,
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Endpoint {
    address: String,
    state: String,
    in_flight: u64,
    requests: u64,
    failures: u64,
}

/// Two documents, one after the other.
pub(super) struct Change<'a> {
    before: &'a Figures,
    now: &'a Figures,
    seconds: f64,
}

/// A part of the screen: its title, and its lines.
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) lines: Vec<String>,
}

impl<'a> Change<'a> {
    pub(super) fn new(before: &'a Figures, now: &'a Figures) -> Change<'a> {
        let ms = now.time_ms.saturating_sub(before.time_ms);
        let seconds = (ms.max(1) as f64) / 1000.0;
        Change { before, now, seconds }
    }

    /// One line about the node, and whether it can do its work.
    pub(super) fn head(&self) -> (String, bool) {
        let Figures { version, node, uptime_ms, ready, parts, .. } = self.now;
        let failed = parts.iter().filter(|part| part.state != "ok");
        let failed: Vec<String> =
            failed.map(|Part { part, state }| format!("{part} {state}")).collect();
        let state = match (ready, failed.is_empty()) {
            (true, true) => "ready".to_owned(),
            (true, false) => format!("ready; {}", failed.join(", ")),
            (false, _) => format!("NOT READY: {}", failed.join(", ")),
        };
        let number = if node.number == 0 { String::new() } else { format!(" {}", node.number) };
        let name = &node.name;
        let head = format!("weir {version}  {name}{number}  up {}  {state}", age_of(*uptime_ms));
        (head, *ready && failed.is_empty())
    }

    pub(super) fn connections(&self) -> Panel {
        let Connections { transports, protocols, http, .. } = &self.now.connections;
        let Connections { stalled, settled_max, devices, .. } = &self.now.connections;
        let Connections { topics, memberships, accepted, .. } = &self.now.connections;
        let sum = |of: fn(&States) -> u64| transports.values().map(of).sum::<u64>();
        let tls = transports.get("tls").map_or(0, |states| states.settled);
        let accepted = self.rate(*accepted, self.before.connections.accepted);
        let ended = self.rate_of(|figures| &figures.connections.closed);
        let refused = self.rate_of(|figures| &figures.connections.refused);
        let lines = vec![
            row("settled", &format!("{} of {}", count(sum(|of| of.settled)), count(*settled_max))),
            row("of them over TLS", &count(tls)),
            row("opening, lingering", &pair(sum(|of| of.unsettled), sum(|of| of.lingering))),
            row("stalled", &count(*stalled)),
            row("WebSocket, events", &pair(websockets(protocols), of(protocols, "sse"))),
            row("HTTP 1.1, 2", &pair(of(http, "1.1"), of(http, "2"))),
            row("devices, topics", &pair(*devices, *topics)),
            row("subscriptions", &count(*memberships)),
            row("accepted, refused", &format!("{accepted} {refused} /s")),
            row("ended", &format!("{ended} /s")),
        ];
        Panel { title: "connections", lines }
    }

    pub(super) fn messages(&self) -> Panel {
        let (now, before) = (&self.now.messages, &self.before.messages);
        let published = self.rate_of(|figures| &figures.messages.published);
        let refused = self.rate_of(|figures| &figures.messages.publish_refused);
        let dropped = self.rate_of(|figures| &figures.messages.dropped);
        let sent = self.per_second(now.sent_bytes, before.sent_bytes);
        let received = self.per_second(now.received_bytes, before.received_bytes);
        let lines = vec![
            row("published, refused", &format!("{published} {refused} /s")),
            row("delivered", &format!("{} /s", self.rate(now.delivered, before.delivered))),
            row("dropped", &format!("{dropped} /s")),
            row(
                "frames in",
                &format!("{} /s", self.rate(now.received_frames, before.received_frames)),
            ),
            row("bytes out, in", &format!("{} {} /s", bytes(sent), bytes(received))),
            row("retained", &count(now.retained)),
        ];
        Panel { title: "messages", lines }
    }

    pub(super) fn delays(&self) -> Panel {
        let (now, before) = (&self.now.times, &self.before.times);
        let line = |name: &str, now: &Histogram, before: &Histogram| {
            let half = self.quantile(now, before, 0.5);
            let most = self.quantile(now, before, 0.99);
            row(name, &format!("{half:>7} {most:>7}"))
        };
        let lag = |times: &Times| times.lag.get("normal").cloned().unwrap_or_default();
        let lines = vec![
            row("", &format!("{:>7} {:>7}", "p50", "p99")),
            line("delivery lag", &lag(now), &lag(before)),
            line("fan-out", &now.fanout, &before.fanout),
            line("accept to shard", &now.settle, &before.settle),
            line("turn of a shard", &now.turn, &before.turn),
        ];
        Panel { title: "delays, at most", lines }
    }

    pub(super) fn process(&self) -> Panel {
        let (now, before) = (&self.now.process, &self.before.process);
        let cores = (now.cpu_ms.saturating_sub(before.cpu_ms) as f64) / 1000.0 / self.seconds;
        let Budget { used_bytes, bytes_max, cut } = self.now.budget;
        let or_dash = |number: Option<u64>| number.map_or("-".to_owned(), count);
        let lines = vec![
            row("processors in use", &format!("{cores:.2}")),
            row("memory", &now.resident_bytes.map_or("-".to_owned(), bytes)),
            row("byte budget", &format!("{} of {}", bytes(used_bytes), bytes(bytes_max))),
            row("cut for it", &count(cut)),
            row("descriptors", &format!("{} of {}", or_dash(now.open_fds), or_dash(now.fds_max))),
        ];
        Panel { title: "process", lines }
    }

    /// A line for each shard.
    pub(super) fn shards(&self) -> Panel {
        let head = format!(
            "{:>5} {:>6} {:>12} {:>8} {:>10} {:>12}",
            "shard", "busy", "connections", "stalled", "queued", "delivered/s"
        );
        let zero = Shard::default();
        let line = |(index, now): (usize, &Shard)| {
            let before = self.before.shards.get(index).unwrap_or(&zero);
            let busy = (now.busy_s - before.busy_s).max(0.0) / self.seconds * 100.0;
            format!(
                "{index:>5} {:>6} {:>12} {:>8} {:>10} {:>12}",
                format!("{:.0} %", busy.min(100.0)),
                count(now.connections),
                count(now.stalled),
                bytes(now.queued_bytes),
                self.rate(now.delivered, before.delivered)
            )
        };
        let lines = self.now.shards.iter().enumerate().map(line);
        Panel { title: "shards", lines: std::iter::once(head).chain(lines).collect() }
    }

    /// Reasons of ends and causes of refusals, the most frequent now first, then those of before.
    pub(super) fn ends(&self) -> Panel {
        let of = |figures: &'a Figures| {
            let Connections { closed, refused, .. } = &figures.connections;
            let closed = closed.iter().map(|(name, count)| (("ended", name), *count));
            closed.chain(refused.iter().map(|(name, count)| (("refused", name), *count)))
        };
        let before: BTreeMap<_, u64> = of(self.before).collect();
        let mut causes: Vec<_> = of(self.now)
            .filter(|(_, now)| *now > 0)
            .map(|(key, now)| (now - before.get(&key).copied().unwrap_or(0).min(now), now, key))
            .collect();
        causes.sort_by(|one, other| other.cmp(one));
        let line = |(new, all, (what, name)): (u64, u64, (&str, &String))| {
            let rate = self.rate(new, 0);
            format!("{:<28} {rate:>7} /s {:>9}", format!("{what}: {name}"), count(all))
        };
        Panel { title: "ends and refusals", lines: causes.into_iter().map(line).collect() }
    }

    /// A line for each endpoint of the services that the gateway calls. `None` without any.
    pub(super) fn upstreams(&self) -> Option<Panel> {
        if self.now.upstreams.is_empty() {
            return None;
        }
        let head = format!(
            "{:<36} {:<9} {:>9} {:>8} {:>8}",
            "endpoint", "state", "in flight", "tries/s", "failed/s"
        );
        let known = |upstream: &Upstream, address: &str| {
            let before = self.before.upstreams.iter().find(|before| before.name == upstream.name);
            let endpoints = before.map(|before| &before.endpoints[..]).unwrap_or_default();
            endpoints.iter().find(|one| one.address == address).cloned().unwrap_or_default()
        };
        let line = |upstream: &Upstream, now: &Endpoint| {
            let before = known(upstream, &now.address);
            format!(
                "{:<36} {:<9} {:>9} {:>8} {:>8}",
                format!("{} {}", upstream.name, now.address),
                now.state.replace('_', " "),
                count(now.in_flight),
                self.rate(now.requests, before.requests),
                self.rate(now.failures, before.failures),
            )
        };
        let lines = self.now.upstreams.iter().flat_map(|upstream| {
            upstream.endpoints.iter().map(move |endpoint| line(upstream, endpoint))
        });
        Some(Panel { title: "upstreams", lines: std::iter::once(head).chain(lines).collect() })
    }

    /// Messages delivered in a second.
    pub(super) fn delivered(&self) -> u64 {
        self.per_second(self.now.messages.delivered, self.before.messages.delivered)
    }

    fn rate_of(&self, counts: fn(&Figures) -> &Counts) -> String {
        let sum = |figures| counts(figures).values().sum::<u64>();
        self.rate(sum(self.now), sum(self.before))
    }

    fn rate(&self, now: u64, before: u64) -> String {
        count(self.per_second(now, before))
    }

    fn per_second(&self, now: u64, before: u64) -> u64 {
        let rate = (now.saturating_sub(before) as f64) / self.seconds;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and below the count"
        )]
        let rate = rate.round() as u64;
        rate
    }

    /// A bound that this share of the new values does not exceed.
    fn quantile(&self, now: &Histogram, before: &Histogram, share: f64) -> String {
        let earlier = |index: usize| before.counts.get(index).copied().unwrap_or(0);
        let new: Vec<u64> = (0..now.counts.len())
            .map(|index| now.counts[index].saturating_sub(earlier(index)))
            .collect();
        let all: u64 = new.iter().sum();
        if all == 0 {
            return "-".to_owned();
        }
        let wanted = all as f64 * share;
        let mut seen = 0;
        for (index, count) in new.iter().enumerate() {
            seen += count;
            let is_reached = seen as f64 >= wanted;
            if is_reached {
                let bound = self.now.times.bounds_s.get(index).copied();
                return bound.map_or("longer".to_owned(), seconds_of);
            }
        }
        "longer".to_owned()
    }
}

fn row(name: &str, value: &str) -> String {
    format!("{name:<18} {value:>18}")
}

fn pair(first: u64, second: u64) -> String {
    format!("{} {}", count(first), count(second))
}

fn of(counts: &Counts, name: &str) -> u64 {
    counts.get(name).copied().unwrap_or(0)
}

fn websockets(protocols: &Counts) -> u64 {
    let sockets = protocols.iter().filter(|(name, _)| name.starts_with("websocket"));
    sockets.map(|(_, count)| count).sum()
}

/// A count with at most four places.
fn count(number: u64) -> String {
    scaled(number, 1000, ["", " k", " M", " G", " T"])
}

fn bytes(number: u64) -> String {
    scaled(number, 1024, [" B", " KiB", " MiB", " GiB", " TiB"])
}

/// The number in the first unit in which it has at most four places.
fn scaled(mut number: u64, step: u64, units: [&str; 5]) -> String {
    let [first @ .., last] = units;
    for unit in first {
        if number < 10_000 {
            return format!("{number}{unit}");
        }
        number /= step;
    }
    format!("{number}{last}")
}

fn seconds_of(seconds: f64) -> String {
    match seconds {
        ..0.001 => format!("{:.0} µs", seconds * 1e6),
        0.001..1.0 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two documents of a gateway with two shards, a second apart.
    pub(in crate::look::top) fn documents() -> [Figures; 2] {
        let document = |time: u64, factor: u64| {
            let text = format!(
                r#"{{"time_ms":{time},"version":"0.1.0","node":{{"number":0,"name":"gate"}},
                "uptime_ms":7200000,"ready":true,"parts":[{{"part":"shards","state":"ok"}}],
                "process":{{"cpu_ms":{cpu},"resident_bytes":52428800,"open_fds":15020,"fds_max":20000}},
                "connections":{{"transports":{{"tcp":{{"settled":5000,"unsettled":2,"lingering":0}},
                    "tls":{{"settled":10000,"unsettled":1,"lingering":3}}}},
                  "protocols":{{"tcp":14000,"websocket_json":900,"sse":100}},"http":{{"1.1":4,"2":1}},
                  "stalled":7,"settled_max":100000,"devices":15000,"topics":12,"memberships":15000,
                  "accepted":{accepted},"closed":{{"peer_closed":{closed},"stalled":5}},
                  "refused":{{"source_rate":0}}}},
                "messages":{{"published":{{"topic":{factor}}},"delivered":{delivered},
                  "received_frames":10,"sent_bytes":{sent},"received_bytes":0,"retained":50}},
                "times":{{"bounds_s":[0.001,0.01],"lag":{{"normal":{{"counts":[{lag},1,0]}}}}}},
                "budget":{{"used_bytes":1048576,"bytes_max":1073741824,"cut":0}},
                "shards":[{{"connections":7500,"busy_s":{busy},"delivered":{delivered}}},
                  {{"connections":7500,"busy_s":0.1,"delivered":0}}],
                "upstreams":[{{"name":"api","endpoints":[{{"address":"127.0.0.1:80",
                  "state":"set_aside","in_flight":3,"requests":{calls},"failures":{factor}}}]}}]}}"#,
                cpu = 500 * factor,
                accepted = 100 * factor,
                closed = 30 * factor,
                delivered = 15_000 * factor,
                sent = 2_000_000 * factor,
                lag = 99 * factor,
                calls = 40 * factor,
                busy = 0.25 * factor as f64,
            );
            serde_json::from_str(&text).unwrap()
        };
        [document(1_000, 1), document(2_000, 2)]
    }

    #[test]
    fn rates_come_from_two_documents() {
        let [before, now] = documents();
        let change = Change::new(&before, &now);
        for (panel, lines) in [
            (change.connections(), &["settled", "15 k of 100 k"][..]),
            (change.connections(), &["accepted, refused", "100 0 /s"]),
            (change.connections(), &["ended", "30 /s"]),
            (change.messages(), &["delivered", "15 k /s"]),
            (change.messages(), &["bytes out, in", "1953 KiB 0 B /s"]),
            (change.delays(), &["delivery lag", "1 ms    1 ms"]),
            (change.delays(), &["fan-out", "-       -"]),
            (change.process(), &["processors in use", "0.50"]),
            (change.process(), &["memory", "50 MiB"]),
            (change.shards(), &["0", "25 %", "7500", "15 k"]),
            (change.ends(), &["ended: peer_closed", "30 /s", "60"]),
            (change.upstreams().unwrap(), &["api 127.0.0.1:80", "set aside", "3", "40", "1"]),
        ] {
            let is_there = |line: &String| lines.iter().all(|part| line.contains(part));
            assert!(panel.lines.iter().any(is_there), "{lines:?} in {:?}", panel.lines);
        }
        assert_eq!(change.ends().lines.len(), 2, "what never happened is not shown");
        assert_eq!(change.delivered(), 15_000);
        assert_eq!(change.head(), ("weir 0.1.0  gate  up 120 min  ready".to_owned(), true));
    }

    #[test]
    fn numbers_have_the_unit_that_fits() {
        let counts = [0, 9_999, 10_000, 12_345_678, u64::MAX].map(count);
        assert_eq!(counts, ["0", "9999", "10 k", "12 M", "18446744 T"]);
        assert_eq!([512, 10_240, 5 << 20].map(bytes), ["512 B", "10 KiB", "5120 KiB"]);
        assert_eq!([0.000_05, 0.02, 1.5].map(seconds_of), ["50 µs", "20 ms", "1.5 s"]);
    }

    #[test]
    fn a_failed_part_shows() {
        let document = r#"{"ready":false,"parts":[{"part":"store","state":"failed"}]}"#;
        let now: Figures = serde_json::from_str(document).unwrap();
        let (head, is_well) = Change::new(&now, &now).head();
        assert!(head.ends_with("NOT READY: store failed") && !is_well, "{head}");
    }
}
