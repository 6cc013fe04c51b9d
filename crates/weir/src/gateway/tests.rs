//! Tests with the smallest possible queues: everything that waits must go on.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use weir_wire::v1::{
    ClientMessage, Hello, ServerMessage, Subscribe, client_message, server_message,
};
use weir_wire::{ProstMessage, frame};

use super::*;

/// Each `Hello` names one topic many times. Each time but the first makes a count that has to come
/// back, and a credit returns only with it. There is room for few of either, so jobs and reports
/// wait for each other all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credits_and_reports_never_wait_for_each_other() {
    const DEVICES: usize = 30;
    let mut config = Config::default();
    let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
    config.listen.tcp = vec![free];
    config.listen.udp = vec![];
    config.listen.admin = None;
    config.listen.http = vec![];
    config.threads.shards = 1;
    config.threads.pin = false;
    config.connection.drain_timeout = Duration::ZERO;
    let depths = Depths { messages: 8, control: 8, reports: 2 };
    let mut builder = Gateway::builder().config(config);
    builder.depths = depths;
    let gateway = builder.start().await.unwrap();
    let addr = gateway.tcp_addrs()[0];
    let devices: Vec<_> = (0..DEVICES)
        .map(|index| tokio::task::spawn_blocking(move || subscribe_often(addr, index)))
        .collect();
    for device in devices {
        device.await.unwrap();
    }
    let handle = gateway.handle();
    let is_over = || handle.gauges() == crate::Gauges::default();
    while !is_over() || handle.engine().mailbox(0).depth() > 0 {
        sleep(Duration::from_millis(5)).await;
    }
    gateway.shutdown().await;
}

fn subscribe_often(addr: SocketAddr, index: usize) {
    const TIMES: usize = 64;
    let subscribe = Subscribe { topic: "t".to_owned(), position: None, presence: false };
    let topics = vec![subscribe; TIMES];
    let hello = Hello { device_id: index.to_string(), topics, ..Hello::default() };
    let mut out = Vec::new();
    frame::encode(&ClientMessage { kind: Some(client_message::Kind::Hello(hello)) }, &mut out);
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(&out).unwrap();
    let (mut buf, mut subscribed) = (Vec::new(), 0);
    while subscribed < TIMES {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).expect("the gateway goes on");
        assert_ne!(count, 0, "device {index}: closed after {subscribed}");
        buf.extend_from_slice(&bytes[..count]);
        while let Some((body, taken)) = frame::decode(&buf, 1 << 20).unwrap() {
            match ServerMessage::decode(body).unwrap().kind {
                Some(server_message::Kind::Subscribed(_)) => subscribed += 1,
                Some(server_message::Kind::Welcome(_)) => {}
                other => panic!("device {index}: {other:?}"),
            }
            buf.drain(..taken);
        }
    }
}

#[tokio::test]
async fn a_gateway_whose_shard_has_ended_is_not_ready() {
    let mut config = Config::default();
    config.listen.tcp = vec!["127.0.0.1:0".parse().unwrap()];
    config.listen.udp = vec![];
    config.listen.admin = None;
    config.listen.http = vec![];
    config.threads.shards = 1;
    config.threads.pin = false;
    let gateway = Gateway::builder().config(config).start().await.unwrap();
    let handle = gateway.handle();
    assert!(handle.is_ready());
    assert_eq!(handle.check_shards().await, Ok(()));
    assert!(handle.engine().mailbox(0).try_urgent(Urgent::Stop).is_ok());
    while handle.is_ready() {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(handle.check_shards().await.unwrap_err().shard, 0);
}

#[tokio::test]
async fn a_shard_that_has_ended_keeps_nobody_waiting() {
    let mut config = Config::default();
    config.listen.tcp = vec!["127.0.0.1:0".parse().unwrap()];
    config.listen.udp = vec![];
    config.listen.admin = None;
    config.listen.http = vec![];
    config.threads.shards = 1;
    config.threads.pin = false;
    let gateway = Gateway::builder().config(config).start().await.unwrap();
    let handle = gateway.handle();
    let hello = Hello { device_id: "d".to_owned(), ..Hello::default() };
    let mut out = Vec::new();
    frame::encode(&ClientMessage { kind: Some(client_message::Kind::Hello(hello)) }, &mut out);
    let mut stream = TcpStream::connect(gateway.tcp_addrs()[0]).unwrap();
    stream.write_all(&out).unwrap();
    while handle.gauges().devices == 0 || handle.counters().unsettled() > 0 {
        sleep(Duration::from_millis(5)).await;
    }
    let mailbox = handle.engine().mailbox(0);
    assert!(mailbox.try_urgent(Urgent::Stop).is_ok());
    while handle.is_ready() {
        sleep(Duration::from_millis(5)).await;
    }
    while mailbox.try_urgent(Urgent::Stop).is_ok() {}
    let revoked = timeout(Duration::from_secs(20), handle.revoke("d")).await;
    assert_eq!(revoked.expect("it answers").unwrap_err().shard, 0);
}
