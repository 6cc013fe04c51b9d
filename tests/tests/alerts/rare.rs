//! Faults that a healthy machine does not make: a wrong clock, and a shard that stops.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use weir_tests::Server;

/// A gateway with a clock that can be wrong.
pub(crate) struct Clocked {
    pub(crate) server: Server,
    is_wrong: PathBuf,
}

impl Clocked {
    /// Starts one with this configuration. Its clock is built in `files`.
    pub(crate) fn start(files: &Path, config: &str) -> Result<Clocked> {
        let (library, is_wrong) = (files.join("clock.so"), files.join("clock_is_wrong"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/clock/clock.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
        ensure!(compiler.status().context("running cc")?.success(), "cc has failed");
        let before = format!(
            "export LD_PRELOAD='{}' CLOCK_IS_WRONG='{}'",
            library.display(),
            is_wrong.display()
        );
        Ok(Clocked { server: Server::start_after(&before, config)?, is_wrong })
    }

    /// The clock is a minute ahead from now on.
    pub(crate) fn make(&self) -> Result<()> {
        Ok(fs::write(&self.is_wrong, "")?)
    }

    pub(crate) fn mend(&self) -> Result<()> {
        Ok(fs::remove_file(&self.is_wrong)?)
    }
}

/// Has the kernel refuse a shard's next wait for events, so that its thread ends. Returns false
/// where a process may not trace another.
#[expect(clippy::print_stdout, reason = "says that it is skipped")]
pub(crate) fn stop_shard(server: &Server) -> Result<bool> {
    let thread = thread(server.pid(), "shard-0")?;
    let mut strace = Command::new("strace");
    strace.args(["-p", &thread, "-e", "trace=/epoll_p?wait"]);
    strace.args(["-e", "inject=/epoll_p?wait:error=EBADF"]);
    let output = strace.output().context("running strace, which `cargo xtask test` installs")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("Operation not permitted") {
        println!("SKIPPED: no process can be traced here: {said}");
        return Ok(false);
    }
    ensure!(output.status.success() && said.contains("INJECTED"), "{said}");
    Ok(true)
}

/// The id of a thread of a process.
fn thread(process: u32, name: &str) -> Result<String> {
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?;
        if fs::read_to_string(task.path().join("comm")).is_ok_and(|found| found.trim() == name) {
            return task.file_name().into_string().ok().context("a number");
        }
    }
    anyhow::bail!("no thread {name}")
}
