//! Streams over real sockets; the peer is rustls' own client.

use std::io::Write;

use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as ClientStream;
use weir_engine::Budget;
use weir_engine::tls::Violation;

use super::super::handshake::{Handshake, Step};
use super::super::testing::Certificate;
use super::*;
use crate::base::model::Spoken;

const BUFFER_BYTES: usize = 16 * 1024;

/// Both ends of a connection after its handshake.
struct Ends {
    server: Stream,
    client: ClientStream<TcpStream>,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
}

/// A connection of each version.
async fn each() -> [Ends; 2] {
    let certificate = Certificate::new();
    let server = Arc::new(certificate.server());
    let connect = |version| connect(Arc::clone(&server), Arc::new(certificate.client(version)));
    [connect(&TLS13).await, connect(&TLS12).await]
}

async fn connect(server: Arc<ServerConfig>, client: Arc<ClientConfig>) -> Ends {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let client = tokio::spawn(TlsConnector::from(client).connect(name, socket));
    let mut stream = Stream::unsecured(listener.accept().await.unwrap().0);
    let (budget, counters) = (Budget::new(32 << 20), Arc::<Counters>::default());
    let mut handshake = Handshake::new(Spoken::Frames, ReadBuffer::new(&budget));
    let session = loop {
        while !handshake.is_ready() {
            handshake.input.read_more(&mut stream).await.unwrap();
        }
        let step = handshake.step(|_| Arc::clone(&server));
        stream.write_all(&std::mem::take(&mut handshake.output)).await.unwrap();
        match step {
            Step::OutOfCredit => {}
            Step::Established(established) => break established.session,
            Step::Failed(failure) => panic!("{failure:?}"),
        }
    };
    stream.secure(session, handshake.into_input(), &counters);
    Ends { server: stream, client: client.await.unwrap().unwrap(), budget, counters }
}

#[tokio::test]
async fn much_goes_both_ways() {
    for Ends { mut server, mut client, budget, .. } in each().await {
        let text: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
        let expected = text.clone();
        let echo = tokio::spawn(async move {
            let mut read = vec![0; expected.len()];
            client.read_exact(&mut read).await.unwrap();
            assert!(read == expected);
            client.write_all(&read).await.unwrap();
            client.flush().await.unwrap();
            client
        });
        server.write_all(&text).await.unwrap();
        server.flush().await.unwrap();
        let mut read = vec![0; text.len()];
        server.read_exact(&mut read).await.unwrap();
        assert!(read == text);
        assert_eq!(budget.used(), 0, "nothing is held");
        echo.await.unwrap();
    }
}

#[tokio::test]
async fn an_end_is_said_and_heard() {
    for Ends { mut server, mut client, counters, .. } in each().await {
        server.shutdown().await.unwrap();
        let sent = counters.tls.alerts_sent().find(|(_, name, _)| *name == "close_notify");
        assert_eq!(sent, Some((Some(0), "close_notify", 1)));
        // Without `close_notify` this would be an error.
        assert_eq!(client.read(&mut [0; 9]).await.unwrap(), 0);
        client.write_all(b"last words").await.unwrap();
        client.shutdown().await.unwrap();
        let mut heard = Vec::new();
        server.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"last words");
        assert!(server.write(b"more").await.is_err());
        assert!(matches!(server.into_parts(), Err((_, NotMovable::Ended))));
    }
}

#[tokio::test]
async fn what_was_received_moves_along() {
    for Ends { mut server, mut client, budget, .. } in each().await {
        client.write_all(b"first record").await.unwrap();
        client.flush().await.unwrap();
        let mut first = [0; 1];
        server.read_exact(&mut first).await.unwrap();
        // The beginning of another record.
        let mut record = Vec::new();
        client.get_mut().1.writer().write_all(b"second record").unwrap();
        client.get_mut().1.write_tls(&mut record).unwrap();
        let (begun, rest) = record.split_at(7);
        client.get_mut().0.write_all(begun).await.unwrap();
        let mut others = [0; 11];
        server.read_exact(&mut others).await.unwrap();
        let reads = tokio::time::timeout(std::time::Duration::ZERO, server.read(&mut first));
        assert!(reads.await.is_err());
        while server.input_bytes() < begun.len() {
            let reads = tokio::time::timeout(std::time::Duration::ZERO, server.read(&mut first));
            assert!(reads.await.is_err());
        }
        let Ok(mut parts) = server.into_parts() else { panic!("not moved") };
        let mut tls = parts.tls.take().unwrap();
        assert_eq!((parts.read_ahead.len(), &*tls.sealed_ahead), (0, begun));
        tls.sealed_ahead.extend(rest);
        let opened = tls.session.open(&mut tls.sealed_ahead).unwrap();
        assert_eq!(&tls.sealed_ahead[..opened.plaintext], b"second record");
        assert_eq!(budget.used(), 0);
    }
}

#[tokio::test]
async fn what_was_opened_and_not_read_moves_along() {
    for Ends { mut server, mut client, .. } in each().await {
        client.write_all(b"question").await.unwrap();
        client.flush().await.unwrap();
        server.read_exact(&mut [0; 3]).await.unwrap();
        let Ok(parts) = server.into_parts() else { panic!("not moved") };
        assert_eq!(parts.read_ahead, b"stion");
        assert!(parts.tls.unwrap().sealed_ahead.is_empty());
    }
}

#[tokio::test]
async fn a_record_half_sent_is_not_moved() {
    for Ends { mut server, client, .. } in each().await {
        // More than both sockets hold while the peer does not read.
        socket2::SockRef::from(&server.socket).set_send_buffer_size(BUFFER_BYTES).unwrap();
        socket2::SockRef::from(client.get_ref().0).set_recv_buffer_size(BUFFER_BYTES).unwrap();
        let Layer::Tls(records) = &mut server.layer else { panic!("it is secured") };
        for _ in 0..100 {
            records.session.seal(&[IoSlice::new(&[7; BUFFER_BYTES])], &mut records.sealed).unwrap();
        }
        assert!(matches!(server.into_parts(), Err((_, NotMovable::HalfSent))));
        drop(client);
    }
}

#[tokio::test]
async fn a_violation_is_answered_with_an_alert() {
    for Ends { mut server, mut client, counters, .. } in each().await {
        client.get_mut().0.write_all(&[23, 3, 3, 0, 40]).await.unwrap();
        client.get_mut().0.write_all(&[7; 40]).await.unwrap();
        let error = server.read(&mut [0; 9]).await.unwrap_err();
        assert!(error.get_ref().unwrap().is::<Violation>(), "{error}");
        assert_eq!(crate::base::read_buffer::reason_of(&error), weir_wire::CloseReason::TlsRecord);
        let error = client.read(&mut [0; 9]).await.unwrap_err();
        assert!(error.to_string().contains("BadRecordMac"), "{error}");
        let sent = counters.tls.alerts_sent().find(|(_, name, _)| *name == "bad_record_mac");
        assert_eq!(sent, Some((Some(20), "bad_record_mac", 1)));
    }
}

#[tokio::test]
async fn key_updates_go_both_ways() {
    let [Ends { mut server, mut client, .. }, _] = each().await;
    for _ in 0..5 {
        client.get_mut().1.refresh_traffic_keys().unwrap();
        client.write_all(b"question").await.unwrap();
        client.flush().await.unwrap();
        let mut question = [0; 8];
        server.read_exact(&mut question).await.unwrap();
        server.write_all(b"answer").await.unwrap();
        let mut answer = [0; 6];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!((&question, &answer), (b"question", b"answer"));
    }
    assert!(server.into_parts().is_ok());
}
