//! Starts other servers by the scripts of `bench/peers`, to measure them beside Weir.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::server::{START_TIMEOUT, Server, free_port, scratch_directory};
use crate::clock;
use crate::http::Http;
use crate::payload::foreign::Protocol;
use crate::process::Cpus;
use crate::tls::credentials::Credentials;

/// The servers that a script of `bench/peers` starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RivalKind {
    /// Netty, with a server of ours that speaks like Weir.
    Netty,
    /// The NATS server.
    Nats,
    /// Mosquitto.
    Mosquitto,
    /// A reverse proxy of pingora.
    Pingora,
}

/// A server that the bench has started. It is killed and its directory removed when this is
/// dropped.
pub(crate) struct Rival {
    /// Which one.
    pub(crate) kind: RivalKind,
    /// Versions and settings, as its script tells them.
    pub(crate) description: Vec<String>,
    /// The address of the service that was asked for.
    pub(crate) addr: SocketAddr,
    admin: SocketAddr,
    server: Server,
}

/// The service that a server is started for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Service<'a> {
    /// Connections of devices or clients.
    Devices,
    /// The same over TLS.
    SecureDevices(&'a Credentials),
    /// HTTP.
    Http,
    /// HTTPS.
    Https(&'a Credentials),
    /// Calls by datagram, with this number of tokens.
    Datagrams(u32),
    /// HTTP/1.1 and HTTP/2, with the answers of these backends.
    Proxy(&'a [SocketAddr]),
}

impl RivalKind {
    /// Those that serve devices.
    pub(crate) const ALL: [RivalKind; 3] =
        [RivalKind::Netty, RivalKind::Nats, RivalKind::Mosquitto];

    /// Its name in options, reports and script.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RivalKind::Netty => "netty",
            RivalKind::Nats => "nats",
            RivalKind::Mosquitto => "mosquitto",
            RivalKind::Pingora => "pingora",
        }
    }

    /// What its devices speak; pingora has none.
    pub(crate) fn protocol(self) -> Protocol {
        match self {
            RivalKind::Netty | RivalKind::Pingora => Protocol::Weir,
            RivalKind::Nats => Protocol::Nats,
            RivalKind::Mosquitto => Protocol::Mqtt,
        }
    }

    /// Versions and settings; the error says why it cannot be started.
    pub(crate) fn describe(self, scripts: &Path) -> Result<Vec<String>> {
        let script = self.script(scripts)?;
        let mut command = Command::new(&script);
        let output = command.arg("describe").stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {}", script.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{} describe: {}", script.display(), said.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }

    fn script(self, scripts: &Path) -> Result<PathBuf> {
        let path = scripts.join(format!("{}.sh", self.name()));
        path.canonicalize().with_context(|| format!("no script {}", path.display()))
    }
}

impl Rival {
    /// Starts a server for one service.
    pub(crate) fn start(
        kind: RivalKind,
        scripts: &Path,
        service: Service<'_>,
        cpus: Option<&Cpus>,
    ) -> Result<Rival> {
        let description = kind.describe(scripts)?;
        let (addr, admin, directory) = (free_port()?, free_port()?, scratch_directory()?);
        let script = kind.script(scripts)?;
        let mut command = Command::new(&script);
        command.args(["serve", service.name(), &addr.to_string(), "admin", &admin.to_string()]);
        if let Some(credentials) = service.credentials() {
            credentials.write(&directory)?;
            let (chain, key) = Credentials::files();
            command.args(["chain", chain, "key", key]);
        }
        if let Service::Datagrams(tokens) = service {
            command.args(["tokens", &tokens.to_string()]);
        }
        if let Service::Proxy(backends) = service {
            let backends: Vec<String> = backends.iter().map(SocketAddr::to_string).collect();
            command.args(["backends", &backends.join(",")]);
        }
        let server = Server::launch(command, script, directory, cpus)?;
        let mut rival = Rival { kind, description, addr, admin, server };
        rival.wait_until_ready(service)?;
        Ok(rival)
    }

    /// The process that serves: the script becomes the server.
    pub(crate) fn pid(&self) -> u32 {
        self.server.child.id()
    }

    /// Its address for publishing over HTTP, if it has one.
    pub(crate) fn admin(&self) -> Http {
        Http::new(self.admin, None)
    }

    /// Has garbage collected, if its language has a collector: then memory shows what is in use.
    pub(crate) fn collect(&self) -> Result<()> {
        let status = match self.kind {
            RivalKind::Netty => self.admin().post("/collect", "")?.status,
            RivalKind::Nats => self.admin().get("/debug/pprof/heap?gc=1&debug=1")?.status,
            RivalKind::Mosquitto | RivalKind::Pingora => 200,
        };
        if status != 200 {
            bail!("{} answers {status} instead of collecting its garbage", self.kind.name());
        }
        Ok(())
    }

    fn wait_until_ready(&mut self, service: Service<'_>) -> Result<()> {
        let deadline = clock::monotonic() + START_TIMEOUT;
        while !self.is_ready(service) {
            if let Some(status) = self.server.child.try_wait()? {
                bail!("{} ended at once: {status}{}", self.kind.name(), self.server.log_tail());
            }
            if clock::monotonic() > deadline {
                let log = self.server.log_tail();
                bail!("{} is not ready after {START_TIMEOUT:?}{log}", self.kind.name());
            }
            clock::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn is_ready(&self, service: Service<'_>) -> bool {
        match service {
            Service::Datagrams(_) => self.says_ready(),
            Service::Devices
            | Service::SecureDevices(_)
            | Service::Http
            | Service::Https(_)
            | Service::Proxy(_) => {
                TcpStream::connect(self.addr).is_ok()
                    && (self.kind != RivalKind::Netty || self.says_ready())
            }
        }
    }

    fn says_ready(&self) -> bool {
        let log = fs::read_to_string(self.server.directory.join("log")).unwrap_or_default();
        log.lines().any(|line| line == "ready")
    }
}

impl<'a> Service<'a> {
    fn name(self) -> &'static str {
        match self {
            Service::Devices => "tcp",
            Service::SecureDevices(_) => "tls",
            Service::Http | Service::Proxy(_) => "http",
            Service::Https(_) => "https",
            Service::Datagrams(_) => "udp",
        }
    }

    fn credentials(self) -> Option<&'a Credentials> {
        match self {
            Service::SecureDevices(credentials) | Service::Https(credentials) => Some(credentials),
            Service::Devices | Service::Http | Service::Datagrams(_) | Service::Proxy(_) => None,
        }
    }
}
