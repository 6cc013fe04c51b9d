//! `weir subscribe` and `weir publish` over TLS, with a server that does not use our TLS code.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;
use weir_wire::v1::server_message::Kind;
use weir_wire::{frame, v1};

type Conn = StreamOwned<ServerConnection, TcpStream>;

/// A server with its own certificate for `weir.test`.
struct Server {
    listener: TcpListener,
    config: Arc<ServerConfig>,
    files: TempDir,
}

impl Server {
    fn new() -> Server {
        let made = rcgen::generate_simple_self_signed(vec!["weir.test".to_owned()]).unwrap();
        let files = TempDir::new().unwrap();
        std::fs::write(files.path().join("ca.pem"), made.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Server { listener, config: Arc::new(config), files }
    }

    fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    fn ca(&self) -> String {
        self.files.path().join("ca.pem").to_str().unwrap().to_owned()
    }

    /// Serves one connection by a script.
    fn serve(&self, script: impl FnOnce(Conn) + Send + 'static) -> JoinHandle<()> {
        let listener = self.listener.try_clone().unwrap();
        let config = self.config.clone();
        thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            script(StreamOwned::new(ServerConnection::new(config).unwrap(), socket));
        })
    }
}

fn weir(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir")).args(args).env_clear().output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_subscriber_speaks_tls() {
    let server = Server::new();
    let serving = server.serve(|mut conn| {
        assert!(conn.read(&mut [0; 1024]).unwrap() > 0, "Hello");
        let mut out = Vec::new();
        for kind in [
            Kind::Welcome(v1::Welcome { heartbeat_ms: 60_000, ..v1::Welcome::default() }),
            Kind::Push(v1::Push {
                topic: "t".to_owned(),
                payload: Some(v1::push::Payload::Text("hello".to_owned())),
                offset: 3,
                ..v1::Push::default()
            }),
        ] {
            frame::encode(&v1::ServerMessage { kind: Some(kind) }, &mut out);
        }
        conn.write_all(&out).unwrap();
        // Until it has had enough; it ends without TLS's own end.
        let _ = conn.read(&mut [0; 1024]);
    });
    let (addr, ca) = (server.addr().to_string(), server.ca());
    let args = ["subscribe", "t", "--count", "1", "--addr", &addr, "--tls", "--ca", &ca];
    let output = weir(&[&args[..], &["--server-name", "weir.test"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "t 3 hello\n");
    serving.join().unwrap();
}

#[test]
fn a_server_that_is_not_believed_is_not_subscribed_to() {
    let (server, other) = (Server::new(), Server::new());
    let addr = server.addr().to_string();
    for (ca, name, expected) in [
        (other.ca(), "weir.test", "none of the given CAs has signed it (ca)"),
        // Without a name the host of the address counts.
        (server.ca(), "", "certificate not valid for name \"127.0.0.1\""),
    ] {
        let serving = server.serve(|mut conn| {
            assert!(conn.read(&mut [0; 1024]).is_err(), "nothing is said to a stranger");
        });
        let mut args = vec!["subscribe", "t", "--addr", &addr, "--tls", "--ca", &ca];
        if !name.is_empty() {
            args.extend(["--server-name", name]);
        }
        let output = weir(&args);
        assert!(!output.status.success());
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        serving.join().unwrap();
    }
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    let output = weir(&["subscribe", "t", "--tls", "--ca", "/nowhere/ca.pem"]);
    assert!(stderr(&output).contains("cannot read /nowhere/ca.pem"), "{}", stderr(&output));
    let server = Server::new();
    let ca = server.ca();
    let output = weir(&["subscribe", "t", "--tls", "--ca", &ca, "--certificate", &ca]);
    assert!(stderr(&output).contains("certificate: no private key in PEM"), "{}", stderr(&output));
}

#[test]
fn a_message_is_published_through_tls() {
    let server = Server::new();
    let serving = server.serve(|mut conn| {
        let mut request = String::new();
        while !request.ends_with('}') {
            let mut buf = [0; 1024];
            let got = conn.read(&mut buf).unwrap();
            assert!(got > 0, "{request}");
            request += std::str::from_utf8(&buf[..got]).unwrap();
        }
        assert!(request.starts_with("POST /v1/publish "), "{request}");
        let body = r#"{"id":"00ff","connections":1,"offset":null}"#;
        let head = "HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\ncontent-length";
        write!(conn, "{head}: {}\r\n\r\n{body}", body.len()).unwrap();
    });
    let (addr, ca) = (server.addr().to_string(), server.ca());
    let args = ["publish", "--topic", "t", "--text", "x", "--admin", &addr, "--tls", "--ca", &ca];
    let output = weir(&[&args[..], &["--server-name", "weir.test"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "queued for 1 connection: id 00ff\n");
    serving.join().unwrap();
}
