//! Publishing from connections, and pings.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use weir_wire::format::Format;
use weir_wire::hot::encode_ping_frame;

use super::Worker;
use super::conn::Phase;
use super::publishing::Publishing;
use crate::clock;
use crate::protocol::{Answer, PublishPlan};

impl<W: Write> Worker<W> {
    /// Begins to publish.
    pub(super) fn begin_publishing(&mut self, plan: &PublishPlan, now: Duration) {
        let first = self.plan.as_ref().map_or(0, |plan| plan.first);
        let topic = if plan.topic.is_empty() {
            self.counter.topic(0).to_owned()
        } else {
            plan.topic.clone()
        };
        let speaks = self.conns.iter().map(|conn| conn.form != Format::Sse).collect();
        let numbers = std::mem::take(&mut self.numbers);
        self.publishing = Some(Publishing::new(plan, topic, first, (speaks, numbers), now));
    }

    /// Sends the messages that are due.
    pub(super) fn publish(&mut self, now: Duration) -> Result<()> {
        let Some(publishing) = &mut self.publishing else { return Ok(()) };
        for _ in 0..BURST_MAX {
            let Some((index, frame)) = publishing.poll_frame(now) else { break };
            let conn = &mut self.conns[index];
            // Nothing comes before `Hello`.
            let sent = if conn.phase == Phase::Settled { conn.pass(frame) } else { Ok(false) };
            publishing.handle_sent(index, sent == Ok(true));
            if let Err(error) = sent {
                self.counter.note(format!("cannot publish: {error}"));
            }
        }
        for _ in 0..BURST_MAX {
            let Some(index) = publishing.poll_ping(now) else { break };
            let conn = &mut self.conns[index];
            if conn.phase != Phase::Settled {
                continue;
            }
            let mut frame = Vec::new();
            encode_ping_frame(&clock::realtime_ns().to_be_bytes(), &mut frame);
            match conn.pass(&frame) {
                Ok(sent) => conn.pings += u8::from(sent && conn.pings < u8::MAX),
                Err(error) => self.counter.note(format!("cannot ping: {error}")),
            }
        }
        if let Some(tally) = publishing.poll_tally() {
            self.publishing = None;
            self.numbers.clone_from(&tally.sent);
            self.answer(&Answer::Published(tally))?;
        }
        Ok(())
    }
}

/// Messages sent between two reads.
const BURST_MAX: usize = 64;
