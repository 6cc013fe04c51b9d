//! The built programs, started as children on free ports with a scratch configuration.

use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use serde_json::Value;
use tempfile::TempDir;

use crate::admin::{Answer, Metrics};
use crate::wait::{PATIENCE, now, rest};

/// A running `weir`; killed when dropped.
pub struct Server {
    child: Child,
    /// Where devices connect.
    pub tcp: SocketAddr,
    /// Where they connect with TLS, if it was started so.
    pub tls: Option<SocketAddr>,
    /// Where HTTP is spoken, if it was started so.
    pub http: Option<SocketAddr>,
    /// Where it is spoken over TLS, if it was started so.
    pub https: Option<SocketAddr>,
    /// Where datagrams are answered, if it was started so.
    pub udp: Option<SocketAddr>,
    /// The same over IPv6, where this machine has that.
    pub udp_v6: Option<SocketAddr>,
    /// Where the admin API is.
    pub admin: SocketAddr,
    directory: Arc<TempDir>,
}

/// Where it listens beside `tcp` and `admin`.
#[derive(Default)]
struct Doors {
    tls: Option<SocketAddr>,
    http: Option<SocketAddr>,
    https: Option<SocketAddr>,
    udp: Option<SocketAddr>,
    udp_v6: Option<SocketAddr>,
}

impl Server {
    /// Starts `weir` with `extra` TOML below the listen addresses.
    pub fn start(extra: &str) -> Result<Server> {
        Self::start_with_open_files(extra, None)
    }

    /// The same, under a limit of open files.
    pub fn start_with_open_files(extra: &str, open_files_max: Option<u32>) -> Result<Server> {
        let before = open_files_max.map(|limit| format!("ulimit -n {limit}"));
        Self::launch(|directory| Self::spawn(directory, extra, before.as_deref(), Doors::default()))
    }

    /// The same with TLS, after what a shell does before it becomes the program.
    pub fn start_after(before: &str, extra: &str) -> Result<Server> {
        Self::launch(|directory| {
            let doors = Doors { tls: Some(free_addr()?), ..Doors::default() };
            Self::spawn(directory, extra, Some(before), doors)
        })
    }

    /// The same, under a limit of memory: an option of `ulimit` and so many KiB.
    pub fn start_with_memory(extra: &str, option: char, kib: u64) -> Result<Server> {
        let before = format!("ulimit -{option} {kib}");
        Self::launch(|directory| Self::spawn(directory, extra, Some(&before), Doors::default()))
    }

    /// The same, speaking HTTP too, and not ended by the signal of a file that has become too large.
    pub fn start_with_limited_files(extra: &str) -> Result<Server> {
        Self::launch(|directory| {
            let doors = Doors { http: Some(free_addr()?), ..Doors::default() };
            Self::spawn(directory, extra, Some("trap '' XFSZ"), doors)
        })
    }

    /// The same with HTTP and TLS, where the files that it makes would be everybody's if it did not say otherwise.
    pub fn start_with_umask_0(extra: &str) -> Result<Server> {
        Self::launch(|directory| {
            let (tls, http) = (Some(free_addr()?), Some(free_addr()?));
            Self::spawn(directory, extra, Some("umask 0"), Doors { tls, http, ..Doors::default() })
        })
    }

    /// Has each of its files end there, as if the disk were full, or none any more; if it was started for that.
    pub fn limit_files(&self, bytes: Option<u64>) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None })?;
        Ok(())
    }

    /// The same, listening with TLS too.
    pub fn start_with_tls(extra: &str) -> Result<Server> {
        Self::launch(|directory| {
            Self::spawn(
                directory,
                extra,
                None,
                Doors { tls: Some(free_addr()?), ..Doors::default() },
            )
        })
    }

    /// The same, speaking HTTP too.
    pub fn start_with_http(extra: &str) -> Result<Server> {
        Self::launch(|directory| {
            Self::spawn(
                directory,
                extra,
                None,
                Doors { http: Some(free_addr()?), ..Doors::default() },
            )
        })
    }

    /// The same, over TLS too.
    pub fn start_with_https(extra: &str) -> Result<Server> {
        Self::launch(|directory| {
            let (http, https) = (Some(free_addr()?), Some(free_addr()?));
            Self::spawn(directory, extra, None, Doors { http, https, ..Doors::default() })
        })
    }

    /// The same, and devices may come with TLS as well.
    pub fn start_with_all_doors(extra: &str) -> Result<Server> {
        Self::start_with_all_doors_and_open_files(extra, None)
    }

    /// The same, under a limit of open files.
    pub fn start_with_all_doors_and_open_files(
        extra: &str,
        open_files_max: Option<u32>,
    ) -> Result<Server> {
        let before = open_files_max.map(|limit| format!("ulimit -n {limit}"));
        Self::launch(|directory| {
            let (tls, http, https) = (Some(free_addr()?), Some(free_addr()?), Some(free_addr()?));
            let doors = Doors { tls, http, https, ..Doors::default() };
            Self::spawn(directory, extra, before.as_deref(), doors)
        })
    }

    /// Changes its limit on open files while it runs. `max` is the one it was started with.
    pub fn limit_open_files(&self, count: u32, max: u32) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        let limit = Rlimit { current: Some(count.into()), maximum: Some(max.into()) };
        prlimit(pid, Resource::Nofile, limit)?;
        Ok(())
    }

    /// The same, speaking HTTP and answering datagrams.
    pub fn start_with_datagrams(extra: &str) -> Result<Server> {
        Self::launch(|directory| {
            let (http, udp) = (Some(free_addr()?), Some(free_udp(Ipv4Addr::LOCALHOST.into())?));
            let udp_v6 = free_udp(Ipv6Addr::LOCALHOST.into()).ok();
            Self::spawn(directory, extra, None, Doors { http, udp, udp_v6, ..Doors::default() })
        })
    }

    fn launch(spawn: impl Fn(&Arc<TempDir>) -> Result<Server>) -> Result<Server> {
        // The database knows the key file of the first attempt: all attempts keep their files.
        let directory = Arc::new(tempfile::tempdir()?);
        // A port that was free a moment ago may be taken: then another is tried.
        for _ in 0..5 {
            let mut server = spawn(&directory)?;
            if server.wait_until_ready()? {
                return Ok(server);
            }
        }
        bail!("weir did not start: {}", spawn(&directory)?.complaint())
    }

    /// `before` is what a shell does before it becomes the program.
    fn spawn(
        directory: &Arc<TempDir>,
        extra: &str,
        before: Option<&str>,
        doors: Doors,
    ) -> Result<Server> {
        let Doors { tls, http, https, udp, udp_v6 } = doors;
        let (tcp, admin) = (free_addr()?, free_addr()?);
        let path = directory.path().join("weir.toml");
        let list =
            |addr: Option<SocketAddr>| addr.map(|addr| format!("\"{addr}\"")).unwrap_or_default();
        let (with_http, with_https) = (list(http), list(https));
        let with_udp: Vec<String> =
            udp.into_iter().chain(udp_v6).map(|addr| format!("\"{addr}\"")).collect();
        let with_udp = with_udp.join(", ");
        // Some tests say more about it themselves.
        let with_tls = tls.map(|tls| format!("tls = [\"{tls}\"]\n")).unwrap_or_default();
        // By default all would share a file.
        let store = if extra.contains("[store]") { "" } else { "\n[store]\nkind = \"none\"\n" };
        std::fs::write(
            &path,
            format!(
                "[listen]\ntcp = [\"{tcp}\"]\nudp = [{with_udp}]\nadmin = \"{admin}\"\nhttp = [{with_http}]\nhttps = [{with_https}]\n\
                 {with_tls}{extra}{store}"
            ),
        )?;
        let child = Self::run(directory, before, &[])?;
        let directory = Arc::clone(directory);
        Ok(Server { child, tcp, tls, http, https, udp, udp_v6, admin, directory })
    }

    /// Starts the program on the configuration in `directory`.
    fn run(directory: &TempDir, before: Option<&str>, args: &[&str]) -> Result<Child> {
        let log = directory.path().join("log");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = match before {
            None => Command::new(program("weir")?),
            Some(before) => {
                let mut command = Command::new("sh");
                command.args(["-c", &format!("{before}; exec \"$@\""), "sh"]);
                command.arg(program("weir")?);
                command
            }
        };
        command
            .args(args)
            .arg("--config")
            .arg(directory.path().join("weir.toml"))
            .current_dir(directory.path())
            .env_remove("WEIR_CONFIG")
            .env("STATE_DIRECTORY", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("starting weir")
    }

    /// Kills it (SIGKILL), and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again where it was, on what it left behind, when it has ended.
    pub fn restart(&mut self) -> Result<()> {
        self.restart_with(&[])
    }

    /// The same with these words before the name of its configuration.
    pub fn restart_with(&mut self, args: &[&str]) -> Result<()> {
        let deadline = now() + PATIENCE;
        // A port may be taken for a moment by another's connection.
        while now() < deadline {
            self.child = Self::run(&self.directory, None, args)?;
            if self.wait_until_ready()? {
                return Ok(());
            }
            rest();
        }
        bail!("weir did not start again; log:\n{}", self.log())
    }

    fn wait_until_ready(&mut self) -> Result<bool> {
        let deadline = now() + PATIENCE;
        while now() < deadline {
            if self.child.try_wait()?.is_some() {
                return Ok(false);
            }
            if Answer::get(self.admin, "/readyz").is_ok_and(|answer| answer.status == 200) {
                return Ok(true);
            }
            rest();
        }
        Ok(false)
    }

    /// Where HTTP is spoken; it was started so.
    pub fn http(&self) -> Result<SocketAddr> {
        self.http.context("it speaks HTTP")
    }

    /// What it wrote to its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Where it runs: relative paths in its configuration begin there.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Its configuration.
    pub fn config(&self) -> PathBuf {
        self.directory.path().join("weir.toml")
    }

    fn complaint(&mut self) -> String {
        let _ = self.child.wait();
        self.log()
    }

    /// Whether it has not ended.
    pub fn is_alive(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Its standard output, once: an access log that goes there waits as long as nobody reads it.
    pub fn output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits until the admin API does not answer any more, which ends next to last.
    pub fn await_silence(&self) -> Result<()> {
        let deadline = now() + PATIENCE;
        while Answer::get(self.admin, "/healthz").is_ok() {
            if now() > deadline {
                bail!("the admin API does not end; log:\n{}", self.log());
            }
            rest();
        }
        Ok(())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its metrics, as they stand.
    pub fn metrics(&self) -> Result<Metrics> {
        Metrics::read(self.admin)
    }

    /// Waits until the metrics satisfy `condition`.
    pub fn await_metrics(
        &self,
        what: &str,
        condition: impl Fn(&Metrics) -> bool,
    ) -> Result<Metrics> {
        let deadline = now() + PATIENCE;
        loop {
            let metrics = self.metrics()?;
            if condition(&metrics) {
                return Ok(metrics);
            }
            if now() > deadline {
                bail!(
                    "waited in vain for {what}; metrics:\n{}\nlog:\n{}",
                    metrics.text(),
                    self.log()
                );
            }
            rest();
        }
    }

    /// Waits until its log has `line` `times` times.
    pub fn await_log(&self, line: &str, times: usize) -> Result<()> {
        let deadline = now() + PATIENCE;
        while self.log().matches(line).count() < times {
            if now() > deadline {
                bail!("waited in vain for {line:?}, {times} times, in the log:\n{}", self.log());
            }
            rest();
        }
        Ok(())
    }

    /// Waits until the JSON at `path` of the admin API satisfies `condition`.
    pub fn await_answer(
        &self,
        path: &str,
        condition: impl Fn(&serde_json::Value) -> bool,
    ) -> Result<()> {
        let deadline = now() + PATIENCE;
        loop {
            let answer = serde_json::from_str(&Answer::get(self.admin, path)?.body)?;
            if condition(&answer) {
                return Ok(());
            }
            if now() > deadline {
                bail!("waited in vain for another answer of {path} than {answer}");
            }
            rest();
        }
    }

    /// Publishes one message given as a JSON object; answers with the JSON that came back.
    pub fn publish(&self, message: &serde_json::Value) -> Result<serde_json::Value> {
        let answer = Answer::post(self.admin, "/v1/publish", &message.to_string())?;
        if answer.status != 200 {
            bail!("publish answered {}: {}", answer.status, answer.body);
        }
        Ok(serde_json::from_str(&answer.body)?)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        let pid = rustix::process::Pid::from_raw(pid).context("a child has a pid")?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let deadline = now() + PATIENCE;
        while now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            rest();
        }
        bail!("weir did not end; log:\n{}", self.log())
    }

    /// CPU time used so far, in clock ticks of 10 ms.
    pub fn cpu_ticks(&self) -> Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let fields = stat.rsplit_once(')').context("the name ends")?.1;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
    }

    /// Resident anonymous memory in bytes (`RssAnon`).
    pub fn rss_anon(&self) -> Result<u64> {
        let mut status = String::new();
        std::fs::File::open(format!("/proc/{}/status", self.pid()))?.read_to_string(&mut status)?;
        let line = status
            .lines()
            .find(|line| line.starts_with("RssAnon:"))
            .context("RssAnon in status")?;
        let kib = line.split_whitespace().nth(1).context("a number of KiB")?;
        Ok(kib.parse::<u64>()? * 1024)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Raises this process's soft open-file limit to the hard one: a test may hold ten thousand devices.
pub fn raise_open_files() -> Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// An address of loopback whose TCP port is free now.
pub fn free_addr() -> Result<SocketAddr> {
    Ok(([127, 0, 0, 1], free_port()?).into())
}

/// An address whose UDP port is free now.
pub fn free_udp(ip: std::net::IpAddr) -> Result<SocketAddr> {
    Ok(UdpSocket::bind((ip, 0))?.local_addr()?)
}

/// A TCP port that is free now.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// A built program: beside this test's own executable.
pub fn program(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let directory =
        test.parent().and_then(|deps| deps.parent()).context("tests lie in target/*/deps")?;
    let path = directory.join(name);
    if !path.exists() {
        bail!(
            "{} is not built: run `cargo xtask test`, or `cargo build --workspace` first",
            path.display()
        );
    }
    Ok(path)
}

/// A program that is not ours, where `cargo xtask test` puts it below the target directory: such as
/// `python/bin/python`, with the packages of `requirements.txt`.
pub fn installed(path: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let path = test.ancestors().nth(3).context("tests lie in target/*/deps")?.join(path);
    ensure!(path.exists(), "{} is not there: run `cargo xtask test`", path.display());
    Ok(path)
}

/// What `weir-bench` reports of a run with these arguments; it checks every answer and message itself.
pub fn bench_report(args: &[&str]) -> Result<Value> {
    let mut command = Command::new(program("weir-bench")?);
    let output = command.args(args).arg("--json").stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let report = said.lines().next_back().context("a report")?;
    ensure!(output.status.success(), "{report}");
    Ok(serde_json::from_str(report)?)
}
