//! Programs that others wrote, and services, on free ports of loopback.

use std::future::Future;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt as _;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use weir_upstream::{Outgoing, SendOptions, Settings, Upstream};

/// A running program. It is killed when it is dropped.
pub(crate) struct Program {
    child: Child,
    pub(crate) addr: SocketAddr,
    pub(crate) directory: TempDir,
}

impl Program {
    /// Starts the program that `command` makes for an address and a directory, and waits until it
    /// accepts connections.
    pub(crate) fn start(command: impl Fn(SocketAddr, &Path) -> Command) -> Program {
        // A port that was free a moment ago may be taken: then another one is tried.
        for _ in 0..5 {
            let directory = tempfile::tempdir().unwrap();
            let addr = free_addr();
            let mut child = spawn(&mut command(addr, directory.path()));
            if listens(&mut child, addr) {
                return Program { child, addr, directory };
            }
        }
        panic!("the program did not start: {:?}", command(free_addr(), Path::new("/tmp")));
    }

    /// Ends it, and starts another one at its address.
    pub(crate) fn restart(&mut self, command: impl Fn(SocketAddr, &Path) -> Command) {
        self.stop();
        self.child = spawn(&mut command(self.addr, self.directory.path()));
        assert!(listens(&mut self.child, self.addr), "the program did not start again");
    }

    pub(crate) fn stop(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let kill = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(kill.unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn listens(child: &mut Child, addr: SocketAddr) -> bool {
    for _ in 0..1_500 {
        if TcpStream::connect(addr).is_ok() {
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        #[expect(clippy::disallowed_methods, reason = "the test waits for another process")]
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

pub(crate) fn free_addr() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A service of HTTP/1.1 that answers each request with `word`, and closes.
pub(crate) async fn service(addr: SocketAddr, word: &'static str) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind(addr).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                let length = word.len();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{word}"
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    addr
}

/// The body of the answer, or the error.
pub(crate) async fn ask(upstream: &Upstream) -> String {
    let request = Request::get("/").body(Outgoing::Whole(bytes::Bytes::new())).unwrap();
    match upstream.send(request, SendOptions::default()).await {
        Ok(answer) => {
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            String::from_utf8_lossy(&body).into_owned()
        }
        Err(error) => error.to_string(),
    }
}

pub(crate) fn upstream(address: &str, change: impl FnOnce(&mut Settings)) -> Upstream {
    let mut settings = Settings::new("api", &[address]);
    settings.connect_timeout = PATIENCE;
    settings.try_timeout = PATIENCE;
    settings.deadline = PATIENCE;
    change(&mut settings);
    Upstream::new(settings).unwrap()
}

/// Repeats until it holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    for _ in 0..3_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not within a minute: {what}");
}

/// Only a test that fails waits for so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
