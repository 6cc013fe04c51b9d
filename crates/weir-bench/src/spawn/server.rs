//! Starts a server in a scratch directory, binds it to CPUs, and ends it when the bench ends.

use std::fs::{self, DirBuilder, File};
use std::io::BufWriter;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio, id};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, kill_process};
use toml::Table;

use super::running::Running;
use crate::activations::Activations;
use crate::process::{Cpus, pid_of};
use crate::tls::credentials::Credentials;
use crate::{clock, sys};

/// A directory with certificates; removed when dropped.
pub(crate) struct Scratch(PathBuf);

/// A server that the bench has started. It is killed and its directory removed when this is
/// dropped.
pub(super) struct Server {
    pub(super) child: Running,
    pub(super) directory: PathBuf,
    pub(super) program: PathBuf,
    cpus: Option<Cpus>,
}

impl Scratch {
    /// Makes an empty directory.
    pub(crate) fn empty() -> Result<Scratch> {
        let scratch = Scratch(scratch_directory()?);
        underway(|all| all.push((NO_PROCESS, scratch.0.clone())));
        Ok(scratch)
    }

    /// Makes a directory with these certificates.
    pub(crate) fn with(credentials: &Credentials) -> Result<Scratch> {
        let scratch = Scratch::empty()?;
        credentials.write(&scratch.0)?;
        Ok(scratch)
    }

    /// The path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        underway(|all| all.retain(|(_, directory)| *directory != self.0));
        remove(&self.0);
    }
}

impl Server {
    pub(super) fn start(
        program: &Path,
        config: &Table,
        credentials: Option<&Credentials>,
        cpus: Option<&Cpus>,
        devices: Option<&Activations>,
    ) -> Result<Server> {
        let program =
            program.canonicalize().with_context(|| format!("cannot find {}", program.display()))?;
        let directory = scratch_directory()?;
        if let Some(credentials) = credentials {
            credentials.write(&directory)?;
        }
        let file = directory.join("weir.toml");
        fs::write(&file, config.to_string())
            .with_context(|| format!("cannot write {}", file.display()))?;
        if let Some(devices) = devices {
            import(&program, &directory, devices)?;
        }
        let mut command = serve(&program, &directory);
        if !config.contains_key("store") {
            // By default all servers would share a file. Versions without a store ignore the
            // variable.
            command.env("WEIR_STORE_KIND", "none");
        }
        Server::launch(command, program, directory, cpus)
    }

    /// Starts a command whose files are in `directory`.
    pub(super) fn launch(
        command: Command,
        program: PathBuf,
        directory: PathBuf,
        cpus: Option<&Cpus>,
    ) -> Result<Server> {
        let log =
            File::create(directory.join("log")).context("cannot make the server's log file")?;
        match launch(command, &directory, log, cpus) {
            Ok(child) => {
                let child = Running::started(&child);
                Ok(Server { child, directory, program, cpus: cpus.cloned() })
            }
            Err(error) => {
                remove(&directory);
                Err(error)
            }
        }
    }

    /// Starts the program again, with the same configuration and log. It must have ended before.
    pub(super) fn start_again(&mut self) -> Result<()> {
        let log = File::options()
            .append(true)
            .open(self.directory.join("log"))
            .context("cannot open the server's log file")?;
        let ended = self.child.id();
        let command = serve(&self.program, &self.directory);
        let child = launch(command, &self.directory, log, self.cpus.as_ref())?;
        self.child = Running::started(&child);
        underway(|all| all.retain(|(pid, _)| *pid != ended));
        Ok(())
    }

    /// Another process runs in the place of this one from now on. Returns the one of before.
    pub(super) fn replace(&mut self, pid: u32) -> Running {
        let before = std::mem::replace(&mut self.child, Running::adopted(pid));
        let directory = self.directory.clone();
        underway(|all| {
            all.retain(|(pid, _)| *pid != before.id());
            all.push((pid, directory));
        });
        before
    }

    pub(super) fn log_tail(&self) -> String {
        let log = fs::read(self.directory.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_LINES)..];
        if tail.is_empty() {
            String::new()
        } else {
            format!("; its log ends:\n{}", tail.join("\n"))
        }
    }
}

/// `PROGRAM serve` with the configuration in its scratch directory.
fn serve(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("serve").arg("--config").arg(directory.join("weir.toml"));
    command
}

/// `PROGRAM devices import` with the same configuration.
fn import(program: &Path, directory: &Path, devices: &Activations) -> Result<()> {
    let path = directory.join("devices.csv");
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    devices
        .write_csv(&mut BufWriter::new(file))
        .with_context(|| format!("cannot write {}", path.display()))?;
    let mut command = Command::new(program);
    command.args(["devices", "import"]).arg(&path);
    command.arg("--config").arg(directory.join("weir.toml"));
    let log = File::create(directory.join("log")).context("cannot make the log of the import")?;
    let mut child = launch(command, directory, log, None)?;
    let status = child.wait();
    underway(|all| all.retain(|(pid, _)| *pid != child.id()));
    if !status.context("cannot wait for the import")?.success() {
        let said = fs::read_to_string(directory.join("log")).unwrap_or_default();
        remove(directory);
        bail!("the devices could not be imported: {}", said.trim());
    }
    Ok(())
}

/// Starts a command in its scratch directory. It is killed if this program ends first.
fn launch(mut command: Command, directory: &Path, log: File, cpus: Option<&Cpus>) -> Result<Child> {
    command.current_dir(directory);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    for (key, _) in std::env::vars_os() {
        if key.to_string_lossy().starts_with("WEIR_") {
            command.env_remove(key);
        }
    }
    sys::die_with_parent(&mut command);
    let child = match cpus {
        Some(cpus) => cpus.bind(|| Ok(command.spawn()?)),
        None => command.spawn().map_err(Into::into),
    };
    let child = child.with_context(|| format!("cannot start {command:?}"))?;
    underway(|all| all.push((child.id(), directory.to_owned())));
    Ok(child)
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        underway(|all| all.retain(|(pid, _)| *pid != self.child.id()));
        remove(&self.directory);
    }
}

/// On a signal, ends this program in good order: kills servers and removes directories.
///
/// Call this before any other thread starts.
pub(crate) fn clean_up_on_signals() -> Result<()> {
    sys::block_end_signals().context("cannot block signals")?;
    thread::Builder::new().name("signals".to_owned()).spawn(|| {
        let signal = sys::wait_for_end_signal();
        underway(|all| {
            for (pid, directory) in all.drain(..) {
                if let Ok(pid) = pid_of(pid) {
                    // The process may have ended already.
                    let _ = kill_process(pid, Signal::KILL);
                }
                remove(&directory);
            }
        });
        std::process::exit(128 + signal)
    })?;
    Ok(())
}

fn underway(change: impl FnOnce(&mut Vec<(u32, PathBuf)>)) {
    change(&mut UNDERWAY.lock().unwrap_or_else(PoisonError::into_inner));
}

pub(super) fn remove(directory: &Path) {
    // A directory that cannot be removed stays among the system's temporary files.
    let _ = fs::remove_dir_all(directory);
}

pub(super) fn wait(child: &mut Running, patience: Duration) -> Result<Option<ExitStatus>> {
    let deadline = clock::monotonic() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if clock::monotonic() > deadline {
            return Ok(None);
        }
        clock::sleep(Duration::from_millis(20));
    }
}

pub(super) fn scratch_directory() -> Result<PathBuf> {
    let name = format!("weir-bench-{}-{:08x}", id(), rand::random::<u32>());
    let directory = std::env::temp_dir().join(name);
    let made = DirBuilder::new().mode(0o700).create(&directory);
    made.with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(directory)
}

/// A port on which no program listens now, and which the kernel gives to no connection: a server may
/// take it a moment later.
pub(crate) fn free_port() -> Result<SocketAddr> {
    let range = fs::read_to_string(EPHEMERAL_PORTS).unwrap_or_default();
    let first = range.split_whitespace().next().and_then(|first| first.parse().ok());
    let ports = PORT_MIN..first.unwrap_or(EPHEMERAL_FIRST).max(PORT_MIN + 1);
    for _ in 0..PORTS_TRIED {
        let port = rand::random_range(ports.clone());
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return Ok(listener.local_addr()?);
        }
    }
    bail!("no port from {} to {} is free", ports.start, ports.end - 1)
}

/// The range from which the kernel takes ports for connections.
const EPHEMERAL_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const EPHEMERAL_FIRST: u16 = 32_768;
const PORT_MIN: u16 = 10_000;
const PORTS_TRIED: usize = 100;

/// Longest wait until a server is ready.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Lines shown from the log of a failed server.
const LOG_LINES: usize = 20;

/// Process id of a directory without a process.
const NO_PROCESS: u32 = 0;

/// Processes and directories to remove if a signal ends this program.
static UNDERWAY: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Vec::new());
