//! Puts the report together: a page, and pictures beside it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;

use super::beside::{self, ALL};
use super::pieces::Piece;
use super::promises::{self, Row};
use super::results::Results;
use super::scale;
use crate::plot::{draw, draw_bars};

/// Writes the page of that date, and its pictures.
pub(super) fn write(
    root: &Path,
    place: &Path,
    date: &str,
    pieces: &[Piece],
    results: &Results,
) -> anyhow::Result<()> {
    fs::create_dir_all(place).with_context(|| format!("cannot make {}", place.display()))?;
    let mut pictures = Vec::new();
    let bars: Vec<_> = ALL.iter().filter_map(|comparison| comparison.bars(results)).collect();
    if !bars.is_empty() {
        pictures.push(("peers", draw_bars(&bars)));
    }
    let charts = scale::charts(results);
    if !charts.is_empty() {
        pictures.push(("growth", draw(&charts)));
    }
    let bars = scale::bars(results);
    if !bars.is_empty() {
        pictures.push(("shards", draw_bars(&bars)));
    }
    for (name, svg) in &pictures {
        fs::write(place.join(format!("{date}-{name}.svg")), svg)?;
    }
    let has = |name: &str| pictures.iter().any(|(known, _)| *known == name);
    let picture = |name: &str, what: &str| {
        if has(name) { format!("![{what}]({date}-{name}.svg)\n\n") } else { String::new() }
    };
    let mut text = head(date, results);
    text += &losses(results);
    text += "## Beside other servers\n\n";
    text += &paragraph(BESIDE);
    text += &picture("peers", "CPU time or memory of each server");
    for table in ALL.iter().filter_map(|comparison| comparison.table(results)) {
        text += &table;
        text.push('\n');
    }
    text += &servers(results);
    text += "## The articles' figures\n\n";
    text += &rows("the article", &promises::articles(results));
    text += "## Promises with a ratio\n\n";
    text += &paragraph(PROMISES);
    text += &rows("SPECIFICATION.md", &promises::promises(results));
    text += "## How costs grow\n\n";
    text += &picture("growth", "Costs against sizes");
    for sentence in scale::sentences(results) {
        text += &paragraph(&sentence);
    }
    if has("shards") {
        text += &picture("shards", "Costs with one and two shards on one and two cores");
        text += &paragraph(SHARDS);
    }
    text += &commands(pieces, results);
    let page = place.join(format!("{date}.md"));
    fs::write(&page, text).with_context(|| format!("cannot write {}", page.display()))?;
    let shown = page.strip_prefix(root).unwrap_or(&page);
    println!("wrote {}", shown.display());
    Ok(())
}

fn head(date: &str, results: &Results) -> String {
    let mut text = format!("# Measured on {date}\n\n");
    text += &paragraph(HEAD);
    let environments = results.iter().map(|(_, result)| &result["environment"]);
    let mut commits: Vec<&str> =
        environments.clone().filter_map(|one| one["commit"].as_str()).collect();
    commits.sort_unstable();
    commits.dedup();
    if let Some(machine) = environments.clone().find(|one| one.is_object()) {
        let word = |name: &str| machine[name].to_string().trim_matches('"').to_owned();
        text += &paragraph(&format!(
            "Machine: {}, processors {}, {}, Linux {}, {} open files a process. Commit: {}.",
            word("cpu"),
            word("cpus_online"),
            memory(),
            word("kernel"),
            word("open_files_hard"),
            commits.join(", ")
        ));
    }
    text
}

fn memory() -> String {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = kilobytes.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.map_or("memory unknown".to_owned(), |kilobytes| {
        format!("{} GiB of memory", (kilobytes + (1 << 19)) >> 20)
    })
}

/// Where another server is better, first of all.
fn losses(results: &Results) -> String {
    let losses: Vec<String> =
        ALL.iter().flat_map(|comparison| comparison.losses(results)).collect();
    let mut text = "## Where another server is better\n\n".to_owned();
    if losses.is_empty() {
        text += "Nowhere in this run.\n\n";
        return text;
    }
    for loss in losses {
        text += &wrapped(&loss, "- ", "  ");
    }
    text.push('\n');
    text += &paragraph(&ratios(results));
    text
}

/// How Weir stands to each of them, in numbers.
fn ratios(results: &Results) -> String {
    let aims = promises::aims(results);
    let better = aims.iter().filter(|(_, ratio)| *ratio < 1.0).count();
    let list = aims.iter().map(|(name, ratio)| format!("{name}: {ratio:.2}"));
    format!(
        "In {better} of {} comparisons Weir takes less than the other server. Weir's first figure as a \
         multiple of theirs: {}.",
        aims.len(),
        list.collect::<Vec<_>>().join("; ")
    )
}

fn servers(results: &Results) -> String {
    let mut text = "### Versions and settings\n\n".to_owned();
    for (name, lines) in beside::descriptions(results) {
        let _ = write!(text, "{name}:\n\n```\n{}\n```\n\n", lines.join("\n"));
    }
    text
}

fn rows(said: &str, rows: &[Row]) -> String {
    let mut text = format!("| {said} | measured |\n|---|---|\n");
    for Row { said, measured } in rows {
        let measured = if measured.is_empty() { "not in this run" } else { measured.as_str() };
        let _ = writeln!(text, "| {said} | {measured} |");
    }
    text.push('\n');
    text
}

/// Each command, and what it complained about.
fn commands(pieces: &[Piece], results: &Results) -> String {
    let mut text = "## Commands\n\n".to_owned();
    text += &paragraph(COMMANDS);
    text += "```sh\n";
    let mut complaints = String::new();
    for piece in pieces {
        let Some(result) = results.get(&piece.name) else { continue };
        let _ = writeln!(text, "{}", piece.command());
        for error in result["errors"].as_array().into_iter().flatten() {
            let error = error.as_str().unwrap_or_default().replace('\n', " ");
            complaints += &wrapped(&format!("{}: {error}", piece.name), "- ", "  ");
        }
        for skipped in result["skipped"].as_array().into_iter().flatten() {
            let skipped = skipped.as_str().unwrap_or_default().replace('\n', " ");
            complaints += &wrapped(&format!("{}: left out: {skipped}", piece.name), "- ", "  ");
        }
    }
    text += "```\n";
    if !complaints.is_empty() {
        text += "\nChecks that failed, and servers that were left out:\n\n";
        text += &complaints;
    }
    text
}

fn paragraph(text: &str) -> String {
    wrapped(text, "", "") + "\n"
}

/// A text in lines of at most 100 characters.
fn wrapped(text: &str, first: &str, others: &str) -> String {
    let mut all = String::new();
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > LINE_MAX {
            all += line.trim_end();
            all.push('\n');
            others.clone_into(&mut line);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += word;
        is_empty = false;
    }
    all + &line + "\n"
}

const LINE_MAX: usize = 100;

const HEAD: &str = "Written by `cargo xtask bench`; [benchmarks.md](../benchmarks.md) says how each figure \
    is measured. Servers of one table took turns in one run, on the same processor, with the same \
    clients and the same payload. Times differ from hour to hour; compare within a table.";
const BESIDE: &str = "A cell is the median of the rounds, with the least and the most. The ratio is the \
    median of the ratios round by round. The bare loops are no servers: they do only what no server \
    can leave out. Before memory is read, garbage of Java and Go is collected, which their operators \
    would not get. The server has one processor, the load generator the other; at rest all have \
    both. Weir has its default settings and no store. In the echo it has no limit of messages, and for \
    datagrams none of calls.";
const PROMISES: &str = "What each row promises, and the proof, stands in \
    [SPECIFICATION.md](../../SPECIFICATION.md).";
const SHARDS: &str = "Shards and cores: with two cores, server and load generator share both. A second \
    shard on one core costs its wake-ups. A second core saves waiting, not work, so the CPU time of a \
    delivery stays about the same.";
const COMMANDS: &str = "Each is given `--spawn target/release/weir --json`, except `stages`. Behind `#` \
    stand lines of its `--config-extra`. `cargo xtask bench NAME` repeats a piece whose result is \
    removed from `target/bench`.";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::pieces;

    #[test]
    fn lines_are_wrapped() {
        let text = "word ".repeat(50);
        let wrapped = wrapped(&text, "- ", "  ");
        assert!(wrapped.lines().all(|line| line.chars().count() <= LINE_MAX));
        assert!(wrapped.lines().skip(1).all(|line| line.starts_with("  word")));
        assert_eq!(wrapped.split_whitespace().count(), 51);
    }

    #[test]
    fn a_report_says_first_where_another_server_is_better() {
        let rounds = |us: f64| json!([{ "cpu_us_per_call": us }]);
        let contestants = json!([
            { "name": "weir", "rounds": rounds(4.0) },
            { "name": "netty", "rounds": rounds(3.0), "description": ["netty 4.2"] },
        ]);
        let environment =
            json!({ "cpu": "C", "cpus_online": "0-1", "kernel": "6", "open_files_hard": 9 });
        let results = Results::of(&[(
            "udp",
            json!({ "contestants": contestants, "environment": environment, "errors": ["a\nb"] }),
        )]);
        let place = std::env::temp_dir().join(format!("xtask-report-{}", std::process::id()));
        write(Path::new("/"), &place, "2026-01-02", &pieces::all(false), &results)
            .expect("written");
        let page = fs::read_to_string(place.join("2026-01-02.md")).expect("a page");
        let svg = fs::read_to_string(place.join("2026-01-02-peers.svg")).expect("a picture");
        let _ = fs::remove_dir_all(&place);
        let (better, tables) = (page.find("Netty 3, Weir 4"), page.find("## Beside other servers"));
        assert!(better.is_some() && better < tables, "{page}");
        assert!(page.contains("- udp: a b") && page.contains("netty 4.2"), "{page}");
        assert!(svg.contains("JSON call by datagram") && svg.ends_with("</svg>\n"));
    }
}
