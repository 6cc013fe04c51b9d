//! Peers that leave or wait in vain while the only thread is busy.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustls::version::TLS13;
use rustls::{ClientConnection, NoKeyLog};
use rustls_pki_types::ServerName;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, yield_now};
use weir_engine::Budget;

use super::super::testing::Certificate;
use super::*;

/// One thread that makes each step only on demand, and without a result.
struct Rig {
    service: Arc<Service>,
    /// Dropping it lets all steps go.
    go: SyncSender<()>,
    steps: Arc<AtomicUsize>,
    counters: Arc<Counters>,
    _directory: TempDir,
    _workers: Workers,
}

type Securing = JoinHandle<Result<Secured, NotSecured>>;

impl Rig {
    fn new() -> Rig {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.tls.development_directory = directory.path().to_owned();
        let contexts = Arc::new(Contexts::new(&config, Arc::new(NoKeyLog {}), None).unwrap());
        let (counters, steps) = (Arc::<Counters>::default(), Arc::<AtomicUsize>::default());
        let (go, gone) = sync_channel(0);
        let (gone, made) = (Mutex::new(gone), Arc::clone(&steps));
        let step = move |_: &mut Handshake| {
            made.fetch_add(1, Ordering::SeqCst);
            let _ = gone.lock().unwrap().recv();
            Step::Failed(HandshakeFailure::Malformed)
        };
        let workers = Workers::start("test", 1).unwrap();
        let pool = Pool::start(&workers, false, 9, Arc::clone(&counters), step);
        let service = Arc::new(Service { contexts, pool, counters: Arc::clone(&counters) });
        Rig { service, go, steps, counters, _directory: directory, _workers: workers }
    }

    /// Keeps the thread busy with another handshake.
    async fn block(&self) -> (TcpStream, Securing) {
        let blocked = connect(&self.service, LONG).await;
        while self.steps.load(Ordering::SeqCst) == 0 {
            yield_now().await;
        }
        blocked
    }

    async fn waits(&self) {
        while self.counters.tls.waiting() == 0 {
            yield_now().await;
        }
    }

    fn failed(&self, cause: HandshakeFailure) -> u64 {
        self.counters.tls.failed(cause)
    }
}

/// A peer that has sent enough for a step.
async fn connect(service: &Arc<Service>, deadline: Duration) -> (TcpStream, Securing) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let mut stream = Stream::unsecured(listener.accept().await.unwrap().0);
    let mut received = ReadBuffer::new(&Budget::new(32 << 20));
    received.extend(&hello()).unwrap();
    let service = Arc::clone(service);
    let secured = tokio::spawn(async move {
        service.secure(&mut stream, Spoken::Frames, received, &mut Deadline::of(deadline)).await
    });
    (peer, secured)
}

/// The first message of a client.
fn hello() -> Vec<u8> {
    let client = Arc::new(Certificate::new().client(&TLS13));
    let name = ServerName::try_from("localhost").unwrap();
    let mut said = Vec::new();
    ClientConnection::new(client, name).unwrap().write_tls(&mut said).unwrap();
    said
}

#[tokio::test]
async fn who_goes_away_while_it_waits_is_not_served() {
    let rig = Rig::new();
    let (_peer, blocked) = rig.block().await;
    for is_reset in [false, true] {
        let (peer, secured) = connect(&rig.service, Duration::from_secs(2)).await;
        rig.waits().await;
        if is_reset {
            set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        }
        drop(peer);
        let reason = if is_reset { CloseReason::PeerReset } else { CloseReason::PeerClosed };
        assert_eq!(secured.await.unwrap(), Err(NotSecured::Closed(reason)));
    }
    assert_eq!(rig.failed(HandshakeFailure::Closed), 2);
    drop(rig.go);
    let malformed = Err(NotSecured::Closed(CloseReason::TlsHandshake));
    assert_eq!(blocked.await.unwrap(), malformed);
    // The queue is empty when a later handshake has been served.
    let (_peer, last) = connect(&rig.service, LONG).await;
    assert_eq!(last.await.unwrap(), malformed);
    assert_eq!(rig.steps.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn who_waits_in_vain_is_refused_and_is_not_called_slow() {
    let rig = Rig::new();
    let (_peer, _blocked) = rig.block().await;
    let (_patient, secured) = connect(&rig.service, Duration::from_millis(20)).await;
    assert_eq!(secured.await.unwrap(), Err(NotSecured::Refused));
    assert_eq!((rig.counters.tls.refused(), rig.failed(HandshakeFailure::TimedOut)), (1, 0));
}

const LONG: Duration = Duration::from_secs(3_600);
