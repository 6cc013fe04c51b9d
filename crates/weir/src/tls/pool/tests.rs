//! The order and refusal of handshakes while a signer is slow.

use std::fmt;
use std::sync::Condvar;
use std::time::Duration;

use rustix::process::getpriority_process;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, Error, ServerConfig, SignatureAlgorithm, SignatureScheme,
    SupportedProtocolVersion,
};
use rustls_pki_types::ServerName;
use tokio::task::{JoinHandle, yield_now};
use weir_engine::Budget;

use super::super::testing::Certificate;
use super::*;
use crate::base::model::Spoken;
use crate::base::read_buffer::ReadBuffer;

/// Holds back each signature while it is shut.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    is_changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_shut: bool,
    waiting: usize,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        self.state.lock().unwrap().is_shut = is_shut;
        self.is_changed.notify_all();
    }

    fn waiting(&self) -> usize {
        self.state.lock().unwrap().waiting
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        let mut state = self.is_changed.wait_while(state, |state| state.is_shut).unwrap();
        state.waiting -= 1;
    }
}

/// Signs like another key, but behind a gate.
#[derive(Debug, Clone)]
struct Gated<T: ?Sized> {
    gate: Arc<Gate>,
    inner: Arc<T>,
}

impl SigningKey for Gated<dyn SigningKey> {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let inner = Arc::from(self.inner.choose_scheme(offered)?);
        Some(Box::new(Gated { gate: Arc::clone(&self.gate), inner }))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.inner.algorithm()
    }
}

impl Signer for Gated<dyn Signer> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.gate.pass();
        self.inner.sign(message)
    }

    fn scheme(&self) -> SignatureScheme {
        self.inner.scheme()
    }
}

struct One(Arc<CertifiedKey>);

impl fmt::Debug for One {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("One")
    }
}

impl ResolvesServerCert for One {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// One thread, a gate, and the order of the steps: whether each was a resumption.
struct Rig {
    gate: Arc<Gate>,
    pool: Arc<Pool>,
    counters: Arc<Counters>,
    order: Arc<Mutex<Vec<bool>>>,
    client: Arc<ClientConfig>,
    workers: Workers,
}

impl Rig {
    fn new(waiting_max: usize) -> Rig {
        Rig::speaking(&TLS13, waiting_max)
    }

    fn speaking(version: &'static SupportedProtocolVersion, waiting_max: usize) -> Rig {
        Rig::signing(false, version, waiting_max)
    }

    fn signing(
        may_block: bool,
        version: &'static SupportedProtocolVersion,
        waiting_max: usize,
    ) -> Rig {
        let certificate = Certificate::new();
        let gate = Arc::<Gate>::default();
        let inner = any_supported_type(&certificate.key_der()).unwrap();
        let key = Gated { gate: Arc::clone(&gate), inner };
        let mut config: ServerConfig = certificate.server();
        let certified = CertifiedKey::new(vec![certificate.der.clone()], Arc::new(key));
        config.cert_resolver = Arc::new(One(Arc::new(certified)));
        let config = Arc::new(config);
        let (counters, order) = (Arc::<Counters>::default(), Arc::<Mutex<Vec<bool>>>::default());
        let asked = Arc::clone(&order);
        let step = move |handshake: &mut Handshake| {
            asked.lock().unwrap().push(handshake.is_resumption());
            handshake.step(|_| Arc::clone(&config))
        };
        let workers = one_worker();
        let pool = Pool::start(&workers, may_block, waiting_max, Arc::clone(&counters), step);
        let client = Arc::new(certificate.client(version));
        Rig { gate, pool: Arc::new(pool), counters, order, client, workers }
    }

    /// The client's side, and the handshake that has received its first message.
    fn begin(&self, client: &Arc<ClientConfig>) -> (ClientConnection, Box<Handshake>) {
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
        let mut handshake =
            Box::new(Handshake::new(Spoken::Frames, ReadBuffer::new(&Budget::new(32 << 20))));
        receive(&mut handshake, &mut client);
        (client, handshake)
    }

    /// A complete handshake, which gives the client a session.
    async fn complete(&self, client: &Arc<ClientConfig>) {
        let (mut client, mut handshake) = self.begin(client);
        loop {
            let (stepped, step) = self.pool.step(handshake).await.unwrap();
            handshake = stepped;
            let output = std::mem::take(&mut handshake.output);
            let mut output = output.as_slice();
            while !output.is_empty() {
                client.read_tls(&mut output).unwrap();
                client.process_new_packets().unwrap();
            }
            match step {
                Step::Established(_) => return,
                Step::OutOfCredit => receive(&mut handshake, &mut client),
                Step::Failed(failure) => panic!("{failure:?}"),
            }
        }
    }

    /// Asks for a first step, and returns once `waiting` steps wait.
    async fn ask(&self, client: &Arc<ClientConfig>, waiting: usize) -> JoinHandle<Answer> {
        let (_, handshake) = self.begin(client);
        let pool = Arc::clone(&self.pool);
        let asked = tokio::spawn(async move { pool.step(handshake).await });
        while self.counters.tls.waiting() != waiting {
            yield_now().await;
        }
        asked
    }

    /// A client without a session.
    fn stranger(&self) -> Arc<ClientConfig> {
        let mut client = (*self.client).clone();
        client.resumption = rustls::client::Resumption::disabled();
        Arc::new(client)
    }

    /// Lets the only thread wait at the gate.
    async fn block(&self) -> JoinHandle<Answer> {
        self.gate.set(true);
        let (_, handshake) = self.begin(&self.stranger());
        let pool = Arc::clone(&self.pool);
        let blocked = tokio::spawn(async move { pool.step(handshake).await });
        while self.gate.waiting() == 0 {
            yield_now().await;
        }
        self.order.lock().unwrap().clear();
        blocked
    }
}

fn receive(handshake: &mut Handshake, client: &mut ClientConnection) {
    let mut said = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut said).unwrap();
    }
    handshake.input.extend(&said).unwrap();
    assert!(handshake.is_ready());
}

fn one_worker() -> Workers {
    Workers::start("test", 1).unwrap()
}

fn is_refused(answer: &Answer) -> bool {
    matches!(answer, Err(NotStepped::Full))
}

#[tokio::test]
async fn resumptions_go_before_those_who_begin_anew() {
    let rig = Rig::new(3);
    // Each ticket is good for one handshake.
    rig.complete(&rig.client).await;
    let blocked = rig.block().await;
    let first = rig.ask(&rig.stranger(), 1).await;
    let second = rig.ask(&rig.stranger(), 2).await;
    let resumed = rig.ask(&rig.client, 3).await;
    // There is no more room. A full handshake is refused, and a resumption takes the place of the
    // newest full one.
    assert!(is_refused(&rig.ask(&rig.stranger(), 3).await.await.unwrap()));
    let also_resumed = rig.ask(&rig.client, 3).await;
    assert!(is_refused(&second.await.unwrap()));
    assert_eq!(rig.counters.tls.refused(), 2);

    rig.gate.set(false);
    for answered in [blocked, first, resumed, also_resumed] {
        assert!(matches!(
            answered.await.unwrap(),
            Ok((_, Step::OutOfCredit | Step::Established(_)))
        ));
    }
    assert_eq!(*rig.order.lock().unwrap(), [true, true, false]);
    assert_eq!(rig.counters.tls.waiting(), 0);
}

#[tokio::test]
async fn who_begins_anew_has_his_turn_and_his_places_in_a_crowd_that_comes_back() {
    // In TLS 1.2 a ticket is good for many handshakes.
    let rig = Rig::speaking(&TLS12, 40);
    rig.complete(&rig.client).await;
    let blocked = rig.block().await;
    let mut all = vec![blocked];
    for waiting in 1..=35 {
        all.push(rig.ask(&rig.client, waiting).await);
    }
    // The remaining places are not for resumptions.
    assert!(is_refused(&rig.ask(&rig.client, 35).await.await.unwrap()));
    for waiting in 36..=40 {
        all.push(rig.ask(&rig.stranger(), waiting).await);
    }
    assert!(is_refused(&rig.ask(&rig.stranger(), 40).await.await.unwrap()));
    assert!(is_refused(&rig.ask(&rig.client, 40).await.await.unwrap()));
    rig.gate.set(false);
    for answered in all {
        assert!(answered.await.unwrap().is_ok());
    }
    let order = rig.order.lock().unwrap();
    let turns = order.iter().enumerate().filter(|(_, is_resumption)| !**is_resumption);
    let turns: Vec<usize> = turns.map(|(at, _)| at).collect();
    assert_eq!(turns, [15, 31, 37, 38, 39]);
}

#[tokio::test]
async fn as_many_wait_as_may_and_nobody_is_refused_who_has_begun() {
    let rig = Rig::new(1);
    rig.complete(&rig.client).await;
    // A handshake that has begun.
    let (mut client, handshake) = rig.begin(&rig.stranger());
    let (mut begun, step) = rig.pool.step(handshake).await.unwrap();
    assert!(matches!(step, Step::OutOfCredit));
    let output = std::mem::take(&mut begun.output);
    client.read_tls(&mut output.as_slice()).unwrap();
    client.process_new_packets().unwrap();
    receive(&mut begun, &mut client);

    let blocked = rig.block().await;
    let resumed = rig.ask(&rig.client, 1).await;
    // The queue is full of resumptions, so the next one is refused like any other.
    assert!(is_refused(&rig.ask(&rig.client, 1).await.await.unwrap()));
    assert!(matches!(rig.pool.step(begun).await, Ok((_, Step::Established(_)))));
    rig.gate.set(false);
    assert!(resumed.await.unwrap().is_ok() && blocked.await.unwrap().is_ok());
}

#[tokio::test]
async fn who_has_gone_away_costs_no_signature() {
    let rig = Rig::new(4);
    let blocked = rig.block().await;
    let gone = rig.ask(&rig.stranger(), 1).await;
    gone.abort();
    assert!(gone.await.is_err());
    let kept = rig.ask(&rig.stranger(), 2).await;
    rig.gate.set(false);
    assert!(kept.await.unwrap().is_ok() && blocked.await.unwrap().is_ok());
    assert_eq!(rig.order.lock().unwrap().len(), 1);
}

/// The sockets and timers of all other tasks depend on the thread that waits for a signer.
#[tokio::test]
async fn a_signer_that_takes_its_time_holds_up_no_other_task() {
    let rig = Rig::signing(true, &TLS13, 4);
    let blocked = rig.block().await;
    let other = rig.workers.handle().spawn(tokio::time::sleep(Duration::from_millis(1)));
    other.await.unwrap();
    rig.gate.set(false);
    assert!(blocked.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_panic_ends_one_handshake_only() {
    let counters = Arc::<Counters>::default();
    let workers = one_worker();
    let step = |_: &mut Handshake| panic!("a signer of little worth");
    let pool = Pool::start(&workers, false, 4, Arc::clone(&counters), step);
    for _ in 0..2 {
        let handshake =
            Box::new(Handshake::new(Spoken::Frames, ReadBuffer::new(&Budget::new(32 << 20))));
        assert!(matches!(pool.step(handshake).await, Err(NotStepped::Failed)));
    }
}

#[tokio::test]
async fn its_threads_stand_behind_all_others() {
    let found = Arc::<Mutex<Option<i32>>>::default();
    let told = Arc::clone(&found);
    let step = move |_: &mut Handshake| {
        *told.lock().unwrap() = getpriority_process(None).ok();
        Step::OutOfCredit
    };
    let workers = one_worker();
    let pool = Pool::start(&workers, false, 4, Arc::default(), step);
    let handshake =
        Box::new(Handshake::new(Spoken::Frames, ReadBuffer::new(&Budget::new(32 << 20))));
    assert!(pool.step(handshake).await.is_ok());
    let own = getpriority_process(None).unwrap();
    assert_eq!(*found.lock().unwrap(), Some((own + 10).min(19)));
}
