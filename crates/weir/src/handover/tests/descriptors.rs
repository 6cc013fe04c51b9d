//! Many descriptors, and few free places for them.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{Uid, set_thread_res_uid};
use weir_engine::Nanos;
use weir_wire::handover::v1;
use weir_wire::handover::v1::link_message::Kind as Message;

use super::super::link::{Link, LinkError};
use super::super::process::NewProcess;
use super::{PATIENCE, null, own_program, stdin_link};

fn limit_open_files(count: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum }).unwrap();
}

fn start(role: &str, words: &[&str]) -> (Link, NewProcess) {
    let (ours, theirs) = Link::pair().unwrap();
    let mut command = own_program(role, words);
    let child = command.stdin(Stdio::from(theirs.into_socket())).spawn().unwrap();
    drop(command);
    (ours, NewProcess::new(child))
}

/// Takes a part under a limit of open files, and compares the files with the numbers in its bytes.
pub(super) fn takes(words: &[&str]) {
    let limit: u64 = words[0].parse().unwrap();
    let link = stdin_link();
    limit_open_files(limit);
    let far = Nanos::now().after(PATIENCE);
    let Ok((bytes, files)) = link.receive_part("files", far) else { return };
    let found = files.iter().flat_map(|file| fstat(file).unwrap().st_ino.to_le_bytes());
    assert!(bytes.into_iter().eq(found), "other files, or in another order");
    link.send(Message::Ready(v1::LinkReady {}), far).unwrap();
}

/// Sends so many descriptors under a limit of open files, as a user without privileges.
pub(super) fn sends(words: &[&str]) {
    let [limit, count, is_blocked] = words else { panic!("{words:?}") };
    let link = stdin_link();
    limit_open_files(limit.parse().unwrap());
    // The kernel does not count for a privileged one.
    let nobody = Uid::from_raw(65_534);
    let _ = set_thread_res_uid(nobody, nobody, nobody);
    let link = Link::new(link.into_socket());
    let file = null();
    let few = [file.as_fd(); 16];
    let mut on_their_way = Vec::new();
    if *is_blocked == "blocked" {
        // Nobody receives these.
        for _ in 0..8 {
            let soon = Nanos::now().after(Duration::from_millis(20));
            let (to, from) = Link::pair().unwrap();
            let _ = to.send_part("files", &[], &few, soon);
            on_their_way.push((to, from));
        }
    }
    let files = vec![file.as_fd(); count.parse().unwrap()];
    let patience = if *is_blocked == "blocked" { Duration::from_millis(200) } else { PATIENCE };
    let sent = link.send_part("files", b"", &files, Nanos::now().after(patience));
    let text = sent.map_or_else(|error| error.to_string(), |()| "sent".to_owned());
    let failed = Message::Failed(v1::LinkFailed { sentence: text });
    link.send(failed, Nanos::now().after(PATIENCE)).unwrap();
}

/// So many descriptors of seven files, and the numbers of the files.
fn files(count: usize) -> (Vec<OwnedFd>, Vec<usize>, Vec<u8>) {
    let files: Vec<OwnedFd> =
        (0..7).map(|_| memfd_create("file", MemfdFlags::CLOEXEC).unwrap()).collect();
    let order: Vec<usize> = (0..count).map(|index| index * index % 7).collect();
    let bytes = order.iter().flat_map(|index| fstat(&files[*index]).unwrap().st_ino.to_le_bytes());
    let bytes = bytes.collect();
    (files, order, bytes)
}

fn send(link: &Link, count: usize) -> Result<(), LinkError> {
    let (files, order, bytes) = files(count);
    let files: Vec<BorrowedFd<'_>> = order.iter().map(|index| files[*index].as_fd()).collect();
    let far = Nanos::now().after(PATIENCE);
    let began = Nanos::now();
    link.send_part("files", &bytes, &files, far)?;
    let took = Nanos::now().since(began);
    println!("{count} descriptors: {took:?}, {} ns each", took.as_nanos() / count.max(1) as u128);
    assert!(matches!(link.receive(far)?, Message::Ready(_)));
    Ok(())
}

#[test]
fn ten_thousand_descriptors_arrive_in_order() {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX).min(20_000);
    // Under a small limit it is as many as fit.
    let count = usize::try_from(limit.saturating_sub(100)).unwrap().min(10_000);
    for count in [0, 1, 252, 253, 254, 1_012, 1_013, count] {
        let (link, _process) = start("takes", &[&limit.to_string()]);
        send(&link, count).unwrap();
    }
}

#[test]
fn a_receiver_without_free_places_refuses_clearly() {
    for count in [40, 300] {
        let (link, _process) = start("takes", &["64"]);
        let sent = send(&link, count).map_err(|error| error.to_string());
        let refused = "no room for all open files of the other process: the limit on open files is 64 \
                       here";
        let expected = if count < 64 { Ok(()) } else { Err(refused.to_owned()) };
        assert_eq!(sent, expected, "{count}");
    }
}

#[test]
fn a_sender_under_a_small_limit_sends_many() {
    let (link, _process) = start("sends", &["64", "2000", ""]);
    let (_, files) = link.receive_part("files", Nanos::now().after(PATIENCE)).unwrap();
    assert_eq!(files.len(), 2_000);
    assert_eq!(link.receive(Nanos::now().after(PATIENCE)).unwrap_err().to_string(), "sent");
}

#[test]
fn descriptors_that_nobody_receives_stop_a_sender_clearly() {
    let (link, _process) = start("sends", &["64", "10", "blocked"]);
    let far = Nanos::now().after(PATIENCE);
    let error = link.receive_part("files", far).unwrap_err().to_string();
    let expected = "too many open files are on their way between processes of this user; the limit \
                    is that on open files, 64";
    assert_eq!(error, expected);
}
