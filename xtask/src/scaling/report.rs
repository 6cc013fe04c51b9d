//! The tables and the plot of `docs/scaling.md`.

use std::fmt::Write as _;

use super::clients::{Library, Notice, STEP_MS};
use super::costs;
use super::limits::{Limit, Settings, Sources, Transport};
use super::run::{Run, SAMPLE_MS, Scenario};
use crate::plot::{Axis, Chart, Line, draw};

/// The tables in Markdown, and the plot as SVG.
pub(super) fn report() -> (String, String) {
    let mut text = String::new();
    let mut lines: Vec<(Line, Line)> = Vec::new();
    let tables = [
        (SHIPPED, Settings::SHIPPED),
        ("As shipped, with room for twice as many connections.", Settings::RAISED),
        (TUNED, Settings::TUNED),
    ];
    for (title, settings) in tables {
        let _ = writeln!(text, "**{title}**\n\n{HEAD}");
        for (nodes, lost) in LOSSES {
            let scenario = loss(nodes, lost, settings);
            let shards = scenario.shards;
            let run = scenario.run();
            let label = format!("{} | {shards} | {}", nodes, lost_name(nodes, lost));
            let _ = writeln!(text, "| {label} | {}", row(&run));
            if let Some(line) = line(nodes, lost, title, &run) {
                lines.push(line);
            }
        }
        text.push('\n');
    }
    let _ =
        writeln!(text, "**One of ten nodes, other clients and other ends.**\n\n{HEAD_OF_CASES}");
    for (name, scenario) in cases() {
        let _ = writeln!(text, "| {name} | {}", row(&scenario.run()));
    }
    // The two lines of a loss stand beside each other.
    lines.sort_by_key(|(line, _)| line.colour);
    (text, plot(lines))
}

fn loss(nodes: u64, lost: u64, settings: Settings) -> Scenario {
    Scenario {
        nodes,
        lost,
        connections: costs::CONNECTIONS,
        shards: (nodes * 1_000_000).div_ceil(settings.devices_per_shard),
        own_topics: 0,
        notice: Notice::Reset { over_ms: costs::CONNECTIONS * costs::RESET_NS / 1_000_000 },
        library: Library::Rust,
        settings,
        seed: 1,
    }
}

/// Other cases, with the best settings.
fn cases() -> Vec<(&'static str, Scenario)> {
    let base = loss(10, 1, Settings::TUNED);
    let with = |settings| Scenario { settings, ..base };
    let few = Sources { count: 100, per_second: 50, burst: 500 };
    vec![
        ("the process is killed", base),
        (
            "a proxy in front resets all connections at once",
            Scenario { notice: Notice::Reset { over_ms: 0 }, ..base },
        ),
        (
            "the same as shipped, with room for twice as many",
            Scenario { notice: Notice::Reset { over_ms: 0 }, settings: Settings::RAISED, ..base },
        ),
        (
            "the machine is switched off",
            Scenario { notice: Notice::Silence { heartbeat_ms: 60_000 }, ..base },
        ),
        ("the node drains (10 s)", Scenario { notice: Notice::Drain { over_ms: 10_000 }, ..base }),
        ("killed; clients of `sdk/js`", Scenario { library: Library::JavaScript, ..base }),
        ("killed; without TLS", with(Settings { transport: Transport::Plain, ..Settings::TUNED })),
        ("killed; each device has a topic of its own", Scenario { own_topics: 1, ..base }),
        (
            "killed; clients behind 100 addresses, with the limits by source of \
             [configuration.md](configuration.md)",
            with(Settings { sources: Some(few), ..Settings::TUNED }),
        ),
    ]
}

fn lost_name(nodes: u64, lost: u64) -> &'static str {
    match lost {
        _ if lost == nodes => "all, 30 s",
        1 if nodes == 10 => "one, a tenth",
        1 => "one",
        _ => "a tenth",
    }
}

/// The cells that tell of a run.
fn row(run: &Run) -> String {
    let [half, most, all] = run.back_ms.map(seconds);
    let attempts = 10 * run.attempts / run.clients;
    format!(
        "{half} | {most} | {all} | {} | {}.{} | {} % / {} % | {} / {} | {} |",
        seconds(run.claimed_ms),
        attempts / 10,
        attempts % 10,
        run.cpu_percent,
        run.redis_percent,
        grouped(run.queue_peak),
        grouped(run.claims_peak),
        limits(run)
    )
}

/// The limits that were met, in order. They send clients away or keep them waiting.
fn limits(run: &Run) -> String {
    let met = run.limits.met().iter();
    let mut names: Vec<String> = met
        .map(|met| format!("{} ({})", met.limit.name(), seconds(Some(met.first * STEP_MS))))
        .collect();
    if run.back_ms[2].is_none() && names.is_empty() {
        names.push(Limit::Connections.name().to_owned());
    }
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn seconds(ms: Option<u64>) -> String {
    let Some(ms) = ms else { return "never".to_owned() };
    let tenths = (ms + 50) / 100;
    if tenths < 1_000 {
        format!("{}.{} s", tenths / 10, tenths % 10)
    } else {
        format!("{} s", tenths / 10)
    }
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The lines of a run, if the plot shows it: who was welcomed, and who was claimed.
fn line(nodes: u64, lost: u64, title: &str, run: &Run) -> Option<(Line, Line)> {
    let (colour, what) = match (nodes, lost) {
        (3, 1) => ("#1f77b4", "one of 3 nodes"),
        (100, 10) => ("#2ca02c", "10 of 100 nodes"),
        (100, 100) => ("#d62728", "all of 100 nodes, for 30 s"),
        _ => return None,
    };
    let is_dashed = match title {
        SHIPPED => return None,
        TUNED => false,
        _ => true,
    };
    let settings = if is_dashed { "as shipped" } else { "best settings" };
    let name = format!("{what}, {settings}");
    let line = |of: fn(&(u64, u64)) -> u64| Line {
        name: name.clone(),
        colour,
        is_dashed,
        has_dots: false,
        points: points(run, of),
    };
    Some((line(|(welcomed, _)| *welcomed), line(|(_, claimed)| *claimed)))
}

/// Seconds and percents; from the last sample on nothing changes.
fn points(run: &Run, of: fn(&(u64, u64)) -> u64) -> Vec<(f64, f64)> {
    let percents = run.samples.iter().map(|sample| 100.0 * parts(of(sample), run.clients));
    let seconds = (0_u32..).map(|number| f64::from(number) * parts(SAMPLE_MS, 1_000));
    let mut points: Vec<(f64, f64)> = seconds.zip(percents).collect();
    points.retain(|(second, _)| *second <= PLOT_SECONDS);
    points.extend(points.last().map(|(_, percent)| (PLOT_SECONDS, *percent)));
    points
}

fn plot(lines: Vec<(Line, Line)>) -> String {
    let (welcomed, claimed) = lines.into_iter().unzip();
    let chart = |title: &str, lines| Chart {
        title: title.to_owned(),
        x: Axis::with_ticks(
            "seconds after the loss",
            PLOT_SECONDS,
            SECONDS.map(|at| (at, format!("{at}"))).into(),
        ),
        y: Axis::with_ticks("", 100.0, PERCENTS.map(|at| (at, format!("{at} %"))).into()),
        lines,
    };
    draw(&[
        chart("connected again", welcomed),
        chart("reachable by device id at every node", claimed),
    ])
}

fn parts(count: u64, of: u64) -> f64 {
    let count = u32::try_from(count * 10_000 / of.max(1)).unwrap_or(u32::MAX);
    f64::from(count) / 10_000.0
}

/// Nodes, and how many of them are lost.
const LOSSES: [(u64, u64); 7] =
    [(3, 1), (3, 3), (10, 1), (10, 10), (100, 1), (100, 10), (100, 100)];
const SHIPPED: &str = "As shipped.";
const TUNED: &str = "With the best settings.";
const PLOT_SECONDS: f64 = 180.0;
const SECONDS: [f64; 7] = [0.0, 30.0, 60.0, 90.0, 120.0, 150.0, 180.0];
const PERCENTS: [f64; 5] = [0.0, 25.0, 50.0, 75.0, 100.0];

const HEAD: &str = "| nodes | shards of Redis | lost | 50 % back | 99 % | 100 % | all known to Redis | attempts of a client | CPU: nodes / Redis | most that wait at a node: handshakes / claims | limits met, first at |\n|---|---|---|---|---|---|---|---|---|---|---|";
const HEAD_OF_CASES: &str = "| case | 50 % back | 99 % | 100 % | all known to Redis | attempts of a client | CPU: nodes / Redis | most that wait at a node: handshakes / claims | limits met, first at |\n|---|---|---|---|---|---|---|---|---|";
