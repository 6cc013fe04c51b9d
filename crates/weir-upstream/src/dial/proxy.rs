//! A connection through a proxy: HTTP CONNECT or SOCKS5.

use std::fs;
use std::future::{Ready, ready};
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::BytesMut;
use http::{HeaderValue, Uri};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tower_service::Service;

use super::error::{DialError, DialStep};
use super::stream::{Stream, through_proxy};
use super::{connect_tcp, within};
use crate::names::{Endpoint, Names};
use crate::settings::{ProxyKind, ProxySettings, Secret, Settings, SettingsError, WORD_BYTES_MAX};

/// Connects through a proxy.
pub(super) struct Proxy {
    kind: ProxyKind,
    url: String,
    names: Names,
    /// Empty: no credentials.
    user: String,
    password: Password,
}

enum Password {
    Text(Secret),
    /// It is read for each connection, so that it can change.
    File(PathBuf),
}

impl Proxy {
    /// Errors: a value that is not allowed, or a file that cannot be read.
    pub(super) fn new(all: &Settings, settings: &ProxySettings) -> Result<Proxy, SettingsError> {
        let (kind, address) = settings.place()?;
        let password = match &settings.password_file {
            Some(path) => Password::File(path.clone()),
            None => Password::Text(settings.password.clone()),
        };
        let names = Names::of_proxy(address, all)?;
        let (url, user) = (settings.url.clone(), settings.user.clone());
        let proxy = Proxy { kind, url, names, user, password };
        proxy.password().map_err(|problem| SettingsError {
            key: "proxy_password_file",
            value: format!("{:?}", settings.password_file.as_deref().unwrap_or("".as_ref())),
            allowed: format!("a file with the password, and {problem}"),
        })?;
        Ok(proxy)
    }

    pub(super) async fn connect(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
    ) -> Result<Stream, DialError> {
        let stream = self.reach(deadline).await?;
        within(DialStep::Proxy, deadline, self.ask(stream, endpoint)).await
    }

    /// Connects to the first address of the proxy that accepts.
    async fn reach(&self, deadline: Instant) -> Result<TcpStream, DialError> {
        let places = within(DialStep::Dns, deadline, self.names.endpoints()).await?;
        let mut last = self.error("it has no address".to_owned());
        for place in &*places {
            let Endpoint::Tcp { addr, .. } = place else { continue };
            let connect = async {
                let stream = connect_tcp(*addr).await;
                stream.map_err(|error| self.error(format!("it cannot be reached: {error}")))
            };
            match within(DialStep::Proxy, deadline, connect).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Has the proxy connect to the endpoint.
    async fn ask(&self, stream: TcpStream, endpoint: &Endpoint) -> Result<Stream, DialError> {
        let target = endpoint.authority();
        let target = Uri::try_from(&target)
            .map_err(|_| self.error(format!("it cannot be asked for {target}")))?;
        let password = self.password().map_err(|problem| {
            self.error(format!("its password is not known: proxy_password_file: {problem}"))
        })?;
        let careful = Careful::new(stream);
        let heard = Arc::clone(&careful.heard);
        let way = Connected(Some(TokioIo::new(careful)));
        // The address of the proxy is in use already; the libraries only pass it on.
        let asked = match self.kind {
            ProxyKind::Http => {
                let mut tunnel = Tunnel::new(Uri::default(), way);
                if !self.user.is_empty() {
                    tunnel = tunnel.with_auth(self.basic(&password)?);
                }
                tunnel.call(target).await.map_err(|error| error.to_string())
            }
            ProxyKind::Socks5 => {
                let mut socks = SocksV5::new(Uri::default(), way);
                if !self.user.is_empty() {
                    socks = socks.with_auth(self.user.clone(), password);
                }
                socks.call(target).await.map_err(|error| error.to_string())
            }
        };
        match asked {
            Ok(io) => Ok(io.into_inner().into_stream()),
            Err(text) => {
                let heard = heard.lock().unwrap_or_else(PoisonError::into_inner).clone();
                Err(self.error(self.problem(&heard, &text)))
            }
        }
    }

    /// What the proxy's answer means. `text` is the library's word for it.
    fn problem(&self, heard: &[u8], text: &str) -> String {
        let credentials = match self.user.is_empty() {
            true => "it asks for a user and a password (proxy_user)",
            false => "it does not accept user and password (proxy_user)",
        };
        let text = text.trim_start_matches("SOCKS error: ").trim_start_matches("tunnel error: ");
        match self.kind {
            ProxyKind::Http => match status(heard) {
                // tinyproxy answers 401 to a wrong password.
                Some("407" | "401") => credentials.to_owned(),
                Some(status) if status != "200" => format!("it answers CONNECT with {status}"),
                Some(_) | None => format!("it does not connect: {text}"),
            },
            ProxyKind::Socks5 => match heard {
                // No method is acceptable; or the password is wrong.
                [5, 0xff, ..] | [5, 2, 1, 1..=255, ..] => credentials.to_owned(),
                _ => format!("it does not connect: {text}"),
            },
        }
    }

    fn basic(&self, password: &str) -> Result<HeaderValue, DialError> {
        let word = BASE64_STANDARD.encode(format!("{}:{password}", self.user));
        HeaderValue::try_from(format!("Basic {word}"))
            .map_err(|_| self.error("user and password make no header".to_owned()))
    }

    /// Errors: why the file has none. They never show it.
    fn password(&self) -> Result<String, String> {
        let path = match &self.password {
            Password::Text(secret) => return Ok(secret.reveal().to_owned()),
            Password::File(path) => path,
        };
        let bytes = fs::metadata(path).map_err(|error| format!("it cannot be read: {error}"))?;
        if bytes.len() > 2 * WORD_BYTES_MAX as u64 {
            return Err(format!("it has more than {WORD_BYTES_MAX} bytes"));
        }
        let text =
            fs::read_to_string(path).map_err(|error| format!("it cannot be read: {error}"))?;
        let password = text.trim_end_matches(['\r', '\n']);
        match password.len() {
            0 => Err("it is empty".to_owned()),
            _ if password.contains(char::is_control) => Err("it has more than a line".to_owned()),
            1..=WORD_BYTES_MAX => Ok(password.to_owned()),
            _ => Err(format!("it has more than {WORD_BYTES_MAX} bytes")),
        }
    }

    fn error(&self, problem: String) -> DialError {
        DialError::Proxy { proxy: self.url.clone(), problem }
    }
}

/// The status of an answer of HTTP/1.
fn status(heard: &[u8]) -> Option<&str> {
    let status = std::str::from_utf8(heard).ok()?.strip_prefix("HTTP/1.")?.get(2..5)?;
    status.bytes().all(|byte| byte.is_ascii_digit()).then_some(status)
}

/// A connector whose connection is there already.
struct Connected(Option<TokioIo<Careful>>);

impl Service<Uri> for Connected {
    type Response = TokioIo<Careful>;
    type Error = io::Error;
    type Future = Ready<Result<TokioIo<Careful>, io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        ready(self.0.take().ok_or_else(|| io::ErrorKind::NotConnected.into()))
    }
}

/// Lets the libraries have one byte at a time. They drop bytes that they have read behind the
/// proxy's answer, and a service of HTTP/2 may speak first.
struct Careful {
    stream: TcpStream,
    early: BytesMut,
    /// The first bytes of the proxy, for errors.
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Careful {
    fn new(stream: TcpStream) -> Careful {
        Careful { stream, early: BytesMut::new(), heard: Arc::default() }
    }

    fn into_stream(self) -> Stream {
        through_proxy(self.stream, self.early.freeze())
    }
}

impl AsyncRead for Careful {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.early.is_empty() {
            let mut bytes = [0; 512];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            this.early.extend_from_slice(read.filled());
        }
        if !this.early.is_empty() && buf.remaining() > 0 {
            let byte = this.early.split_to(1);
            buf.put_slice(&byte);
            let mut heard = this.heard.lock().unwrap_or_else(PoisonError::into_inner);
            if heard.len() < HEARD_BYTES_MAX {
                heard.extend_from_slice(&byte);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Careful {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// `HTTP/1.1 200`.
const HEARD_BYTES_MAX: usize = 12;
