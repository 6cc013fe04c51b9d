//! What handshakes are made with now, and how it is replaced while they go on.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::rand;
use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache, StoresServerSessions};
use rustls::{KeyLog, ServerConfig};
use rustls_pki_types::CertificateDer;
use tokio::sync::Notify;
use zeroize::Zeroizing;

use super::TlsError;
use super::certificates::{Certificates, Loaded};
use super::config::{Parts, has_aes, provider};
use super::development::{self, Development};
use super::expiry::{Expiry, ExpiryKind};
use super::identity::{self, Clients, NoIdentity};
use super::signing::SigningKeys;
use super::tickets::{self, ExpiringSessions, Ticketer};
use crate::base::config::{Config, TlsConfig};
use crate::base::files::{Stamps, Watched, stamps};
use crate::base::model::Spoken;

/// What handshakes are made with.
///
/// Shape: the contexts in use, replaced as a whole by [`Watched::reload`]; connections keep what they began with.
/// Cost: [`Contexts::current`] takes a reference and no lock.
pub(crate) struct Contexts {
    config: TlsConfig,
    device_id_bytes_max: usize,
    ticket_secret: Zeroizing<Vec<u8>>,
    key_log: Arc<dyn KeyLog>,
    signing_keys: Option<Box<SigningKeys>>,
    /// The protocols of `listen.https`.
    web_alpn: &'static [&'static [u8]],
    current: ArcSwap<Context>,
    development: Option<Development>,
    /// Of the files, before they were read.
    stamps_at_start: Stamps,
    reload_asked: Notify,
}

/// One state of the files.
struct Context {
    /// For `listen.tls`.
    devices: Orders,
    /// For `listen.https`.
    web: Orders,
    /// What clients are checked against; sessions of another policy are not resumed.
    policy: [u8; 32],
    sessions: Arc<dyn StoresServerSessions>,
    expiries: Vec<Expiry>,
}

/// What the files hold.
struct Files {
    certificates: Vec<Loaded>,
    clients: Clients,
    expiries: Vec<Expiry>,
}

impl Config {
    /// Reads the files of `[tls]` as a start does, if anything listens with TLS. A development certificate that is not
    /// there is not made.
    ///
    /// Errors: the first file that cannot be used.
    pub fn check_files(&self) -> Result<(), TlsError> {
        if !self.listen.has_tls() {
            return Ok(());
        }
        let mut tls = self.tls.clone();
        if tls.certificates.is_empty() {
            tls.certificates.extend(development::find(&tls)?.iter().map(Development::config));
        }
        Files::read(&tls, &provider(&tls, !has_aes()), None).map(drop)
    }
}

/// For clients that differ in the suites that they prefer.
struct Orders {
    /// For clients that do not mind.
    usual: Configs,
    /// For those whose hello puts ChaCha20-Poly1305 first, as devices without AES in hardware do.
    chacha_first: Configs,
}

/// For clients that differ in how their sessions are resumed.
struct Configs {
    /// Sessions of TLS 1.2 are kept.
    keeping: Arc<ServerConfig>,
    /// They are not: rustls would keep them for clients that take tickets too.
    by_ticket: Arc<ServerConfig>,
}

impl Contexts {
    /// Reads all files that `[tls]` names, and the development certificate if it names no certificate.
    ///
    /// `key_log` sees the secrets of handshakes; `signing_keys` is asked for the key of each certificate configured, and
    /// the file only if it knows none.
    /// Errors: the first file that cannot be used.
    pub(crate) fn new(
        config: &Config,
        key_log: Arc<dyn KeyLog>,
        signing_keys: Option<Box<SigningKeys>>,
    ) -> Result<Contexts, TlsError> {
        let mut tls = config.tls.clone();
        let development = match tls.certificates.is_empty() {
            true => Some(development::find_or_make(&tls)?),
            false => None,
        };
        // Nobody else has the key of that.
        let signing_keys = signing_keys.filter(|_| development.is_none());
        tls.certificates.extend(development.iter().map(Development::config));
        let ticket_secret = if tls.ticket_secret.is_empty() {
            let mut secret = vec![0; SECRET_BYTES];
            rand::fill(&mut secret).expect("the kernel has random bytes");
            secret
        } else {
            tls.ticket_secret.clone().into_bytes()
        };
        let ticket_secret = Zeroizing::new(ticket_secret);
        let stamps_at_start = stamps(&files(&tls));
        let web_alpn = if config.http.h2 { WEB_ALPN } else { &WEB_ALPN[1..] };
        let keys = signing_keys.as_deref();
        let current = Context::read(&tls, &ticket_secret, &key_log, keys, web_alpn, None)?;
        Ok(Contexts {
            config: tls,
            device_id_bytes_max: config.limits.device_id_bytes_max,
            ticket_secret,
            key_log,
            signing_keys,
            web_alpn,
            current: ArcSwap::from_pointee(current),
            development,
            stamps_at_start,
            reload_asked: Notify::new(),
        })
    }

    /// Reads all files again, and takes what they make for the handshakes that begin from now on.
    ///
    /// Errors: the first file that cannot be used; everything stays as it is then.
    fn read_again(&self) -> Result<(), TlsError> {
        let before = self.current.load();
        let read = Context::read(
            &self.config,
            &self.ticket_secret,
            &self.key_log,
            self.signing_keys.as_deref(),
            self.web_alpn,
            Some(&before),
        );
        self.current.store(Arc::new(read?));
        Ok(())
    }

    /// The configuration for a handshake that begins now.
    ///
    /// `spoken`: what is spoken behind it, which decides on the protocols of ALPN. `chacha_first`: whether the first suite of the client's hello, reserved values (GREASE) left out, is one of
    /// ChaCha20-Poly1305 (0x1303, 0xCCA8, 0xCCA9). `takes_tickets`: whether it takes tickets of TLS 1.2.
    pub(crate) fn current(
        &self,
        spoken: Spoken,
        chacha_first: bool,
        takes_tickets: bool,
    ) -> Arc<ServerConfig> {
        let current = self.current.load();
        let orders = match spoken {
            Spoken::Frames => &current.devices,
            Spoken::Http => &current.web,
        };
        let configs = if chacha_first { &orders.chacha_first } else { &orders.usual };
        Arc::clone(if takes_tickets { &configs.by_ticket } else { &configs.keeping })
    }

    /// The device that the certificates of a client name (`ServerConnection::peer_certificates`), the first one being
    /// its own; `None`: no certificate, or `tls.client_identity` is `none`.
    ///
    /// To be asked for resumed sessions too: their certificates have not been looked at again.
    pub(crate) fn identity(
        &self,
        chain: &[CertificateDer<'_>],
    ) -> Result<Option<String>, NoIdentity> {
        let Some(certificate) = chain.first() else { return Ok(None) };
        let part = self.config.client_identity;
        identity::identity(certificate, part, self.device_id_bytes_max, tickets::clock())
    }

    /// When the certificates and revocation lists in use end.
    pub(crate) fn expiries(&self) -> Vec<Expiry> {
        self.current.load().expiries.clone()
    }

    /// The development certificate, if it is what clients are shown.
    pub(crate) fn development(&self) -> Option<&Development> {
        self.development.as_ref()
    }

    /// Has the files read now, whether they have changed or not; the log tells what came of it.
    pub(crate) fn ask_reload(&self) {
        self.reload_asked.notify_one();
    }

    pub(super) async fn reload_asked(&self) {
        self.reload_asked.notified().await;
    }

    pub(super) fn reload_interval(&self) -> Duration {
        self.config.reload_interval
    }
}

impl Watched for Contexts {
    const WHAT: &'static str = "certificates";
    type Error = TlsError;

    fn stamps_at_start(&self) -> &Stamps {
        &self.stamps_at_start
    }

    fn files(&self) -> Vec<PathBuf> {
        files(&self.config)
    }

    fn reload(&self) -> Result<(), TlsError> {
        self.read_again()
    }
}

impl Context {
    /// `before`: what is replaced, if there is.
    fn read(
        config: &TlsConfig,
        ticket_secret: &[u8],
        key_log: &Arc<dyn KeyLog>,
        signing_keys: Option<&SigningKeys>,
        alpn: &[&[u8]],
        before: Option<&Context>,
    ) -> Result<Context, TlsError> {
        let usual = provider(config, !has_aes());
        let Files { certificates, clients, expiries } = Files::read(config, &usual, signing_keys)?;
        let end = clients.crl_ends.map(|end| Duration::from_secs(u64::try_from(end).unwrap_or(0)));
        // Under the same policy lists end at the same time.
        let sessions = match before {
            Some(before) if before.policy == clients.policy => Arc::clone(&before.sessions),
            Some(_) | None => Arc::new(ExpiringSessions { sessions: sessions(config), end }),
        };
        let rotation = config.ticket_rotation;
        let parts = Parts {
            verifier: clients.verifier,
            certificates: Arc::new(Certificates::new(certificates)),
            tickets: Arc::new(
                Ticketer::new(ticket_secret, clients.policy, rotation, tickets::clock).until(end),
            ),
            sessions: Arc::clone(&sessions),
            key_log: Arc::clone(key_log),
        };
        let devices = Orders {
            usual: Configs::of(parts.server_config(config, &usual)),
            chacha_first: Configs::of(parts.server_config(config, &provider(config, true))),
        };
        Ok(Context {
            web: devices.with_alpn(alpn),
            devices,
            policy: clients.policy,
            sessions,
            expiries,
        })
    }
}

impl Files {
    fn read(
        config: &TlsConfig,
        provider: &Arc<CryptoProvider>,
        signing_keys: Option<&SigningKeys>,
    ) -> Result<Files, TlsError> {
        let mut certificates = Vec::with_capacity(config.certificates.len());
        let mut expiries = Vec::new();
        for (index, certificate) in config.certificates.iter().enumerate() {
            let key = format!("tls.certificates[{index}]");
            let read = Loaded::read(&key, certificate, provider, signing_keys)?;
            expiries.push(Expiry::new(
                ExpiryKind::Certificate,
                &certificate.certificate,
                read.not_after,
            ));
            certificates.push(read);
        }
        let clients = Clients::read(config, provider)?;
        expiries.extend(
            clients
                .crl_ends
                .map(|end| Expiry::new(ExpiryKind::RevocationList, &config.client_crl, end)),
        );
        Ok(Files { certificates, clients, expiries })
    }
}

impl Orders {
    /// The same but for the protocols: sessions, tickets and certificates are shared.
    fn with_alpn(&self, alpn: &[&[u8]]) -> Orders {
        let usual = self.usual.with_alpn(alpn);
        Orders { usual, chacha_first: self.chacha_first.with_alpn(alpn) }
    }
}

impl Configs {
    fn with_alpn(&self, alpn: &[&[u8]]) -> Configs {
        let with_alpn = |config: &Arc<ServerConfig>| {
            let mut config = ServerConfig::clone(config);
            config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
            Arc::new(config)
        };
        Configs { keeping: with_alpn(&self.keeping), by_ticket: with_alpn(&self.by_ticket) }
    }

    fn of(keeping: Arc<ServerConfig>) -> Configs {
        let mut by_ticket = ServerConfig::clone(&keeping);
        by_ticket.session_storage = Arc::new(NoServerSessionStorage {});
        Configs { keeping, by_ticket: Arc::new(by_ticket) }
    }
}

fn files(config: &TlsConfig) -> Vec<PathBuf> {
    let of_clients = [&config.client_ca, &config.client_crl];
    config
        .certificates
        .iter()
        .flat_map(|certificate| [&certificate.certificate, &certificate.key])
        .chain(of_clients.into_iter().filter(|path| !path.as_os_str().is_empty()))
        .cloned()
        .collect()
}

fn sessions(config: &TlsConfig) -> Arc<dyn StoresServerSessions> {
    match config.session_cache_max {
        0 => Arc::new(NoServerSessionStorage {}),
        max => ServerSessionMemoryCache::new(max),
    }
}

/// What HTTP is called, the preferred version first.
const WEB_ALPN: &[&[u8]] = &[H2, b"http/1.1"];
/// HTTP/2 over TLS (RFC 9113 section 3.2).
pub(crate) const H2: &[u8] = b"h2";
/// As long as what is made of it.
const SECRET_BYTES: usize = 32;
