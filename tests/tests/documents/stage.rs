//! Where blocks of commands run: a network, a directory and programs of their own.

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

use crate::blocks::Block;

/// A block that has begun.
struct Begun {
    /// The document and the line.
    place: String,
    child: Child,
    output: PathBuf,
    prints: Vec<String>,
    /// Whether it goes on until it is ended.
    stays: bool,
}

/// The directory, the namespace and the programs of a run.
pub(crate) struct Stage {
    scratch: TempDir,
    keeper: Child,
    begun: Vec<Begun>,
    count: usize,
}

pub(crate) fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

impl Stage {
    /// `None`: the kernel permits no namespace.
    pub(crate) fn new() -> Result<Option<Stage>> {
        let scratch = tempfile::tempdir()?;
        let path = |name: &str| scratch.path().join(name);
        let built = program("weir")?.with_file_name("");
        for directory in ["work/target", "work/crates", "work/sdk", "home", "bin", "output"] {
            fs::create_dir_all(path(directory))?;
        }
        copy(&repository().join("examples"), &path("work/examples"))?;
        symlink(repository().join("sdk/js"), path("work/sdk/js"))?;
        for profile in ["release", "quick"] {
            symlink(&built, path("work/target").join(profile))?;
        }
        fs::copy(repository().join("weir.toml"), path("work/weir.toml"))?;
        for (name, script) in [("cargo", CARGO), ("npm", NPM)] {
            fs::write(path("bin").join(name), script)?;
            fs::set_permissions(path("bin").join(name), fs::Permissions::from_mode(0o755))?;
        }
        symlink(built.join("weir"), path("bin/weir"))?;
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
        Ok(Some(Stage { scratch, keeper, begun: Vec::new(), count: 0 }))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Begins commands in a process group of their own.
    fn begin(&mut self, place: &str, text: &str, prints: &[String]) -> Result<Begun> {
        self.count += 1;
        let output = self.path(&format!("output/{}", self.count));
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
        Ok(Begun { place: place.to_owned(), child, output, prints: prints.to_vec(), stays: false })
    }

    pub(crate) fn run(&mut self, block: &Block) -> Result<()> {
        if block.reason.is_some() {
            return Ok(());
        }
        if block.is_alone || block.gateway.is_some() {
            self.end_all()?;
        }
        if let Some(gateway) = &block.gateway {
            let config = repository().join("tests/clients/documents").join(gateway);
            let text = match gateway.as_str() {
                "" => "exec target/release/weir".to_owned(),
                _ => format!("exec target/release/weir --config {}", config.display()),
            };
            let mut gateway = self.begin("the gateway", &text, &[])?;
            gateway.wait_for("is listening")?;
            gateway.stays = !block.may_end;
            self.begun.push(gateway);
        }
        let before = block.before.as_deref().unwrap_or("true");
        let text = format!("{before}\n{}", block.text);
        let mut begun = self.begin(&block.place, &text, &block.prints)?;
        match &block.stays_until {
            Some(text) => {
                begun.wait_for(text)?;
                begun.stays = !block.may_end;
            }
            None => begun.wait()?,
        }
        let failed = fs::read_to_string(self.path("failed")).unwrap_or_default();
        let _ = fs::remove_file(self.path("failed"));
        let is_allowed =
            |line: &&str| block.may_fail.iter().any(|begin| line.starts_with(begin.as_str()));
        if let Some(line) = failed.lines().find(|line| !is_allowed(line)) {
            bail!("{}: {line}\nfails:\n{}", block.place, begun.said()?);
        }
        self.begun.push(begun);
        block.until.as_ref().map_or(Ok(()), |command| self.repeat(&block.place, command))
    }

    /// Repeats a command until it succeeds.
    fn repeat(&mut self, place: &str, command: &str) -> Result<()> {
        let deadline = now() + PATIENCE;
        loop {
            let mut begun = self.begin(place, &format!("trap - ERR; {command}; exit $?"), &[])?;
            begun.wait()?;
            if begun.child.wait()?.success() {
                return Ok(());
            }
            ensure!(now() < deadline, "{place}: {command} fails:\n{}", begun.said()?);
            rest();
        }
    }

    /// Checks what all blocks have printed, and that those that go on still do. Then it ends them,
    /// the newest first.
    pub(crate) fn end_all(&mut self) -> Result<()> {
        for begun in &mut self.begun {
            if begun.stays && begun.child.try_wait()?.is_some() {
                bail!("{} has ended:\n{}", begun.place, begun.said()?);
            }
            let deadline = now() + PATIENCE;
            while let Some(missing) = begun.missing()? {
                let (place, said) = (&begun.place, begun.said()?);
                ensure!(now() < deadline, "{place} does not print {missing:?}:\n{said}");
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
            let place = &self.place;
            if self.child.try_wait()?.is_some() || now() > deadline {
                bail!("{place} does not print {text:?}:\n{}", self.said()?);
            }
            rest();
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        let deadline = now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            ensure!(now() < deadline, "{} does not end:\n{}", self.place, self.said()?);
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
    "build --release" | "build --release -p weir-bench" | "build --profile quick -p weir-server") ;;
    "run --profile quick -- "*) exec target/quick/weir "${@:5}" ;;
    "run --package weir --example embed") exec target/release/examples/embed ;;
    "run --profile quick -p weir-client --example push_fleet -- "*)
        exec "$STATE/work/target/quick/examples/push_fleet" "${@:9}" ;;
    *) echo "unknown: cargo $*" >&2; exit 1 ;;
esac
"#;

/// Stands for npm: a step before the tests has built the client.
const NPM: &str = r#"#!/bin/bash
case "$*" in
    "ci" | "run build") ;;
    *) echo "unknown: npm $*" >&2; exit 1 ;;
esac
"#;

/// Copies a folder with its folders.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
