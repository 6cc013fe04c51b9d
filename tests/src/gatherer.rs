//! A proxy that passes on what a client says at once in one piece.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::wait::rest;

/// A running one. It waits until the client has been quiet for a while, and then sends all that has come in one write: a
/// server cannot answer the first half before the second is there. What the server says is passed on as it comes.
pub struct Gatherer {
    /// Where it listens.
    pub addr: SocketAddr,
    is_over: Arc<AtomicBool>,
}

impl Gatherer {
    /// Starts one before `target`, on a free port.
    pub fn start(target: SocketAddr, quiet: Duration) -> Result<Gatherer> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let addr = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let gatherer = Gatherer { addr, is_over: Arc::clone(&is_over) };
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                match listener.accept() {
                    // Where it fails the client is dropped: connected, and closed at once.
                    Ok((client, _)) => drop(carry(client, target, quiet)),
                    Err(_) => rest(),
                }
            }
        });
        Ok(gatherer)
    }
}

impl Drop for Gatherer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn carry(client: TcpStream, target: SocketAddr, quiet: Duration) -> std::io::Result<()> {
    client.set_nonblocking(false)?;
    let server = TcpStream::connect(target)?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    from.set_read_timeout(Some(quiet))?;
    thread::spawn(move || gather(from, to));
    thread::spawn(move || pass(server, client));
    Ok(())
}

/// Gathers until the client is quiet, passes that on, and begins anew, until one side ends.
fn gather(mut from: TcpStream, mut to: TcpStream) {
    let (mut gathered, mut buf) = (Vec::new(), [0; 16_384]);
    let is_ended = loop {
        match from.read(&mut buf) {
            Ok(0) => break true,
            Ok(bytes) => gathered.extend_from_slice(&buf[..bytes]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if to.write_all(&gathered).is_err() {
                    break false;
                }
                gathered.clear();
            }
            Err(_) => break false,
        }
    };
    // The other side may have gone; then there is nobody to tell.
    if is_ended && to.write_all(&gathered).is_ok() {
        let _ = to.shutdown(Shutdown::Write);
    } else {
        let _ = to.shutdown(Shutdown::Both);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buf = [0; 16_384];
    while let Ok(bytes @ 1..) = from.read(&mut buf) {
        if to.write_all(&buf[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
