//! Real threads and sockets, in front of a backend that the test controls.

use std::net::{IpAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use weir_store::{Secrets, Serial};
use weir_wire::v1;

use super::backend::{Answer, DatagramRefusal, Validity};
use super::*;
use crate::base::config::UdpConfig;
use crate::base::model::Accepted;
use crate::observe::counters::udp::Count;
use crate::provisioning::activation::Activated;

mod handover;
mod hostile;

/// Answers while its gate is open.
struct Fake {
    gate: Semaphore,
    checks: AtomicU64,
    activations: AtomicU64,
    /// Answers to activations, in their order.
    tokens: Mutex<Vec<String>>,
    publishes: AtomicU64,
}

struct Scene {
    addr: SocketAddr,
    backend: Arc<Fake>,
    counters: Arc<Counters>,
    running: Running,
    runtime: Runtime,
}

impl Fake {
    /// Waits for the gate; returns the number of earlier calls.
    async fn enter(&self, count: &AtomicU64) -> u64 {
        let before = count.fetch_add(1, Ordering::Relaxed);
        drop(self.gate.acquire().await);
        before
    }

    fn open(&self) {
        self.gate.add_permits(1000);
    }
}

impl Backend for Fake {
    fn check<'a>(&'a self, token: &'a str, _: IpAddr) -> Answer<'a, Option<Validity>> {
        Box::pin(async move {
            self.enter(&self.checks).await;
            assert_ne!(token, "panic", "as it was told");
            let ends_in = (token == "short").then_some(Duration::from_millis(1));
            Ok((token != "wrong").then_some(Validity { ends_in, configured: None }))
        })
    }

    fn activate<'a>(&'a self, serial: &'a str, key: &'a str, _: IpAddr) -> Answer<'a, Activated> {
        Box::pin(async move {
            let before = self.enter(&self.activations).await;
            if key == "wrong" {
                return Err(DatagramRefusal::unauthorized());
            }
            if serial == "later" && before == 0 {
                return Err(DatagramRefusal::busy("the store is not to be had"));
            }
            let (token, _) = Secrets::new(&[1; 32]).new_token().unwrap();
            self.tokens.lock().unwrap().push(token.as_str().to_owned());
            Ok(Activated {
                serial: Serial::new("add").unwrap(),
                token,
                expires_at: 1_767_225_600_000,
                gateways: vec!["gate.example:7070".to_owned(); 3].into(),
            })
        })
    }

    fn publish<'a>(
        &'a self,
        _: &'a str,
        _: &'a v1::Publish,
        _: IpAddr,
    ) -> Answer<'a, Option<Accepted>> {
        Box::pin(async move {
            let id = self.enter(&self.publishes).await + 1;
            if self.gate.is_closed() {
                return Err(DatagramRefusal::busy("it gives up"));
            }
            Ok(Some(Accepted { id, offset: Some(9), epoch: Some(3), connections: 2, nodes: None }))
        })
    }
}

impl Scene {
    fn new(change: impl FnOnce(&mut UdpConfig)) -> Scene {
        let mut config = Config::default();
        config.listen.udp = vec!["127.0.0.1:0".parse().unwrap()];
        config.udp.threads = 1;
        change(&mut config.udp);
        let bound = bind(&config, &Resources::detect(), |_| Vec::new()).unwrap();
        Scene::of(&config, bound, Remembered::default())
    }

    fn of(config: &Config, bound: Vec<Bound>, remembered: Remembered) -> Scene {
        let backend = Arc::new(Fake {
            gate: Semaphore::new(0),
            checks: AtomicU64::new(0),
            activations: AtomicU64::new(0),
            tokens: Mutex::default(),
            publishes: AtomicU64::new(0),
        });
        let runtime = Runtime::new().unwrap();
        let addr = bound[0].addr;
        let counters = Arc::<Counters>::default();
        let front: Arc<dyn Backend> = Arc::clone(&backend) as _;
        let handle = runtime.handle();
        let rates = Arc::new(Rates::new(
            config.udp.datagrams_per_source_per_second,
            config.udp.datagrams_per_source_burst,
        ));
        let (bound, config) = ((bound, remembered), (&config.udp, rates));
        let running = Running::start(bound, config, front, Arc::clone(&counters), handle).unwrap();
        Scene { addr, backend, counters, running, runtime }
    }

    fn open(change: impl FnOnce(&mut UdpConfig)) -> Scene {
        let scene = Scene::new(change);
        scene.backend.open();
        scene
    }

    fn client(&self) -> Client {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.addr).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client(socket)
    }

    /// Waits until a counter has this value.
    fn wait_for(&self, count: Count, value: u64) {
        while self.counters.udp.get(count) < value {
            std::thread::yield_now();
        }
        assert_eq!(self.counters.udp.get(count), value, "{count:?}");
    }

    fn end(self) {
        self.running.finish();
        drop(self.runtime);
    }
}

struct Client(UdpSocket);

impl Client {
    fn send(&self, datagram: impl AsRef<[u8]>) {
        self.0.send(datagram.as_ref()).unwrap();
    }

    fn hear(&self) -> Vec<u8> {
        let mut buf = vec![0; 2000];
        let got = self.0.recv(&mut buf).expect("an answer");
        buf.truncate(got);
        buf
    }

    fn hear_json(&self) -> Value {
        serde_json::from_slice(&self.hear()).expect("JSON")
    }

    fn ask(&self, datagram: &str) -> Value {
        self.send(datagram);
        self.hear_json()
    }
}

#[test]
fn a_call_is_answered_and_its_token_looked_up_once() {
    let scene = Scene::open(|_| {});
    let client = scene.client();
    let call = r#""pt":"AAAAAAAAAAAAAAAAAAAAAA","count":1}"#;
    for _ in 0..10 {
        client.send(format!("{{{call}"));
        assert_eq!(client.hear(), format!("{{\"answer\":true,{call}").as_bytes());
    }
    let with_id = client.ask(r#"{"id":"x","count":7,"pt":"AAAAAAAAAAAAAAAAAAAAAA"}"#);
    assert_eq!(
        with_id,
        json!({"answer": true, "pt": "AAAAAAAAAAAAAAAAAAAAAA", "count": 7, "id": "x"})
    );
    assert_eq!(scene.backend.checks.load(Ordering::Relaxed), 1);
    for _ in 0..2 {
        let refused = client.ask(r#"{"pt":"wrong","count":1,"id":5}"#);
        assert_eq!((&refused["error"], &refused["id"]), (&json!("unauthorized"), &json!(5)));
    }
    assert_eq!(scene.backend.checks.load(Ordering::Relaxed), 2);
    scene.wait_for(Count::Calls, 11);
    scene.wait_for(Count::RefusedCredentials, 2);
    assert_eq!(scene.counters.udp.waiting(), 0);
    scene.end();
}

#[test]
fn calls_wait_together_for_their_token() {
    let scene = Scene::new(|_| {});
    let clients: Vec<Client> = (0..20).map(|_| scene.client()).collect();
    for (index, client) in clients.iter().enumerate() {
        client.send(format!(r#"{{"pt":"t","count":{index}}}"#));
    }
    // The check, and the calls that wait for it.
    while scene.counters.udp.waiting() < 21 {
        std::thread::yield_now();
    }
    scene.backend.open();
    for (index, client) in clients.iter().enumerate() {
        assert_eq!(client.hear_json(), json!({"answer": true, "pt": "t", "count": index}));
    }
    assert_eq!(scene.backend.checks.load(Ordering::Relaxed), 1);
    scene.end();
}

#[test]
fn a_token_is_looked_up_again_before_it_is_forgotten_and_when_it_has_ended() {
    let scene = Scene::open(|udp| {
        udp.token_cache_ttl = Duration::from_secs(2);
        // The caller sends as fast as it can.
        udp.datagrams_per_source_per_second = 0;
    });
    let client = scene.client();
    // Called until the second half of the entry's time, when the look-up delays no call.
    while scene.backend.checks.load(Ordering::Relaxed) < 2 {
        assert_eq!(client.ask(r#"{"pt":"t","count":1}"#)["count"], 1);
    }
    let before = scene.backend.checks.load(Ordering::Relaxed);
    for checks in 1..3 {
        client.ask(r#"{"pt":"short","count":1}"#);
        assert!(scene.backend.checks.load(Ordering::Relaxed) >= before + checks);
        std::thread::park_timeout(Duration::from_millis(5));
    }
    scene.end();
}

#[test]
fn an_activation_is_made_once_however_often_it_is_asked_for() {
    let scene = Scene::new(|_| {});
    let client = scene.client();
    let activate = r#"{"devSn":"add","devKey":"abc"}"#;
    (0..5).for_each(|_| client.send(activate));
    scene.wait_for(Count::Joined, 4);
    scene.backend.open();
    let first = client.hear_json();
    let token = scene.backend.tokens.lock().unwrap()[0].clone();
    assert_eq!(first["pt"], token);
    assert_eq!(first["expiresAt"], 1_767_225_600_000_u64);
    assert_eq!(client.ask(activate), first);
    scene.wait_for(Count::Repeated, 1);
    // The same request from another client is another one.
    assert_ne!(scene.client().ask(activate)["pt"], token);
    // With an id, only id and key identify an activation.
    let with_id = client.ask(r#"{"devSn":"add","devKey":"abc","id":1}"#);
    assert_eq!(client.ask(r#"{"devSn":"add","devKey":"abc","id":1,"try":2}"#), with_id);
    assert_eq!(client.ask(r#"{"id":1,"devSn":"add","devKey":"wrong"}"#)["error"], "unauthorized");
    assert_eq!(scene.backend.activations.load(Ordering::Relaxed), 4);
    scene.wait_for(Count::Activations, 3);
    scene.end();
}

#[test]
fn what_may_work_later_is_not_remembered() {
    let scene = Scene::open(|_| {});
    let client = scene.client();
    let activate = r#"{"devSn":"later","devKey":"abc"}"#;
    let refused = client.ask(activate);
    assert_eq!((&refused["error"], &refused["retryAfterMs"]), (&json!("busy"), &json!(1000)));
    assert!(client.ask(activate)["pt"].is_string());
    // A failed front answers `busy`.
    let refused = client.ask(r#"{"pt":"panic","count":1,"id":"with room for it"}"#);
    assert_eq!(refused["error"], "busy");
    scene.end();
}

#[test]
fn a_publish_is_made_once_for_each_id() {
    let scene = Scene::open(|_| {});
    let client = scene.client();
    let publish = |id: u32| {
        client.ask(&format!(r#"{{"pt":"t","publish":{{"topic":"a","text":"b"}},"id":{id}}}"#))
    };
    let published = json!({
        "answer": true,
        "published": {"messageId": "1", "offset": "9", "connections": 2},
        "id": 1,
    });
    assert_eq!(publish(1), published);
    assert_eq!(publish(1), published);
    assert_eq!(publish(2)["published"]["messageId"], "2");
    scene.wait_for(Count::Publishes, 2);
    scene.end();
}

#[test]
fn more_than_may_wait_is_told_so() {
    let scene = Scene::new(|udp| udp.queue_max = 2);
    let client = scene.client();
    client.send(r#"{"devSn":"1","devKey":"k"}"#);
    client.send(r#"{"devSn":"2","devKey":"k"}"#);
    for datagram in [r#"{"devSn":"3","devKey":"k"}"#, r#"{"pt":"t","count":1}"#] {
        assert_eq!(client.ask(datagram)["error"], "busy", "{datagram}");
    }
    scene.wait_for(Count::RefusedQueue, 2);
    scene.backend.open();
    client.hear();
    client.hear();
    assert!(client.ask(r#"{"devSn":"3","devKey":"k"}"#)["pt"].is_string());
    scene.end();
}

#[test]
fn an_end_answers_what_was_taken() {
    let scene = Scene::new(|_| {});
    let client = scene.client();
    client.send(r#"{"devSn":"1","devKey":"k"}"#);
    while scene.backend.activations.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let Scene { backend, running, .. } = scene;
    running.tell();
    backend.open();
    running.finish();
    assert!(client.hear_json()["pt"].is_string());
}
