//! A connected stream to an endpoint.

mod error;
mod figures;
mod proxy;
mod stream;
mod tls;

use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

use http::uri::Scheme;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};

use self::figures::Figures;
use self::proxy::Proxy;
use self::tls::Tls;
use crate::names::Endpoint;
use crate::settings::{Settings, SettingsError};

pub use error::{DialError, DialStep};
pub use figures::DialStatus;
pub(crate) use stream::ByteStream;
use stream::Stream;

/// Connects endpoints.
pub(crate) struct Dialer {
    connect_timeout: Duration,
    tls: Option<Tls>,
    proxy: Option<Proxy>,
    figures: Figures,
}

impl Dialer {
    /// Errors: a setting that is not allowed, such as a certificate that cannot be read.
    pub(crate) fn new(settings: &Settings) -> Result<Dialer, SettingsError> {
        Ok(Dialer {
            connect_timeout: settings.connect_timeout,
            tls: settings.tls.as_ref().map(|tls| Tls::new(settings, tls)).transpose()?,
            proxy: settings.proxy.as_ref().map(|proxy| Proxy::new(settings, proxy)).transpose()?,
            figures: Figures::default(),
        })
    }

    /// The scheme of requests over these streams.
    pub(crate) fn scheme(&self) -> Scheme {
        if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// Connects, with proxy and handshake, within `connect_timeout`.
    pub(crate) async fn connect(
        &self,
        endpoint: &Endpoint,
    ) -> Result<Box<dyn ByteStream>, DialError> {
        let deadline = Instant::now() + self.connect_timeout;
        let stream = Box::pin(self.connect_until(endpoint, deadline)).await;
        self.figures.count(stream.as_ref().err().map(DialError::step));
        stream
    }

    /// The figures now.
    pub(crate) fn status(&self) -> DialStatus {
        self.figures.status(self.tls.as_ref().map_or(0, Tls::reload_failures))
    }

    async fn connect_until(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
    ) -> Result<Stream, DialError> {
        let socket = match (endpoint, &self.proxy) {
            (Endpoint::Unix(path), _) => {
                within(DialStep::Connect, deadline, connect_unix(path)).await?
            }
            (Endpoint::Tcp { .. } | Endpoint::Named { .. }, Some(proxy)) => {
                proxy.connect(endpoint, deadline).await?
            }
            (Endpoint::Tcp { addr, .. }, None) => {
                let connect = async { connect_tcp(*addr).await.map_err(DialError::Connect) };
                Box::new(within(DialStep::Connect, deadline, connect).await?)
            }
            (Endpoint::Named { name, .. }, None) => {
                return Err(DialError::Dns(format!("nobody looks {name} up")));
            }
        };
        match &self.tls {
            None => Ok(socket),
            Some(tls) => within(DialStep::Tls, deadline, tls.handshake(socket, endpoint)).await,
        }
    }
}

async fn connect_unix(path: &Path) -> Result<Stream, DialError> {
    let stream = UnixStream::connect(path).await;
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("unix:{}: {error}", path.display()))
    };
    Ok(Box::new(stream.map_err(|error| DialError::Connect(named(error)))?))
}

/// The error names the address.
async fn connect_tcp(addr: std::net::SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addr).await;
    let stream =
        stream.map_err(|error| io::Error::new(error.kind(), format!("{addr}: {error}")))?;
    // Without it requests are only slower.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Does a step until the deadline of all steps.
async fn within<T>(
    step: DialStep,
    deadline: Instant,
    doing: impl Future<Output = Result<T, DialError>>,
) -> Result<T, DialError> {
    timeout_at(deadline, doing).await.unwrap_or(Err(DialError::Timeout(step)))
}

#[cfg(test)]
mod tests;
