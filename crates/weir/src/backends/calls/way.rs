//! The way of frames to devices. In an upgrade they wait for the decision; then either a shard here
//! takes them, or the process that has taken over.

use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc;
use weir_engine::{Command, ConnId, Item};
use weir_wire::handover::v1;

use crate::base::door::Door;
use crate::base::handover::HandingOver;
use crate::base::mailboxes::{self, Mailboxes};

/// The way to the devices.
pub(super) struct Way {
    mailboxes: Arc<Mailboxes>,
    door: Arc<Door>,
    /// Where the process that has taken over hears of calls.
    other: OnceLock<mpsc::Sender<v1::LinkCall>>,
}

impl Way {
    pub(super) fn new(mailboxes: &Arc<Mailboxes>, door: &Arc<Door>) -> Way {
        let (mailboxes, door) = (Arc::clone(mailboxes), Arc::clone(door));
        Way { mailboxes, door, other: OnceLock::new() }
    }

    /// Whether a shard with this connection can be here.
    pub(super) fn has(&self, conn: ConnId) -> bool {
        conn.shard() < self.mailboxes.len()
    }

    /// Sends a frame to a connection of this process, if there is one. Waits for room, and for the
    /// decision; `frame` is called when the shard will take it.
    ///
    /// Errors: another process has the connection. `frame` was not called.
    pub(super) async fn send(
        &self,
        conn: ConnId,
        frame: impl FnOnce() -> Option<Box<[u8]>>,
    ) -> Result<bool, HandingOver> {
        let mut frame = Some(frame);
        loop {
            self.door.decided().await?;
            let credit = mailboxes::credit(&self.mailboxes[conn.shard()]).await;
            let passed = self.door.pass(|| match frame.take().and_then(|frame| frame()) {
                Some(frame) => {
                    credit.push(Command::Send(conn, Item::Frame(frame)));
                    true
                }
                None => false,
            });
            if let Ok(is_sent) = passed {
                return Ok(is_sent);
            }
        }
    }

    /// The process that will have the connections hears of calls here.
    pub(super) fn tell_to(&self, other: mpsc::Sender<v1::LinkCall>) {
        // It is told once.
        let _ = self.other.set(other);
    }

    /// Tells the process that has the connections; `false`: it is not there any more.
    pub(super) async fn tell(&self, news: v1::LinkCall) -> bool {
        match self.other.get() {
            Some(other) => other.send(news).await.is_ok(),
            None => false,
        }
    }
}
