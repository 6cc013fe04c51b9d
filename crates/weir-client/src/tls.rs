//! TLS of a connection: which servers to trust, which certificate to show, and sessions to resume.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How to speak TLS. The client uses TLS 1.2 or 1.3, and accepts only a server whose certificate is
/// for the given name and signed by one of the given CAs.
///
/// Shape: copies share one configuration, and with it the sessions that servers permit to resume.
/// To connect again with the same options, or with copies, spares the server a full handshake.
/// Limits: 256 sessions are kept.
///
/// ```no_run
/// # fn options() -> Result<weir_client::Options, Box<dyn std::error::Error>> {
/// # use weir_client::{Options, TlsOptions};
/// let tls = TlsOptions::new("gateway.example", &std::fs::read("ca.pem")?)?;
/// let options = Options::device("thermometer-7").tls(tls);
/// # Ok(options)
/// # }
/// ```
#[derive(Clone)]
pub struct TlsOptions {
    roots: Arc<RootCertStore>,
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
}

/// What went wrong with TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// No certificate can be for this name.
    #[error("server_name: not a DNS name or an IP address: {0:?}")]
    ServerName(String),
    /// The CA certificates cannot be used.
    #[error("ca: {0}")]
    Ca(String),
    /// The client's own certificate or key cannot be used.
    #[error("certificate: {0}")]
    Certificate(String),
    /// The server's certificate is not trusted.
    #[error("the server's certificate is refused: {0}")]
    Refused(String),
    /// The server's certificate is not valid at this time.
    #[error("the server's certificate is refused: {0}")]
    NotNow(String),
    /// The server ended TLS with an alert.
    #[error("the server ended TLS with the alert {0:?}")]
    Alert(AlertDescription),
    /// The server closed the connection without ending TLS, so bytes may be missing at the end.
    #[error("the server closed the connection without ending TLS")]
    BrokenOff,
    /// Any other violation of TLS.
    #[error("TLS: {0}")]
    Protocol(rustls::Error),
}

/// A socket, with or without TLS on it.
#[derive(Debug)]
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl TlsOptions {
    /// Trusts a server that shows a certificate for `server_name`, a DNS name or an IP address,
    /// signed by one of the CAs in `ca`, which is PEM.
    pub fn new(server_name: &str, ca: &[u8]) -> Result<TlsOptions, TlsError> {
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| TlsError::ServerName(server_name.to_owned()))?;
        let mut roots = RootCertStore::empty();
        for cert in CertificateDer::pem_slice_iter(ca) {
            let cert = cert.map_err(|error| TlsError::Ca(format!("not PEM: {error}")))?;
            roots.add(cert).map_err(|error| TlsError::Ca(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(TlsError::Ca("there is no certificate in it".to_owned()));
        }
        let roots = Arc::new(roots);
        let config = Arc::new(configured(&roots, None)?);
        Ok(TlsOptions { roots, config, server_name: name })
    }

    /// Shows a certificate to servers that ask for one: a chain and its private key, both PEM. They
    /// may be the same text. Earlier sessions are not resumed.
    pub fn certificate(self, chain: &[u8], key: &[u8]) -> Result<TlsOptions, TlsError> {
        let wrong = |what: &str, error: &dyn fmt::Display| {
            TlsError::Certificate(format!("{what}: {error}"))
        };
        let chain = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| wrong("the chain is not PEM", &error))?;
        if chain.is_empty() {
            return Err(TlsError::Certificate("there is no certificate in the chain".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| wrong("no private key in PEM", &error))?;
        let config = Arc::new(configured(&self.roots, Some((chain, key)))?);
        Ok(TlsOptions { config, ..self })
    }

    /// Speaks TLS on a connected socket.
    ///
    /// Errors: if TLS is at fault, the error contains a [`TlsError`], which [`TlsError::try_from`]
    /// takes out.
    pub async fn connect(&self, socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsConnector::from(self.config.clone()).connect(self.server_name.clone(), socket).await
    }
}

impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl TlsError {
    /// Whether another attempt would end in the same way.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            TlsError::ServerName(_)
            | TlsError::Ca(_)
            | TlsError::Certificate(_)
            | TlsError::Refused(_) => true,
            TlsError::Alert(alert) => LASTING_ALERTS.contains(alert),
            TlsError::NotNow(_) | TlsError::BrokenOff | TlsError::Protocol(_) => false,
        }
    }
}

/// Takes a TLS error out of a socket's error. Any other error is given back.
impl TryFrom<io::Error> for TlsError {
    type Error = io::Error;

    fn try_from(error: io::Error) -> Result<TlsError, io::Error> {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Ok(TlsError::BrokenOff);
        }
        match error.downcast::<rustls::Error>() {
            Ok(rustls::Error::InvalidCertificate(why)) => Ok(refused(why)),
            Ok(rustls::Error::AlertReceived(alert)) => Ok(TlsError::Alert(alert)),
            Ok(other) => Ok(TlsError::Protocol(other)),
            Err(error) => Err(error),
        }
    }
}

fn configured(
    roots: &Arc<RootCertStore>,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<ClientConfig, TlsError> {
    let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(|error| TlsError::Ca(error.to_string()))?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Protocol)?
        .with_webpki_verifier(verifier);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| TlsError::Certificate(error.to_string()))?,
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// Says what to change.
fn refused(why: CertificateError) -> TlsError {
    if matches!(why, CertificateError::UnknownIssuer | CertificateError::BadSignature) {
        return TlsError::Refused("none of the given CAs has signed it (ca)".to_owned());
    }
    let text = why.to_string();
    let passing = matches!(
        why,
        CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }
    );
    if passing { TlsError::NotNow(text) } else { TlsError::Refused(text) }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Socket::Tls(socket) => Pin::new(socket).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Socket::Tls(socket) => Pin::new(socket).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Socket::Tls(socket) => Pin::new(socket).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Socket::Tls(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}

/// The protocol name, for servers that offer several protocols on one port.
const ALPN: &[u8] = b"weir.v1";

/// Alerts that mean that the client must be changed first.
const LASTING_ALERTS: [AlertDescription; 11] = [
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
    AlertDescription::CertificateRequired,
    AlertDescription::ProtocolVersion,
    AlertDescription::HandshakeFailure,
    AlertDescription::NoApplicationProtocol,
];
