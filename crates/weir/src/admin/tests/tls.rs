//! TLS in the admin API.

use std::sync::Arc;

use rustls::client::{Resumption, Tls12Resumption};
use rustls::crypto::aws_lc_rs::cipher_suite::{
    TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, ConnectionTrafficSecrets, SupportedProtocolVersion};
use rustls_pki_types::ServerName;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use weir_engine::tls::{Alert, Cipher, Keys12, Session};

use super::check;
use super::device::Device;
use super::http::Server;
use super::openmetrics;
use crate::tls::testing::Certificate;
use crate::{CertificateConfig, ClientAuth, Config};

/// A gateway with TLS, and the certificate that its clients trust.
struct Secured {
    server: Server,
    certificate: Certificate,
    directory: TempDir,
}

impl Secured {
    async fn start(configure: impl FnOnce(&mut Config, &TempDir)) -> Secured {
        let certificate = Certificate::new();
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("chain.pem"), &certificate.pem).unwrap();
        std::fs::write(path("key.pem"), certificate.key.serialize_pem()).unwrap();
        let mut config = Config::default();
        config.listen.tls = vec!["127.0.0.1:0".parse().unwrap()];
        config.tls.certificates =
            vec![CertificateConfig { certificate: path("chain.pem"), key: path("key.pem") }];
        configure(&mut config, &directory);
        let server = Box::pin(Server::start(config)).await;
        Secured { server, certificate, directory }
    }

    fn client(&self, version: &'static SupportedProtocolVersion) -> ClientConfig {
        self.certificate.client(version)
    }

    async fn socket(&self) -> TcpStream {
        TcpStream::connect(self.server.tls_addr()).await.unwrap()
    }

    async fn shake_hands(&self, client: &Arc<ClientConfig>) -> TlsStream<TcpStream> {
        let connector = TlsConnector::from(Arc::clone(client));
        connector.connect(name(), self.socket().await).await.unwrap()
    }

    async fn device(&self, client: &Arc<ClientConfig>) -> Device<TlsStream<TcpStream>> {
        Device::over(self.shake_hands(client).await, "a", &["news"]).await
    }

    /// A device connects and sends a fatal alert.
    async fn say_alert(&self) {
        let suite = TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
        let mut client = self.certificate.client_with(&TLS12, &[suite]);
        client.enable_secret_extraction = true;
        let device = Box::pin(self.device(&Arc::new(client))).await;
        let (mut socket, conn) = device.stream.into_inner();
        let secrets = conn.dangerous_extract_secrets().unwrap();
        let (sent, ConnectionTrafficSecrets::Aes128Gcm { key, iv }) = secrets.tx else {
            panic!("another cipher")
        };
        let keys = Keys12 { key: key.as_ref(), iv: iv.as_ref() };
        let mut session = Session::tls12(Cipher::Aes128Gcm, (keys, sent), (keys, 0)).unwrap();
        let mut record = Vec::new();
        session.seal_alert(Alert::InternalError, &mut record).unwrap();
        socket.write_all(&record).await.unwrap();
        socket.read_to_end(&mut Vec::new()).await.unwrap();
    }

    async fn metrics(&self) -> String {
        let answer =
            self.server.ask("GET /metrics\nAccept: application/openmetrics-text", "").await;
        openmetrics::check_text(&answer.body);
        answer.body
    }

    /// The value of the series whose line begins with this text.
    async fn value(&self, series: &str) -> String {
        let text = self.metrics().await;
        text.lines().find_map(|line| line.strip_prefix(series)).expect("it is there").to_owned()
    }

    /// Asks until all of these lines are there. A shard publishes its counts at the end of its
    /// turn.
    async fn await_lines(&self, lines: &[&str]) {
        let ask = async {
            loop {
                let text = self.metrics().await;
                if lines.iter().all(|line| text.lines().any(|other| other == *line)) {
                    return;
                }
            }
        };
        if tokio::time::timeout(PATIENCE, ask).await.is_err() {
            let text = self.metrics().await;
            let is_of_tls =
                |line: &&str| ["_tls_", "transport="].iter().any(|of| line.contains(of));
            let tls: Vec<_> = text.lines().filter(is_of_tls).collect();
            panic!("never all of {lines:#?} in {tls:#?}");
        }
    }
}

fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

#[tokio::test]
async fn handshakes_count_by_what_was_agreed() {
    let secured = Secured::start(|_, _| ()).await;
    let of = |version, suite| secured.certificate.client_with(version, &[suite]);
    let suite_12 = TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384;
    let mut ids = of(&TLS12, suite_12);
    ids.resumption =
        Resumption::in_memory_sessions(8).tls12_resumption(Tls12Resumption::SessionIdOnly);
    for client in [of(&TLS13, TLS13_CHACHA20_POLY1305_SHA256), of(&TLS12, suite_12), ids] {
        let client = Arc::new(client);
        for _ in 0..3 {
            secured.device(&client).await;
        }
    }
    let suite_12 = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384";
    let suite_13 = "TLS13_CHACHA20_POLY1305_SHA256";
    let text = secured.metrics().await;
    let handshakes: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix("weir_tls_handshakes_total")).collect();
    let expected = [
        ("1.3", suite_13, "full", 1),
        ("1.3", suite_13, "ticket", 2),
        ("1.2", suite_12, "full", 2),
        ("1.2", suite_12, "ticket", 2),
        ("1.2", suite_12, "session_id", 2),
    ];
    let expected = expected.map(|(version, suite, kind, count)| {
        format!("{{version=\"{version}\",suite=\"{suite}\",kind=\"{kind}\"}} {count}")
    });
    assert_eq!(handshakes, expected);
    for line in [
        "weir_tls_not_moved_total 0",
        "weir_tls_handshake_queue 0",
        "weir_tls_handshakes_refused_total 0",
        "weir_settle_seconds_count 9",
        "weir_settle_seconds_bucket{le=\"+Inf\"} 9",
    ] {
        assert!(text.lines().any(|other| other == line), "no {line:?} in\n{text}");
    }
    secured.server.stop().await;
}

#[tokio::test]
async fn records_and_alerts_count_on_the_front_and_on_the_shards() {
    let secured = Secured::start(|_, _| ()).await;
    let client = Arc::new(secured.client(&TLS13));
    // New keys, and a proper end.
    let mut device = secured.device(&client).await;
    device.stream.get_mut().1.refresh_traffic_keys().unwrap();
    device.stream.shutdown().await.unwrap();
    assert_eq!(device.stream.read(&mut [0; 9]).await.unwrap(), 0);
    // A record that does not open: before a shard has the connection, and afterwards.
    let mut stream = secured.shake_hands(&client).await;
    let mut device = secured.device(&client).await;
    for stream in [&mut stream, &mut device.stream] {
        stream.get_mut().0.write_all(&[23, 3, 3, 0, 20]).await.unwrap();
        stream.get_mut().0.write_all(&[7; 20]).await.unwrap();
        // Behind a Goodbye, once there has been a Welcome.
        let error = stream.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert!(error.to_string().contains("BadRecordMac"), "{error}");
    }
    Box::pin(secured.say_alert()).await;
    secured
        .await_lines(&[
            "weir_tls_alerts_sent_total{alert=\"close_notify\"} 1",
            "weir_tls_alerts_sent_total{alert=\"bad_record_mac\"} 2",
            "weir_tls_alerts_sent_total{alert=\"other\"} 0",
            "weir_tls_alerts_received_total 1",
            // The answer to the client's alert is an alert too.
            "weir_tls_key_updates_total 2",
            "weir_connections_closed_total{reason=\"peer_closed\"} 1",
            "weir_connections_closed_total{reason=\"tls_record\"} 3",
        ])
        .await;
    // The greetings of two devices, in one record or more, and the end of each.
    let sealed = secured.value("weir_tls_records_sealed_total ").await.parse::<u64>().unwrap();
    assert!(sealed >= 4, "{sealed}");
    secured.server.stop().await;
}

/// The line that says how many connections of a transport are in a state.
fn connections(transport: &str, state: &str, count: &str) -> String {
    format!("weir_connections{{transport=\"{transport}\",state=\"{state}\"}} {count}")
}

#[tokio::test]
async fn connections_tell_their_transport_from_accept_to_end() {
    let secured = Secured::start(|_, _| ()).await;
    // How many there are `[unsettled, settled, lingering]` of each transport.
    let count = async |tcp: [&str; 3], tls: [&str; 3]| {
        let states = ["unsettled", "settled", "lingering"];
        let line = |transport, counts: [&str; 3]| {
            [0, 1, 2].map(|at| connections(transport, states[at], counts[at]))
        };
        let lines = [line("tcp", tcp), line("tls", tls)].concat();
        secured.await_lines(&lines.iter().map(String::as_str).collect::<Vec<_>>()).await;
    };
    let plain_addr = secured.server.device_addr();
    let silent = TcpStream::connect(plain_addr).await.unwrap();
    let silent_secure = [secured.socket().await, secured.socket().await];
    count(["1", "0", "0"], ["2", "0", "0"]).await;
    drop((silent, silent_secure));
    count(["0", "0", "0"], ["0", "0", "0"]).await;

    let client = Arc::new(secured.client(&TLS13));
    let plain = Device::connect(plain_addr, "b", &["news"]).await;
    let secure = Box::pin(secured.device(&client)).await;
    let stream = Box::pin(secured.shake_hands(&client)).await;
    let other = Device::over(stream, "c", &[]).await;
    count(["0", "1", "0"], ["0", "2", "0"]).await;
    for (device, of, transport) in [
        (plain.connection_id, "b", "tcp"),
        (secure.connection_id, "a", "tls"),
        (other.connection_id, "c", "tls"),
    ] {
        let path = format!("GET /v1/connections/{device:016x}");
        let one = check(&secured.server, &path, "", 200, &[]).await.json();
        assert_eq!((&one["device"], &one["transport"]), (&json!(of), &json!(transport)), "{one}");
    }
    drop((plain, secure, other));
    count(["0", "0", "0"], ["0", "0", "0"]).await;
    secured.server.stop().await;
}

#[tokio::test]
async fn those_that_linger_tell_their_transport() {
    let secured = Secured::start(|_, _| ()).await;
    let client = Arc::new(secured.client(&TLS13));
    // One lingers for a second; where that is too short to look, there is another.
    let caught = async {
        loop {
            let mut device = Box::pin(secured.device(&client)).await;
            let close = format!("DELETE /v1/connections/{:016x}", device.connection_id);
            check(&secured.server, &close, "", 204, &[]).await;
            assert_eq!(device.goodbye().await, "closed_by_operator");
            let text = secured.metrics().await;
            let has = |line: String| text.lines().any(|other| other == line);
            assert!(has(connections("tcp", "lingering", "0")), "{text}");
            if !has(connections("tls", "lingering", "0")) {
                return device;
            }
        }
    };
    let device = tokio::time::timeout(PATIENCE, Box::pin(caught)).await.expect("one lingers");
    drop(device);
    secured.await_lines(&[&connections("tls", "lingering", "0")]).await;
    secured.server.stop().await;
}

#[tokio::test]
async fn handshakes_that_fail_count_by_cause_and_alert() {
    let secured = Secured::start(|config, directory| {
        config.tls.client_auth = ClientAuth::Required;
        config.tls.client_ca = directory.path().join("chain.pem");
    })
    .await;
    let mut socket = secured.socket().await;
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert_eq!(socket.read_to_end(&mut Vec::new()).await.unwrap(), 7);
    // The alert is readable in TLS 1.2 only.
    for version in [&TLS12, &TLS13] {
        let connector = TlsConnector::from(Arc::new(secured.client(version)));
        let socket = secured.socket().await;
        if let Ok(mut stream) = connector.connect(name(), socket).await {
            stream.read(&mut [0; 9]).await.unwrap_err();
        }
    }
    let stranger = Arc::new(Certificate::new().client(&TLS13));
    let connector = TlsConnector::from(stranger);
    connector.connect(name(), secured.socket().await).await.unwrap_err();
    let chain = secured.directory.path().join("chain.pem");
    let expiry = format!(
        "weir_tls_certificate_expiry_seconds{{kind=\"certificate\",file=\"{}\"}} ",
        chain.display()
    );
    secured
        .await_lines(&[
            "weir_tls_handshakes_failed_total{cause=\"malformed\"} 1",
            "weir_tls_handshakes_failed_total{cause=\"no_certificate\"} 2",
            "weir_tls_handshakes_failed_total{cause=\"alert_received\"} 1",
            "weir_tls_alerts_sent_total{alert=\"decode_error\"} 1",
            "weir_tls_alerts_sent_total{alert=\"certificate_required\"} 2",
            "weir_tls_alerts_received_total 1",
        ])
        .await;
    let ends = secured.value(&expiry).await.parse::<u64>().unwrap();
    assert!(ends > 1_700_000_000, "{ends}");
    secured.server.stop().await;
}

#[tokio::test]
async fn handshakes_that_find_no_place_count_as_refused() {
    let secured = Secured::start(|config, _| {
        config.tls.handshake_threads = 1;
        config.tls.handshake_queue_max = 1;
    })
    .await;
    let mut hello = Vec::new();
    let client = Arc::new(secured.client(&TLS13));
    ClientConnection::new(client, name()).unwrap().write_tls(&mut hello).unwrap();
    let refused = "weir_tls_handshakes_refused_total ";
    let mut sockets = Vec::new();
    let registry = async {
        loop {
            for _ in 0..32 {
                let mut socket = secured.socket().await;
                socket.write_all(&hello).await.unwrap();
                sockets.push(socket);
            }
            if secured.value(refused).await != "0" {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, registry).await.expect("one is refused");
    // The others are served or refused meanwhile; both counts of those refused come to the same.
    drop(sockets);
    let by_cause = "weir_connections_refused_total{cause=\"handshakes\"} ";
    let counts = async { while secured.value(refused).await != secured.value(by_cause).await {} };
    tokio::time::timeout(PATIENCE, counts).await.expect("the counts agree");
    secured.await_lines(&["weir_tls_handshake_queue 0"]).await;
    secured.server.stop().await;
}

/// Nothing here takes so long. A test that does hangs.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
