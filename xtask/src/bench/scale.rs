//! How costs grow: lines against sizes, and what they say in words.

use super::pieces::{CONNECTIONS, CORES, SHARDS, SIZES, TOPICS};
use super::results::Results;
use crate::plot::{Axis, Bar, Bars, Chart, Line, number};

/// One picture of the report.
struct Growth {
    /// Above the picture, and the first words of its sentence.
    title: &'static str,
    x: &'static str,
    y: &'static str,
    lines: &'static [Series],
    points: &'static [u32],
    /// What the points stand for, if not for themselves.
    place: fn(u32) -> f64,
    /// Why the cost grows.
    reason: &'static str,
}

/// A line: one field of several pieces, whose names end with the size.
struct Series {
    name: &'static str,
    piece: &'static str,
    field: &'static str,
    colour: &'static str,
    is_dashed: bool,
}

const ALL: [Growth; 6] = [
    Growth {
        title: "Number of connections",
        x: "connections",
        y: "CPU per delivery, µs",
        lines: &[Series::weir("connections"), Series::bare("connections")],
        points: &CONNECTIONS,
        place: f64::from,
        reason: "With few connections the publish request and the wake-up of threads are shared by few \
                 deliveries. With many, each socket's memory has left the caches of the processor \
                 until its turn comes; the bare loop pays for that too. From 100,000 on each shard has a \
                 descriptor table of its own, and client processes share the processors with it.",
    },
    Growth {
        title: "Number of shards",
        x: "shards with a descriptor table each, for 10,000 connections",
        y: "CPU per delivery, µs",
        lines: &[Series::weir("shards"), Series::bare("shards")],
        points: &SHARDS,
        place: f64::from,
        reason: "A message wakes each shard once. Shards beyond the processors add these wake-ups and \
                 nothing else; they are there for their tables.",
    },
    Growth {
        title: "Message size",
        x: "bytes of payload",
        y: "CPU per delivery, µs",
        lines: &[Series::weir("size"), Series::bare("size")],
        points: &SIZES,
        place: f64::from,
        reason: "Below some KiB the cost is that of a send. Above, the kernel copies each byte in and \
                 out, for Weir and the bare loop alike.",
    },
    Growth {
        title: "Topics that exist",
        x: "silent topics beside the one that is published to (1: none)",
        y: "CPU per delivery, µs",
        lines: &[Series::weir("topics"), Series::bare("topics")],
        points: &TOPICS,
        place: at_least_one,
        reason: "A fan-out walks over the members of its own topic, so other topics cost it only room in \
                 the caches.",
    },
    Growth {
        title: "Topics of a connection",
        x: "silent topics of 1,000 connections (1,000,000: a thousand each)",
        y: "CPU per delivery, µs",
        lines: &[Series::weir("own-topics"), Series::bare("own-topics")],
        points: &TOPICS,
        place: at_least_one,
        reason: "A delivery does not look at the other topics of its connection.",
    },
    Growth {
        title: "A publish to one subscriber among many topics",
        x: "silent topics (1: none)",
        y: "CPU per publish and delivery, µs",
        lines: &[Series::weir("single-topics")],
        points: &TOPICS,
        place: at_least_one,
        reason: "A publish finds its topic in a hash table; nearly all of its cost is the HTTP request \
                 that brings it, and the wake-up of a shard.",
    },
];

impl Series {
    const fn weir(piece: &'static str) -> Series {
        let (name, field) = ("Weir", "cpu_us_per_message");
        Series { name, piece, field, colour: "#1f77b4", is_dashed: false }
    }

    const fn bare(piece: &'static str) -> Series {
        let (name, field) = ("bare send loop", "floor_us_per_message");
        Series { name, piece, field, colour: "#888", is_dashed: true }
    }

    fn points(&self, growth: &Growth, results: &Results) -> Vec<(f64, f64)> {
        let point = |size: &u32| {
            let value = results.figure(&format!("{}-{size}", self.piece), self.field)?;
            Some(((growth.place)(*size), value))
        };
        growth.points.iter().filter_map(point).collect()
    }
}

/// On an axis of decades there is no 0.
fn at_least_one(size: u32) -> f64 {
    f64::from(size.max(1))
}

/// The charts of what is measured.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let mut charts = Vec::new();
    for growth in &ALL {
        let lines: Vec<Line> = growth
            .lines
            .iter()
            .map(|series| Line {
                name: series.name.to_owned(),
                colour: series.colour,
                is_dashed: series.is_dashed,
                has_dots: true,
                points: series.points(growth, results),
            })
            .filter(|line| !line.points.is_empty())
            .collect();
        let all = || lines.iter().flat_map(|line| &line.points);
        let least = all().map(|(x, _)| *x).fold(f64::INFINITY, f64::min);
        let most = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(0.0, f64::max);
        let (x, y) = (most(|point| point.0), most(|point| point.1));
        if all().count() > 1 {
            charts.push(Chart {
                title: growth.title.to_owned(),
                x: Axis::logarithmic(growth.x, least, x),
                y: Axis::linear(growth.y, y),
                lines,
            });
        }
    }
    charts.extend(memory_of_topics(results));
    charts
}

fn memory_of_topics(results: &Results) -> Option<Chart> {
    let line = |name: &str, piece: &str, colour| {
        let points = TOPICS.iter().filter(|topics| **topics > 0).filter_map(|topics| {
            let bytes = results.figure(&format!("{piece}-{topics}"), "bytes_per_silent_topic")?;
            // A few topics disappear in pages that are there anyway.
            (*topics >= 10_000).then(|| (f64::from(*topics), bytes))
        });
        let points: Vec<(f64, f64)> = points.collect();
        let name = name.to_owned();
        Line { name, colour, is_dashed: false, has_dots: true, points }
    };
    let lines = vec![
        line("of 10,000 connections", "topics", "#2ca02c"),
        line("of 1,000 connections", "own-topics", "#d62728"),
    ];
    let all = || lines.iter().flat_map(|line| &line.points);
    let most = all().map(|(_, y)| *y).fold(0.0, f64::max);
    (all().count() > 2).then(|| Chart {
        title: "Memory of a topic with one subscriber".to_owned(),
        x: Axis::logarithmic("topics", 10_000.0, 1_000_000.0),
        y: Axis::linear("bytes", most),
        lines,
    })
}

/// A sentence for each chart: what it costs, from where on it costs more, and why.
pub(super) fn sentences(results: &Results) -> Vec<String> {
    let mut sentences = Vec::new();
    for growth in &ALL {
        let Some(series) = growth.lines.first() else { continue };
        let points = series.points(growth, results);
        if points.len() > 1 {
            let reason = growth.reason;
            sentences.push(format!("**{}.** {} {reason}", growth.title, knee(&points)));
        }
    }
    sentences
}

/// The range from the first to the last point whose cost is nearly the least, and the points beyond.
fn knee(points: &[(f64, f64)]) -> String {
    let Some(best) = points.iter().map(|point| point.1).min_by(f64::total_cmp) else {
        return String::new();
    };
    let is_flat = |point: &&(f64, f64)| point.1 <= best * KNEE;
    let flat: Vec<&(f64, f64)> = points.iter().filter(is_flat).collect();
    let (Some(first), Some(last)) = (flat.first(), flat.last()) else { return String::new() };
    let between = points.iter().filter(|point| (first.0..=last.0).contains(&point.0));
    let most = between.map(|point| point.1).fold(0.0, f64::max);
    // A later point that costs no more is no knee.
    let last = points.iter().rfind(|point| point.1 <= most).unwrap_or(last);
    let mut text = format!(
        "From {} to {} the cost is {} to {} µs.",
        number(first.0),
        number(last.0),
        number(best),
        number(most)
    );
    if let Some(below) = points.iter().find(|point| point.0 < first.0) {
        text += &format!(" At {} it is {} µs.", number(below.0), number(below.1));
    }
    let above: Vec<&(f64, f64)> = points.iter().filter(|point| point.0 > last.0).collect();
    match above.as_slice() {
        [] => {}
        [only] => {
            text +=
                &format!(" The knee follows: at {} it is {} µs.", number(only.0), number(only.1));
        }
        [next, .., end] => {
            text += &format!(
                " The knee follows: at {} it is {} µs, and at {} {} µs.",
                number(next.0),
                number(next.1),
                number(end.0),
                number(end.1)
            );
        }
    }
    text
}

/// A cost that is higher than the least by more than this counts as grown.
const KNEE: f64 = 1.25;

/// Bars of shards and cores.
pub(super) fn bars(results: &Results) -> Vec<Bars> {
    let group = |title: &str, label: &str, piece: &str, field: &str| {
        let mut bars = Vec::new();
        for cores in CORES {
            for shards in CORES {
                let name = format!("{piece}-shards-{shards}-cores-{cores}");
                if let Some(value) = results.figure(&name, field) {
                    let name = format!("{}, {}", many(shards, "shard"), many(cores, "core"));
                    let (least, most) = (value, value);
                    bars.push(Bar { name, colour: "#1f77b4", value, least, most });
                }
            }
        }
        Bars { title: title.to_owned(), label: label.to_owned(), bars }
    };
    let all = [
        group("Delivery to 10,000", "CPU, µs", "delivery", "cpu_us_per_message"),
        group("Delivery to 10,000", "CPU / bare loop", "delivery", "ratio"),
        group("Full handshake, TLS 1.3", "CPU, µs", "handshake", "full_us"),
        group("Resumed handshake, TLS 1.3", "CPU, µs", "handshake", "resumed_us"),
    ];
    all.into_iter().filter(|group| !group.bars.is_empty()).collect()
}

fn many(count: u32, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_knee_is_found_on_both_sides() {
        let flat = [(1.0, 8.0), (10.0, 8.5), (100.0, 8.2)];
        assert_eq!(knee(&flat), "From 1 to 100 the cost is 8 to 8.5 µs.");
        let curve = [(1.0, 20.0), (10.0, 8.0), (100.0, 9.0), (1000.0, 30.0), (10_000.0, 300.0)];
        assert_eq!(
            knee(&curve),
            "From 10 to 100 the cost is 8 to 9 µs. At 1 it is 20 µs. The knee follows: at 1,000 it is \
             30 µs, and at 10,000 300 µs."
        );
    }
}
