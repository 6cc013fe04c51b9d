//! Publishing from connections.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use rustix::io::Errno;

use super::Worker;
use super::publishing::Publishing;
use crate::protocol::{Answer, PublishPlan};

impl<W: Write> Worker<W> {
    /// Begins to publish.
    pub(super) fn begin_publishing(&mut self, plan: &PublishPlan, now: Duration) {
        let first = self.plan.as_ref().map_or(0, |plan| plan.first);
        let topic = self.counter.topic(0).to_owned();
        self.publishing = Some(Publishing::new(plan, topic, first, self.conns.len(), now));
    }

    /// Sends the messages that are due.
    pub(super) fn publish(&mut self, now: Duration) -> Result<()> {
        let Some(publishing) = &mut self.publishing else { return Ok(()) };
        for _ in 0..BURST_MAX {
            let Some((index, frame)) = publishing.poll_frame(now) else { break };
            let conn = &mut self.conns[index];
            let result = conn.fd.as_mut().map(|fd| fd.send(frame).map(|sent| sent == frame.len()));
            publishing.handle_sent(index, result == Some(Ok(true)));
            match result {
                None | Some(Ok(true) | Err(Errno::AGAIN)) => {}
                // Only a part of the frame was sent, so no frame can follow it.
                Some(Ok(false)) => self.counter.note("a message was sent in part".to_owned()),
                Some(Err(error)) => self.counter.note(format!("cannot publish: {error}")),
            }
        }
        if let Some(tally) = publishing.poll_tally() {
            self.publishing = None;
            self.answer(&Answer::Published(tally))?;
        }
        Ok(())
    }
}

/// Messages sent between two reads.
const BURST_MAX: usize = 64;
