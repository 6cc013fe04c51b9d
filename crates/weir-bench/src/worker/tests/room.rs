//! A room of three, and a server that keeps one tick from one of them.

use weir_wire::hot::{Publish, encode_batch_frames};

use super::*;
use crate::protocol::{Check, PublishPlan};

#[test]
fn everybody_publishes_and_everybody_receives_everybodys() {
    let room = |plan| OpenPlan { check: Check::Room(3), size: 32, ..plan };
    let (mut bench, mut conns) = open(room, 3);
    bench.say(&Order::Publish(PublishPlan {
        publishers: 3,
        rate: 1000.0,
        count: 2,
        size: 32,
        ..PublishPlan::default()
    }));
    let Answer::Published(published) = bench.hear() else { panic!("not published") };
    assert_eq!((&published.sent, published.unsent), (&vec![2, 2, 2], 0));
    let mut singles = Vec::new();
    for conn in &mut conns {
        let mut bytes = Vec::new();
        let mut taken = 0;
        while taken < 2 {
            let mut buf = [0; 1024];
            let got = conn.read(&mut buf).unwrap();
            bytes.extend_from_slice(&buf[..got]);
            while let Some((body, used)) = frame::decode(&bytes, 1024).unwrap() {
                let publish = Publish::decode(body).unwrap();
                let offset = singles.len() as u64 + 1;
                let mut single = Vec::new();
                let push = Push {
                    topic: publish.topic,
                    payload: publish.payload,
                    message_id: offset,
                    offset,
                    sender: 1,
                    ..Push::default()
                };
                push.encode_frame(&mut single);
                singles.push((offset, single));
                taken += 1;
                bytes.drain(..used);
            }
        }
    }
    let parts: Vec<(u64, &[u8])> =
        singles.iter().map(|(offset, single)| (*offset, &single[..])).collect();
    let mut frames = Vec::new();
    encode_batch_frames("bench/0", &parts[..4], 65_536, &mut frames);
    // The second tick has the last two; one connection does not get it.
    let first = frames.len();
    encode_batch_frames("bench/0", &parts[4..], 65_536, &mut frames);
    conns[0].write_all(&frames).unwrap();
    conns[1].write_all(&frames).unwrap();
    conns[2].write_all(&frames[..first]).unwrap();
    let collect = Collect { published: published.sent, wait_ms: 300, slow_too: false };
    bench.say(&Order::Collect(collect));
    let Answer::Collected(tally) = bench.hear() else { panic!("no tally") };
    assert_eq!((tally.delivered, tally.missing, tally.frames), (16, 2, 5), "{tally:?}");
    assert_eq!((tally.wrong, tally.duplicates), (0, 0), "{tally:?}");
    bench.end();
}
