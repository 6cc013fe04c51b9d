//! The tables themselves: what is in them, and what the kernel says about sockets that were there.

use std::fs::{read_dir, read_link};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::fstat;
use weir_engine::{Command, Engine, ShardSettings, Urgent};
use weir_wire::CloseReason;

use crate::rig::{Heard, Rest, Rig, ping, tcp_pair};

#[test]
fn a_socket_is_in_the_table_of_its_shard_alone() {
    let mut rig = Rig::start(2, &ShardSettings::default());
    let mut devices: Vec<_> = (0..21)
        .map(|number| {
            let (peer, socket) = tcp_pair();
            let inode = fstat(&socket).expect("it is open").st_ino;
            let conn = rig.adopt(usize::from(number > 0), socket, Rest::default());
            (peer, conn, inode)
        })
        .collect();
    let tables: Vec<Vec<PathBuf>> =
        devices.iter().map(|(_, _, inode)| tables_with(*inode)).collect();
    assert!(tables.iter().all(|tables| tables.len() == 1), "one table each: {tables:?}");
    assert!(tables[0] != tables[1] && tables[1..].iter().all(|table| *table == tables[1]));
    let open = || [&tables[0][0], &tables[1][0]].map(|table| links(table).len());
    assert_eq!(open(), [Engine::SHARD_DESCRIPTORS + 1, Engine::SHARD_DESCRIPTORS + 20]);
    let told = |rig: &Rig| [0, 1].map(|shard| rig.stats(shard).descriptors.get());
    assert_eq!(told(&rig).map(usize::try_from), open().map(Ok));
    for (peer, ..) in &mut devices {
        peer.ping(b"here");
    }
    for (peer, conn, _) in devices {
        drop(peer);
        rig.closed(conn);
    }
    let own = Engine::SHARD_DESCRIPTORS;
    rig.wait_until("all to be closed", |rig| told(rig).map(usize::try_from) == [Ok(own); 2]);
    assert_eq!(open(), [own; 2]);
    rig.wait_until_at_rest();
}

/// While a copy of a closed socket is open somewhere, the epoll of its shard reports it.
#[test]
fn a_late_event_of_a_closed_socket_reaches_nobody() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (mut former, socket) = tcp_pair();
    let copy = socket.try_clone().expect("there are descriptors left");
    let conn = rig.adopt(0, socket, Rest::default());
    let close = Urgent::Close(conn, CloseReason::SocketError);
    assert!(rig.engine.mailbox(0).try_urgent(close).is_ok());
    assert_eq!(rig.closed(conn).0, CloseReason::SocketError);
    rig.wait_until("the slot to be free", |rig| rig.stats(0).table_entries.get() == 0);

    let (mut next, next_conn) = rig.device(0);
    assert_eq!(place(next_conn.to_u64()), place(conn.to_u64()), "it has the same slot");
    for round in 1..=3_u8 {
        let turns = rig.stats(0).turns.get();
        former.stream.write_all(&ping(b"late")).expect("the copy holds the connection");
        rig.wait_until("the late event", |rig| rig.stats(0).turns.get() > turns);
        next.ping(&[round]);
        let frames = rig.stats(0).received_frames.get();
        assert_eq!(frames, u64::from(round), "only its own were read");
    }
    drop(copy);
    drop(former);
    next.ping(b"still here");
    rig.wait_until_at_rest();
}

#[test]
fn sockets_in_the_passage_are_closed_when_the_shard_stops() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (mut held, _) = rig.device(0);
    let held_up = rig.hold_up(0);
    assert!(rig.engine.mailbox(0).try_urgent(Urgent::Stop).is_ok());
    let mut peers: Vec<_> = (0..100)
        .map(|_| {
            let (peer, socket) = tcp_pair();
            rig.offer(0, socket, Rest::default());
            peer
        })
        .collect();
    assert_eq!(rig.engine.mailbox(0).passing(), 100);
    drop(held_up);
    rig.engine.stop();
    assert_eq!(held.hear(), Heard::End);
    for peer in &mut peers {
        assert_eq!(peer.hear(), Heard::End);
    }
}

#[test]
fn commands_behind_a_socket_in_the_passage_find_it() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let held_up = rig.hold_up(0);
    let offered: Vec<_> = (0..60)
        .map(|_| {
            let (peer, socket) = tcp_pair();
            (peer, rig.offer(0, socket, Rest::default()))
        })
        .collect();
    drop(held_up);
    for (mut peer, ticket) in offered {
        let conn = rig.adopted(ticket);
        peer.ping(&ticket.to_ne_bytes());
        rig.push(0, Command::Evict(conn, CloseReason::Replaced));
        peer.hear_goodbye(CloseReason::Replaced);
    }
    assert_eq!(rig.engine.mailbox(0).passing(), 0);
    rig.wait_until_at_rest();
}

/// Shard, slot and node of an id: all but the generation.
fn place(conn: u64) -> u64 {
    conn >> 24
}

/// Where the kernel shows the descriptors of the thread whose table has this file.
fn tables_with(inode: u64) -> Vec<PathBuf> {
    let link = format!("socket:[{inode}]");
    let threads = read_dir("/proc/self/task").expect("Linux has it").filter_map(Result::ok);
    let tables = threads.map(|thread| thread.path().join("fd"));
    tables.filter(|table| links(table).contains(&link)).collect()
}

/// What the descriptors of a table stand for.
fn links(table: &Path) -> Vec<String> {
    // A thread may end meanwhile.
    let descriptors = read_dir(table).into_iter().flatten().filter_map(Result::ok);
    let links = descriptors.filter_map(|descriptor| read_link(descriptor.path()).ok());
    links.map(|link| link.to_string_lossy().into_owned()).collect()
}
