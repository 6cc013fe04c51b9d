//! TLS to an upstream. Its files are read again when they change.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::TlsConnector;
use tracing::{info, warn};

use super::error::DialError;
use super::stream::Stream;
use crate::names::Endpoint;
use crate::settings::{Protocol, Settings, SettingsError, TlsSettings};

/// Makes handshakes with the files as they are now.
pub(super) struct Tls {
    upstream: String,
    settings: TlsSettings,
    protocol: Protocol,
    /// The name that the settings ask for, if they do.
    name: Option<String>,
    loaded: Mutex<Loaded>,
    reload_failures: AtomicU64,
}

struct Loaded {
    config: Arc<ClientConfig>,
    /// The files when they were looked at last, usable or not.
    seen: Stamps,
}

/// Time, size and inode of each file; `None`: there is none.
type Stamps = [Option<(i64, i64, u64, u64)>; 3];

impl Tls {
    /// Errors: a file that cannot be used.
    pub(super) fn new(all: &Settings, settings: &TlsSettings) -> Result<Tls, SettingsError> {
        let loaded = Loaded { seen: stamps(settings), config: load(settings, all.protocol)? };
        let host = all.host.rsplit_once(':').map_or(&*all.host, |(host, port)| {
            if port.bytes().all(|byte| byte.is_ascii_digit()) { host } else { &all.host }
        });
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let names = [settings.server_name.as_str(), host];
        Ok(Tls {
            upstream: all.name.clone(),
            settings: settings.clone(),
            protocol: all.protocol,
            name: names.into_iter().find(|name| !name.is_empty()).map(str::to_owned),
            loaded: Mutex::new(loaded),
            reload_failures: AtomicU64::new(0),
        })
    }

    pub(super) fn reload_failures(&self) -> u64 {
        self.reload_failures.load(Ordering::Relaxed)
    }

    pub(super) async fn handshake(
        &self,
        socket: Stream,
        endpoint: &Endpoint,
    ) -> Result<Stream, DialError> {
        let name = self.name.clone().unwrap_or_else(|| endpoint.host());
        let error = |problem: String| DialError::Tls { name: name.clone(), problem };
        let server = ServerName::try_from(name.clone())
            .map_err(|_| error("no certificate can have this name".to_owned()))?;
        let connector = TlsConnector::from(self.current());
        let stream = Box::pin(connector.connect(server, socket)).await;
        let stream = stream.map_err(|problem| error(problem.to_string()))?;
        let alpn = stream.get_ref().1.alpn_protocol();
        match self.protocol {
            Protocol::Http2 if alpn != Some(H2) => {
                Err(error("the service does not choose HTTP/2 (ALPN h2)".to_owned()))
            }
            Protocol::Http1 | Protocol::Http2 => Ok(Box::new(stream)),
        }
    }

    /// The configuration of the files as they are now, or of those that could be used last.
    fn current(&self) -> Arc<ClientConfig> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamps(&self.settings);
        if now != loaded.seen {
            // Another change between this look and the reading is found at the next look.
            loaded.seen = now;
            match load(&self.settings, self.protocol) {
                Ok(config) => {
                    info!(upstream = self.upstream, "TLS files are read again");
                    loaded.config = config;
                }
                Err(error) => {
                    self.reload_failures.fetch_add(1, Ordering::Relaxed);
                    warn!(upstream = self.upstream, %error, "changed TLS files cannot be used");
                }
            }
        }
        Arc::clone(&loaded.config)
    }
}

fn stamps(settings: &TlsSettings) -> Stamps {
    [&settings.ca, &settings.certificate, &settings.key].map(|path| {
        let found = fs::metadata(path.as_ref()?).ok()?;
        Some((found.mtime(), found.mtime_nsec(), found.size(), found.ino()))
    })
}

fn load(settings: &TlsSettings, protocol: Protocol) -> Result<Arc<ClientConfig>, SettingsError> {
    let roots = match &settings.ca {
        None => RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates("tls_ca", path)? {
                roots.add(certificate).map_err(|error| {
                    wrong("tls_ca", path, format!("an authority in it cannot be used: {error}"))
                })?;
            }
            roots
        }
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| SettingsError {
            key: "tls",
            value: "true".to_owned(),
            allowed: format!("false, since TLS cannot be used: {error}"),
        })?
        .with_root_certificates(roots);
    let mut config = match (&settings.certificate, &settings.key) {
        (Some(certificate), Some(key)) => {
            let chain = certificates("tls_certificate", certificate)?;
            let read = PrivateKeyDer::from_pem_slice(&read("tls_key", key)?).map_err(|_| {
                wrong("tls_key", key, "it holds no private key without a passphrase".to_owned())
            })?;
            builder.with_client_auth_cert(chain, read).map_err(|error| {
                let certificate = certificate.display();
                let problem =
                    format!("the key does not fit the certificate in {certificate}: {error}");
                wrong("tls_key", key, problem)
            })?
        }
        (Some(_) | None, _) => builder.with_no_client_auth(),
    };
    config.alpn_protocols = match protocol {
        Protocol::Http1 => vec![b"http/1.1".to_vec()],
        Protocol::Http2 => vec![H2.to_vec()],
    };
    Ok(Arc::new(config))
}

fn certificates(
    key: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, SettingsError> {
    let pem = read(key, path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(wrong(key, path, "it holds no certificate".to_owned())),
        Err(error) => Err(wrong(key, path, format!("it is no PEM file: {error}"))),
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, SettingsError> {
    let bytes = fs::metadata(path).map(|found| found.len());
    let read = bytes.and_then(|bytes| match bytes > FILE_BYTES_MAX {
        true => Err(std::io::Error::other(format!("it has more than {FILE_BYTES_MAX} bytes"))),
        false => fs::read(path),
    });
    read.map_err(|error| wrong(key, path, format!("it cannot be read: {error}")))
}

fn wrong(key: &'static str, path: &Path, problem: String) -> SettingsError {
    let allowed = format!("a PEM file that can be used, and {problem}");
    SettingsError { key, value: format!("{path:?}"), allowed }
}

const H2: &[u8] = b"h2";
/// Some hundred authorities.
const FILE_BYTES_MAX: u64 = 4 << 20;
