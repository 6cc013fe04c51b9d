//! A small HTTP service that answers everything with 204, and what repeats something.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Result;
use weir_tests::rest;

/// Starts the service; it ends with the process.
pub(crate) fn start() -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let addr = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that goes is none of our business.
            thread::spawn(move || drop(serve(stream)));
        }
    });
    Ok(addr)
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
    }
}

/// Repeats something on a thread of its own until it is dropped.
pub(crate) struct Repeated {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Repeated {
    /// `act` may fail: whoever is refused tries again.
    pub(crate) fn start(mut act: impl FnMut() -> Result<()> + Send + 'static) -> Repeated {
        let ends = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                let _ = act();
                rest();
            }
        });
        Repeated { ends, thread: Some(thread) }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
