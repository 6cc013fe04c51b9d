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

/// A thread that publishes numbers, one after the other, until it is told to stop.
pub struct Numbers {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Numbers {
    /// Publishes numbers to `feed/a` over an admin API, as fast as that answers. A refused one is
    /// sent again.
    pub fn start(admin: SocketAddr) -> Numbers {
        Self::start_with(admin, || ())
    }

    /// The same, with a pause between two.
    pub fn start_slowly(admin: SocketAddr) -> Numbers {
        Self::start_with(admin, rest)
    }

    fn start_with(admin: SocketAddr, between: fn()) -> Numbers {
        Self::start_by(move |number| {
            let Some(number) = number else { return Ok(()) };
            let message = json!({"topic": "feed/a", "text": number.to_string(), "key": "k"});
            let (body, deadline) = (json!({"messages": [message]}).to_string(), now() + PATIENCE);
            loop {
                let answer = Answer::post(admin, "/v1/publish", &body);
                between();
                match answer {
                    Ok(answer) if answer.status == 200 && !answer.body.contains("\"error\"") => {
                        return Ok(());
                    }
                    // While nobody serves, the answer says when to come again.
                    answer => ensure!(now() < deadline, "{number} is not accepted: {answer:?}"),
                }
            }
        })
    }

    /// Begins to call `publish` with each number, until it fails, and with `None` at the end.
    pub fn start_by(
        mut publish: impl FnMut(Option<u64>) -> Result<()> + Send + 'static,
    ) -> Numbers {
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                publish(Some(number))?;
                number += 1;
                counted.store(number, Ordering::Relaxed);
            }
            publish(None)
        });
        Numbers { stop, sent, thread }
    }

    /// Returns how many it has published.
    pub fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the publisher has failed"))??;
        Ok(self.sent.load(Ordering::Relaxed))
    }

    /// Waits until so many more are published. Why none are shows in [`Numbers::finish`].
    pub fn await_more(&self, count: u64) -> Result<()> {
        let (until, deadline) = (self.sent.load(Ordering::Relaxed) + count, now() + PATIENCE);
        while self.sent.load(Ordering::Relaxed) < until && !self.thread.is_finished() {
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
