//! Workers and guests that speak TLS with a server that was written by others.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use weir_wire::v1::Pong;

use super::*;
use crate::protocol::{ChurnPlan, ChurnTally, EchoPlan, Ways};
use crate::tls::credentials::{Credentials, KeyKind};
use crate::tls::{TlsPlan, TlsVersion, chain_and_key, roots};

/// A server that welcomes, pushes one message to whoever subscribes, and answers pings.
struct Server {
    addr: SocketAddr,
    credentials: Credentials,
}

impl Server {
    fn start(kind: KeyKind, demand_client: bool) -> Server {
        let credentials = Credentials::make(kind, "bench.test").unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .unwrap();
        let builder = if demand_client {
            let roots = Arc::new(roots(&credentials.ca).unwrap());
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let (chain, key) = chain_and_key(&(credentials.chain.clone() + &credentials.key)).unwrap();
        let mut config = builder.with_single_cert(chain, key).unwrap();
        config.ticketer = aws_lc_rs::Ticketer::new().unwrap();
        config.alpn_protocols = vec![b"weir.v1".to_vec()];
        let config = Arc::new(config);
        let message = push(0);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        // Ends with the test program.
        thread::spawn(move || {
            for socket in listener.incoming() {
                let (config, message) = (config.clone(), message.clone());
                thread::spawn(move || serve(socket.unwrap(), config, &message));
            }
        });
        Server { addr, credentials }
    }

    fn plan(&self) -> TlsPlan {
        TlsPlan {
            ca: self.credentials.ca.clone(),
            server_name: "bench.test".to_owned(),
            ..TlsPlan::default()
        }
    }

    /// Opens connections; what was agreed on them.
    fn open(&self, tls: TlsPlan, count: u32) -> (Bench, BTreeMap<String, u64>) {
        let mut bench = Bench::start();
        bench.say(&Order::Open(OpenPlan { tls: Some(tls), ..plan(self.addr, count) }));
        let Answer::Opened { connected, error, handshakes, .. } = bench.hear() else {
            panic!("not opened")
        };
        assert_eq!((connected, error), (count, None));
        (bench, handshakes)
    }

    fn churn(&self, count: u64, ways: Ways) -> ChurnTally {
        let mut bench = Bench::start();
        bench.say(&Order::Churn(ChurnPlan {
            addr: self.addr,
            source: 98,
            hello: HelloPlan::default(),
            topic: String::new(),
            rate: 1e6,
            count,
            hold_ms: 0,
            ways,
        }));
        let Answer::Churned(tally) = bench.hear() else { panic!("no tally") };
        bench.end();
        *tally
    }
}

fn serve(socket: TcpStream, config: Arc<ServerConfig>, message: &[u8]) -> Option<()> {
    socket.set_nodelay(true).unwrap();
    let mut conn = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
    let mut bytes = Vec::new();
    loop {
        let mut buf = [0; 4096];
        let got = conn.read(&mut buf).ok().filter(|got| *got > 0)?;
        bytes.extend_from_slice(&buf[..got]);
        while let Some((body, used)) = frame::decode(&bytes, 1 << 20).unwrap() {
            let mut out = Vec::new();
            let mut say = |kind| frame::encode(&ServerMessage { kind: Some(kind) }, &mut out);
            let said = ClientMessage::decode(body).unwrap().kind.unwrap();
            if let client_message::Kind::Hello(hello) = said {
                say(Kind::Welcome(Welcome::default()));
                if !hello.topics.is_empty() {
                    say(Kind::Subscribed(Subscribed::default()));
                    out.extend_from_slice(message);
                }
            } else if let client_message::Kind::Ping(ping) = said {
                say(Kind::Pong(Pong { data: ping.data }));
            }
            bytes.drain(..used);
            conn.write_all(&out).ok()?;
        }
    }
}

fn only(version: TlsVersion, plan: TlsPlan) -> TlsPlan {
    TlsPlan { version: Some(version), ..plan }
}

#[test]
fn messages_arrive_whole_and_stamped_through_either_version() {
    let _stamping = crate::sys::tests::stamping();
    for (kind, version) in [(KeyKind::Ecdsa, TlsVersion::Tls13), (KeyKind::Rsa, TlsVersion::Tls12)]
    {
        let server = Server::start(kind, false);
        let (mut bench, agreed) = server.open(only(version, server.plan()), 20);
        assert_eq!(agreed.values().sum::<u64>(), 20, "{agreed:?}");
        let names = agreed.keys().cloned().collect::<String>();
        let shown = format!("{version:?}").replace("Tls1", "TLSv1_");
        assert!(names.starts_with(&shown) && names.ends_with(" full"), "{names}");
        let tally = bench.collect(1, 10_000);
        assert_eq!((tally.delivered, tally.missing, tally.wrong), (20, 0, 0), "{tally:?}");
        assert_eq!(tally.unstamped, 0, "{tally:?}");
        bench.end();
    }
}

#[test]
fn pings_are_answered_through_tls() {
    let server = Server::start(KeyKind::Ecdsa, false);
    let mut bench = Bench::start();
    bench.say(&Order::Open(OpenPlan {
        tls: Some(server.plan()),
        hello: Some(HelloPlan::default()),
        ..plan(server.addr, 4)
    }));
    assert!(matches!(bench.hear(), Answer::Opened { connected: 4, error: None, .. }));
    let plan = EchoPlan { size: 100, bare: false, rate: None, warm_up_ms: 10, measure_ms: 1500 };
    bench.say(&Order::Echo(plan));
    let Answer::Echoed(tally) = bench.hear() else { panic!("no tally") };
    assert!(tally.answered > 0, "{tally:?}");
    assert_eq!((tally.lost, tally.wrong, tally.closed), (0, 0, 0), "{tally:?}");
    bench.end();
}

#[test]
fn the_share_asked_for_resumes() {
    let server = Server::start(KeyKind::Ecdsa, false);
    for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
        let plan = TlsPlan { resume: 0.5, ..only(version, server.plan()) };
        let (bench, agreed) = server.open(plan, 40);
        let resumed: u64 =
            agreed.iter().filter(|(what, _)| what.ends_with(" resumed")).map(|(_, n)| n).sum();
        assert_eq!((resumed, agreed.values().sum::<u64>()), (20, 40), "{agreed:?}");
        bench.end();
    }
}

#[test]
fn clients_show_their_certificate_where_it_is_demanded() {
    let server = Server::start(KeyKind::Ecdsa, true);
    let client = Some(server.credentials.client.clone());
    let (bench, _) = server.open(TlsPlan { client, ..server.plan() }, 3);
    bench.end();
    let tls = Some(server.plan());
    let tally = server.churn(3, Ways { tls, ..Ways::default() });
    assert_eq!(tally.welcomed, 0, "{tally:?}");
    assert_eq!(tally.failed.values().sum::<u64>(), 3, "{tally:?}");
}

#[test]
fn a_server_that_others_vouch_for_is_not_believed() {
    let server = Server::start(KeyKind::Ecdsa, false);
    let stranger = Credentials::make(KeyKind::Ecdsa, "bench.test").unwrap();
    let wrong_name = TlsPlan { server_name: "other.test".to_owned(), ..server.plan() };
    for (plan, expected) in [
        (TlsPlan { ca: stranger.ca, ..server.plan() }, "invalid peer certificate"),
        (wrong_name, "not valid for name"),
    ] {
        let tally = server.churn(2, Ways { tls: Some(plan), ..Ways::default() });
        let how: String = tally.failed.keys().cloned().collect();
        assert!(how.contains(expected), "{tally:?}");
        assert_eq!((tally.welcomed, tally.failed.values().sum::<u64>()), (0, 2), "{tally:?}");
    }
}

#[test]
fn guests_come_one_window_at_a_time_and_say_what_they_exchanged() {
    let server = Server::start(KeyKind::Ecdsa, false);
    let tls = |resume| Some(TlsPlan { resume, ..only(TlsVersion::Tls13, server.plan()) });
    let full = server.churn(30, Ways { tls: tls(0.0), window: Some(3), ..Ways::default() });
    let resumed = server.churn(30, Ways { tls: tls(1.0), window: Some(3), ..Ways::default() });
    for tally in [&full, &resumed] {
        assert_eq!((tally.welcomed, tally.failed.len()), (30, 0), "{tally:?}");
        assert!(tally.tickets >= 30 && tally.seconds > 0.0, "{tally:?}");
        // ClientHello, the server's flight, Finished with Hello, tickets with Welcome.
        assert_eq!(tally.script.len(), 4, "{tally:?}");
    }
    let answer = |tally: &ChurnTally| tally.script[1];
    assert!(answer(&full) > 2 * answer(&resumed), "{full:?} {resumed:?}");
}
