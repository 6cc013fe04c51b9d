//! `weir upgrade`: asks the running process to upgrade, and shows how it goes.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::lines::{Count, Line, Request};
use crate::cli::UpgradeArgs;
use crate::config;
use crate::output::{complain, say};

pub(crate) async fn run(args: UpgradeArgs, file: Option<PathBuf>) -> Result<ExitCode> {
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => {
            let settings = config::load(file.clone())?;
            settings
                .upgrade
                .socket(&settings.store)
                .context("no socket is known: set upgrade.socket, or name it with --socket")?
        }
    };
    let absolute = |path: &PathBuf| std::path::absolute(path);
    let request = Request {
        program: args.program.as_ref().map(absolute).transpose()?,
        config: file.as_ref().map(absolute).transpose()?,
        dry_run: args.dry_run,
    };
    let mut stream = UnixStream::connect(&socket).await.with_context(|| {
        format!("no gateway waits at {}; upgrade.socket names its socket", socket.display())
    })?;
    let mut text = serde_json::to_string(&request).context("cannot write the request")?;
    text.push('\n');
    stream.write_all(text.as_bytes()).await.context("cannot ask the gateway")?;
    let (mut lines, mut last) = (BufReader::new(stream).lines(), None);
    while let Some(text) = lines.next_line().await.context("the gateway's answer breaks off")? {
        let line =
            serde_json::from_str(&text).context("the answer does not come from a gateway")?;
        if args.json {
            say(&text)?;
        } else if let Some(shown) = shown(&line) {
            say(shown.trim_end())?;
        }
        last = Some(line);
    }
    end(last, &socket).await
}

/// Waits until the new process has its socket in its place, which is its last step.
async fn answers(socket: &Path) -> io::Result<()> {
    let answers = async {
        while UnixStream::connect(socket).await.is_err() {
            sleep(ANSWER_INTERVAL).await;
        }
    };
    if timeout(ANSWER_PATIENCE, answers).await.is_err() {
        UnixStream::connect(socket).await?;
    }
    Ok(())
}

/// It serves already; a busy machine may delay the rest.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
const ANSWER_INTERVAL: Duration = Duration::from_millis(10);

/// How the command ends, after the last line and the end of the stream.
async fn end(last: Option<Line>, socket: &Path) -> Result<ExitCode> {
    match last {
        Some(Line::Refused { why } | Line::Forecast { refused: Some(why), .. }) => {
            complain(format_args!("not upgraded: {why}"));
            Ok(ExitCode::FAILURE)
        }
        Some(Line::Forecast { refused: None, .. }) => Ok(ExitCode::SUCCESS),
        Some(Line::Left { .. }) => {
            // The new process has put its own socket there.
            answers(socket).await.context(
                "the old process has ended, but the new one does not answer: look at its log",
            )?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Line::Moved { .. }) => {
            bail!("the new process serves, but the old one has ended before all was finished")
        }
        Some(Line::Stage { .. }) | None => {
            bail!("the gateway has ended during the upgrade: look at its log")
        }
    }
}

/// A line for people. A reason is shown at the end.
fn shown(line: &Line) -> Option<String> {
    let mut out = String::new();
    match line {
        Line::Stage { text, after_ms, .. } => row(&mut out, &format!("{after_ms} ms"), text),
        Line::Forecast { moves, stays, .. } => {
            table(&mut out, "would move", moves);
            table(&mut out, "would stay", stays);
        }
        Line::Moved { moved, stayed, pause_ms, bytes, descriptors, old_bytes, new_bytes } => {
            table(&mut out, "moved", moved);
            table(&mut out, "stayed", stayed);
            row(&mut out, "pause", &format!("{pause_ms:.1} ms"));
            row(&mut out, "state", &format!("{bytes} bytes, {descriptors} sockets"));
            let (old, new) = (old_bytes >> 20, new_bytes >> 20);
            row(&mut out, "memory", &format!("old process {old} MiB, new process {new} MiB"));
        }
        Line::Left { finished, closed } => {
            let text = format!("{finished} of what stayed has finished, {closed} were closed");
            row(&mut out, "left", &text);
        }
        Line::Refused { .. } => return None,
    }
    Some(out)
}

fn table(out: &mut String, name: &str, counts: &[Count]) {
    for (index, Count { kind, count }) in counts.iter().enumerate() {
        row(out, if index == 0 { name } else { "" }, &format!("{count} {kind}"));
    }
}

fn row(out: &mut String, name: &str, value: &str) {
    writeln!(out, "{name:>10}  {value}").expect("writing to a String does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_get_a_line_a_stage_and_then_a_table() {
        let check = |line: Line, expected: &str| assert_eq!(shown(&line).unwrap(), expected);
        let stage = Line::Stage {
            name: "started".to_owned(),
            text: "process 7 runs".to_owned(),
            after_ms: 12,
        };
        check(stage, "     12 ms  process 7 runs\n");
        let count = |kind: &str, count| Count { kind: kind.to_owned(), count };
        let moved = Line::Moved {
            moved: vec![count("tcp", 10), count("tls", 5)],
            stayed: vec![count("http", 2)],
            pause_ms: 12.345,
            bytes: 1_000,
            descriptors: 17,
            old_bytes: 20 << 20,
            new_bytes: 21 << 20,
        };
        check(
            moved,
            "     moved  10 tcp\n            5 tls\n    stayed  2 http\n     pause  12.3 ms\n     \
             state  1000 bytes, 17 sockets\n    memory  old process 20 MiB, new process 21 MiB\n",
        );
        assert_eq!(shown(&Line::Refused { why: "no".to_owned() }), None);
    }
}
