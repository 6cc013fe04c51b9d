//! The current configuration of handshakes, and its replacement while handshakes go on.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, StoresServerSessions};
use rustls::{KeyLog, ServerConfig};
use rustls_pki_types::CertificateDer;
use tokio::sync::Notify;

use super::TlsError;
use super::cache::SessionCache;
use super::certificates::{Certificates, Loaded};
use super::config::{Parts, has_aes, provider};
use super::development::{self, Development};
use super::expiry::{Expiry, ExpiryKind};
use super::identity::{self, Clients, NoIdentity};
use super::sessions::{SharedSessions, StoredSessions};
use super::signing::SigningKeys;
use super::tickets::{self, TicketSecret, Ticketer};
use crate::base::config::{Config, TlsConfig};
use crate::base::files::{Stamps, Watched, stamps};
use crate::base::model::Spoken;

/// The configuration of handshakes.
///
/// Shape: the current context, which [`Watched::reload`] replaces as a whole. Handshakes keep the
/// one they began with.
/// Cost: [`Contexts::current`] takes a reference and no lock.
pub(crate) struct Contexts {
    config: TlsConfig,
    device_id_bytes_max: usize,
    pub(super) resumption: Resumption,
    key_log: Arc<dyn KeyLog>,
    signing_keys: Option<Box<SigningKeys>>,
    /// The protocols of `listen.https`.
    web_alpn: &'static [&'static [u8]],
    current: ArcSwap<Context>,
    development: Option<Development>,
    /// The stamps of the files before they were read.
    stamps_at_start: Stamps,
    reload_asked: Notify,
}

/// What sessions are resumed with, whatever the files contain.
pub(super) struct Resumption {
    pub(super) ticket_secret: Arc<TicketSecret>,
    /// Empty while sessions are stored at this node alone.
    shared: Arc<OnceLock<Arc<dyn SharedSessions>>>,
}

/// One state of the files.
struct Context {
    /// For `listen.tls`.
    devices: Orders,
    /// For `listen.https`.
    web: Orders,
    /// The policy for clients; sessions of another policy are not resumed.
    policy: [u8; 32],
    sessions: Arc<StoredSessions>,
    expiries: Vec<Expiry>,
}

/// The content of the files.
struct Files {
    certificates: Vec<Loaded>,
    clients: Clients,
    expiries: Vec<Expiry>,
}

impl Config {
    /// Reads the files of `[tls]` like a start, if any listener uses TLS. A missing development
    /// certificate is not made.
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

/// One configuration for each preferred order of suites.
struct Orders {
    /// For clients without a preference.
    usual: Configs,
    /// For clients whose hello puts ChaCha20-Poly1305 first, as devices without AES in hardware do.
    chacha_first: Configs,
}

/// One configuration for each way to resume sessions.
struct Configs {
    /// Sessions of TLS 1.2 are stored.
    keeping: Arc<ServerConfig>,
    /// They are not stored; otherwise rustls would store them also for clients that take tickets.
    by_ticket: Arc<ServerConfig>,
}

impl Contexts {
    /// Reads all files of `[tls]`, and the development certificate if no certificate is configured.
    ///
    /// `key_log` sees the secrets of handshakes. `signing_keys` is asked first for the key of each
    /// configured certificate; its file is read only if that has none.
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
        // Only the gateway has the key of the development certificate.
        let signing_keys = signing_keys.filter(|_| development.is_none());
        tls.certificates.extend(development.iter().map(Development::config));
        let ticket_secret = TicketSecret::new(&tls.ticket_secret);
        let resumption = Resumption { ticket_secret, shared: Arc::default() };
        let stamps_at_start = stamps(&files(&tls));
        let web_alpn = if config.http.h2 { WEB_ALPN } else { &WEB_ALPN[1..] };
        let keys = signing_keys.as_deref();
        let current = Context::read(&tls, &resumption, &key_log, keys, web_alpn, None)?;
        Ok(Contexts {
            config: tls,
            device_id_bytes_max: config.limits.device_id_bytes_max,
            resumption,
            key_log,
            signing_keys,
            web_alpn,
            current: ArcSwap::from_pointee(current),
            development,
            stamps_at_start,
            reload_asked: Notify::new(),
        })
    }

    /// Reads all files again, for handshakes that begin from now on.
    ///
    /// Errors: the first file that cannot be used; then everything stays as it was.
    fn read_again(&self) -> Result<(), TlsError> {
        let before = self.current.load();
        let read = Context::read(
            &self.config,
            &self.resumption,
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
    /// `spoken` is the protocol after the handshake, which decides the ALPN protocols.
    /// `chacha_first` says whether the first suite of the client's hello, apart from reserved
    /// values (GREASE), is one of ChaCha20-Poly1305 (0x1303, 0xCCA8, 0xCCA9). `takes_tickets` says
    /// whether the client takes tickets of TLS 1.2.
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

    /// From here on, all nodes find the stored sessions of each other.
    pub(crate) fn share(&self, shared: Arc<dyn SharedSessions>) {
        let _ = self.resumption.shared.set(shared);
    }

    /// The policy for clients of handshakes that begin now.
    pub(super) fn policy(&self) -> [u8; 32] {
        self.current.load().policy
    }

    /// The stored sessions of handshakes that begin now.
    pub(super) fn sessions(&self) -> Arc<StoredSessions> {
        Arc::clone(&self.current.load().sessions)
    }

    /// The device that a client's certificates name (`ServerConnection::peer_certificates`; the
    /// first one is its own). `None` if there is no certificate, or if `tls.client_identity` is
    /// `none`.
    ///
    /// Call it for resumed sessions too: the handshake has not checked their certificates again.
    pub(crate) fn identity(
        &self,
        chain: &[CertificateDer<'_>],
    ) -> Result<Option<String>, NoIdentity> {
        let Some(certificate) = chain.first() else { return Ok(None) };
        let part = self.config.client_identity;
        identity::identity(certificate, part, self.device_id_bytes_max, tickets::clock())
    }

    /// The ends of the certificates and revocation lists in use.
    pub(crate) fn expiries(&self) -> Vec<Expiry> {
        self.current.load().expiries.clone()
    }

    /// The development certificate, if it is in use.
    pub(crate) fn development(&self) -> Option<&Development> {
        self.development.as_ref()
    }

    /// Reads the files now, changed or not; the log tells the result.
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
    /// `before` is the context to be replaced, if there is one.
    fn read(
        config: &TlsConfig,
        resumption: &Resumption,
        key_log: &Arc<dyn KeyLog>,
        signing_keys: Option<&SigningKeys>,
        alpn: &[&[u8]],
        before: Option<&Context>,
    ) -> Result<Context, TlsError> {
        let usual = provider(config, !has_aes());
        let Files { certificates, clients, expiries } = Files::read(config, &usual, signing_keys)?;
        let end = clients.crl_ends.map(|end| Duration::from_secs(u64::try_from(end).unwrap_or(0)));
        let (secret, rotation) = (&resumption.ticket_secret, config.ticket_rotation);
        let ticketer = Ticketer::new(secret, clients.policy, rotation, tickets::clock).until(end);
        let ticketer = Arc::new(ticketer);
        // Under the same policy, revocation lists end at the same time.
        let sessions = match before {
            Some(before) if before.policy == clients.policy => Arc::clone(&before.sessions),
            Some(_) | None => Arc::new(StoredSessions {
                local: SessionCache::new(config.session_cache_max),
                end,
                ticketer: Arc::clone(&ticketer),
                shared: Arc::clone(&resumption.shared),
            }),
        };
        let parts = Parts {
            verifier: clients.verifier,
            certificates: Arc::new(Certificates::new(certificates)),
            tickets: ticketer,
            sessions: Arc::clone(&sessions) as Arc<dyn StoresServerSessions>,
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
    /// The same with other protocols; sessions, tickets and certificates are shared.
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

/// The names of HTTP in ALPN, the preferred version first.
const WEB_ALPN: &[&[u8]] = &[H2, b"http/1.1"];
/// HTTP/2 over TLS (RFC 9113 section 3.2).
pub(crate) const H2: &[u8] = b"h2";
