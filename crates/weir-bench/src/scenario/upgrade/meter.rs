//! A device that publishes numbers by datagram, one after the other. A datagram without an answer is
//! sent again. The offset in each answer shows that all before it were carried out once.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use crate::clock;
use crate::stats::Lags;

/// The running device.
pub(super) struct Meter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Metered>>,
}

/// What it has seen.
#[derive(Debug, Default)]
pub(super) struct Metered {
    /// Numbers that were answered.
    pub(super) published: u64,
    /// Datagrams that were sent again.
    pub(super) repeated: u64,
    /// Times from a number's first datagram to its answer.
    pub(super) lags: Lags,
}

/// The token of the device, and its name.
pub(super) const TOKEN: &str = "bench-meter";
/// Time between two numbers.
const EVERY: Duration = Duration::from_millis(10);
/// A datagram without an answer is sent again after this time.
const AGAIN: Duration = Duration::from_millis(100);
/// A number without an answer for so long ends the device.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest answer.
const ANSWER_BYTES_MAX: usize = 2048;

impl Meter {
    /// Starts to publish to `topic`, on which nobody else publishes.
    pub(super) fn start(addr: SocketAddr, topic: String) -> Result<Meter> {
        let socket = UdpSocket::bind("127.0.0.1:0").context("cannot make a socket")?;
        socket.connect(addr).context("cannot connect a socket")?;
        socket.set_read_timeout(Some(AGAIN))?;
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("meter".to_owned()).spawn(move || {
            let mut metered = Metered::default();
            while !stopped.load(Ordering::Relaxed) {
                let began = clock::monotonic();
                metered.publish(&socket, &topic)?;
                let took = clock::monotonic().saturating_sub(began).as_nanos();
                metered.lags.record(u64::try_from(took).unwrap_or(u64::MAX));
                clock::sleep_until(began + EVERY);
            }
            Ok(metered)
        })?;
        Ok(Meter { stop, thread })
    }

    /// Ends it.
    pub(super) fn finish(self) -> Result<Metered> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the device with datagrams panicked"))?
    }
}

impl Metered {
    fn publish(&mut self, socket: &UdpSocket, topic: &str) -> Result<()> {
        let number = self.published;
        let publish = json!({"topic": topic, "text": number.to_string()});
        let datagram = json!({"pt": TOKEN, "publish": publish, "id": number}).to_string();
        let deadline = clock::monotonic() + PATIENCE;
        let mut buf = [0; ANSWER_BYTES_MAX];
        let mut attempts = 0;
        while clock::monotonic() < deadline {
            socket.send(datagram.as_bytes()).context("cannot send a datagram")?;
            attempts += 1;
            while let Ok(bytes) = socket.recv(&mut buf) {
                let answer = serde_json::from_slice(&buf[..bytes]).context("an odd answer")?;
                if self.take(number, &answer)? {
                    self.repeated += attempts - 1;
                    return Ok(());
                }
            }
        }
        bail!("datagram {number} has no answer for {PATIENCE:?}")
    }

    /// Handles an answer; `false`: it belongs to a datagram of before.
    fn take(&mut self, number: u64, answer: &Value) -> Result<bool> {
        if answer["id"] != number {
            return Ok(false);
        }
        // The first message of a topic has the offset 1.
        let expected = (number + 1).to_string();
        if answer["published"]["offset"].as_str() != Some(&expected) {
            bail!("datagram {number} was not carried out as the next one: {answer}");
        }
        self.published += 1;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_shows_a_lost_or_a_doubled_message_ends_it() {
        let answer = |id: u64, offset: &str| json!({"id": id, "published": {"offset": offset}});
        let mut metered = Metered::default();
        assert!(metered.take(0, &answer(0, "1")).unwrap());
        assert!(!metered.take(1, &answer(0, "1")).unwrap(), "a repeated answer");
        assert!(metered.take(1, &answer(1, "3")).is_err(), "one was carried out twice");
        assert!(metered.take(1, &answer(1, "1")).is_err(), "the first one is forgotten");
        assert!(metered.take(1, &json!({"id": 1, "error": "no"})).is_err());
        assert!(metered.take(1, &answer(1, "2")).unwrap());
        assert_eq!(metered.published, 2);
    }
}
