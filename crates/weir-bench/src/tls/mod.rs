//! The client's side of TLS: the offer, the verification of the server, and tickets for resumption.

pub(crate) mod credentials;
pub(crate) mod held;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls12Resumption,
    Tls13ClientSessionValue, WebPkiServerVerifier,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, CommonState, DigitallySignedStruct, HandshakeKind, NamedGroup,
    RootCertStore, SignatureScheme, SupportedProtocolVersion,
};
use serde::{Deserialize, Serialize};

use crate::stats::is_in_share;

/// The TLS parameters of a worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TlsPlan {
    /// Authorities of the server's certificate, in PEM.
    pub(crate) ca: String,
    /// Name that must be in the server's certificate.
    pub(crate) server_name: String,
    /// Only this version; `None`: both.
    pub(crate) version: Option<TlsVersion>,
    /// Only this suite, by its IANA name; `None`: all.
    pub(crate) suite: Option<String>,
    /// Only this group, by its IANA name; `None`: all.
    pub(crate) group: Option<String>,
    /// Share of the connections that resume a session, 0 to 1.
    pub(crate) resume: f64,
    /// Certificate and key of the client, in PEM.
    pub(crate) client: Option<String>,
    /// Protocols, by their ALPN names.
    pub(crate) alpn: Vec<String>,
    /// With TLS 1.2, resume only sessions that the server keeps: no tickets.
    pub(crate) session_ids: bool,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum TlsVersion {
    /// TLS 1.2.
    #[value(name = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[value(name = "1.3")]
    Tls13,
}

/// Makes connections. Those that may resume share all tickets.
pub(crate) struct TlsClient {
    plan: TlsPlan,
    full: Arc<ClientConfig>,
    resuming: Arc<ClientConfig>,
    name: ServerName<'static>,
    tickets: Arc<Tickets>,
}

/// Sessions to resume, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    tls13: Mutex<VecDeque<Tls13ClientSessionValue>>,
    tls12: Mutex<VecDeque<Tls12ClientSessionValue>>,
    group: Mutex<Option<NamedGroup>>,
    received: AtomicU64,
}

/// A connection's access to the tickets: it adds tickets, and takes one if it must resume.
#[derive(Debug)]
struct Store {
    tickets: Arc<Tickets>,
    takes: bool,
}

/// Checks a chain once, since thousands of connections see the same bytes. It checks the
/// handshake's signature on each of them.
#[derive(Debug)]
struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    known: Mutex<Option<(CertificateDer<'static>, ServerName<'static>)>>,
}

/// Tickets kept: for as many clients as can come back at once.
const TICKETS_MAX: usize = 1 << 17;
/// Longest wait for an answer while tickets are fetched.
const PATIENCE: Duration = Duration::from_secs(10);

impl TlsVersion {
    fn supported(self) -> &'static SupportedProtocolVersion {
        match self {
            TlsVersion::Tls12 => &rustls::version::TLS12,
            TlsVersion::Tls13 => &rustls::version::TLS13,
        }
    }

    /// The name in the configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            TlsVersion::Tls12 => "1.2",
            TlsVersion::Tls13 => "1.3",
        }
    }

    /// The names of this version; `None`: of both.
    pub(crate) fn list(version: Option<TlsVersion>) -> Vec<&'static SupportedProtocolVersion> {
        match version {
            Some(version) => vec![version.supported()],
            None => rustls::ALL_VERSIONS.to_vec(),
        }
    }
}

impl TlsClient {
    /// A client for this plan.
    pub(crate) fn new(plan: &TlsPlan) -> Result<TlsClient> {
        let tickets = Arc::new(Tickets::default());
        let config = client_config(plan)?;
        let with = |takes| {
            let store = Arc::new(Store { tickets: tickets.clone(), takes });
            let mut config = config.clone();
            let tls12 = if plan.session_ids {
                Tls12Resumption::SessionIdOnly
            } else {
                Tls12Resumption::SessionIdOrTickets
            };
            config.resumption = Resumption::store(store).tls12_resumption(tls12);
            Arc::new(config)
        };
        let name = ServerName::try_from(plan.server_name.clone())
            .with_context(|| format!("not a name of a server: {:?}", plan.server_name))?;
        Ok(TlsClient { plan: plan.clone(), full: with(false), resuming: with(true), name, tickets })
    }

    /// Whether the client has this plan, apart from the share that resumes.
    pub(crate) fn speaks(&self, plan: &TlsPlan) -> bool {
        TlsPlan { resume: plan.resume, ..self.plan.clone() } == *plan
    }

    /// Changes the share of connections that resume.
    pub(crate) fn resume(&mut self, share: f64) {
        self.plan.resume = share;
    }

    /// Whether connection `number` must resume. These connections are spread evenly over all.
    pub(crate) fn resumes(&self, number: u64) -> bool {
        let number = u32::try_from(number % u64::from(u32::MAX)).unwrap_or(0);
        is_in_share(number, self.plan.resume)
    }

    /// Makes connection `number`.
    pub(crate) fn connection(&self, number: u64) -> Result<Box<ClientConnection>> {
        let config = if self.resumes(number) { &self.resuming } else { &self.full };
        let conn = ClientConnection::new(config.clone(), self.name.clone());
        conn.map(Box::new).context("cannot begin TLS")
    }

    /// Number of tickets that servers have given.
    pub(crate) fn received(&self) -> u64 {
        self.tickets.received.load(Ordering::Relaxed)
    }

    /// Number of sessions that can be resumed.
    pub(crate) fn tickets(&self) -> usize {
        self.tickets.len()
    }

    /// Fetches tickets until there is one for each connection that resumes at the same time, if any
    /// must resume.
    pub(crate) fn fetch_tickets(&self, addr: SocketAddr, window: u32) -> Result<()> {
        if self.plan.resume <= 0.0 {
            return Ok(());
        }
        while !self.tickets.suffice(window as usize) {
            let before = self.tickets();
            self.fetch(addr).context("cannot fetch tickets to resume with")?;
            if self.tickets() == before {
                bail!("the server gives no tickets to resume with");
            }
        }
        Ok(())
    }

    fn fetch(&self, addr: SocketAddr) -> Result<()> {
        let mut socket = TcpStream::connect_timeout(&addr, PATIENCE)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut conn = ClientConnection::new(self.full.clone(), self.name.clone())?;
        let before = self.tickets();
        while conn.is_handshaking() || self.tickets() == before {
            match conn.complete_io(&mut socket) {
                Ok((0, 0)) => break,
                Ok(_) => {}
                // The server has sent everything, without a ticket.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Tickets {
    fn len(&self) -> usize {
        locked(&self.tls13).len() + locked(&self.tls12).len()
    }

    /// A TLS 1.2 session can be resumed many times, a TLS 1.3 ticket once.
    fn suffice(&self, wanted: usize) -> bool {
        !locked(&self.tls12).is_empty() || locked(&self.tls13).len() >= wanted
    }
}

impl ClientSessionStore for Store {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        *locked(&self.tickets.group) = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        *locked(&self.tickets.group)
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.tickets.received.fetch_add(1, Ordering::Relaxed);
        let mut sessions = locked(&self.tickets.tls12);
        sessions.push_back(value);
        if sessions.len() > TICKETS_MAX {
            sessions.pop_front();
        }
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        if !self.takes {
            return None;
        }
        let mut sessions = locked(&self.tickets.tls12);
        let session = sessions.pop_front()?;
        sessions.push_back(session.clone());
        Some(session)
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.tickets.received.fetch_add(1, Ordering::Relaxed);
        let mut tickets = locked(&self.tickets.tls13);
        tickets.push_back(value);
        if tickets.len() > TICKETS_MAX {
            tickets.pop_front();
        }
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        if self.takes { locked(&self.tickets.tls13).pop_front() } else { None }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let mut known = locked(&self.known);
        if known.as_ref().is_some_and(|(cert, name)| cert == end_entity && name == server_name) {
            return Ok(ServerCertVerified::assertion());
        }
        let verified = self.inner.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        *known = Some((end_entity.clone().into_owned(), server_name.to_owned()));
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// The agreed parameters of a handshake, such as `TLSv1_3 TLS13_AES_128_GCM_SHA256 X25519 full`;
/// `None` before its end.
pub(crate) fn agreed(conn: &CommonState) -> Option<String> {
    let kind = match conn.handshake_kind()? {
        HandshakeKind::Full => "full",
        HandshakeKind::FullWithHelloRetryRequest => "full_with_retry",
        HandshakeKind::Resumed => RESUMED,
    };
    let version = conn.protocol_version()?;
    let suite = conn.negotiated_cipher_suite()?.suite();
    let group = conn.negotiated_key_exchange_group();
    let group = group.map_or_else(|| "-".to_owned(), |group| format!("{:?}", group.name()));
    Some(format!("{version:?} {suite:?} {group} {kind}"))
}

/// The last word of [`agreed`] for a resumed session.
pub(crate) const RESUMED: &str = "resumed";

/// The group of a comparison with TLS 1.3: all servers have it, and each could choose another one.
/// With TLS 1.2 BoringSSL also wants the certificate's curve in the list, and X25519 leads it.
pub(crate) const COMMON_GROUP: &str = "X25519";

/// The cryptography of the plan: everything, or one suite and one group.
pub(crate) fn provider(suite: Option<&str>, group: Option<&str>) -> Result<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    if let Some(wanted) = suite {
        let names: Vec<String> = suites(&provider).map(|(name, _)| name).collect();
        provider.cipher_suites.retain(|suite| format!("{:?}", suite.suite()) == wanted);
        if provider.cipher_suites.is_empty() {
            bail!("no cipher suite {wanted:?}; there are {}", names.join(", "));
        }
    }
    if let Some(wanted) = group {
        provider.kx_groups.retain(|group| format!("{:?}", group.name()) == wanted);
        if provider.kx_groups.is_empty() {
            bail!("no key exchange group {wanted:?}");
        }
    }
    Ok(provider)
}

/// Names of the suites, each with its version.
pub(crate) fn suites(provider: &CryptoProvider) -> impl Iterator<Item = (String, TlsVersion)> {
    provider.cipher_suites.iter().map(|suite| {
        let version = if suite.tls13().is_some() { TlsVersion::Tls13 } else { TlsVersion::Tls12 };
        (format!("{:?}", suite.suite()), version)
    })
}

/// The version to use: the requested one, or the version of the requested suite.
pub(crate) fn version_of(
    version: Option<TlsVersion>,
    suite: Option<&str>,
) -> Result<Option<TlsVersion>> {
    let Some(name) = suite else { return Ok(version) };
    let provider = provider(suite, None)?;
    let of_suite = suites(&provider).next().map(|(_, version)| version);
    if version.is_some() && version != of_suite {
        bail!("the cipher suite {name} is not one of TLS {}", version.map_or("", TlsVersion::name));
    }
    Ok(of_suite)
}

fn client_config(plan: &TlsPlan) -> Result<ClientConfig> {
    let provider = Arc::new(provider(plan.suite.as_deref(), plan.group.as_deref())?);
    let roots = Arc::new(roots(&plan.ca)?);
    let inner = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build()?;
    let verifier = Arc::new(Verifier { inner, known: Mutex::default() });
    let version = version_of(plan.version, plan.suite.as_deref())?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&TlsVersion::list(version))
        .context("nothing can be spoken")?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match &plan.client {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let (chain, key) = chain_and_key(pem).context("the client's certificate")?;
            builder.with_client_auth_cert(chain, key).context("the client's certificate")?
        }
    };
    config.alpn_protocols = plan.alpn.iter().map(|name| name.clone().into_bytes()).collect();
    Ok(config)
}

/// The configuration of clients that let go of their keys after the handshake, and the name of
/// their server. They keep no tickets.
pub(crate) fn holding_config(plan: &TlsPlan) -> Result<(Arc<ClientConfig>, ServerName<'static>)> {
    let mut config = client_config(plan)?;
    config.enable_secret_extraction = true;
    config.resumption = Resumption::disabled();
    let name = ServerName::try_from(plan.server_name.clone())
        .with_context(|| format!("not a name of a server: {:?}", plan.server_name))?;
    Ok((Arc::new(config), name))
}

/// The roots of these certificates.
pub(crate) fn roots(ca: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        let cert = cert.context("the CA is not PEM")?;
        roots.add(cert).context("the CA has a certificate that cannot be read")?;
    }
    if roots.is_empty() {
        bail!("the CA holds no certificate");
    }
    Ok(roots)
}

/// Certificates and a key from one text.
pub(crate) fn chain_and_key(
    pem: &str,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes());
    Ok((chain.context("not a chain in PEM")?, key.context("no private key in PEM")?))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The frame protocol's name in ALPN.
pub(crate) const ALPN: &str = "weir.v1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_of_one_version() {
        let of = |version, suite| version_of(version, suite).map_err(|error| error.to_string());
        let suite = Some("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256");
        assert_eq!(of(None, None), Ok(None));
        assert_eq!(of(None, suite), Ok(Some(TlsVersion::Tls12)));
        assert_eq!(of(Some(TlsVersion::Tls12), suite), Ok(Some(TlsVersion::Tls12)));
        let error = of(Some(TlsVersion::Tls13), suite).unwrap_err();
        assert!(error.contains("not one of TLS 1.3"), "{error}");
        let error = of(None, Some("TLS13_ROT13")).unwrap_err();
        assert!(error.contains("TLS13_ROT13") && error.contains("TLS13_AES_128_GCM"), "{error}");
    }
}
