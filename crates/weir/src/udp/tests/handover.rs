//! The sockets and what their threads remember move to another process, or stay.

use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, sync_channel};

use weir_engine::Nanos;
use weir_engine::handover::NotUnderstood;
use weir_wire::ProstMessage as _;
use weir_wire::handover::v1 as state;

use super::*;

/// Long enough for a machine that is busy.
const LONG: Duration = Duration::from_secs(20);

fn publish(id: u32) -> String {
    format!(r#"{{"pt":"t","publish":{{"topic":"a","text":"b"}},"id":{id}}}"#)
}

fn export(suspended: &Suspended) -> Vec<state::DatagramSocketState> {
    let until = Nanos::now().after(LONG);
    suspended.export(until, until).expect("nothing is being carried out")
}

/// Another process with the sockets of this scene.
fn successor(scene: &Scene, states: Vec<state::DatagramSocketState>) -> Scene {
    let mut config = Config::default();
    config.listen.udp = vec![scene.addr];
    config.udp.threads = 1;
    let copy = |socket: BorrowedFd<'_>| socket.try_clone_to_owned().unwrap();
    let passed = |_| scene.running.threads().sockets().map(copy).collect();
    let bound = bind(&config, &Resources::detect(), passed).unwrap();
    let states = states.into_iter().map(|state| state.encode_to_vec());
    let states = states.map(|bytes| state::DatagramSocketState::decode(&*bytes).unwrap());
    let remembered = import(&config.udp, states.collect()).unwrap();
    let successor = Scene::of(&config, bound, remembered);
    successor.backend.open();
    successor
}

#[test]
fn a_repeated_request_is_known_to_the_other_process() {
    let scene = Scene::open(|_| {});
    let client = scene.client();
    let published: Vec<Value> = (1..=3).map(|id| client.ask(&publish(id))).collect();
    let suspended = scene.running.threads().suspend();
    let states = export(&suspended);
    // It waits in the socket until somebody reads again.
    client.send(publish(4));
    let other = successor(&scene, states);
    suspended.leave(None);
    assert_eq!(client.hear_json()["published"]["messageId"], "1", "its first publish");
    for (id, before) in (1..).zip(published) {
        assert_eq!(client.ask(&publish(id)), before);
    }
    assert_eq!(other.backend.publishes.load(Ordering::Relaxed), 1);
    other.wait_for(Count::Repeated, 3);
    assert_eq!(scene.backend.publishes.load(Ordering::Relaxed), 3);
    scene.end();
    assert_eq!(client.ask(&publish(5))["published"]["messageId"], "2");
    other.end();
}

#[test]
fn threads_that_are_not_replaced_read_on() {
    let scene = Scene::open(|_| {});
    let client = scene.client();
    let published = client.ask(&publish(1));
    let suspended = scene.running.threads().suspend();
    export(&suspended);
    client.send(publish(2));
    // The thread has had a turn since.
    export(&suspended);
    assert_eq!(scene.backend.publishes.load(Ordering::Relaxed), 1);
    drop(suspended);
    assert_eq!(client.hear_json()["published"]["messageId"], "2");
    assert_eq!(client.ask(&publish(1)), published);
    scene.end();
}

/// A process that takes over while a request is being carried out.
fn amid_a_request(scene: &Scene, client: &Client) -> (Suspended, Scene) {
    client.send(publish(1));
    while scene.backend.publishes.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let suspended = scene.running.threads().suspend();
    let now = Nanos::now();
    let states = suspended.export(now, now.after(LONG)).expect("the thread answers");
    assert_eq!(states[0].begun.len(), 1);
    (suspended, successor(scene, states))
}

/// What the threads tell the process that has taken over.
fn leave(suspended: Suspended) -> Receiver<state::LinkDatagram> {
    let (tell, told) = sync_channel(4);
    let tell: TellEnded = Arc::new(move |ended| tell.send(ended).unwrap());
    suspended.leave(Some(&tell));
    told
}

#[test]
fn a_request_that_lasts_is_answered_by_the_process_that_has_begun_it() {
    let scene = Scene::new(|_| {});
    let client = scene.client();
    let (suspended, other) = amid_a_request(&scene, &client);
    let told = leave(suspended);
    client.send(publish(1));
    other.wait_for(Count::Joined, 1);
    scene.backend.open();
    let published = client.hear_json();
    assert_eq!(published["published"]["messageId"], "1");
    let ended = told.recv_timeout(LONG).expect("it is told");
    assert!(ended.answer.is_some());
    other.running.threads().hear(ended);
    // The thread takes its orders before it reads.
    assert_eq!(client.ask(&publish(1)), published);
    assert_eq!(other.backend.publishes.load(Ordering::Relaxed), 0);
    assert_eq!(client.ask(&publish(2))["published"]["messageId"], "1", "the first there");
    scene.end();
    assert!(told.recv_timeout(LONG).is_err(), "it is told once");
    other.end();
}

#[test]
fn a_request_that_ends_before_the_decision_is_told_after_it() {
    let scene = Scene::new(|_| {});
    let client = scene.client();
    let (suspended, other) = amid_a_request(&scene, &client);
    scene.backend.open();
    let published = client.hear_json();
    let told = leave(suspended);
    other.running.threads().hear(told.recv_timeout(LONG).expect("it is told"));
    assert_eq!(client.ask(&publish(1)), published);
    assert_eq!(other.backend.publishes.load(Ordering::Relaxed), 0);
    scene.end();
    other.end();
}

#[test]
fn a_request_that_was_not_carried_out_may_come_again() {
    let scene = Scene::new(|_| {});
    let client = scene.client();
    let (suspended, other) = amid_a_request(&scene, &client);
    let told = leave(suspended);
    // The backend answers nothing, and nobody waits for it any more.
    scene.backend.gate.close();
    other.running.threads().hear(told.recv_timeout(LONG).expect("it is told"));
    assert_eq!(client.hear_json()["error"], "busy");
    assert_eq!(client.ask(&publish(1))["published"]["messageId"], "1", "by the other one");
    scene.end();
    other.end();
}

#[test]
fn a_thread_that_leaves_waits_for_answers_as_long_as_it_may() {
    let scene = Scene::new(|_| {});
    let client = scene.client();
    let (suspended, other) = amid_a_request(&scene, &client);
    suspended.leave(None);
    scene.running.threads().end_by(Nanos::now());
    // Its backend never answers.
    scene.end();
    other.end();
}

#[test]
fn requests_that_last_do_not_hold_threads_that_read_on() {
    let scene = Scene::new(|_| {});
    let (client, caller) = (scene.client(), scene.client());
    client.send(publish(1));
    caller.send(r#"{"pt":"t","count":1}"#);
    // The publish, the check, and the call that waits for it.
    while scene.counters.udp.waiting() < 3 {
        std::thread::yield_now();
    }
    let suspended = scene.running.threads().suspend();
    let now = Nanos::now();
    let states = suspended.export(now, now.after(LONG)).expect("the thread answers");
    assert_eq!(states[0].begun.len(), 1);
    drop(suspended);
    scene.backend.open();
    let published = client.hear_json();
    assert_eq!(caller.hear_json()["count"], 1);
    assert_eq!(client.ask(&publish(1)), published);
    // What lasts no longer than somebody waits is remembered as usual.
    let suspended = scene.running.threads().suspend();
    let states = export(&suspended);
    let answers = states[0].retries.as_ref().map(|retries| retries.answers.len());
    assert_eq!((answers, states[0].begun.len()), (Some(1), 0));
    drop(suspended);
    scene.end();
}

#[test]
fn a_call_whose_token_is_looked_up_is_answered_by_the_process_that_took_it() {
    let scene = Scene::new(|_| {});
    let client = scene.client();
    client.send(r#"{"pt":"t","count":1}"#);
    while scene.counters.udp.waiting() < 2 {
        std::thread::yield_now();
    }
    let suspended = scene.running.threads().suspend();
    let now = Nanos::now();
    let states = suspended.export(now, now.after(LONG)).expect("nothing is being carried out");
    let other = successor(&scene, states);
    suspended.leave(None);
    assert_eq!(client.ask(r#"{"pt":"t","count":2}"#)["count"], 2, "the other one");
    scene.backend.open();
    assert_eq!(client.hear_json()["count"], 1);
    scene.end();
    other.end();
}

#[test]
fn a_thread_that_has_ended_by_itself_is_replaced() {
    let scene = Scene::open(|_| {});
    scene.running.tell();
    // Its socket lives on.
    while !scene.running.handles.iter().all(JoinHandle::is_finished) {
        std::thread::yield_now();
    }
    let suspended = scene.running.threads().suspend();
    let other = successor(&scene, export(&suspended));
    suspended.leave(None);
    assert!(scene.client().ask(&publish(1))["published"].is_object());
    other.end();
    scene.end();
}

#[test]
fn what_is_damaged_or_does_not_fit_is_refused() {
    let state = state::DatagramSocketState::default();
    let refused = |state| match import(&UdpConfig::default(), vec![state]) {
        Ok(_) => panic!("it was taken"),
        Err(NotUnderstood { field, .. }) => field,
    };
    assert_eq!(refused(state), "datagrams.addr");
    let addr = "127.0.0.1:1".to_owned();
    let retries = Some(state::Duplicates::default());
    let of = |retries, begun| state::DatagramSocketState { addr: addr.clone(), retries, begun };
    assert_eq!(refused(of(retries, vec![])), "duplicates.hash_keys");
    let key = state::RequestKey::default();
    assert_eq!(refused(of(None, vec![key, key])), "request_key.hash, repeated");
    let mut config = Config::default();
    config.udp.threads = 2;
    let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket().local_addr().unwrap();
    let bound = |passed| Bound::new(addr, &config, &Resources::detect(), passed).err();
    let few = bound(vec![socket().into()]).unwrap().to_string();
    assert!(few.contains("has 1 sockets, and this one 2 threads"), "{few}");
    let stream = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().into();
    assert!(bound(vec![stream(), stream()]).unwrap().to_string().contains("no socket for"));
}
