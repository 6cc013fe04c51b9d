//! One of the two processes dies, stands still, hangs or talks nonsense, at each stage.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, test_kill_process,
};
use weir_engine::Nanos;
use weir_wire::handover::v1;
use weir_wire::handover::v1::link_message::Kind as Message;

use super::super::decision::own;
use super::super::link::LinkError;
use super::super::report::{Hello, NotMoved};
use super::super::{Predecessor, Successor};
use super::{PATIENCE, Witness, hang, null, own_program, signal_itself, write_down};

/// What the new process does at each stage, in order.
const STAGES: [&str; 8] =
    ["start", "hello", "plan", "half", "part", "ready", "commit", "committed"];

/// The new process: a stage, what it does there, and the witness.
pub(super) fn new_process(words: &[&str]) {
    let [stage, deed, witness] = words else { panic!("{words:?}") };
    let witness = Path::new(witness);
    let old = Predecessor::from_environment().unwrap().unwrap();
    let far = Nanos::now().after(PATIENCE);
    let at = |now: &str| {
        if now == *stage {
            do_deed(deed, now, &old);
        }
    };
    at("start");
    let mut hello = Hello::of_this_process();
    match *deed {
        "reads older" => hello.reads = (0, 0),
        "reads newer" => hello.reads = (7, 9),
        _ => {}
    }
    old.hello(&hello).unwrap();
    at("hello");
    let Ok(plan) = old.plan(far) else { return };
    assert_eq!((plan.format, plan.connections), (1, 3));
    at("plan");
    if *stage == "half" {
        assert!(matches!(old.link().receive(far), Ok(Message::Part(_))));
        at("half");
    }
    let Ok((state, sockets)) = old.link().receive_part("shard 0", far) else { return };
    assert_eq!((state.len(), sockets.len()), (STATE_BYTES, 3));
    at("part");
    if *deed == "own" {
        let line = if own(old.link()) { "new owns" } else { "new left" };
        write_down(witness, line);
        return;
    }
    old.link().send(Message::Ready(v1::LinkReady {}), far).unwrap();
    at("ready");
    assert!(matches!(old.link().receive(far), Ok(Message::Commit(_))));
    at("commit");
    old.link().send(Message::Committed(v1::LinkCommitted {}), far).unwrap();
    write_down(witness, "new owns");
    at("committed");
}

fn do_deed(deed: &str, stage: &str, old: &Predecessor) {
    match deed {
        "die" => signal_itself(Signal::KILL),
        "stop" => {
            // The signal may reach another thread first.
            signal_itself(Signal::STOP);
            if stage != "committed" {
                hang();
            }
        }
        "exit" => std::process::exit(7),
        "hang" => hang(),
        "garbage" => {
            let flags = rustix::net::SendFlags::empty();
            rustix::net::send(old.link().as_fd(), b"this is no packet of ours", flags).unwrap();
            hang();
        }
        "nonsense" => {
            let taken = v1::LinkTaken { bytes: 1, descriptors: 9 };
            old.link().send(Message::Taken(taken), Nanos::now().after(PATIENCE)).unwrap();
            hang();
        }
        "fail" => {
            let failed = v1::LinkFailed { sentence: "my own reason".to_owned() };
            old.link().send(Message::Failed(failed), Nanos::now().after(PATIENCE)).unwrap();
            std::process::exit(1);
        }
        _ => {}
    }
}

/// What the old process does with a successor, up to the decision.
fn prepare(successor: &Successor, patience: Duration) -> Result<(), NotMoved> {
    let until = Nanos::now().after(patience);
    successor.plan(3, until)?;
    let (state, socket) = (vec![5; STATE_BYTES], null());
    let sockets = [socket.as_fd(), socket.as_fd(), socket.as_fd()];
    let sent = successor.link().send_part("shard 0", &state, &sockets, until);
    sent.and_then(|()| successor.wait_until_ready(until)).map_err(NotMoved::because)
}

/// An upgrade of this process, with the number of the new one.
fn upgrade(stage: &str, deed: &str, witness: &Witness) -> (u32, Result<(), NotMoved>) {
    // Only a process that stands still is waited for in vain.
    let is_silent = ["stop", "hang", "garbage", "nonsense"].contains(&deed);
    let is_in_vain = is_silent && stage != "committed";
    let patience = if is_in_vain { Duration::from_millis(400) } else { PATIENCE };
    let command = own_program("new", &[stage, deed, witness.path()]);
    let mut pid = 0;
    // The new process needs time to start.
    let hello = if stage == "start" { patience } else { PATIENCE };
    let successor =
        match Successor::start_within(hello, command, patience, (|id| pid = id, || true)) {
            Ok(successor) => successor,
            Err(error) => return (pid, Err(error)),
        };
    let mut successor = successor;
    if let Err(error) = prepare(&successor, patience) {
        return (pid, Err(successor.abandon(error)));
    }
    let decided = successor.commit();
    if decided.is_ok() && deed == "stop" {
        kill_process(number(pid), Signal::CONT).unwrap();
    }
    (pid, decided)
}

fn number(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

#[test]
fn a_new_process_that_fails_at_any_stage_leaves_the_old_one_as_it_was() {
    let check = |stage: &str, deed: &str| {
        let witness = Witness::new();
        let (pid, decided) = upgrade(stage, deed, &witness);
        let case = format!("{deed} at {stage}: {decided:?}");
        if stage == "committed" {
            assert_eq!(decided, Ok(()), "{case}");
            witness.wait_for("new owns");
            if matches!(deed, "hang" | "garbage" | "nonsense") {
                kill_process(number(pid), Signal::KILL).unwrap();
            }
            return;
        }
        assert!(decided.is_err(), "{case}");
        assert_eq!(witness.lines(), [""; 0], "{case}");
        assert!(test_kill_process(number(pid)).is_err(), "{case}: it lives");
    };
    for deeds in [["die", "stop", "exit"], ["hang", "garbage", "nonsense"]] {
        for stages in STAGES.chunks(4) {
            std::thread::scope(|scope| {
                for (stage, deed) in stages.iter().flat_map(|s| deeds.map(|deed| (*s, deed))) {
                    scope.spawn(move || check(stage, deed));
                }
            });
        }
    }
}

#[test]
fn an_upgrade_without_trouble_succeeds_and_twice_in_a_row() {
    for _ in 0..2 {
        let witness = Witness::new();
        let (_, decided) = upgrade("", "own", &witness);
        assert_eq!(decided, Ok(()));
        witness.wait_for("new owns");
    }
}

#[test]
fn the_reason_of_a_failure_is_told() {
    let check = |stage, deed, part: &str| {
        let witness = Witness::new();
        let error = upgrade(stage, deed, &witness).1.unwrap_err().0;
        assert!(error.contains(part), "{error}");
    };
    for stage in ["start", "hello", "plan", "half", "part"] {
        check(stage, "fail", "my own reason");
    }
    check("start", "exit", "does not take over: it has ended with exit status: 7");
    check("commit", "exit", "did not take over: it has ended with exit status: 7");
    check("", "reads older", "reads versions 0 to 0 of the state, and this process writes 1 to 1");
    check("", "reads newer", "reads versions 7 to 9 of the state, and this process writes 1 to 1");
    let command = std::process::Command::new("/nowhere/weir");
    let error = Successor::start(command, PATIENCE, |_| {}, || true).unwrap_err().0;
    assert!(error.starts_with("cannot start /nowhere/weir: No such file"), "{error}");
    let command = std::process::Command::new("true");
    let error = Successor::start(command, PATIENCE, |_| {}, || true).unwrap_err();
    assert!(error.0.starts_with("true does not take over: it has ended with exit status: 0"));
}

#[test]
fn the_reason_is_the_one_of_the_new_process_if_it_has_given_one() {
    let abandon = |awaits_end: bool, why: NotMoved| {
        let witness = Witness::new();
        let command = own_program("new", &["plan", "fail", witness.path()]);
        let mut successor = Successor::start(command, PATIENCE, |_| {}, || true).unwrap();
        successor.plan(3, Nanos::now().after(PATIENCE)).unwrap();
        if awaits_end {
            successor.process_of_test().wait(Nanos::now().after(PATIENCE)).unwrap();
        }
        successor.abandon(why).0
    };
    // The pair of a shard ends before the process says why in its own.
    assert_eq!(abandon(false, NotMoved::because(LinkError::Ended)), "my own reason");
    assert_eq!(abandon(true, NotMoved("a guess".to_owned())), "my own reason");
}

/// Whatever the moment of its death, the old process resumes only if the new one owned nothing.
#[test]
fn a_new_process_that_is_killed_at_any_moment_owns_everything_or_nothing() {
    let mut outcomes = [0, 0];
    for round in 0_u64..40 {
        let witness = Witness::new();
        let command = own_program("new", &["", "own", witness.path()]);
        let mut pid = 0;
        let mut successor = Successor::start(command, PATIENCE, |id| pid = id, || true).unwrap();
        prepare(&successor, PATIENCE).unwrap();
        let handle = pidfd_open(number(pid), PidfdFlags::empty()).unwrap();
        let killer = std::thread::spawn(move || {
            let until = Nanos::now().after(Duration::from_micros(round * 10));
            while Nanos::now() < until {
                std::hint::spin_loop();
            }
            // It may have ended by itself.
            let _ = pidfd_send_signal(handle, Signal::KILL);
        });
        let decided = successor.commit();
        killer.join().unwrap();
        outcomes[usize::from(decided.is_ok())] += 1;
        if decided.is_err() {
            assert_eq!(witness.lines(), [""; 0], "both own, in round {round}");
        }
    }
    println!("kept {}, moved {}", outcomes[0], outcomes[1]);
}

/// The old process: what it does around the decision, and the witness.
pub(super) fn old_process(words: &[&str]) {
    let [deed, witness] = words else { panic!("{words:?}") };
    let mut command = own_program("new", &["", "own", witness]);
    command.stdin(Stdio::null());
    let mut successor = Successor::start(command, PATIENCE, |_| {}, || true).unwrap();
    prepare(&successor, PATIENCE).unwrap();
    let commit = || {
        let commit = Message::Commit(v1::LinkCommit {});
        successor.link().send(commit, Nanos::now().after(PATIENCE)).unwrap();
    };
    match *deed {
        "dies before" => signal_itself(Signal::KILL),
        "dies after" => {
            commit();
            signal_itself(Signal::KILL);
        }
        // It has stopped the new one for a look.
        "dies looking" => {
            successor.process_of_test().stop();
            let commit = Message::Commit(v1::LinkCommit {});
            successor.link().send(commit, Nanos::now().after(PATIENCE)).unwrap();
            signal_itself(Signal::KILL);
        }
        "stops after" => {
            commit();
            signal_itself(Signal::STOP);
        }
        "lives" => {}
        _ => panic!("{deed}"),
    }
    let line = match *deed {
        "stops after" => match successor.link().receive(Nanos::now().after(PATIENCE)) {
            Ok(Message::Committed(_)) => {
                successor.process_of_test().release();
                "old left"
            }
            _ => "old resumes",
        },
        _ if successor.commit().is_ok() => "old left",
        _ => "old resumes",
    };
    write_down(Path::new(witness), line);
}

fn run_old(deed: &str) -> (Witness, std::process::Child) {
    let witness = Witness::new();
    let mut command = own_program("old", &[deed, witness.path()]);
    let child = command.stdin(Stdio::null()).spawn().unwrap();
    (witness, child)
}

#[test]
fn an_old_process_that_dies_before_commit_takes_the_new_one_with_it() {
    let (witness, mut child) = run_old("dies before");
    child.wait().unwrap();
    witness.wait_for("new left");
    assert_eq!(witness.lines(), ["new left"]);
}

#[test]
fn an_old_process_that_dies_after_commit_leaves_everything_to_the_new_one() {
    for deed in ["dies after", "dies looking"] {
        let (witness, mut child) = run_old(deed);
        child.wait().unwrap();
        witness.wait_for("new owns");
        assert_eq!(witness.lines(), ["new owns"], "{deed}");
    }
}

#[test]
fn an_old_process_that_stands_still_after_commit_owns_nothing_when_it_goes_on() {
    let (witness, mut child) = run_old("stops after");
    witness.wait_for("new owns");
    kill_process(number(child.id()), Signal::CONT).unwrap();
    // It may not have stood yet.
    while child.try_wait().unwrap().is_none() {
        kill_process(number(child.id()), Signal::CONT).unwrap();
        super::rest();
    }
    let mut lines = witness.lines();
    lines.sort();
    assert_eq!(lines, ["new owns", "old left"]);
}

#[test]
fn the_new_process_lives_on_when_the_old_one_has_left() {
    let (witness, mut child) = run_old("lives");
    child.wait().unwrap();
    witness.wait_for("new owns");
    witness.wait_for("old left");
}

const STATE_BYTES: usize = 200_000;
