//! The example `remote_signer`: its key is in another process, which may stop, or end.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "some of it is for gateways inside the test")]
mod common;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use common::{Peer, eventually, hello};
use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// One of the example's two processes; killed when dropped.
struct Process(Child);

impl Process {
    /// Starts it, and waits for the line that says where it is.
    fn start(arguments: &[&str], log: &Path) -> (Process, String) {
        let mut child = example()
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let read = stdout.read_line(&mut line).unwrap();
        assert!(read > 0, "{arguments:?} has ended: {}", std::fs::read_to_string(log).unwrap());
        (Process(child), line.trim().to_owned())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A gateway and its signer.
struct Pair {
    directory: TempDir,
    _gateway: Process,
    addr: SocketAddr,
    admin: SocketAddr,
    signer: Option<Process>,
}

impl Pair {
    fn start() -> Pair {
        let directory = tempfile::tempdir().unwrap();
        let signer = start_signer(directory.path());
        let mut arguments = vec!["serve", directory.path().to_str().unwrap()];
        let options = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        arguments.extend(options.into_iter().chain(["--handshake-threads", "2"]));
        let (gateway, line) = Process::start(&arguments, &directory.path().join("log"));
        let (addr, admin) =
            line.strip_prefix("TLS on ").unwrap().split_once(", admin API on ").unwrap();
        let (addr, admin) = (addr.parse().unwrap(), admin.parse().unwrap());
        Pair { directory, _gateway: gateway, addr, admin, signer: Some(signer) }
    }

    /// A client that has no session.
    async fn connect(&self, version: &'static SupportedProtocolVersion) -> std::io::Result<()> {
        let chain = self.directory.path().join("chain.pem");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(chain).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let socket = TcpStream::connect(self.addr).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
        let mut peer = Peer::over(stream);
        peer.say(hello("d1", "", &[])).await;
        peer.welcome().await;
        Ok(())
    }

    async fn expect_internal_error(&self) {
        for version in [&TLS13, &TLS12] {
            let error = self.connect(version).await.unwrap_err();
            let error = error.get_ref().unwrap().downcast_ref::<rustls::Error>();
            let expected = rustls::Error::AlertReceived(AlertDescription::InternalError);
            assert_eq!(error, Some(&expected), "{version:?}");
        }
    }

    /// The value of a metric.
    async fn metric(&self, name: &str) -> u64 {
        let mut socket = TcpStream::connect(self.admin).await.unwrap();
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.admin);
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).await.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().unwrap()
    }

    async fn await_log(&self, what: &str) {
        let path = self.directory.path().join("log");
        let is_there = || std::fs::read_to_string(&path).unwrap().contains(what);
        eventually(is_there, what).await;
    }
}

fn example() -> Command {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().with_file_name("examples").join("remote_signer");
    assert!(path.exists(), "{} is not built: cargo build -p weir --examples", path.display());
    Command::new(path)
}

fn start_signer(directory: &Path) -> Process {
    let arguments = ["sign", directory.to_str().unwrap(), "--latency-ms", "5"];
    let (signer, line) = Process::start(&arguments, &directory.join("signer.log"));
    assert!(line.starts_with("signing at "), "{line}");
    signer
}

const FAILED: &str = "weir_tls_handshakes_failed_total{cause=\"signer\"}";

#[tokio::test]
async fn a_signer_that_has_ended_fails_handshakes_until_there_is_another() {
    let mut pair = Pair::start();
    for version in [&TLS13, &TLS12] {
        pair.connect(version).await.unwrap();
    }
    assert_eq!(pair.metric(FAILED).await, 0);

    pair.signer = None;
    pair.expect_internal_error().await;
    assert_eq!(pair.metric(FAILED).await, 2);
    assert_eq!(pair.metric("weir_tls_alerts_sent_total{alert=\"internal_error\"}").await, 2);
    pair.await_log("the signer has failed; without it handshakes fail").await;
    pair.await_log("signer.sock: Connection refused").await;

    pair.signer = Some(start_signer(pair.directory.path()));
    for version in [&TLS13, &TLS12] {
        pair.connect(version).await.unwrap();
    }
    assert_eq!(pair.metric(FAILED).await, 2);
}

/// Both handshake threads wait for it, and are there again afterwards.
#[tokio::test]
async fn a_signer_that_stands_still_holds_nobody_for_ever() {
    let pair = Pair::start();
    let signer = pair.signer.as_ref().unwrap();
    // It leaves a connection behind to be used again.
    pair.connect(&TLS13).await.unwrap();
    signer.signal(Signal::STOP);
    tokio::join!(pair.expect_internal_error(), pair.expect_internal_error());
    assert_eq!(pair.metric(FAILED).await, 4);
    pair.await_log("signer.sock has not answered within 2s").await;
    signer.signal(Signal::CONT);
    for version in [&TLS13, &TLS12] {
        pair.connect(version).await.unwrap();
    }
}

#[test]
fn without_a_signer_the_gateway_does_not_start() {
    let directory = tempfile::tempdir().unwrap();
    drop(start_signer(directory.path()));
    let output = example()
        .args(["serve", directory.path().to_str().unwrap()])
        .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .output()
        .unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    let expected = format!(
        "tls.certificates[0].key: {socket}: the key cannot be had: {socket}: Connection refused",
        socket = directory.path().join("signer.sock").display()
    );
    assert!(log.contains(&expected), "{log}");
}
