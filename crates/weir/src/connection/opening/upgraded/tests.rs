//! The first answers to connections that come from HTTP.

use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::{sleep, timeout};
use weir_engine::Transport;

use super::*;
use crate::auth::GrantRef;
use crate::base::model::Spoken;
use crate::{Config, Gateway};

/// Nothing here takes this long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(20);
const FREE: &str = "127.0.0.1:0";
const HEAD: &str = "HTTP/1.1 200 OK\r\n\r\n";

async fn start() -> (Gateway, Arc<SharedState>) {
    let mut config = Config::default();
    config.listen.tcp = vec![FREE.parse().unwrap()];
    config.listen.udp = vec![];
    config.listen.http = vec![];
    config.listen.admin = None;
    config.threads.pin = false;
    config.memory.budget_bytes = 16 << 20;
    config.connection.drain_timeout = Duration::ZERO;
    let gateway = Gateway::builder().config(config).start().await.unwrap();
    let shared = Arc::clone(gateway.parts().0);
    (gateway, shared)
}

#[tokio::test]
async fn who_comes_while_the_gateway_drains_gets_a_head_and_a_goodbye() {
    let (gateway, shared) = start().await;
    let listener = TcpListener::bind(FREE).await.unwrap();
    // If both are ready, `select!` picks either with equal probability.
    for _ in 0..32 {
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        shared.draining.send_replace(false);
        let Ok(unsettled) = shared.admission.enter(Transport::Tcp, Spoken::Frames, None, false)
        else {
            panic!("there is no room");
        };
        shared.draining.send_replace(true);
        let upgraded = Upgraded {
            head: HEAD.into(),
            read_ahead: Vec::new(),
            identity: None,
            format: Format::WsJson,
            positions: None,
            caller: CallerIdentity::Comes(None, String::new()),
        };
        let running = {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                run_upgraded(&shared, Stream::plain(socket), unsettled, upgraded).await;
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

/// The gateway holds both ends of a pair, so the answer does not wait for the peer's end.
#[tokio::test]
async fn who_is_refused_over_a_pair_is_told_at_once() {
    let (gateway, shared) = start().await;
    let (mut ours, end) = UnixStream::pair().unwrap();
    let end = std::os::fd::OwnedFd::from(end.into_std().unwrap());
    let end = TcpStream::from_std(end.into()).unwrap();
    let Ok(unsettled) = shared.admission.enter(Transport::Tcp, Spoken::Frames, None, false) else {
        panic!("there is no room");
    };
    // The device is revoked after its admission.
    let mark = shared.devices.mark();
    shared.devices.revoke("d").unwrap();
    let admission = Admission {
        device: "d".into(),
        grant: GrantRef::Numbered(0),
        priority: weir_engine::Priority::Normal,
        is_service: false,
        ends: None,
        is_kept: false,
        mark,
        version: shared.auth.version(),
    };
    let upgraded = Upgraded {
        head: Vec::new(),
        read_ahead: Vec::new(),
        identity: None,
        format: Format::Sse,
        positions: None,
        caller: CallerIdentity::Is(Hello::default(), Box::new(admission)),
    };
    tokio::select! {
        // Polled first, so that a pause of the machine does not fail the test.
        biased;
        () = run_paired(&shared, Stream::plain(end), unsettled, upgraded) => {}
        () = sleep(super::super::LINGER_TIMEOUT / 2) => panic!("it waits for an end"),
    }
    let mut heard = String::new();
    timeout(PATIENCE, ours.read_to_string(&mut heard)).await.expect("it ends").unwrap();
    assert!(heard.contains("event:goodbye") && heard.contains("revoked"), "{heard}");
    assert_eq!(shared.counters().unsettled(), 0);
    gateway.shutdown().await;
}
