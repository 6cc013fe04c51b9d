//! The same through TLS, with a server that was written by others.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{HandshakeKind, ProtocolVersion, RootCertStore, ServerConfig};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use weir_client::{Backoff, Client, ClientError, Event, Options, Payload, TlsError, TlsOptions};
use weir_wire::v1::client_message::Kind as FromDevice;
use weir_wire::v1::server_message::Kind as ToDevice;

use crate::peer::{Peer, push, pushed};

/// A CA, and what it has signed, in PEM.
struct Signed {
    ca: String,
    chain: String,
    key: String,
    client: String,
}

/// A server's side of one listener.
struct Server {
    listener: TcpListener,
    addr: std::net::SocketAddr,
    acceptor: TlsAcceptor,
    signed: Signed,
}

const NAME: &str = "weir.test";

fn signed() -> Signed {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, format!("CA {}", rand::random::<u64>()));
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let chain = params.signed_by(&key, &ca).unwrap().pem();
    let client_key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["device".to_owned()]).unwrap();
    let client = params.signed_by(&client_key, &ca).unwrap().pem() + &client_key.serialize_pem();
    Signed { ca: ca.pem(), chain, key: key.serialize_pem(), client }
}

impl Server {
    fn start(
        versions: &[&'static rustls::SupportedProtocolVersion],
        demand_client: bool,
    ) -> Server {
        let signed = signed();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .unwrap();
        let builder = if demand_client {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(signed.ca.as_bytes()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let chain = vec![CertificateDer::from_pem_slice(signed.chain.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(signed.key.as_bytes()).unwrap();
        let mut config = builder.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![b"weir.v1".to_vec()];
        // It takes little at a time, so that what is left over is seen to go on.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(16).unwrap();
        let addr = listener.local_addr().unwrap();
        Server { listener, addr, acceptor: TlsAcceptor::from(Arc::new(config)), signed }
    }

    fn options(&self) -> Options {
        Options::device("d").tls(self.tls())
    }

    fn tls(&self) -> TlsOptions {
        TlsOptions::new(NAME, self.signed.ca.as_bytes()).unwrap()
    }

    async fn accept(&self) -> std::io::Result<Peer<TlsStream<TcpStream>>> {
        let (socket, _) = self.listener.accept().await?;
        Ok(Peer::over(self.acceptor.accept(socket).await?))
    }

    /// A client that has been welcomed, and its peer.
    async fn pair(&self, options: Options) -> (Client, Peer<TlsStream<TcpStream>>) {
        let welcome = Box::pin(async {
            let mut peer = self.accept().await.unwrap();
            peer.hears_hello().await;
            peer.welcomes(60_000).await;
            peer
        });
        let (client, peer) = tokio::join!(Client::connect(self.addr, options), welcome);
        (client.unwrap(), peer)
    }

    /// Why a client with these options is not connected.
    async fn refusal(&self, options: Options) -> ClientError {
        let accept = Box::pin(async {
            // Whatever this side makes of it.
            if let Ok(mut peer) = self.accept().await {
                let _ = peer.socket.read(&mut [0; 1024]).await;
            }
        });
        let (result, ()) = tokio::join!(Client::connect(self.addr, options), accept);
        result.err().unwrap()
    }
}

#[tokio::test]
async fn messages_pass_both_ways_in_either_version_and_the_next_connection_resumes() {
    for (version, expected) in [
        (&rustls::version::TLS12, ProtocolVersion::TLSv1_2),
        (&rustls::version::TLS13, ProtocolVersion::TLSv1_3),
    ] {
        let server = Server::start(&[version], false);
        let options = server.options();
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let (mut client, mut peer) = server.pair(options.clone()).await;
            let (_, session) = peer.socket.get_ref();
            assert_eq!(session.protocol_version(), Some(expected));
            assert_eq!(session.handshake_kind(), Some(kind), "{expected:?}");
            assert_eq!(session.alpn_protocol(), Some(&b"weir.v1"[..]));
            peer.says(ToDevice::Push(push("news", "hello", 7))).await;
            assert_eq!(client.next().await.unwrap(), Some(pushed("news", "hello", 7)));
            client.publish("news", Payload::Text("ah".to_owned()), 1).await.unwrap();
            let heard = peer.hears().await;
            assert!(matches!(&heard, FromDevice::Publish(said) if said.request == 1), "{heard:?}");
        }
    }
}

#[tokio::test]
async fn what_a_dropped_call_began_to_send_goes_on() {
    let server = Server::start(rustls::ALL_VERSIONS, false);
    let (mut client, mut peer) = server.pair(server.options()).await;
    let payload = Payload::Text("x".repeat(1000));
    let mut sent: u32 = 0;
    // Until neither the sockets nor TLS hold more.
    while let Ok(said) =
        timeout(Duration::from_millis(100), client.publish("t", payload.clone(), sent + 1)).await
    {
        said.unwrap();
        sent += 1;
        assert!(sent < 100_000, "the sockets take all there is");
    }
    let heard = async {
        for request in 1..=sent + 1 {
            let FromDevice::Publish(said) = peer.hears().await else { panic!("no publish") };
            assert_eq!(said.request, request);
        }
        peer.says(ToDevice::Push(push("t", "all heard", 1))).await;
    };
    // Well before the heartbeat writes anyway.
    let both = async { tokio::join!(heard, client.next()) };
    let ((), event) = timeout(Duration::from_secs(20), both).await.unwrap();
    assert_eq!(event.unwrap(), Some(pushed("t", "all heard", 1)));
}

#[tokio::test]
async fn a_certificate_that_is_not_believed_is_refused_in_plain_words() {
    let server = Server::start(rustls::ALL_VERSIONS, false);
    let stranger = TlsOptions::new(NAME, signed().ca.as_bytes()).unwrap();
    let other_name = TlsOptions::new("other.test", server.signed.ca.as_bytes()).unwrap();
    for (tls, expected) in [
        (stranger, "the server's certificate is refused: none of the given CAs has signed it (ca)"),
        (
            other_name,
            "certificate not valid for name \"other.test\"; certificate is only valid for",
        ),
    ] {
        let error = server.refusal(Options::device("d").tls(tls)).await;
        assert!(matches!(error, ClientError::Tls(TlsError::Refused(_))), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(Backoff::default().after_error(&error), None, "it would end the same way");
    }
}

#[tokio::test]
async fn a_client_shows_its_certificate_where_it_is_demanded() {
    for version in rustls::ALL_VERSIONS {
        let server = Server::start(&[version], true);
        let pem = server.signed.client.as_bytes();
        let tls = server.tls().certificate(pem, pem).unwrap();
        let (_client, peer) = server.pair(Options::device("d").tls(tls)).await;
        let (_, session) = peer.socket.get_ref();
        assert_eq!(session.peer_certificates().map(<[_]>::len), Some(1));
        let error = server.refusal(server.options()).await;
        assert!(matches!(error, ClientError::Tls(TlsError::Alert(_))), "{error:?}");
        assert_eq!(Backoff::default().after_error(&error), None, "{error}");
    }
}

#[tokio::test]
async fn an_end_without_tls_is_told_from_one_with() {
    let server = Server::start(rustls::ALL_VERSIONS, false);
    let (mut client, mut peer) = server.pair(server.options()).await;
    tokio::io::AsyncWriteExt::shutdown(&mut peer.socket).await.unwrap();
    assert_eq!(client.next().await.unwrap(), None::<Event>);
    let (mut client, peer) = server.pair(server.options()).await;
    drop(peer.socket.into_inner().0);
    let error = client.next().await.unwrap_err();
    assert!(matches!(error, ClientError::Tls(TlsError::BrokenOff)), "{error:?}");
    assert!(Backoff::default().after_error(&error).is_some());
}

#[test]
fn options_that_cannot_be_used_name_what_is_wrong() {
    let signed = signed();
    let told = |result: Result<TlsOptions, TlsError>| result.unwrap_err().to_string();
    let ca = signed.ca.as_bytes();
    assert!(told(TlsOptions::new("a b", ca)).starts_with("server_name: "));
    assert!(told(TlsOptions::new(NAME, b"")).starts_with("ca: "));
    let with = |chain: &str, key: &str| {
        TlsOptions::new(NAME, ca).unwrap().certificate(chain.as_bytes(), key.as_bytes())
    };
    assert!(told(with("", &signed.key)).starts_with("certificate: "));
    assert!(told(with(&signed.chain, "")).starts_with("certificate: "));
    let other = told(with(&signed.chain, &signed.client));
    assert!(other.starts_with("certificate: "), "{other}");
}
