//! Tables and passages that are full: alone in its process, since it changes the limit on open
//! files.

#[expect(dead_code, reason = "this test needs a part of it only")]
#[path = "real_sockets/rig.rs"]
mod rig;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use weir_engine::{
    Budget, CreditKind, Engine, Front, Mailbox, NotOffered, NotPassed, Report, ShardSettings,
};
use weir_wire::CloseReason;

use rig::{Heard, PATIENCE, Peer, Rest, Rig, adoption, tcp_pair, wait_for_wake};

const OWN_DESCRIPTORS: bool = true;
/// Sockets that wait in one passage.
const PASSED_MAX: usize = 128;

#[test]
fn full_tables_and_passages() {
    shards_hold_more_than_one_table_may();
    what_is_in_flight_is_limited_and_nothing_of_it_is_lost();
    a_shard_that_ends_by_itself_wakes_the_front_and_takes_no_more();
}

/// Three tables of at most 150 descriptors hold 400 sockets. A socket too many is reported, although
/// the kernel tells of it only by a flag.
fn shards_hold_more_than_one_table_may() {
    const LIMIT: u64 = 150;
    let mut rig = Rig::start(3, &ShardSettings::default());
    let mut pairs: Vec<(Peer, OwnedFd)> = (0..460).map(|_| tcp_pair()).collect();
    limit_open_files(LIMIT);
    let mut devices = Vec::new();
    for number in 0..400 {
        let (peer, socket) = pairs.pop().expect("there are more");
        devices.push((peer, rig.adopt(number % 3, socket, Rest::default())));
    }
    for (peer, _) in &mut devices {
        peer.ping(b"all are held");
    }
    let room = LIMIT - Engine::SHARD_DESCRIPTORS as u64 - 134;
    let mut refused = 0;
    for (mut peer, socket) in pairs {
        let asked = rig.offer(0, socket, Rest::default());
        let answer = rig.wait_for(|report| {
            matches!(report, Report::Adopted { ticket, .. } | Report::Refused { ticket, .. }
                if *ticket == asked)
        });
        if let Report::Adopted { conn, .. } = answer {
            devices.push((peer, rig.welcome(conn)));
            continue;
        }
        let Report::Refused { reason, .. } = answer else { panic!("not an answer: {answer:?}") };
        assert_eq!(reason, CloseReason::TooManyConnections);
        assert_eq!(peer.hear(), Heard::End);
        refused += 1;
    }
    assert_eq!(60 - refused, room);
    assert_eq!(rig.stats(0).passage_lost.get(), refused);
    assert_eq!(rig.stats(0).descriptors.get(), LIMIT);
    // There is room again after an end.
    let (peer, conn) = devices.remove(0);
    drop(peer);
    rig.closed(conn);
    raise_open_files();
    let (mut last, socket) = tcp_pair();
    limit_open_files(LIMIT);
    rig.adopt(0, socket, Rest::default());
    last.ping(b"in its place");
    raise_open_files();
    drop(devices);
    drop(last);
    rig.wait_until("all to be gone", |rig| {
        (0..3).all(|shard| rig.stats(shard).table_entries.get() == 0)
    });
}

fn what_is_in_flight_is_limited_and_nothing_of_it_is_lost() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let mut pairs: Vec<_> = (0..PASSED_MAX + 1).map(|_| tcp_pair()).collect();
    let held_up = rig.hold_up(0);
    // A privileged sender has no such limit.
    let privileges = capabilities(None).expect("the kernel tells them");
    let mut unprivileged = privileges;
    unprivileged.effective -= CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_RESOURCE;
    set_capabilities(None, unprivileged).expect("anybody may have less");
    limit_open_files(20);
    let mailbox = rig.engine.mailbox(0).clone();
    let mut passed: Vec<(Peer, u64)> = Vec::new();
    let mut pass_until = |expected: NotPassed| {
        while let Some((peer, socket)) = pairs.pop() {
            let ticket = 1000 + passed.len() as u64;
            match offer(&mailbox, socket, ticket) {
                Ok(()) => passed.push((peer, ticket)),
                Err((socket, cause)) => {
                    assert_eq!(cause, expected);
                    pairs.push((peer, socket));
                    return passed.len();
                }
            }
        }
        panic!("all were passed");
    };
    // Other programs of this user may have some in flight too.
    assert!(pass_until(NotPassed::InFlight) <= 21);
    raise_open_files();
    set_capabilities(None, privileges).expect("they are still permitted");
    assert_eq!(pass_until(NotPassed::Full), PASSED_MAX);
    assert_eq!(mailbox.passing(), PASSED_MAX as u64);
    drop(held_up);
    for (mut peer, ticket) in passed {
        rig.adopted(ticket);
        peer.ping(&ticket.to_ne_bytes());
    }
    // The one that was given back can be offered again.
    let (mut peer, socket) = pairs.pop().expect("one was refused");
    rig.adopt(0, socket, Rest::default());
    peer.ping(b"the last one");
    assert_eq!(mailbox.passing(), 0);
}

fn a_shard_that_ends_by_itself_wakes_the_front_and_takes_no_more() {
    /// Takes one report, and panics at the next.
    struct Faulty(SyncSender<Report>);
    impl Front for Faulty {
        fn try_report(&mut self, report: Report) -> Result<(), Report> {
            self.0.try_send(report).expect("the test fails the shard here");
            Ok(())
        }
    }
    let (sender, reports): (_, Receiver<Report>) = sync_channel(1);
    let settings = ShardSettings { own_descriptors: true, ..ShardSettings::default() };
    let front: Box<dyn Front> = Box::new(Faulty(sender));
    let engine = Engine::start(&settings, Budget::new(1 << 20), vec![(front, None)]);
    let mut engine = engine.expect("threads and epolls can be had");
    let wakes = engine.take_wakes(0).expect("the shard has descriptors of its own");
    let mailbox = engine.mailbox(0).clone();
    let mut peers = Vec::new();
    for ticket in 1..=2 {
        let (peer, socket) = tcp_pair();
        assert!(offer(&mailbox, socket, ticket).is_ok());
        mailbox.wake();
        peers.push(peer);
    }
    wait_for_wake(&wakes);
    for peer in &mut peers {
        assert_eq!(peer.hear(), Heard::End);
    }
    let (mut peer, socket) = tcp_pair();
    let Err((socket, cause)) = offer(&mailbox, socket, 3) else { panic!("the shard has gone") };
    assert_eq!(cause, NotPassed::Ended);
    drop(socket);
    assert_eq!(peer.hear(), Heard::End);
    assert!(reports.recv_timeout(PATIENCE).is_ok());
    drop(Arc::new(engine));
}

fn offer(
    mailbox: &Mailbox<OwnedFd>,
    socket: OwnedFd,
    ticket: u64,
) -> Result<(), (OwnedFd, NotPassed)> {
    let credit = mailbox.try_credit(CreditKind::Control).expect("the queue has room");
    let offered = credit.offer_quietly(Box::new(adoption(socket, ticket)));
    offered.map_err(|NotOffered { adoption, cause, .. }| (adoption.socket, cause))
}

fn limit_open_files(count: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(count);
    setrlimit(Resource::Nofile, limit).expect("anybody may lower it");
}

fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("the soft limit may rise to the hard one");
}
