//! A gateway for a test, and a client that writes raw requests.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use weir_engine::{Share, Urgent};

use crate::{Config, Gateway, GatewayBuilder, Handle};

/// A gateway on free ports of loopback.
pub(super) struct Server {
    gateway: Gateway,
}

/// An answer in the form in which it came.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    head: String,
    pub(super) body: String,
}

/// A connection that is kept.
pub(super) struct Kept {
    stream: TcpStream,
}

impl Server {
    pub(super) fn start(config: Config) -> impl Future<Output = Self> {
        Self::start_with(config, |builder| builder)
    }

    /// The future does not contain the configuration, which is large.
    pub(super) fn start_with(
        mut config: Config,
        embed: impl FnOnce(GatewayBuilder) -> GatewayBuilder,
    ) -> impl Future<Output = Self> {
        let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
        config.listen.tcp = vec![free];
        config.listen.udp = vec![];
        config.listen.admin = Some(free);
        config.listen.http = vec![];
        config.threads.shards = 2;
        config.threads.pin = false;
        config.memory.budget_bytes = 16 << 20;
        let builder = embed(Gateway::builder().config(config));
        async { Self { gateway: Box::pin(builder.start()).await.unwrap() } }
    }

    pub(super) fn device_addr(&self) -> SocketAddr {
        self.gateway.tcp_addrs()[0]
    }

    pub(super) fn tls_addr(&self) -> SocketAddr {
        self.gateway.tls_addrs()[0]
    }

    /// Takes all bytes of the share `messages`, once no message holds any. Returns their number.
    pub(super) async fn use_up_budget(&self) -> usize {
        let handle = self.gateway.handle();
        let budget = handle.engine().budget();
        let bytes = budget.bytes_max_of(Share::Messages);
        while !budget.take(Share::Messages, bytes) {
            tokio::task::yield_now().await;
        }
        bytes
    }

    /// Ends the first shard's thread.
    pub(super) async fn stop_shard(&self) {
        let handle = self.gateway.handle();
        let stopped = handle.engine().mailbox(0).try_urgent(Urgent::Stop);
        assert!(stopped.is_ok(), "the reserved queue has room");
        while handle.is_ready() {
            tokio::task::yield_now().await;
        }
    }

    pub(super) fn handle(&self) -> Handle {
        self.gateway.handle()
    }

    pub(super) fn give_budget(&self, bytes: usize) {
        self.gateway.handle().engine().budget().give(Share::Messages, bytes);
    }

    /// Sends a request on a connection of its own: method and target, headers on a line each, then
    /// the body. It adds `Host` and `Content-Length` unless they are given or the body has chunks.
    pub(super) async fn ask(&self, request: &str, body: &str) -> Answer {
        let (line, headers) = request.split_once('\n').unwrap_or((request, ""));
        let mut text = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
        for header in headers.lines() {
            text += &format!("{header}\r\n");
        }
        if !headers.contains("Host:") {
            text += "Host: localhost\r\n";
        }
        if !body.is_empty() && !headers.contains("chunked") {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        let mut stream = TcpStream::connect(self.admin_addr()).await.unwrap();
        stream.write_all(format!("{text}\r\n").as_bytes()).await.unwrap();
        // The server may answer and close before it has read all of a body that it refuses.
        let _ = stream.write_all(body.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        Answer::parse(&answer)
    }

    /// All pages of a list.
    pub(super) async fn list(&self, path: &str, member: &str) -> Vec<Value> {
        let mut items = Vec::new();
        let mut target = path.to_owned();
        loop {
            let page = self.ask(&format!("GET {target}"), "").await.json();
            items.extend(page[member].as_array().expect("a list").iter().cloned());
            let Some(cursor) = page["next_cursor"].as_str() else { return items };
            target = format!("{path}&cursor={cursor}");
        }
    }

    pub(super) fn admin_addr(&self) -> SocketAddr {
        self.gateway.admin_addr().unwrap()
    }

    pub(super) async fn connect(&self) -> Kept {
        let stream = TcpStream::connect(self.admin_addr()).await.unwrap();
        Kept { stream }
    }

    pub(super) async fn stop(self) {
        self.gateway.shutdown().await;
    }
}

impl Kept {
    /// Asks and reads the answer.
    pub(super) async fn ask(&mut self, request: &str) -> Answer {
        self.stream.write_all(request.as_bytes()).await.unwrap();
        self.read().await
    }

    pub(super) async fn send(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).await.unwrap();
    }

    /// Reads until this text has come.
    pub(super) async fn hear(&mut self, text: &str) {
        let mut heard = Vec::new();
        while !String::from_utf8_lossy(&heard).contains(text) {
            assert_ne!(self.stream.read_buf(&mut heard).await.unwrap(), 0, "{heard:?}");
        }
    }

    /// Reads to the end of a connection that breaks off.
    pub(super) async fn hear_end(&mut self) {
        let _ = self.stream.read_to_end(&mut Vec::new()).await;
    }

    /// Reads one answer, which has a length.
    pub(super) async fn read(&mut self) -> Answer {
        let mut answer = Vec::new();
        loop {
            assert_ne!(self.stream.read_buf(&mut answer).await.unwrap(), 0, "closed");
            let text = String::from_utf8_lossy(&answer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let parsed = Answer { status: 0, head: head.to_owned(), body: String::new() };
            let length: usize = parsed.header("content-length").unwrap().parse().unwrap();
            if body.len() == length {
                return Answer::parse(&answer);
            }
        }
    }

    pub(super) async fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]).await, Ok(0) | Err(_))
    }
}

impl Answer {
    pub(super) fn parse(answer: &[u8]) -> Self {
        let text = String::from_utf8_lossy(answer);
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer with a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.expect("a status line");
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.lines().filter_map(|line| line.split_once(": "));
        headers.find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("the body is JSON")
    }
}
