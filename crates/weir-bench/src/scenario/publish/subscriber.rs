//! The subscriber: counts messages, and compares each with the published message.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use weir_wire::hot::{Payload, Push};
use weir_wire::v1::{ServerMessage, server_message::Kind};
use weir_wire::{ProstMessage, frame};

use crate::clock;
use crate::protocol::{HelloPlan, Message};
use crate::worker::{device_id, hello_frame};

/// A device that subscribes to a topic, and its reading thread.
pub(super) struct Subscriber {
    stream: TcpStream,
    counts: Arc<Counts>,
    reader: Option<JoinHandle<()>>,
    /// Messages received when the last wait ended.
    taken: u64,
    /// Messages that may have been published so far.
    most: u64,
}

#[derive(Default)]
struct Counts {
    is_subscribed: AtomicBool,
    received: AtomicU64,
    wrong: AtomicU64,
}

impl Subscriber {
    /// Connects and subscribes.
    pub(super) fn start(addr: SocketAddr, message: &Message) -> Result<Subscriber> {
        let mut stream = TcpStream::connect(addr).context("the subscriber cannot connect")?;
        let hello = HelloPlan { token: String::new(), subscribe: true };
        stream.write_all(&hello_frame(&hello, &device_id(), &message.topic, None))?;
        let counts = Arc::<Counts>::default();
        let reader = {
            let (counts, message, stream) =
                (Arc::clone(&counts), message.clone(), stream.try_clone()?);
            thread::Builder::new()
                .name("subscriber".to_owned())
                .spawn(move || counts.read(stream, &message))?
        };
        let subscriber = Subscriber { stream, counts, reader: Some(reader), taken: 0, most: 0 };
        subscriber.wait_until("it is subscribed", |counts| {
            counts.is_subscribed.load(Ordering::Acquire)
        })?;
        Ok(subscriber)
    }

    /// The number of received messages.
    pub(super) fn received(&self) -> u64 {
        self.counts.received.load(Ordering::Acquire)
    }

    /// Waits for at least `fewest` more messages. Up to `most` more may have been published. More
    /// messages than the sum of `most` over all calls are an error. A message may be so late that
    /// it comes during the next call.
    pub(super) fn wait_for(&mut self, fewest: u64, most: u64) -> Result<()> {
        self.most += most;
        let (fewest, most) = (self.taken + fewest, self.most);
        self.wait_until("all messages have come", |counts| {
            counts.received.load(Ordering::Acquire) >= fewest
        })?;
        // Wait for messages that the gateway was still publishing when the connections closed.
        clock::sleep(LAST_ONES);
        self.taken = self.received();
        let wrong = self.counts.wrong.load(Ordering::Acquire);
        if wrong > 0 || self.taken > most {
            bail!("the subscriber got {} messages of {most}, {wrong} wrong", self.taken);
        }
        Ok(())
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Counts) -> bool) -> Result<()> {
        let deadline = clock::monotonic() + PATIENCE;
        while !is_so(&self.counts) {
            if clock::monotonic() > deadline {
                bail!("the subscriber has waited {PATIENCE:?} until {what}");
            }
            clock::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        // The connection may have ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Counts {
    /// Reads to the end.
    fn read(&self, mut stream: TcpStream, message: &Message) {
        let (mut buf, mut filled) = (vec![0; READ_BYTES], 0);
        while let Ok(got) = stream.read(&mut buf[filled..]) {
            if got == 0 {
                return;
            }
            filled += got;
            let mut used = 0;
            while let Ok(Some((body, bytes))) = frame::decode(&buf[used..filled], READ_BYTES) {
                self.take(body, message);
                used += bytes;
            }
            buf.copy_within(used..filled, 0);
            filled -= used;
        }
    }

    fn take(&self, body: &[u8], message: &Message) {
        match Push::decode(body) {
            Ok(Some(push)) => {
                let is_right =
                    push.topic == message.topic && push.payload == Payload::Text(&message.text);
                self.wrong.fetch_add(u64::from(!is_right), Ordering::Release);
                self.received.fetch_add(1, Ordering::Release);
            }
            Ok(None) => {
                if let Ok(ServerMessage { kind: Some(Kind::Subscribed(_)) }) =
                    ServerMessage::decode(body)
                {
                    self.is_subscribed.store(true, Ordering::Release);
                }
            }
            Err(_) => {
                self.wrong.fetch_add(1, Ordering::Release);
            }
        }
    }
}

/// Bytes per read: more than a frame.
const READ_BYTES: usize = 1 << 21;
/// Longest wait.
const PATIENCE: Duration = Duration::from_secs(20);
/// By then the gateway has usually published all accepted messages. A busy machine takes longer.
const LAST_ONES: Duration = Duration::from_millis(100);
