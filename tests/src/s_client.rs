//! `openssl s_client` as a device: frames go in, and all that it says is looked through.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail};
use weir_wire::frame;
use weir_wire::v1::{self, client_message};

use crate::wait::{PATIENCE, now, rest};

/// A running `openssl s_client`; killed when dropped.
pub struct SClient {
    child: Child,
    input: ChildStdin,
    /// Standard output and standard error.
    said: Arc<Mutex<Vec<u8>>>,
    listeners: Vec<JoinHandle<()>>,
}

impl SClient {
    /// Connects, with the words of `options` as options.
    pub fn start(addr: SocketAddr, options: &str) -> Result<SClient> {
        let mut child = Command::new("openssl")
            .args(["s_client", "-connect", &addr.to_string()])
            .args(options.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("running openssl, which `cargo xtask test` installs")?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let input = child.stdin.take().context("a pipe")?;
        let listeners = vec![
            listen(child.stdout.take().context("a pipe")?, &said),
            listen(child.stderr.take().context("a pipe")?, &said),
        ];
        Ok(SClient { child, input, said, listeners })
    }

    /// Connects, greets, and waits until it is welcome.
    pub fn greet(addr: SocketAddr, options: &str, device_id: &str) -> Result<SClient> {
        let mut client = Self::start(addr, options)?;
        client.send(client_message::Kind::Hello(v1::Hello {
            device_id: device_id.into(),
            ..v1::Hello::default()
        }))?;
        client.ping("are you there")?;
        Ok(client)
    }

    /// Sends one message.
    pub fn send(&mut self, kind: client_message::Kind) -> Result<()> {
        let mut out = Vec::new();
        frame::encode(&v1::ClientMessage { kind: Some(kind) }, &mut out);
        // Where openssl has ended already, what it has said tells more than a broken pipe.
        let _ = self.input.write_all(&out);
        Ok(())
    }

    /// Sends a `Ping` with a word that it has not said yet, and waits for the `Pong`.
    pub fn ping(&mut self, word: &str) -> Result<()> {
        self.send(client_message::Kind::Ping(v1::Ping { data: word.as_bytes().to_vec() }))?;
        self.await_word(word)
    }

    /// Has openssl do what it does at a command letter.
    pub fn command(&mut self, letter: &str) -> Result<()> {
        // In one write: what comes in another is sent as it is.
        Ok(self.input.write_all(format!("{letter}\n").as_bytes())?)
    }

    /// Waits until it has said `word`.
    pub fn await_word(&mut self, word: &str) -> Result<()> {
        self.await_words(word, 1)
    }

    /// Waits until it has said `word` `times` times.
    pub fn await_words(&mut self, word: &str, times: usize) -> Result<()> {
        let deadline = now() + PATIENCE;
        loop {
            let has_ended = self.child.try_wait()?.is_some();
            if has_ended {
                // What it has said last may still lie in the pipes.
                self.listeners
                    .drain(..)
                    .try_for_each(JoinHandle::join)
                    .map_err(|_| anyhow!("a listener has panicked"))?;
            }
            if self.said().matches(word).count() >= times {
                return Ok(());
            }
            if has_ended || now() > deadline {
                let ended = if has_ended { "it has ended" } else { "in vain" };
                bail!(
                    "waited for {word:?}, {times} times, {ended}; openssl said:\n{}",
                    self.said()
                );
            }
            rest();
        }
    }

    /// All that it has said.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&lock(&self.said)).into_owned()
    }
}

impl Drop for SClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(mut from: impl Read + Send + 'static, said: &Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    let said = Arc::clone(said);
    thread::spawn(move || {
        let mut buf = [0; 4096];
        while let Ok(bytes @ 1..) = from.read(&mut buf) {
            lock(&said).extend_from_slice(&buf[..bytes]);
        }
    })
}

fn lock(said: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}
