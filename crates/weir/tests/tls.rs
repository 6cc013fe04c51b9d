//! Devices that connect with TLS.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "some of it is for devices without TLS")]
mod common;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use common::{Hears, Peer, Says, config, eventually, hello, start};
use rustls::client::WantsClientCert;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use weir::{
    CertificateConfig, ClientAuth, ClientIdentity, Config, Gateway, Payload, Publication, Target,
    TokenConfig,
};
use weir_wire::CloseReason;
use weir_wire::v1::{Ping, Publish};

/// A certificate in files, and whoever trusts it.
struct Authority {
    directory: TempDir,
    certificate: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Authority {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, pem: String| {
            let mut file = std::fs::File::create(directory.path().join(name)).unwrap();
            file.write_all(pem.as_bytes()).unwrap();
        };
        write("chain.pem", made.cert.pem());
        write("key.pem", made.signing_key.serialize_pem());
        Authority { certificate: made.cert.der().clone(), directory }
    }

    /// A gateway that listens with TLS only where it must.
    fn config(&self) -> Config {
        let mut config = config();
        config.listen.tls = vec!["127.0.0.1:0".parse().unwrap()];
        config.tls.certificates = vec![CertificateConfig {
            certificate: self.directory.path().join("chain.pem"),
            key: self.directory.path().join("key.pem"),
        }];
        config
    }

    fn client(&self, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
        Arc::new(self.client_of(version).with_no_client_auth())
    }

    fn client_of(
        &self,
        version: &'static SupportedProtocolVersion,
    ) -> ConfigBuilder<ClientConfig, WantsClientCert> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
    }
}

type Stream = tokio_rustls::client::TlsStream<TcpStream>;

async fn connect(gateway: &Gateway, client: &Arc<ClientConfig>) -> Peer<Stream> {
    let socket = TcpStream::connect(gateway.tls_addrs()[0]).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::clone(client));
    Peer::over(connector.connect(name, socket).await.unwrap())
}

fn text(target: Target<'_>) -> Publication<'_> {
    Publication {
        target,
        payload: Payload::Text("one"),
        content_type: "",
        key: "",
        ttl: None,
        sender: None,
        idempotency_key: None,
    }
}

fn name_of(version: &SupportedProtocolVersion) -> &'static str {
    if version.version == rustls::ProtocolVersion::TLSv1_3 { "1.3" } else { "1.2" }
}

/// The value of a metric.
fn metric(gateway: &Gateway, name: &str) -> u64 {
    let text = gateway.handle().metrics();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or(" 0").trim().parse().unwrap()
}

#[tokio::test]
async fn a_device_is_served_through_tls() {
    let authority = Authority::new();
    for version in [&TLS13, &TLS12] {
        let gateway = start(authority.config()).await;
        let mut peer = connect(&gateway, &authority.client(version)).await;
        peer.say(hello("d1", "", &["news"])).await;
        peer.welcome().await;
        peer.subscribed().await;
        let accepted =
            gateway.handle().publish(&text(Target::Topic("news"))).unwrap().await.unwrap();
        assert_eq!(accepted.connections, 1);
        assert_eq!(peer.push().await.topic, "news");
        if name_of(version) == "1.3" {
            peer.stream.get_mut().1.refresh_traffic_keys().unwrap();
        }
        peer.say(Says::Ping(Ping { data: b"now".to_vec() })).await;
        assert!(matches!(peer.hear().await, Some(Hears::Pong(pong)) if pong.data == b"now"));
        let full = format!("weir_tls_handshakes_total{{version=\"{}\"", name_of(version));
        assert!(gateway.handle().metrics().contains(&full), "{full}");
        assert_eq!(metric(&gateway, "weir_settle_seconds_count"), 1);
        let shutdown = tokio::spawn(gateway.shutdown());
        peer.expect_goodbye(CloseReason::Draining).await;
        drop(peer);
        shutdown.await.unwrap();
    }
}

#[tokio::test]
async fn a_refusal_is_said_through_tls() {
    let authority = Authority::new();
    let gateway = start(authority.config()).await;
    for version in [&TLS13, &TLS12] {
        let mut peer = connect(&gateway, &authority.client(version)).await;
        peer.say(hello("d1", "wrong", &[])).await;
        peer.expect_goodbye(CloseReason::Unauthorized).await;
    }
    let closed = gateway.handle().counters().closed(CloseReason::Unauthorized);
    assert_eq!((closed, metric(&gateway, "weir_tls_not_moved_total")), (2, 0));
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_second_connection_resumes_the_session() {
    let authority = Authority::new();
    let gateway = start(authority.config()).await;
    for version in [&TLS13, &TLS12] {
        let client = authority.client(version);
        for is_resumed in [false, true] {
            let mut peer = connect(&gateway, &client).await;
            // What comes in answer comes behind the tickets.
            peer.say(hello("d1", "wrong", &[])).await;
            peer.expect_goodbye(CloseReason::Unauthorized).await;
            let kind = peer.stream.get_ref().1.handshake_kind().unwrap();
            assert_eq!(kind == rustls::HandshakeKind::Resumed, is_resumed, "{version:?}");
        }
    }
    gateway.shutdown().await;
}

#[tokio::test]
async fn what_is_said_before_the_end_counts_when_all_comes_at_once() {
    let authority = Authority::new();
    for version in [&TLS13, &TLS12] {
        let (told, heard) = std::sync::mpsc::sync_channel(1);
        let builder = Gateway::builder().config(authority.config()).on_publish(move |message| {
            let _ = told.send(message.topic.to_owned());
            Ok(None)
        });
        let gateway = common::start_with(builder).await;
        let mut peer = connect(&gateway, &authority.client(version)).await;
        let publish = Publish { topic: "news".to_owned(), ..Publish::default() };
        let (socket, session) = peer.stream.get_mut();
        for message in [hello("d1", "", &[]), Says::Publish(publish)] {
            session.writer().write_all(&common::encode(message)).unwrap();
        }
        session.send_close_notify();
        let mut bytes = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut bytes).unwrap();
        }
        socket.write_all(&bytes).await.unwrap();
        eventually(|| heard.try_recv().is_ok_and(|topic| topic == "news"), "it is published").await;
        gateway.shutdown().await;
    }
}

#[tokio::test]
async fn a_certificate_says_which_device_it_is() {
    let authority = Authority::new();
    let issuer = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new([]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&issuer).unwrap();
    let ca_path = authority.directory.path().join("ca.pem");
    std::fs::write(&ca_path, ca.pem()).unwrap();
    let issuer = rcgen::Issuer::new(params, issuer);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new([]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "meter-7");
    let certificate = params.signed_by(&key, &issuer).unwrap();

    let mut config = authority.config();
    config.tls.client_auth = ClientAuth::Required;
    config.tls.client_ca = ca_path;
    config.tls.client_identity = ClientIdentity::CommonName;
    config.auth.anonymous = Some(false);
    config.auth.tokens = vec![TokenConfig { token: "other".to_owned(), ..TokenConfig::default() }];
    let gateway = start(config).await;
    for version in [&TLS13, &TLS12] {
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let client = authority.client_of(version);
        let client = client.with_client_auth_cert(vec![certificate.der().clone()], key.into());
        let client = Arc::new(client.unwrap());
        // The second time the session is resumed, and so is who it is.
        for device in ["", "meter-7"] {
            let mut peer = connect(&gateway, &client).await;
            peer.say(hello(device, "", &[])).await;
            peer.welcome().await;
            let device = gateway.handle().publish(&text(Target::Device("meter-7")));
            assert!(device.unwrap().await.unwrap().connections > 0);
        }
        let mut peer = connect(&gateway, &client).await;
        peer.say(hello("meter-8", "", &[])).await;
        peer.expect_goodbye(CloseReason::Unauthorized).await;
    }
    gateway.shutdown().await;
}

/// A ClientHello to its half.
async fn half_greeted(gateway: &Gateway) -> TcpStream {
    let mut socket = TcpStream::connect(gateway.tls_addrs()[0]).await.unwrap();
    for byte in [22, 3, 1, 0, 200, 1] {
        socket.write_all(&[byte]).await.unwrap();
    }
    socket
}

#[tokio::test]
async fn who_does_not_come_to_an_end_is_ended() {
    let authority = Authority::new();
    let mut config = authority.config();
    config.connection.hello_timeout = Duration::from_millis(300);
    let gateway = start(config).await;
    let mut socket = half_greeted(&gateway).await;
    // Nothing can be said to it.
    assert_eq!(socket.read_to_end(&mut Vec::new()).await.unwrap(), 0);
    let failed = "weir_tls_handshakes_failed_total{cause=\"timed_out\"}";
    eventually(|| metric(&gateway, failed) == 1, "the failure is counted").await;
    assert_eq!(gateway.handle().counters().closed(CloseReason::HelloTimeout), 1);
    gateway.shutdown().await;
}

#[tokio::test]
async fn handshakes_do_not_hold_up_the_end() {
    let authority = Authority::new();
    let mut config = authority.config();
    config.connection.hello_timeout = Duration::from_secs(3_600);
    let gateway = start(config).await;
    let mut sockets = [half_greeted(&gateway).await, half_greeted(&gateway).await];
    eventually(|| gateway.handle().counters().unsettled() == 2, "they are there").await;
    let handle = gateway.handle();
    let shutdown = tokio::spawn(gateway.shutdown());
    for socket in &mut sockets {
        assert_eq!(socket.read_to_end(&mut Vec::new()).await.unwrap(), 0);
    }
    drop(sockets);
    shutdown.await.unwrap();
    assert_eq!(handle.counters().closed(CloseReason::Draining), 2);
}

#[tokio::test]
async fn what_is_no_tls_gets_an_alert() {
    let authority = Authority::new();
    let gateway = start(authority.config()).await;
    let mut socket = TcpStream::connect(gateway.tls_addrs()[0]).await.unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, [21, 3, 3, 0, 2, 2, 50]);
    let failed = "weir_tls_handshakes_failed_total{cause=\"malformed\"}";
    eventually(|| metric(&gateway, failed) == 1, "the failure is counted").await;
    assert_eq!(metric(&gateway, "weir_tls_alerts_sent_total{alert=\"decode_error\"}"), 1);
    gateway.shutdown().await;
}
