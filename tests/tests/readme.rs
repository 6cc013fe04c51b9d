//! Every command of README.md, as it stands there, in a network of its own.
//!
//! The commands name the default ports. So they run in a network namespace with only a loopback
//! device, where these ports are free. Where the kernel permits no namespace, the test says so and
//! ends.
//!
//! All blocks of `sh` run in their order, each in a shell of its own. A block that fails fails the
//! test. A comment above a block, which readers do not see, tells what else is to be known of it:
//!
//! | `<!-- test: … -->` | |
//! |---|---|
//! | `stays until "TEXT"` | it goes on; the next block begins when it has printed the text |
//! | `prints "TEXT"` | it prints the text, at the latest when all blocks have run |
//! | `alone` | the blocks that go on are ended first |
//! | `gateway` | the same, and a gateway with the defaults is started |
//! | `gateway FILE` | the same, with this configuration from `tests/clients/readme` |
//! | `fails "TEXT"` | a command that begins so may fail |
//! | `with "A" as "B"` | A is replaced by B: for sizes that would take too long |

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use weir_tests::{PATIENCE, now, program, rest};

/// A block of commands, and what is known of it.
#[derive(Debug, Default)]
struct Block {
    /// The line of README.md.
    line: usize,
    text: String,
    stays_until: Option<String>,
    prints: Vec<String>,
    is_alone: bool,
    /// The gateway to start first: a file, or the empty text for the defaults.
    gateway: Option<String>,
    may_fail: Vec<String>,
}

/// A block that has begun.
struct Begun {
    line: usize,
    child: Child,
    output: PathBuf,
    prints: Vec<String>,
    /// Whether it goes on until it is ended.
    stays: bool,
}

/// The directory, the namespace and the programs of a run.
struct Stage {
    scratch: TempDir,
    keeper: Child,
    begun: Vec<Begun>,
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Reads the blocks, with their comments.
fn blocks(readme: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut note = None;
    let mut lines = readme.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        if let Some(begun) = line.strip_prefix("<!-- test:") {
            note = Some(begun.strip_suffix("-->").context("a comment of one line")?.trim());
        } else if line == "```sh" {
            let text: Vec<&str> =
                lines.by_ref().map(|(line, _)| line).take_while(|line| *line != "```").collect();
            let mut block = Block { line: number, text: text.join("\n"), ..Block::default() };
            for word in note.take().unwrap_or_default().split("; ").filter(|word| !word.is_empty())
            {
                block.note(word).with_context(|| format!("README.md:{number}: {word}"))?;
            }
            blocks.push(block);
        } else if !line.is_empty() {
            ensure!(note.is_none(), "README.md:{number}: no block follows the comment");
        }
    }
    Ok(blocks)
}

impl Block {
    /// Takes in one part of a comment.
    fn note(&mut self, part: &str) -> Result<()> {
        let (word, rest) = part.split_once(' ').unwrap_or((part, ""));
        match word {
            "stays" => self.stays_until = Some(quoted(rest)?),
            "prints" => self.prints.push(quoted(rest)?),
            "alone" => self.is_alone = true,
            "gateway" => self.gateway = Some(rest.to_owned()),
            "fails" => self.may_fail.push(quoted(rest)?),
            "with" => {
                let (from, to) = rest.split_once(" as ").context("with \"A\" as \"B\"")?;
                let (from, to) = (quoted(from)?, quoted(to)?);
                ensure!(self.text.contains(&from), "it does not contain {from}");
                self.text = self.text.replace(&from, &to);
            }
            _ => bail!("unknown"),
        }
        Ok(())
    }
}

/// The text between the first and the last quotation mark. Inside, `\"` stands for one.
fn quoted(text: &str) -> Result<String> {
    let (_, rest) = text.split_once('"').context("a text in quotation marks")?;
    let (text, _) = rest.rsplit_once('"').context("a text in quotation marks")?;
    Ok(text.replace("\\\"", "\""))
}

impl Stage {
    /// `None`: the kernel permits no namespace.
    fn new() -> Result<Option<Stage>> {
        let scratch = tempfile::tempdir()?;
        let path = |name: &str| scratch.path().join(name);
        let built = program("weir")?.with_file_name("");
        for directory in ["work/target", "work/crates", "home", "bin", "output"] {
            fs::create_dir_all(path(directory))?;
        }
        for profile in ["release", "quick"] {
            symlink(&built, path("work/target").join(profile))?;
        }
        fs::copy(repository().join("weir.toml"), path("work/weir.toml"))?;
        fs::write(path("bin/cargo"), CARGO)?;
        fs::set_permissions(path("bin/cargo"), fs::Permissions::from_mode(0o755))?;
        let mut keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", KEEPER])
            .stdin(Stdio::null())
            .stdout(File::create(path("keeper"))?)
            .stderr(Stdio::inherit())
            .spawn()
            .context("starting unshare")?;
        let said = || fs::read_to_string(path("keeper"));
        while !said()?.contains("ready") {
            if keeper.try_wait()?.is_some() {
                ensure!(!said()?.contains("made"), "ip cannot bring up the device lo");
                return Ok(None);
            }
            rest();
        }
        Ok(Some(Stage { scratch, keeper, begun: Vec::new() }))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Begins commands in a process group of their own.
    fn begin(&self, line: usize, text: &str, prints: &[String]) -> Result<Begun> {
        let output = self.path(&format!("output/{line}"));
        let file = File::create(&output)?;
        let path = std::env::var("PATH").unwrap_or_default();
        let child = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.keeper.id()))
            .args(["bash", "-c", &format!("{PROLOGUE}\n{text}\n{EPILOGUE}")])
            .current_dir(self.path("work"))
            .env_clear()
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("HOME", self.path("home"))
            .env("TMPDIR", self.path("output"))
            .env("STATE", self.scratch.path())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .context("starting nsenter")?;
        Ok(Begun { line, child, output, prints: prints.to_vec(), stays: false })
    }

    fn run(&mut self, block: &Block) -> Result<()> {
        if block.is_alone || block.gateway.is_some() {
            self.end_all()?;
        }
        if let Some(gateway) = &block.gateway {
            let config = repository().join("tests/clients/readme").join(gateway);
            let text = match gateway.as_str() {
                "" => "exec target/release/weir".to_owned(),
                _ => format!("exec target/release/weir --config {}", config.display()),
            };
            // No line of README.md has this number.
            let mut gateway = self.begin(0, &text, &[])?;
            gateway.wait_for("is listening")?;
            gateway.stays = true;
            self.begun.push(gateway);
        }
        let mut begun = self.begin(block.line, &block.text, &block.prints)?;
        match &block.stays_until {
            Some(text) => {
                begun.wait_for(text)?;
                begun.stays = true;
            }
            None => begun.wait()?,
        }
        let failed = fs::read_to_string(self.path("failed")).unwrap_or_default();
        let _ = fs::remove_file(self.path("failed"));
        let is_allowed =
            |line: &&str| block.may_fail.iter().any(|begin| line.starts_with(begin.as_str()));
        if let Some(line) = failed.lines().find(|line| !is_allowed(line)) {
            bail!("README.md:{}: {line}\nfails:\n{}", block.line, begun.said()?);
        }
        self.begun.push(begun);
        Ok(())
    }

    /// Checks what all blocks have printed, and that those that go on still do. Then it ends them,
    /// the newest first.
    fn end_all(&mut self) -> Result<()> {
        for begun in &mut self.begun {
            if begun.stays && begun.child.try_wait()?.is_some() {
                bail!("README.md:{} has ended:\n{}", begun.line, begun.said()?);
            }
            let deadline = now() + PATIENCE;
            while let Some(missing) = begun.missing()? {
                let Begun { line, .. } = begun;
                ensure!(now() < deadline, "README.md:{line} does not print {missing:?}");
                rest();
            }
        }
        while let Some(mut begun) = self.begun.pop() {
            begun.end()?;
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        while let Some(mut begun) = self.begun.pop() {
            let _ = begun.end();
        }
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

impl Begun {
    fn said(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.output)?).into_owned())
    }

    fn missing(&self) -> Result<Option<String>> {
        let said = self.said()?;
        Ok(self.prints.iter().find(|text| !said.contains(text.as_str())).cloned())
    }

    /// Waits until it has printed a text. A program that prints nothing gets some time to fail.
    fn wait_for(&mut self, text: &str) -> Result<()> {
        let deadline = now() + PATIENCE;
        let begun = now();
        while text.is_empty() && begun.elapsed() < TIME_TO_FAIL {
            rest();
        }
        while !self.said()?.contains(text) {
            let line = self.line;
            if self.child.try_wait()?.is_some() || now() > deadline {
                bail!("README.md:{line} does not print {text:?}:\n{}", self.said()?);
            }
            rest();
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        let deadline = now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            ensure!(now() < deadline, "README.md:{} does not end:\n{}", self.line, self.said()?);
            rest();
        }
        Ok(())
    }

    /// Ends it and everything that it has started.
    fn end(&mut self) -> Result<()> {
        let group = Pid::from_raw(i32::try_from(self.child.id())?).context("a pid")?;
        // It may have ended.
        let _ = kill_process_group(group, Signal::TERM);
        let deadline = now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            if now() > deadline {
                let _ = kill_process_group(group, Signal::KILL);
            }
            rest();
        }
        Ok(())
    }
}

#[test]
fn every_command_works_as_it_stands() -> Result<()> {
    let readme = fs::read_to_string(repository().join("README.md"))?;
    let blocks = blocks(&readme)?;
    ensure!(blocks.len() >= 15, "{} blocks: where are the others?", blocks.len());
    let Some(mut stage) = Stage::new()? else {
        println!("skipped: unshare may not make a network namespace here");
        return Ok(());
    };
    for block in &blocks {
        stage.run(block)?;
    }
    stage.end_all()
}

/// The commands in tables: they prove the figures beside them, on a machine of their own.
fn commands_in_tables(readme: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (row, line) in readme.lines().zip(1..).filter(|(row, _)| row.starts_with('|')) {
        let code = row.split('`').skip(1).step_by(2);
        for command in code.filter(|code| code.starts_with("target/release/")) {
            let mut text = command.to_owned();
            for (from, to) in SIZES {
                text = text.replace(from, to);
            }
            blocks.push(Block { line, text, ..Block::default() });
        }
    }
    blocks
}

#[test]
fn the_commands_behind_the_figures_run_with_small_sizes() -> Result<()> {
    let readme = fs::read_to_string(repository().join("README.md"))?;
    let blocks = commands_in_tables(&readme);
    ensure!(blocks.len() >= 4, "{} commands: where are the others?", blocks.len());
    let Some(mut stage) = Stage::new()? else { return Ok(()) };
    blocks.iter().try_for_each(|block| stage.run(block))
}

#[test]
fn a_block_that_fails_is_found() -> Result<()> {
    let Some(mut stage) = Stage::new()? else { return Ok(()) };
    let block = |text: &str| Block { line: 1, text: text.to_owned(), ..Block::default() };
    stage.run(&block("true\n[ -e weir.toml ] && echo there"))?;
    for text in ["false; true", "true\ncargo build --quickly", "target/release/weir nonsense"] {
        ensure!(stage.run(&block(text)).is_err(), "{text} passes");
    }
    let told = "<!-- test: stays until \"a\"; with \"x\" as \"y\" -->\n```sh\nx\n```\n";
    let read = blocks(told)?;
    ensure!(read.len() == 1 && read[0].text == "y", "{read:?}");
    for wrong in ["<!-- test: nonsense -->\n```sh\n```\n", "<!-- test: alone -->\ntext\n"] {
        ensure!(blocks(wrong).is_err(), "{wrong} passes");
    }
    Ok(())
}

/// Sizes for a test: the figures need thousands of connections, and the test only the command.
const SIZES: [(&str, &str); 5] = [
    ("--connections 15000", "--connections 200"),
    ("--connections 10000", "--connections 200"),
    ("--seconds 10", "--seconds 2"),
    ("--settle 25s", "--settle 1s"),
    (
        "weir-bench siege",
        "weir-bench siege --only hello --connections 50 --quiet-seconds 2 --baseline-seconds 2 --seconds 2",
    ),
];

/// What holds the namespace.
const KEEPER: &str = "echo made; ip link set lo up && echo ready && exec sleep infinity";

const TIME_TO_FAIL: Duration = Duration::from_secs(2);

/// Commands that fail are noted, and variables go from block to block, as in one terminal.
const PROLOGUE: &str = r#"
set -o pipefail
TOKEN=
[ -f "$STATE/variables" ] && . "$STATE/variables"
trap 'echo "$BASH_COMMAND" >> "$STATE/failed"' ERR
trap 'printf "TOKEN=%q\n" "$TOKEN" > "$STATE/variables"' EXIT
"#;
const EPILOGUE: &str = "true";

/// Stands for cargo: the programs are built already. Other words than these are not known.
const CARGO: &str = r#"#!/bin/bash
case "$*" in
    "build --release" | "build --release -p weir-bench") ;;
    "run --profile quick -- "*) exec target/quick/weir "${@:5}" ;;
    "run --package weir --example embed") exec target/release/examples/embed ;;
    *) echo "unknown: cargo $*" >&2; exit 1 ;;
esac
"#;
