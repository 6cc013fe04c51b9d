//! The server to measure: a running one, or one that the bench starts in a scratch directory.

mod databases;
mod nginx;
mod rivals;
mod running;
mod server;
mod upgrade;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, kill_process};
use toml::{Table, Value};

use crate::activations::Activations;
use crate::cli::TargetArgs;
use crate::http::Http;
use crate::metrics::Metrics;
use crate::process::{Cpus, pid_of};
use crate::report::Report;
use crate::tls::credentials::Credentials;
use crate::{clock, sys};

pub(crate) use databases::Beside;
pub(crate) use nginx::{Content, Nginx, Site};
pub(crate) use rivals::{Rival, RivalKind, Service};
use server::{START_TIMEOUT, Server, wait};
pub(crate) use server::{Scratch, clean_up_on_signals, free_port};
pub(crate) use upgrade::{Count as UpgradedCount, Upgraded, settings as upgrade_settings};

/// A server to measure.
pub(crate) struct Target {
    /// The address for devices.
    pub(crate) addr: SocketAddr,
    /// The address for devices without TLS; the same as `addr` without TLS, or if the server was not
    /// started by the bench.
    pub(crate) plain: SocketAddr,
    /// The address for HTTP clients, with TLS if devices use TLS.
    pub(crate) edge: Option<SocketAddr>,
    /// The same without TLS, if the server was started by the bench.
    pub(crate) plain_edge: Option<SocketAddr>,
    /// The process id.
    pub(crate) pid: u32,
    /// The admin API.
    pub(crate) http: Http,
    admin: SocketAddr,
    admin_token: Option<String>,
    server: Option<Server>,
}

/// Attempts to start a server: another program may take a free port before the server does.
const ATTEMPTS: u32 = 3;
/// Longest wait until a server has stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

impl Target {
    /// The server that the options name. If they name a program, it is started on `cpus`, with
    /// `settings` in its configuration.
    pub(crate) fn start(
        args: &TargetArgs,
        cpus: Option<&Cpus>,
        settings: &Table,
    ) -> Result<Target> {
        Target::start_with_devices(args, cpus, settings, None)
    }

    /// The same, with these devices imported before the start.
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

    /// A running server, which the bench does not stop.
    pub(crate) fn running(
        addr: SocketAddr,
        edge: Option<SocketAddr>,
        admin: SocketAddr,
        pid: u32,
        admin_token: Option<String>,
    ) -> Target {
        Target { edge, ..Target::new(addr, admin, pid, admin_token, None) }
    }

    /// The address of the admin API.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin
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
            plain: addr,
            edge: None,
            plain_edge: None,
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
        (target.edge, target.plain) = (Some(edge), addr);
        target.plain_edge = Some(http);
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

    /// The server's metrics now.
    pub(crate) fn metrics(&mut self) -> Result<Metrics> {
        metrics(&mut self.http)
    }

    /// CPU time that the server has used in all threads.
    pub(crate) fn cpu(pid: u32) -> Result<Duration> {
        sys::process_cpu(pid).context("cannot read the server's CPU time")
    }

    /// Stops a started server by SIGTERM. The run fails if the server does not end with code 0.
    pub(crate) fn stop(self, report: &mut Report) {
        if let Err(error) = self.try_stop() {
            report.fail(format!("{error:#}"));
        }
    }

    /// Stops a started server in good order and starts it again, at the same addresses.
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
        match wait(&mut server.child, STOP_TIMEOUT)? {
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

/// Scrapes the metrics of a server.
pub(crate) fn metrics(http: &mut Http) -> Result<Metrics> {
    let response = http.get("/metrics")?;
    if response.status != 200 {
        bail!("GET /metrics gave {}: {}", response.status, response.body);
    }
    Ok(Metrics::parse(&response.body))
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

/// The TLS part of the scratch configuration.
fn tls_config(addr: SocketAddr, https: SocketAddr, demand_client: bool) -> Table {
    let mut listen = Table::new();
    listen.insert("tls".to_owned(), vec![addr.to_string()].into());
    listen.insert("https".to_owned(), vec![https.to_string()].into());
    let mut config = Table::new();
    config.insert("listen".to_owned(), listen.into());
    config.insert("tls".to_owned(), Credentials::settings(demand_client).into());
    config
}

/// Overrides keys of `lower` with those of `upper`, table by table.
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
    use super::server::{remove, scratch_directory};
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
