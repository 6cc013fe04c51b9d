//! Starts Redis, and a server of MongoDB's protocol.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::server::{Server, free_port, scratch_directory};
use crate::clock;
use crate::process::Cpus;

/// A server beside the gateway. If the bench has started it, it is killed and its directory removed
/// when this is dropped.
pub(crate) struct Beside {
    /// The URL for the gateway.
    pub(crate) url: String,
    /// The process id.
    pub(crate) pid: u32,
    /// Name and version.
    pub(crate) what: String,
    _server: Option<Server>,
}

impl Beside {
    /// A running server.
    pub(crate) fn running(url: &str, pid: u32) -> Beside {
        Beside { url: url.to_owned(), pid, what: "a running one".to_owned(), _server: None }
    }

    /// Starts Redis, which keeps nothing on disk. The inner `Err` says why it is missing.
    pub(crate) fn redis(cpus: Option<&Cpus>) -> Result<Result<Beside, String>> {
        let Some(version) = first_line("redis-server", "--version")? else {
            return Ok(Err("there is no program redis-server".to_owned()));
        };
        let (directory, addr) = (scratch_directory()?, free_port()?);
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &addr.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(&directory);
        let mut server = Server::launch(command, "redis-server".into(), directory, cpus)?;
        wait_until(&mut server, "redis-server", || says_pong(addr))?;
        let (url, pid) = (format!("redis://{addr}"), server.child.id());
        Ok(Ok(Beside { url, pid, what: version, _server: Some(server) }))
    }

    /// Starts the server of MongoDB's protocol that is built in `place`. It keeps everything in
    /// memory.
    pub(crate) fn mongodb(
        place: Option<&Path>,
        cpus: Option<&Cpus>,
    ) -> Result<Result<Beside, String>> {
        let place = place.map_or_else(built, |place| Ok(place.to_owned()))?;
        if !place.join("server.jar").exists() {
            let place = place.display();
            return Ok(Err(format!("no server is built in {place}; `cargo xtask test` does it")));
        }
        let Some(version) = first_line("java", "--version")? else {
            return Ok(Err("there is no program java".to_owned()));
        };
        let (directory, addr) = (scratch_directory()?, free_port()?);
        let mut command = Command::new("java");
        // Absolute, since it runs in its own directory.
        let place = place.canonicalize().context("cannot find the server of MongoDB's protocol")?;
        let classes = format!("{0}/server.jar:{0}/libraries/*", place.display());
        command.args(["-Xmx2g", "-cp", &classes, "Main", &addr.port().to_string()]);
        let mut server = Server::launch(command, "java".into(), directory, cpus)?;
        wait_until(&mut server, "the server of MongoDB's protocol", || {
            TcpStream::connect(addr).is_ok()
        })?;
        let (url, pid) = (format!("mongodb://{addr}"), server.child.id());
        let what = format!("mongo-java-server in memory, {version}");
        Ok(Ok(Beside { url, pid, what, _server: Some(server) }))
    }
}

fn wait_until(server: &mut Server, what: &str, is_ready: impl Fn() -> bool) -> Result<()> {
    let deadline = clock::monotonic() + PATIENCE;
    while !is_ready() {
        if let Some(status) = server.child.try_wait()? {
            bail!("{what} ended at once: {status}{}", server.log_tail());
        }
        if clock::monotonic() > deadline {
            bail!("{what} is not ready after {PATIENCE:?}{}", server.log_tail());
        }
        clock::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn says_pong(addr: SocketAddr) -> bool {
    let ask = || -> io::Result<[u8; 5]> {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer == *b"+PONG")
}

/// The first line of a program's output; `None` if the program does not exist.
fn first_line(program: &str, argument: &str) -> Result<Option<String>> {
    match Command::new(program).arg(argument).stdin(Stdio::null()).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            Ok(Some(said.lines().next().unwrap_or_default().to_owned()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot start {program}")),
    }
}

/// The directory in which `cargo xtask test` builds the server: beside the directory of the
/// programs.
fn built() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let target = program.ancestors().nth(2).context("a program lies in a directory")?;
    Ok(target.join("mongo"))
}

/// Longest wait until a server is ready. Java starts slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
