//! No descriptor is left behind, however connections end: alone in its process, so that it can count them all.

#[expect(dead_code, reason = "this test needs a part of it only")]
#[path = "real_sockets/rig.rs"]
mod rig;

use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use weir_engine::{Command, ShardSettings, Urgent};
use weir_wire::CloseReason;

use rig::{Rest, Rig, tcp_pair};

const OWN_DESCRIPTORS: bool = false;

#[test]
fn every_end_closes_its_descriptor() {
    let before = open_descriptors();
    let settings = ShardSettings { connections_max: 60, ..ShardSettings::default() };
    let mut rig = Rig::start(2, &settings);
    let with_engine = open_descriptors();
    for _ in 0..3 {
        let mut devices: Vec<_> = (0..120).map(|number| rig.device(number % 2)).collect();
        assert_eq!(open_descriptors(), with_engine + 240);
        let (peer, socket) = tcp_pair();
        rig.offer(0, socket, Rest::default());
        drop(peer);
        for (number, (peer, conn)) in devices.iter_mut().enumerate() {
            match number % 5 {
                0 => peer.write(&[0xff; 10]),
                1 => set_socket_linger(&peer.stream, Some(Duration::ZERO)).expect("TCP has it"),
                2 => rig.push(conn.shard(), Command::Evict(*conn, CloseReason::Replaced)),
                3 => {
                    let close = Urgent::Close(*conn, CloseReason::ClosedByOperator);
                    assert!(rig.engine.mailbox(conn.shard()).try_urgent(close).is_ok());
                }
                _ => {}
            }
        }
        for (peer, conn) in devices {
            drop(peer);
            rig.closed(conn);
        }
        rig.wait_until("all descriptors to be closed", |_| open_descriptors() == with_engine);
        rig.wait_until_at_rest();
    }
    let left: Vec<_> = (0..100).map(|number| rig.device(number % 2)).collect();
    drop(rig);
    drop(left);
    assert_eq!(open_descriptors(), before);
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux has it").count()
}
