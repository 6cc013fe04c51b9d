//! A publisher of numbers, and a device that must hear all of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow, ensure};
use serde_json::json;
use weir_wire::v1::push;

use crate::admin::Answer;
use crate::device::Device;
use crate::wait::{PATIENCE, now, rest};

/// Publishes numbers to `feed/a`, one after the other, until it is told to stop. A refused one is
/// sent again.
pub struct Numbers {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
    sent: Arc<AtomicU64>,
}

impl Numbers {
    /// Begins to publish over an admin API, as fast as that answers.
    pub fn start(admin: SocketAddr) -> Numbers {
        Self::start_with(admin, || ())
    }

    /// The same, with a pause between two.
    pub fn start_slowly(admin: SocketAddr) -> Numbers {
        Self::start_with(admin, rest)
    }

    fn start_with(admin: SocketAddr, between: fn()) -> Numbers {
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                let message = json!({"topic": "feed/a", "text": number.to_string(), "key": "k"});
                let body = json!({"messages": [message]}).to_string();
                // While nobody serves, the answer says when to come again.
                if let Ok(answer) = Answer::post(admin, "/v1/publish", &body)
                    && answer.status == 200
                    && !answer.body.contains("\"error\"")
                {
                    number += 1;
                    counted.store(number, Ordering::Relaxed);
                }
                between();
            }
            Ok(number)
        });
        Numbers { stop, thread, sent }
    }

    /// Returns how many it has published.
    pub fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the publisher has failed"))?
    }

    /// Waits until so many more are published.
    pub fn await_more(&self, count: u64) -> Result<()> {
        let (until, deadline) = (self.sent.load(Ordering::Relaxed) + count, now() + PATIENCE);
        while self.sent.load(Ordering::Relaxed) < until {
            ensure!(now() < deadline, "nothing is published any more");
            rest();
        }
        Ok(())
    }

    /// Checks that a device gets the first numbers in order, each once, and no end.
    pub fn heard_by(device: &mut Device, count: u64) -> Result<()> {
        let mut next = 0;
        while next < count {
            let push = device.push()?;
            let Some(push::Payload::Text(text)) = push.payload else { continue };
            ensure!(text == next.to_string(), "{text} came where {next} is due");
            ensure!(push.offset == next + 1, "offset {} of {text}", push.offset);
            next += 1;
        }
        Ok(())
    }
}
