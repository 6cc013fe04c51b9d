//! A proxy between a program and what it connects to, which can be cut off.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::wait::rest;

/// A running proxy; when dropped it cuts off what it carries, and goes.
pub struct Proxy {
    /// Where it listens.
    pub addr: SocketAddr,
    state: Arc<AtomicU8>,
}

impl Proxy {
    /// Starts one before `target`, on a free port.
    pub fn start(target: SocketAddr) -> Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let addr = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let state = Arc::new(AtomicU8::new(OPEN));
        let proxy = Proxy { addr, state: Arc::clone(&state) };
        thread::spawn(move || {
            while state.load(Ordering::Relaxed) != GONE {
                let Ok((client, _)) = listener.accept() else {
                    rest();
                    continue;
                };
                // Where it fails the client is dropped: connected, and closed at once.
                let _ = client.set_nonblocking(false).and_then(|()| carry(client, target, &state));
            }
        });
        Ok(proxy)
    }

    /// Closes all connections, and from now on each new one at once.
    pub fn cut(&self) {
        self.state.store(CUT, Ordering::Relaxed);
    }

    /// Passes nothing on any more and closes nothing, like a cable that is pulled.
    pub fn freeze(&self) {
        self.state.store(FROZEN, Ordering::Relaxed);
    }

    /// Carries again. What had been connected before a freeze goes on.
    pub fn heal(&self) {
        self.state.store(OPEN, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.store(GONE, Ordering::Relaxed);
    }
}

fn carry(client: TcpStream, target: SocketAddr, state: &Arc<AtomicU8>) -> std::io::Result<()> {
    if state.load(Ordering::Relaxed) == CUT {
        return Ok(());
    }
    let server = TcpStream::connect(target)?;
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        from.set_read_timeout(Some(Duration::from_millis(10)))?;
        let state = Arc::clone(state);
        thread::spawn(move || pass(from, to, &state));
    }
    Ok(())
}

/// Passes on what comes until one side ends, or it is cut.
fn pass(mut from: TcpStream, mut to: TcpStream, state: &AtomicU8) {
    let mut buf = vec![0; 65_536];
    loop {
        match state.load(Ordering::Relaxed) {
            OPEN => {}
            FROZEN => {
                rest();
                continue;
            }
            _ => break,
        }
        match from.read(&mut buf) {
            Ok(0) => break,
            Ok(bytes) => {
                // What was read as the freeze began is not passed on either, until it ends.
                while state.load(Ordering::Relaxed) == FROZEN {
                    rest();
                }
                // Nor is what was read as it was cut.
                if state.load(Ordering::Relaxed) != OPEN || to.write_all(&buf[..bytes]).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

const OPEN: u8 = 0;
const CUT: u8 = 1;
const FROZEN: u8 = 2;
const GONE: u8 = 3;
