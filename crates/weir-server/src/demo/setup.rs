//! What the demo makes for itself before its start: free ports, a certificate, a configuration, and
//! a store with meters.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use toml::Value;
use weir::{DeviceStore, RowFormat, Rows};

use super::world;
use crate::config::Settings;
use crate::scratch::Scratch;
use crate::store::{self, Begin, Opened};

/// Everything that gateway, pages and world need to know.
pub(super) struct Setup {
    pub(super) ports: Ports,
    pub(super) settings: Settings,
    /// The certificate of the TLS listener, which clients must trust.
    pub(super) certificate: String,
    /// The token of the service that collects readings.
    pub(super) service_token: String,
    /// The meters, as rows of `devSn,devKey`.
    pub(super) meters: Vec<(String, String)>,
    pub(super) log: PathBuf,
    directory: PathBuf,
}

/// Ports of loopback.
pub(super) struct Ports {
    pub(super) tcp: u16,
    pub(super) tls: u16,
    pub(super) http: u16,
    pub(super) udp: u16,
    pub(super) admin: u16,
}

impl Setup {
    /// Makes the files in `scratch`.
    pub(super) fn new(scratch: &Scratch) -> Result<Setup> {
        let directory = scratch.path().to_owned();
        let names = ["localhost".to_owned(), Ipv4Addr::LOCALHOST.to_string()];
        let made = rcgen::generate_simple_self_signed(names).context("the certificate")?;
        let certificate = made.cert.pem();
        write(&directory.join(CERTIFICATE), &certificate)?;
        write(&directory.join(KEY), &made.signing_key.serialize_pem())?;
        let meters = (1..=world::METERS).map(|number| (format!("meter-{number}"), secret()));
        let mut setup = Setup {
            ports: Ports::preferred()?,
            settings: Settings::default(),
            certificate,
            service_token: secret(),
            meters: meters.collect(),
            log: directory.join("log"),
            directory,
        };
        setup.configure()?;
        Ok(setup)
    }

    /// Chooses ports that are all free now.
    pub(super) fn choose_other_ports(&mut self) -> Result<()> {
        self.ports = Ports::free()?;
        self.configure()
    }

    /// Creates the log's file.
    pub(super) fn log_file(&self) -> Result<File> {
        File::create(&self.log).with_context(|| format!("cannot write {}", self.log.display()))
    }

    /// Opens a new store and imports the meters.
    pub(super) async fn open_store(&self) -> Result<Arc<DeviceStore>> {
        let Opened::Store(devices) = Box::pin(store::open(&self.settings, Begin::Both)).await?
        else {
            bail!("the store of the demo does not open");
        };
        let rows = self.meters.iter().map(|(serial, key)| format!("{serial},{key}\n"));
        let rows = format!("devSn,devKey\n{}", rows.collect::<String>());
        let mut rows = Rows::new(rows.as_bytes(), RowFormat::Csv)?;
        let mut entries = Vec::with_capacity(self.meters.len());
        while let Some(row) = rows.next_row()? {
            entries.push(row.map_err(|bad| anyhow::anyhow!("{bad}"))?.entry(devices.secrets()));
        }
        devices.store().put(entries, weir::unix_millis()).await?;
        Ok(devices)
    }

    /// Writes the configuration and reads it as every other one. Environment variables do not
    /// count.
    fn configure(&mut self) -> Result<()> {
        let Ports { tcp, tls, http, udp, admin } = self.ports;
        let text = |text: &str| Value::String(text.to_owned());
        let file = |name| text(&self.directory.join(name).display().to_string());
        let (certificate, key, store) = (file(CERTIFICATE), file(KEY), file("devices.db"));
        let token = text(&self.service_token);
        let (service, classes) = (world::SERVICE, include_str!("classes.toml"));
        let config = format!(
            r#"[listen]
tcp = ["127.0.0.1:{tcp}"]
tls = ["127.0.0.1:{tls}"]
http = ["127.0.0.1:{http}"]
udp = ["127.0.0.1:{udp}"]
admin = "127.0.0.1:{admin}"

[http]
cors_origins = ["http://127.0.0.1:{admin}", "http://localhost:{admin}"]

[[tls.certificates]]
certificate = {certificate}
key = {key}

[store]
path = {store}

[[auth.services]]
token = {token}
name = "{service}"
may = ["subscribe"]

{classes}"#
        );
        let path = self.directory.join("weir.toml");
        write(&path, &config)?;
        self.settings = Settings::load(Some(&path), [])?;
        Ok(())
    }
}

impl Ports {
    /// The demo's own ports, so that documents can name them. Where one is taken, any free one.
    fn preferred() -> Result<Ports> {
        Ok(Ports {
            tcp: tcp_port(PREFERRED.tcp)?,
            tls: tcp_port(PREFERRED.tls)?,
            http: tcp_port(PREFERRED.http)?,
            udp: udp_port(PREFERRED.udp)?,
            admin: tcp_port(PREFERRED.admin)?,
        })
    }

    fn free() -> Result<Ports> {
        Ok(Ports {
            tcp: tcp_port(0)?,
            tls: tcp_port(0)?,
            http: tcp_port(0)?,
            udp: udp_port(0)?,
            admin: tcp_port(0)?,
        })
    }
}

/// A port that is free now: this one if it is, else any.
fn tcp_port(preferred: u16) -> Result<u16> {
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = bind(preferred).or_else(|_| bind(0)).context("no port of loopback is free")?;
    Ok(listener.local_addr()?.port())
}

fn udp_port(preferred: u16) -> Result<u16> {
    let bind = |port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port));
    let socket = bind(preferred).or_else(|_| bind(0)).context("no port of loopback is free")?;
    Ok(socket.local_addr()?.port())
}

/// A random word of 128 bits.
fn secret() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Writes a file for this user only.
fn write(path: &Path, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";

/// Beside the default ports of Weir, so that a gateway can run at the same time.
const PREFERRED: Ports = Ports { tcp: 7_170, tls: 7_143, http: 7_180, udp: 7_170, admin: 7_190 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_valid_and_names_every_port() -> Result<()> {
        let scratch = Scratch::new("demo-test")?;
        let mut setup = Setup::new(&scratch)?;
        setup.choose_other_ports()?;
        let listen = &setup.settings.gateway.listen;
        let ports = |addrs: &[std::net::SocketAddr]| {
            addrs.iter().map(|addr| (addr.ip().is_loopback(), addr.port())).collect::<Vec<_>>()
        };
        assert_eq!(ports(&listen.tcp), [(true, setup.ports.tcp)]);
        assert_eq!(ports(&listen.tls), [(true, setup.ports.tls)]);
        assert_eq!(ports(&listen.http), [(true, setup.ports.http)]);
        assert_eq!(ports(&listen.udp), [(true, setup.ports.udp)]);
        assert_eq!(listen.admin.map(|addr| addr.port()), Some(setup.ports.admin));
        assert!(setup.settings.store.path()?.starts_with(scratch.path()));
        assert!(setup.settings.store.hash_key()?.starts_with(scratch.path()));
        Ok(())
    }

    #[test]
    fn a_port_that_is_taken_is_replaced() -> Result<()> {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = taken.local_addr()?.port();
        assert_ne!(tcp_port(port)?, port);
        Ok(())
    }
}
