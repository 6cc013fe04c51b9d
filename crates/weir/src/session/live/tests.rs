//! What is said first to who is taken from HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use weir_engine::Transport;

use super::*;
use crate::listener::Door;
use crate::{Config, Gateway};

/// Nothing here takes this long; what does, hangs.
const PATIENCE: Duration = Duration::from_secs(20);
const HEAD: &str = "HTTP/1.1 200 OK\r\n\r\n";

#[tokio::test]
async fn who_comes_while_the_gateway_drains_gets_a_head_and_a_goodbye() {
    let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut config = Config::default();
    config.listen.tcp = vec![free];
    config.listen.http = vec![];
    config.listen.admin = None;
    config.threads.pin = false;
    config.memory.budget_bytes = 16 << 20;
    config.connection.drain_timeout = Duration::ZERO;
    let gateway = Gateway::builder().config(config).start().await.unwrap();
    let hub = Arc::clone(gateway.parts().0);
    let listener = TcpListener::bind(free).await.unwrap();
    // One of two things that are ready is as likely to be the first as the other.
    for _ in 0..32 {
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let door = Door::Devices(Transport::Tcp);
        hub.draining.send_replace(false);
        let Ok(unsettled) = hub.admission.enter(&hub, &door, None, false) else {
            panic!("there is no room");
        };
        hub.draining.send_replace(true);
        let live = Live {
            head: HEAD.into(),
            read_ahead: Vec::new(),
            identity: None,
            format: Format::WsJson,
            positions: None,
            hail: Hail::Comes { token: String::new() },
        };
        let running = {
            let hub = Arc::clone(&hub);
            tokio::spawn(async move {
                run_live(&hub, Stream::plain(socket), unsettled, live).await;
            })
        };
        let mut heard = Vec::new();
        timeout(PATIENCE, peer.read_to_end(&mut heard)).await.expect("it ends").unwrap();
        let heard = String::from_utf8_lossy(&heard);
        assert!(heard.starts_with(HEAD) && heard.contains("draining"), "{heard}");
        drop(peer);
        running.await.unwrap();
    }
    gateway.shutdown().await;
}
