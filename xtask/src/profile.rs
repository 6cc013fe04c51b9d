//! `cargo xtask profile`: runs a scenario of `weir-bench`, takes profiles of its server's CPU time
//! through the admin API while it runs, and draws a flame graph.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use inferno::flamegraph;

use crate::process::{beside_programs, cargo, program, run as run_command, shown};

/// Builds the programs, and profiles the scenario. The words behind its name are passed to
/// `weir-bench`.
pub(crate) fn run(root: &Path, scenario: &str, words: &[&str]) -> anyhow::Result<()> {
    run_command(&mut cargo(root, "build --release --locked -p weir-server -p weir-bench"))?;
    let programs = beside_programs(root, "release");
    let mut bench = program(root, programs.join("weir-bench"), scenario);
    bench.arg("--spawn").arg(programs.join("weir")).args(words);
    println!("$ {}", shown(&bench));
    let mut bench = bench.spawn().context("cannot start weir-bench")?;
    let stacks = watch(&mut bench)?;
    let status = bench.wait()?;
    ensure!(status.success(), "weir-bench ended with {status}");
    ensure!(!stacks.is_empty(), "the server was busy in no profile of {SLICE_SECONDS} s");

    let directory = beside_programs(root, "profiles");
    fs::create_dir_all(&directory)?;
    let place = |ending: &str| directory.join(format!("{scenario}.{ending}"));
    let lines = lines(&stacks);
    fs::write(place("folded"), lines.join("\n") + "\n")?;
    let title = format!("weir-bench {scenario} {}", words.join(" "));
    draw(&place("svg"), title.trim(), &lines)?;
    print!("{}", largest(&stacks));
    println!("{}", place("svg").display());
    Ok(())
}

/// Stacks, from the outermost call, with their nanoseconds.
type Stacks = HashMap<String, u64>;

/// Takes one profile after the other until the bench ends.
fn watch(bench: &mut Child) -> anyhow::Result<Stacks> {
    let mut stacks = Stacks::new();
    while bench.try_wait()?.is_none() {
        // A server that starts does not answer yet. One that ends cuts the last profile off.
        let profile = server_of(bench.id()).and_then(|admin| profile(admin).ok());
        match profile {
            Some(text) => add(&mut stacks, &text)?,
            None => pause(),
        }
    }
    Ok(stacks)
}

#[expect(clippy::disallowed_methods, reason = "nothing tells when a server of another answers")]
fn pause() {
    thread::sleep(PAUSE);
}

/// The admin address of the server that this process has started.
fn server_of(bench: u32) -> Option<SocketAddr> {
    let children = fs::read_to_string(format!("/proc/{bench}/task/{bench}/children")).ok()?;
    children.split_whitespace().find_map(|child| {
        let command = fs::read_to_string(format!("/proc/{child}/cmdline")).ok()?;
        let mut words = command.split('\0').skip_while(|word| *word != "--config");
        let file = PathBuf::from(words.nth(1)?);
        let config: toml::Table = fs::read_to_string(file).ok()?.parse().ok()?;
        config.get("listen")?.get("admin")?.as_str()?.parse().ok()
    })
}

/// A profile as text.
fn profile(admin: SocketAddr) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(admin)?;
    let path = format!("/v1/debug/cpu?format=folded&seconds={SLICE_SECONDS}");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no head of HTTP")?;
    if !head.starts_with("HTTP/1.1 200 ") {
        bail!("{body}");
    }
    Ok(body.to_owned())
}

/// Adds the stacks of a profile.
fn add(stacks: &mut Stacks, text: &str) -> anyhow::Result<()> {
    for line in text.lines() {
        let (stack, weight) = line.rsplit_once(' ').context("a line without a weight")?;
        *stacks.entry(stack.to_owned()).or_default() += weight.parse::<u64>()?;
    }
    Ok(())
}

/// The stacks as text, in an order of their own.
fn lines(stacks: &Stacks) -> Vec<String> {
    let mut lines: Vec<_> =
        stacks.iter().map(|(stack, weight)| format!("{stack} {weight}")).collect();
    lines.sort();
    lines
}

fn draw(path: &Path, title: &str, lines: &[String]) -> anyhow::Result<()> {
    let mut options = flamegraph::Options::default();
    options.title = title.to_owned();
    options.count_name = "ns".to_owned();
    let file = BufWriter::new(File::create(path)?);
    let lines = lines.iter().map(String::as_str);
    flamegraph::from_lines(&mut options, lines, file).context("drawing the flame graph")
}

/// The functions in which the most time passes, without what they call. Time in the kernel counts
/// for the function that called it. Writing to a `String` cannot fail.
fn largest(stacks: &Stacks) -> String {
    let mut own = HashMap::<&str, u64>::new();
    for (stack, weight) in stacks {
        let innermost = stack.rsplit(';').next().unwrap_or(stack);
        *own.entry(innermost).or_default() += weight;
    }
    let all: u64 = own.values().sum();
    let mut own: Vec<_> = own.into_iter().collect();
    own.sort_by_key(|(name, weight)| (std::cmp::Reverse(*weight), *name));
    let mut text = String::new();
    let _ = writeln!(text, "{:>10}  {:>6}  function", "CPU time", "share");
    for (name, weight) in own.into_iter().take(SHOWN_MAX) {
        let milliseconds = weight / 1_000_000;
        #[expect(clippy::cast_precision_loss, reason = "it is shown with one digit")]
        let share = weight as f64 * 100.0 / all as f64;
        let _ = writeln!(text, "{milliseconds:>7} ms  {share:>4.1} %  {name}");
    }
    text
}

/// Short, because the end of the scenario cuts the last profile off.
const SLICE_SECONDS: u64 = 2;
const PAUSE: Duration = Duration::from_millis(20);
const SHOWN_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_added_and_the_largest_functions_named() {
        let mut stacks = Stacks::new();
        add(&mut stacks, "shard-0;run;send 30000000\nfront;run 10000000\n").expect("a profile");
        add(&mut stacks, "shard-0;run;send 30000000\nshard-1;<[u8, 4] as A>::b 30000000\n")
            .expect("a profile");
        assert_eq!(
            largest(&stacks),
            "  CPU time   share  function\n     60 ms  60.0 %  send\n     30 ms  30.0 %  <[u8, 4] as A>::b\n     \
             10 ms  10.0 %  run\n"
        );
        assert_eq!(lines(&stacks).last().expect("a line"), "shard-1;<[u8, 4] as A>::b 30000000");
        assert!(add(&mut stacks, "no-weight").is_err());
    }
}
