//! Connecting to Redis: TCP, TLS, and who we are.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ProtocolVersion, RedisConnectionInfo};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::options::{Address, Endpoint, RedisOptions};
use crate::contract::Error;

/// Makes connections.
pub(super) struct Dialer {
    /// What connections are called.
    name: String,
    user: Option<String>,
    password: Option<String>,
    tls: Option<TlsConnector>,
    connect_timeout: Duration,
    timeout: Duration,
}

/// What bytes come and go through.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection for requests. It ends when this is dropped.
pub(super) struct Requests {
    pub(super) conn: MultiplexedConnection,
    driver: JoinHandle<()>,
}

impl Requests {
    /// Whether it is closed. What is asked then has not left.
    pub(super) fn has_ended(&self) -> bool {
        self.driver.is_finished()
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Dialer {
    pub(super) fn new(endpoint: &Endpoint, options: &RedisOptions) -> Result<Dialer, Error> {
        let tls = endpoint.is_tls.then(|| super::tls::connector(options.authorities.as_deref()));
        // Redis allows no spaces.
        let node = options.node.replace(|letter: char| !letter.is_ascii_graphic(), "-");
        Ok(Dialer {
            name: format!("weir:{node}"),
            user: endpoint.user.clone(),
            password: endpoint.password.clone(),
            tls: tls.transpose()?,
            connect_timeout: options.connect_timeout,
            timeout: options.timeout,
        })
    }

    /// A connection through which nothing has been said.
    async fn dial(&self, address: &Address) -> Result<Box<dyn Stream>, String> {
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await;
        let stream = stream.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        // The kernel would deliver what a connection still carries when it is given up, perhaps minutes later: behind what
        // was asked since.
        stream.set_zero_linger().map_err(|error| error.to_string())?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(address.host.clone()).map_err(|error| error.to_string())?;
        let stream = tls.connect(name, stream).await.map_err(|error| error.to_string())?;
        Ok(Box::new(stream))
    }

    /// A connection for subscriptions, with the commands that say who we are. Each is answered with `OK`.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn dial_for_subscriptions(
        &self,
        address: &Address,
    ) -> Result<(Box<dyn Stream>, Vec<Cmd>), String> {
        let stream = self.bounded(address, self.dial(address)).await?;
        let mut commands = Vec::new();
        if let Some(password) = &self.password {
            let mut login = redis::cmd("AUTH");
            if let Some(user) = &self.user {
                login.arg(user);
            }
            login.arg(password);
            commands.push(login);
        }
        commands.push(self.introduction());
        Ok((stream, commands))
    }

    /// Names a connection, so that operators find it in `CLIENT LIST`.
    pub(super) fn introduction(&self) -> Cmd {
        let mut introduction = redis::cmd("CLIENT");
        introduction.arg("SETNAME").arg(&self.name);
        introduction
    }

    /// A connection for requests.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn dial_for_requests(&self, address: &Address) -> Result<Requests, String> {
        let mut info = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP2)
            .set_skip_set_lib_name();
        if let Some(user) = &self.user {
            info = info.set_username(user);
        }
        if let Some(password) = &self.password {
            info = info.set_password(password);
        }
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.timeout));
        let making = async {
            let stream = self.dial(address).await?;
            let made = MultiplexedConnection::new_with_config(&info, stream, config).await;
            let (conn, driver) = made.map_err(|error| error.to_string())?;
            Ok(Requests { conn, driver: tokio::spawn(driver) })
        };
        // Boxed, as it is large, and rare.
        self.bounded(address, Box::pin(making)).await
    }

    async fn bounded<T>(
        &self,
        address: &Address,
        making: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let made = tokio::time::timeout(self.connect_timeout, making).await;
        let made = made.unwrap_or_else(|_| {
            Err(format!("no connection within {} ms", self.connect_timeout.as_millis()))
        });
        made.map_err(|why| format!("{address}: {why}"))
    }
}

/// Shared by all that connect.
pub(super) type SharedDialer = Arc<Dialer>;
