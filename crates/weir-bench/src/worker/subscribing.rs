//! Further subscriptions of open connections: many topics, on which no message comes.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::epoll::{self, Event};
use rustix::io::Errno;
use weir_wire::frame;
use weir_wire::v1::{ClientMessage, Subscribe, client_message};

use super::conn::Phase;
use super::{EVENTS_MAX, Worker};
use crate::clock;
use crate::protocol::{Answer, SilentPlan};

/// Subscriptions of a connection that wait for their answers together.
const BATCH: u8 = 32;
/// Longest time without an answer.
const PATIENCE: Duration = Duration::from_secs(20);

impl<W: Write> Worker<W> {
    /// Subscribes each connection to its share of the topics, and answers when all is done.
    pub(super) fn subscribe(&mut self, plan: &SilentPlan) -> Result<()> {
        let result = self.subscribe_all(plan)?;
        let error = result.err().or_else(|| self.counter.tally.errors.first().cloned());
        match error {
            None => self.answer(&Answer::Done),
            Some(error) => self.answer(&Answer::Failed { error }),
        }
    }

    fn subscribe_all(&mut self, plan: &SilentPlan) -> Result<Result<(), String>> {
        let first = self.plan.as_ref().map_or(0, |plan| plan.first);
        // The number of the next topic of each connection.
        let mut next: Vec<u32> = (first..).take(self.conns.len()).collect();
        for (index, next) in next.iter_mut().enumerate() {
            self.subscribe_next(index, next, plan);
        }
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        let timeout = clock::timespec(PATIENCE);
        while self.conns.iter().any(|conn| conn.phase == Phase::Greeting) {
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, Some(&timeout)) {
                Ok(0) => return Ok(Err(format!("no answer to a subscription for {PATIENCE:?}"))),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll failed"),
            }
            for event in &events {
                let data = event.data;
                // An order in between waits until this one is done.
                let Ok(index) = usize::try_from(data.u64()) else { continue };
                self.handle_event(index)?;
                match self.conns.get(index).map(|conn| conn.phase) {
                    Some(Phase::Settled) => self.subscribe_next(index, &mut next[index], plan),
                    Some(Phase::Ended) => return Ok(Err(format!("connection {index} was closed"))),
                    _ => {}
                }
            }
        }
        Ok(Ok(()))
    }

    /// Sends the next subscriptions of a connection, if there are more.
    fn subscribe_next(&mut self, index: usize, next: &mut u32, plan: &SilentPlan) {
        let mut frames = Vec::new();
        let mut count = 0;
        while *next < plan.topics && count < BATCH {
            let topic = format!("{}{next}", plan.prefix);
            let subscribe = Subscribe { topic, position: None, presence: false };
            let kind = Some(client_message::Kind::Subscribe(subscribe));
            frame::encode(&ClientMessage { kind }, &mut frames);
            *next = next.saturating_add(plan.connections);
            count += 1;
        }
        let conn = &mut self.conns[index];
        let Some(fd) = conn.fd.as_mut().filter(|_| count > 0) else { return };
        // Nothing else is on its way, so the socket takes it whole.
        match fd.send(&frames) {
            Ok(sent) if sent == frames.len() => {
                (conn.phase, conn.awaited) = (Phase::Greeting, count)
            }
            Ok(sent) => self.counter.note(format!("{sent} of {} bytes were sent", frames.len())),
            Err(error) => self.counter.note(format!("cannot send: {error}")),
        }
    }
}
