//! The server that is measured: one that runs, or one of our own in a scratch directory.

mod databases;
mod nginx;

use std::fs::{self, DirBuilder, File};
use std::io::BufWriter;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio, id};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, kill_process};
use toml::{Table, Value};

use crate::activations::Activations;
use crate::cli::TargetArgs;
use crate::credentials::Credentials;
use crate::http::Http;
use crate::metrics::Metrics;
use crate::process::{Cpus, pid_of};
use crate::report::Report;
use crate::{clock, sys};

pub(crate) use databases::Beside;
pub(crate) use nginx::Nginx;

/// A directory with certificates; removed when dropped.
pub(crate) struct Scratch(PathBuf);

/// A server that can be measured.
pub(crate) struct Target {
    /// Where devices connect.
    pub(crate) addr: SocketAddr,
    /// Where HTTP clients do, with TLS if devices speak it.
    pub(crate) edge: Option<SocketAddr>,
    /// Its process id.
    pub(crate) pid: u32,
    /// The admin API.
    pub(crate) http: Http,
    admin: SocketAddr,
    admin_token: Option<String>,
    server: Option<Server>,
}

/// A server of our own; killed, and its directory removed, when dropped.
struct Server {
    child: Child,
    directory: PathBuf,
    program: PathBuf,
    cpus: Option<Cpus>,
}

/// Attempts to start a server: a port chosen as free may be taken before the server has it.
const ATTEMPTS: u32 = 3;
/// Longest time that a server takes to be ready, and to stop.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// What is shown of the log of a server that failed.
const LOG_LINES: usize = 20;

/// Stands for the process of a directory that has none.
const NO_PROCESS: u32 = 0;

/// What must not outlive this program, should a signal end it: processes and directories.
static UNDERWAY: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Vec::new());

impl Target {
    /// The server that the options name; started, if they say so, on `cpus` and with `settings` in its configuration.
    pub(crate) fn start(
        args: &TargetArgs,
        cpus: Option<&Cpus>,
        settings: &Table,
    ) -> Result<Target> {
        Target::start_with_devices(args, cpus, settings, None)
    }

    /// The same; these devices are imported before it is started.
    pub(crate) fn start_with_devices(
        args: &TargetArgs,
        cpus: Option<&Cpus>,
        settings: &Table,
        devices: Option<&Activations>,
    ) -> Result<Target> {
        if let (Some(addr), Some(admin), Some(pid)) = (args.addr, args.admin, args.pid) {
            let token = args.admin_token.clone();
            return Ok(Target::running(addr, args.http, admin, pid, token));
        }
        let program = args.spawn.as_ref().context("neither --spawn nor --addr is given")?;
        let mut attempt = 1;
        loop {
            match Target::spawn(program, args, cpus, settings, devices) {
                Err(error) if attempt == ATTEMPTS => return Err(error),
                Err(_) => attempt += 1,
                Ok(target) => return Ok(target),
            }
        }
    }

    /// A server that runs and is not ours to end.
    pub(crate) fn running(
        addr: SocketAddr,
        edge: Option<SocketAddr>,
        admin: SocketAddr,
        pid: u32,
        admin_token: Option<String>,
    ) -> Target {
        Target { edge, ..Target::new(addr, admin, pid, admin_token, None) }
    }

    fn new(
        addr: SocketAddr,
        admin: SocketAddr,
        pid: u32,
        token: Option<String>,
        server: Option<Server>,
    ) -> Target {
        Target {
            addr,
            edge: None,
            pid,
            http: Http::new(admin, token.clone()),
            admin,
            admin_token: token,
            server,
        }
    }

    fn spawn(
        program: &Path,
        args: &TargetArgs,
        cpus: Option<&Cpus>,
        settings: &Table,
        devices: Option<&Activations>,
    ) -> Result<Target> {
        let (addr, http, admin) = (free_port()?, free_port()?, free_port()?);
        let mut config = scratch_config(addr, http, admin, args);
        let (mut door, mut edge, mut credentials) = (addr, http, None);
        if args.tls.tls {
            (door, edge) = (free_port()?, free_port()?);
            overlay(&mut config, tls_config(door, edge, args.tls.tls_client_cert));
            credentials = Some(args.tls.credentials()?);
        }
        overlay(&mut config, settings.clone());
        if let Some(path) = &args.config_extra {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let extra =
                text.parse::<Table>().with_context(|| format!("{} is not TOML", path.display()))?;
            overlay(&mut config, extra);
        }
        let server = Server::start(program, &config, credentials, cpus, devices)?;
        let pid = server.child.id();
        let token = args.admin_token.clone();
        let mut target = Target::new(door, admin, pid, token, Some(server));
        target.edge = Some(edge);
        target.wait_until_ready()?;
        Ok(target)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = clock::monotonic() + START_TIMEOUT;
        loop {
            if self.http.get("/readyz").is_ok_and(|response| response.status == 200) {
                return Ok(());
            }
            if let Some(server) = &mut self.server
                && let Some(status) = server.child.try_wait()?
            {
                bail!("the server ended at once: {status}{}", server.log_tail());
            }
            if clock::monotonic() > deadline {
                let log = self.server.as_ref().map(Server::log_tail).unwrap_or_default();
                bail!("the server is not ready after {START_TIMEOUT:?}{log}");
            }
            clock::sleep(Duration::from_millis(50));
        }
    }

    /// Another connection to the admin API.
    pub(crate) fn another_http(&self) -> Http {
        Http::new(self.admin, self.admin_token.clone())
    }

    /// Its metrics now.
    pub(crate) fn metrics(&mut self) -> Result<Metrics> {
        metrics(&mut self.http)
    }

    /// CPU time it has used, all threads.
    pub(crate) fn cpu(pid: u32) -> Result<Duration> {
        sys::process_cpu(pid).context("cannot read the server's CPU time")
    }

    /// Stops a server of our own by SIGTERM; the run fails if it does not end with code 0.
    pub(crate) fn stop(self, report: &mut Report) {
        if let Err(error) = self.try_stop() {
            report.fail(format!("{error:#}"));
        }
    }

    /// Ends a server of our own in good order and starts it again, at the same addresses.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.end()?;
        let server = self.server.as_mut().context("only a server of our own can be restarted")?;
        server.start_again()?;
        self.pid = server.child.id();
        self.wait_until_ready()
    }

    fn try_stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(server) = &mut self.server else { return Ok(()) };
        kill_process(pid_of(self.pid)?, Signal::TERM)
            .context("the server ended before it was stopped")?;
        let status = wait(&mut server.child, STOP_TIMEOUT)?;
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                bail!("the server ended with {status} after SIGTERM{}", server.log_tail())
            }
            None => bail!(
                "the server has not ended {STOP_TIMEOUT:?} after SIGTERM{}",
                server.log_tail()
            ),
        }
    }
}

impl Scratch {
    /// Makes one that holds nothing.
    pub(crate) fn empty() -> Result<Scratch> {
        let scratch = Scratch(scratch_directory()?);
        underway(|all| all.push((NO_PROCESS, scratch.0.clone())));
        Ok(scratch)
    }

    /// Makes one that holds these.
    pub(crate) fn with(credentials: &Credentials) -> Result<Scratch> {
        let scratch = Scratch::empty()?;
        credentials.write(&scratch.0)?;
        Ok(scratch)
    }

    /// Where it is.
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

/// Scrapes the metrics of a server.
pub(crate) fn metrics(http: &mut Http) -> Result<Metrics> {
    let response = http.get("/metrics")?;
    if response.status != 200 {
        bail!("GET /metrics gave {}: {}", response.status, response.body);
    }
    Ok(Metrics::parse(&response.body))
}

impl Server {
    fn start(
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
            // By default all would share a file. Versions without a store know nothing of the variable.
            command.env("WEIR_STORE_KIND", "none");
        }
        Server::launch(command, program, directory, cpus)
    }

    /// Starts a command whose files are in `directory`.
    fn launch(
        command: Command,
        program: PathBuf,
        directory: PathBuf,
        cpus: Option<&Cpus>,
    ) -> Result<Server> {
        let log =
            File::create(directory.join("log")).context("cannot make the server's log file")?;
        match launch(command, &directory, log, cpus) {
            Ok(child) => Ok(Server { child, directory, program, cpus: cpus.cloned() }),
            Err(error) => {
                remove(&directory);
                Err(error)
            }
        }
    }

    /// Starts the program again, with the same configuration and log; it must have ended.
    fn start_again(&mut self) -> Result<()> {
        let log = File::options()
            .append(true)
            .open(self.directory.join("log"))
            .context("cannot open the server's log file")?;
        let ended = self.child.id();
        let command = serve(&self.program, &self.directory);
        self.child = launch(command, &self.directory, log, self.cpus.as_ref())?;
        underway(|all| all.retain(|(pid, _)| *pid != ended));
        Ok(())
    }

    fn log_tail(&self) -> String {
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

/// Starts a command in its scratch directory; killed should this program end first.
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
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        underway(|all| all.retain(|(pid, _)| *pid != self.child.id()));
        remove(&self.directory);
    }
}

/// Ends this program in good order when a signal asks for it: servers killed, directories removed.
///
/// Must be called before any other thread is started.
pub(crate) fn clean_up_on_signals() -> Result<()> {
    sys::block_end_signals().context("cannot block signals")?;
    thread::Builder::new().name("signals".to_owned()).spawn(|| {
        let signal = sys::wait_for_end_signal();
        underway(|all| {
            for (pid, directory) in all.drain(..) {
                if let Ok(pid) = pid_of(pid) {
                    // It may have ended already.
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

fn remove(directory: &Path) {
    // What cannot be removed stays in the system's directory for such things.
    let _ = fs::remove_dir_all(directory);
}

fn wait(child: &mut Child, patience: Duration) -> Result<Option<ExitStatus>> {
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

fn scratch_directory() -> Result<PathBuf> {
    let name = format!("weir-bench-{}-{:08x}", id(), rand::random::<u32>());
    let directory = std::env::temp_dir().join(name);
    let made = DirBuilder::new().mode(0o700).create(&directory);
    made.with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(directory)
}

/// A port that nobody listens on now.
pub(crate) fn free_port() -> Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .context("no free port")
}

fn scratch_config(
    addr: SocketAddr,
    http: SocketAddr,
    admin: SocketAddr,
    args: &TargetArgs,
) -> Table {
    let mut config = Table::new();
    let mut set = |section: &str, key: &str, value: Value| {
        let table = config.entry(section).or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(table) = table {
            table.insert(key.to_owned(), value);
        }
    };
    set("listen", "tcp", vec![addr.to_string()].into());
    set("listen", "http", vec![http.to_string()].into());
    set("listen", "udp", Value::Array(Vec::new()));
    set("listen", "admin", admin.to_string().into());
    set("auth", "anonymous", true.into());
    set("log", "level", "warn".into());
    set("connection", "drain_timeout", "1s".into());
    if let Some(token) = &args.admin_token {
        set("admin", "token", token.as_str().into());
    }
    if let Some(bytes) = args.budget_bytes.and_then(|bytes| i64::try_from(bytes).ok()) {
        set("memory", "budget_bytes", bytes.into());
    }
    if let Some(timeout) = args.stall_timeout {
        set("connection", "stall_timeout", format!("{}ms", timeout.as_millis()).into());
    }
    config
}

/// What the scratch configuration says of TLS.
fn tls_config(addr: SocketAddr, https: SocketAddr, demand_client: bool) -> Table {
    let mut listen = Table::new();
    listen.insert("tls".to_owned(), vec![addr.to_string()].into());
    listen.insert("https".to_owned(), vec![https.to_string()].into());
    let mut config = Table::new();
    config.insert("listen".to_owned(), listen.into());
    config.insert("tls".to_owned(), Credentials::settings(demand_client).into());
    config
}

/// Lays `upper` over `lower`, table by table.
fn overlay(lower: &mut Table, upper: Table) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(lower)), Value::Table(upper)) => overlay(lower, upper),
            (_, value) => {
                lower.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::TlsArgs;

    #[test]
    fn the_upper_table_wins_key_by_key() {
        let mut lower: Table = "[a]\nx = 1\ny = 2\n[b]\nz = 3".parse().unwrap();
        overlay(&mut lower, "[a]\ny = 4\n[c]\nw = 5".parse().unwrap());
        let expected: Table = "[a]\nx = 1\ny = 4\n[b]\nz = 3\n[c]\nw = 5".parse().unwrap();
        assert_eq!(lower, expected);
    }

    #[test]
    fn the_scratch_configuration_carries_the_options() {
        let args = TargetArgs {
            spawn: None,
            addr: None,
            http: None,
            admin: None,
            pid: None,
            admin_token: None,
            token: None,
            config_extra: None,
            budget_bytes: Some(8 << 20),
            stall_timeout: Some(Duration::from_secs(10)),
            tls: TlsArgs::none(),
        };
        let [addr, http, admin] = [1, 3, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let text = scratch_config(addr, http, admin, &args).to_string();
        for line in [
            "tcp = [\"127.0.0.1:1\"]",
            "http = [\"127.0.0.1:3\"]",
            "admin = \"127.0.0.1:2\"",
            "budget_bytes = 8388608",
            "stall_timeout = \"10000ms\"",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn a_program_that_ends_at_once_is_reported_with_its_log() {
        let directory = scratch_directory().unwrap();
        let program = directory.join("fake");
        fs::write(&program, "#!/bin/sh\necho no such thing >&2\nexit 3\n").unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let server = Server::start(&program, &Table::new(), None, None, None).unwrap();
        let scratch = server.directory.clone();
        let mut target = Target::new(
            free_port().unwrap(),
            free_port().unwrap(),
            server.child.id(),
            None,
            Some(server),
        );
        let error = target.wait_until_ready().unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no such thing"), "{error}");
        drop(target);
        assert!(!scratch.exists());
        remove(&directory);
    }
}
