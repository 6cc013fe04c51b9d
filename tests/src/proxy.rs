//! A proxy between a program and what it connects to, which can be cut off, frozen and slowed down.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::wait::{now, pause, rest};

/// A running proxy; when dropped it cuts off what it carries, and goes.
pub struct Proxy {
    /// Where it listens.
    pub addr: SocketAddr,
    cable: Arc<Cable>,
}

/// What all connections of a proxy share.
#[derive(Default)]
struct Cable {
    state: AtomicU8,
    /// How long bytes take, in each direction.
    delay_ms: AtomicU64,
    /// Connections that were made before this number carry nothing any more.
    first: AtomicU64,
    /// The number of the next connection.
    next: AtomicU64,
}

impl Proxy {
    /// Starts one before `target`, on a free port.
    pub fn start(target: SocketAddr) -> Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let addr = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let cable = Arc::<Cable>::default();
        let proxy = Proxy { addr, cable: Arc::clone(&cable) };
        thread::spawn(move || {
            while cable.state() != GONE {
                let Ok((client, _)) = listener.accept() else {
                    rest();
                    continue;
                };
                // Where it fails the client is dropped: connected, and closed at once.
                let _ = client.set_nonblocking(false).and_then(|()| carry(client, target, &cable));
            }
        });
        Ok(proxy)
    }

    /// Closes all connections, and from now on each new one at once.
    pub fn cut(&self) {
        self.cable.state.store(CUT, Ordering::Relaxed);
    }

    /// Passes nothing on any more and closes nothing, like a wire that is pulled.
    pub fn freeze(&self) {
        self.cable.state.store(FROZEN, Ordering::Relaxed);
    }

    /// Passes everything on, but each byte so much later, in each direction.
    pub fn delay(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.cable.delay_ms.store(millis, Ordering::Relaxed);
    }

    /// Carries again, without a delay. What had been connected before a freeze goes on.
    pub fn heal(&self) {
        self.delay(Duration::ZERO);
        self.cable.state.store(OPEN, Ordering::Relaxed);
    }

    /// Carries again what connects from now on. Earlier connections stay open, and carry nothing
    /// ever again, like those that a firewall has forgotten.
    pub fn heal_but_forget(&self) {
        self.cable.first.store(self.cable.next.load(Ordering::Relaxed), Ordering::Relaxed);
        self.heal();
    }

    /// Carries again what was forgotten. What a client sent before it closed arrives late.
    pub fn remember(&self) {
        self.cable.first.store(0, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cable.state.store(GONE, Ordering::Relaxed);
    }
}

impl Cable {
    fn state(&self) -> u8 {
        self.state.load(Ordering::Relaxed)
    }

    /// What a connection of this number meets.
    fn state_for(&self, number: u64) -> u8 {
        match self.state() {
            OPEN if number < self.first.load(Ordering::Relaxed) => FROZEN,
            state => state,
        }
    }

    /// Waits as long as a connection of this number is frozen; whether it may carry then.
    fn may_carry(&self, number: u64) -> bool {
        while self.state_for(number) == FROZEN {
            rest();
        }
        self.state() == OPEN
    }

    fn delay(&self) -> Duration {
        Duration::from_millis(self.delay_ms.load(Ordering::Relaxed))
    }
}

/// Bytes on their way, and when they came.
type Chunk = (Instant, Vec<u8>);

fn carry(client: TcpStream, target: SocketAddr, cable: &Arc<Cable>) -> std::io::Result<()> {
    if cable.state() == CUT {
        return Ok(());
    }
    let server = TcpStream::connect(target)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    let number = cable.next.fetch_add(1, Ordering::Relaxed);
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        from.set_read_timeout(Some(LOOK_EVERY))?;
        let (chunks, coming) = sync_channel(CHUNKS_MAX);
        let (reading, writing) = (Arc::clone(cable), Arc::clone(cable));
        thread::spawn(move || read(from, &chunks, (&reading, number)));
        thread::spawn(move || write(to, &coming, (&writing, number)));
    }
    Ok(())
}

/// Takes what comes until its side ends, or it is cut.
fn read(mut from: TcpStream, chunks: &SyncSender<Chunk>, (cable, number): (&Cable, u64)) {
    let mut buf = vec![0; 65_536];
    while cable.may_carry(number) {
        match from.read(&mut buf) {
            Ok(0) => break,
            Ok(bytes) if chunks.send((now(), buf[..bytes].to_vec())).is_err() => break,
            Ok(_) => {}
            Err(error) if is_pause(&error) => {}
            Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
}

/// Passes it on, when its time has come.
fn write(mut to: TcpStream, coming: &Receiver<Chunk>, (cable, number): (&Cable, u64)) {
    while let Ok((at, bytes)) = coming.recv() {
        pause((at + cable.delay()).saturating_duration_since(now()));
        // What was read as a freeze began is not passed on either, until it ends; nor is what was read as it was cut.
        if !cable.may_carry(number) || to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn is_pause(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut)
}

const OPEN: u8 = 0;
const CUT: u8 = 1;
const FROZEN: u8 = 2;
const GONE: u8 = 3;
/// How soon a silent connection notices that it is cut.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Reads that wait to be passed on: some megabytes.
const CHUNKS_MAX: usize = 256;
