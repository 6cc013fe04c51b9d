//! What devices do must not keep backends from publishing: floods of frames, and devices that do not read.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "it serves other tests too")]
mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::{Peer, Says, config, encode, eventually, hello, start};
use tokio::io::AsyncWriteExt as _;
use weir::{Gateway, Payload, Publication, PublishError, Target};
use weir_engine::Share;
use weir_wire::v1::{Publish, Refresh, Subscribe, Unsubscribe, publish};

/// How many publishes were made, and how many were refused.
#[derive(Debug, Default)]
struct Tally {
    made: u32,
    busy: u32,
    budget: u32,
}

impl Tally {
    fn publish(&mut self, gateway: &Gateway, target: Target<'_>, data: &[u8]) {
        self.made += 1;
        let publication = Publication {
            target,
            payload: Payload::Data(data),
            content_type: "",
            key: "",
            ttl: None,
            sender: None,
            idempotency_key: None,
        };
        match gateway.handle().publish(&publication) {
            Ok(_) => {}
            Err(PublishError::Busy(_)) => self.busy += 1,
            Err(PublishError::BudgetExhausted(_)) => self.budget += 1,
            Err(other) => panic!("{other}"),
        }
    }
}

/// A device that sends the same frames over and over, and reads and drops what comes.
struct Flooder {
    stream: TcpStream,
    threads: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    sent_bytes: Arc<AtomicU64>,
}

impl Flooder {
    fn start(addr: SocketAddr, device: &str, frames: Vec<u8>) -> Flooder {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(&encode(hello(device, "", &[]))).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let sent_bytes = Arc::new(AtomicU64::new(0));
        let (mut reads, mut writes) = (stream.try_clone().unwrap(), stream.try_clone().unwrap());
        let reader = thread::spawn(move || {
            let mut bytes = [0; 64 * 1024];
            while reads.read(&mut bytes).is_ok_and(|count| count > 0) {}
        });
        let (over, sent) = (Arc::clone(&is_over), Arc::clone(&sent_bytes));
        let writer = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) && writes.write_all(&frames).is_ok() {
                sent.fetch_add(frames.len() as u64, Ordering::Relaxed);
            }
        });
        Flooder { stream, threads: vec![reader, writer], is_over, sent_bytes }
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.stream.shutdown(Shutdown::Both);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// The value of a metric without labels.
fn count_of(gateway: &Gateway, name: &str) -> u64 {
    let metrics = gateway.handle().metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap().parse().unwrap()
}

/// Some 64 KiB of frames of a kind.
fn frames(kind: Says) -> Vec<u8> {
    let frame = encode(kind);
    frame.repeat(64 * 1024 / frame.len())
}

/// A device that may do nothing floods; who publishes meanwhile to another one is never refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_frames_keeps_no_credit_from_publishes() {
    let topic = || "t".to_owned();
    let floods = [
        (
            "subscribe",
            Says::Subscribe(Subscribe { topic: topic(), position: None, presence: false }),
        ),
        ("unsubscribe", Says::Unsubscribe(Unsubscribe { topic: topic() })),
        ("refresh", Says::Refresh(Refresh { token: "x".to_owned() })),
        ("hello", hello("other", "", &[])),
    ];
    for (name, kind) in floods {
        let mut config = config();
        config.threads.shards = 1;
        let gateway = start(config).await;
        let mut witness = Peer::settled(&gateway, "witness", &["room"]).await;
        let flooder = Flooder::start(gateway.tcp_addrs()[0], "flooder", frames(kind));
        eventually(|| flooder.sent_bytes.load(Ordering::Relaxed) > 0, "the flood begins").await;
        let mut tally = Tally::default();
        for _ in 0..500 {
            tally.publish(&gateway, Target::Topic("room"), b"news");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let sent = flooder.sent_bytes.load(Ordering::Relaxed);
        eprintln!("{name}: {tally:?}, {sent} bytes sent");
        for offset in 1..=u64::from(tally.made - tally.busy) {
            assert_eq!(witness.push().await.offset, offset);
        }
        let frames = count_of(&gateway, "weir_received_frames_total");
        flooder.stop();
        gateway.shutdown().await;
        assert_eq!((tally.busy, tally.budget), (0, 0), "{name}: {tally:?}");
        // One read of a connection, before its rate is known.
        assert!(frames < 64 * 1024, "{name}: {frames} frames of the flood were carried out");
    }
}

/// Connects a device that reads its `Welcome` and then nothing more.
async fn silent(gateway: &Gateway, device: &str) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut peer = Peer::over(socket.connect(gateway.tcp_addrs()[0]).await.unwrap());
    peer.say(hello(device, "", &[])).await;
    peer.welcome().await;
    peer.stream.into_std().unwrap()
}

/// Messages of up to 32 KiB to devices that do not read, each of which holds some, below the high watermark: they keep no
/// room from other messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_devices_that_do_not_read_keeps_no_room_from_publishes() {
    const SILENT: usize = 400;
    let mut config = config();
    config.memory.budget_bytes = 16 << 20;
    config.tcp.send_buffer_bytes = 4096;
    config.tcp.notsent_lowat_bytes = 4096;
    let gateway = start(config).await;
    let mut silents = Vec::new();
    for index in 0..SILENT {
        silents.push(silent(&gateway, &format!("silent-{index}")).await);
    }
    let mut witness = Peer::settled(&gateway, "witness", &["room"]).await;
    let reader = tokio::spawn(async move {
        let mut offsets = Vec::new();
        while let Some(kind) = witness.hear().await {
            let common::Hears::Push(push) = &kind else { return (offsets, Some(kind)) };
            offsets.push(push.offset);
        }
        (offsets, None)
    });
    let (mut large, mut small) = (Tally::default(), Tally::default());
    for round in 0..4 * SILENT {
        let device = format!("silent-{}", round % SILENT);
        // What finds no room for the longest leaves none for shorter ones either.
        for bytes in [32 * 1024, 4096, 256] {
            large.publish(&gateway, Target::Device(&device), &vec![7; bytes]);
        }
        small.publish(&gateway, Target::Topic("room"), b"news");
        if round % 4 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    eprintln!("large: {large:?}, small: {small:?}");
    let cut = count_of(&gateway, "weir_connections_cut_total");
    let budget = gateway.handle().engine().budget().clone();
    assert!(budget.peak() <= budget.bytes_max(), "{} bytes", budget.peak());
    gateway.shutdown().await;
    let (offsets, last) = reader.await.unwrap();
    eprintln!("witness: {} messages, then {last:?}; {cut} connections were cut", offsets.len());
    assert_eq!([small.busy, small.budget, large.busy, large.budget], [0; 4]);
    assert_eq!(offsets.len(), small.made as usize);
    assert!(cut > 0, "the budget was never short");
}

/// Devices that begin long frames and do not end them: whoever sends a frame in two parts meanwhile is heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn begun_frames_keep_no_room_from_those_that_are_ended() {
    let mut config = config();
    config.threads.shards = 1;
    config.connection.frame_timeout = Duration::from_secs(60);
    let gateway = start(config).await;
    let most = gateway.handle().engine().budget().bytes_max_of(Share::Incoming);
    let publish = |bytes: usize, request: u32| {
        let payload = Some(publish::Payload::Data(vec![7; bytes]));
        let topic = "room".to_owned();
        encode(Says::Publish(Publish { topic, request, payload, ..Publish::default() }))
    };
    let begun = publish(60_000, 1);
    let mut idlers = Vec::new();
    for index in 0..most / (64 * 1024) + 5 {
        let mut idler = Peer::settled(&gateway, &format!("idler-{index}"), &[]).await;
        idler.stream.write_all(&begun[..50_000]).await.unwrap();
        idlers.push(idler);
    }
    let budget = gateway.handle().engine().budget().clone();
    let is_full = || budget.used_of(Share::Incoming) > most / 8 * 7;
    eventually(is_full, "the share is used up").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut witness = Peer::settled(&gateway, "witness", &[]).await;
    for request in 1..=20 {
        let frame = publish(20_000, request);
        let (first, second) = frame.split_at(15_000);
        witness.stream.write_all(first).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        witness.stream.write_all(second).await.unwrap();
        // It may not publish, but it is heard.
        assert_eq!(witness.error().await.request, request);
    }
    gateway.shutdown().await;
}
