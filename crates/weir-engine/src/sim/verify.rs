//! The checks after every turn and at the end of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_wire::CloseReason;
use weir_wire::format::Format;

use super::conn::Phase;
use super::driver::Run;
use super::link::Owner;
use super::outgoing::Outgoing;
use super::owed::Look;
use crate::budget::{LEASE_BYTES, Share};
use crate::id::ConnId;
use crate::net::Net;
use crate::stats::DropRule;
use crate::time::TICK;

impl Run {
    /// Checks the sums, and every connection.
    pub(super) fn check_all(&mut self) -> Result<(), String> {
        self.check_sums()?;
        let is_quiet = self.is_quiet();
        let is_idle = is_quiet
            && self.shard.net().was_idle()
            && !self.shard.net().has_edges()
            && self.shard.shard().has_read();
        for at in 0..self.live.len() {
            let index = self.live[at];
            self.check_conn(index, is_quiet, is_idle).map_err(|what| {
                format!("connection {index}: {what}: {}", self.conns[index].outline())
            })?;
        }
        if is_quiet && self.shard.front_mut().is_empty() {
            self.check_topics()?;
        }
        Ok(())
    }

    /// Whether the shard has carried out all requests.
    fn is_quiet(&self) -> bool {
        self.shard.shard().is_quiet() && self.shard.mailbox().depth() == 0
    }

    fn check_sums(&mut self) -> Result<(), String> {
        let taken = self.shard.net().taken();
        let stats = self.shard.stats();
        if stats.sent_bytes.get() != taken {
            return Err(format!("{} bytes sent, {taken} taken", stats.sent_bytes.get()));
        }
        self.check_budget()?;
        let stats = self.shard.stats();
        let (delivered, seen) = (stats.delivered.get(), self.book.delivered);
        if delivered != seen {
            return Err(format!("{delivered} messages delivered, {seen} seen"));
        }
        Ok(())
    }

    /// Checks that waiting bytes are counted exactly. When nothing is on its way, the share for
    /// messages holds only the bytes in rings. So waiting bytes never take the room of new
    /// messages.
    fn check_budget(&self) -> Result<(), String> {
        let budget = self.shard.budget();
        let used = |share| {
            let foreign = if self.foreign_share == share { self.foreign } else { 0 };
            budget.used_of(share) - foreign
        };
        let (counted, waiting) = (used(Share::Waiting), self.shard.shard().waiting_bytes()?);
        if counted != waiting {
            return Err(format!("{waiting} bytes wait, {counted} are counted"));
        }
        if !self.is_quiet() {
            return Ok(());
        }
        let kept = self.topics.iter().flat_map(|topic| topic.kept());
        let kept = kept.filter(|message| message.charge().queues() == 0);
        let kept: usize = kept.map(|message| message.occupied_bytes()).sum();
        let messages = used(Share::Messages);
        if messages != kept {
            return Err(format!("messages have {messages} bytes, and rings keep {kept}"));
        }
        Ok(())
    }

    /// Checks one connection by what the shard says of it.
    fn check_conn(&mut self, index: usize, is_quiet: bool, is_idle: bool) -> Result<(), String> {
        let now = self.shard.now();
        let conn = &mut self.conns[index];
        let Some(id) = conn.id else {
            (conn.is_paused, conn.paused_at) = (true, now);
            return Ok(());
        };
        let link = self.shard.net().link_of(conn.peer);
        let consumed = conn.consumed(link);
        let (record_begun_at, must_end) = (conn.record_begun_at(link), conn.has_ended(link));
        let is_over = link.is_ended || link.has_failed();
        let has_unread = !link.inbound.is_empty();
        let (has_room, taken) = (link.is_writable(), link.taken());
        let Some(peek) = self.shard.shard().peek(id) else {
            return Ok(());
        };
        // One that owes more than a burst, and has sent nothing since, is not paused yet: its frame goes on to be late.
        let is_held = peek.is_held_back || peek.is_read_paused;
        let is_paused = is_held || peek.is_too_fast || peek.stalled_since.is_some();
        // A pause lasts to the end of the turn in which it ends, and may have begun in it too.
        let was_paused = conn.outgoing.stalled_in.is_last(self.book.turn) || is_paused;
        if std::mem::replace(&mut conn.is_paused, is_paused) || was_paused || has_unread {
            conn.paused_at = now;
        }
        (conn.stalled_at, conn.taken_at) = (peek.stalled_since, peek.taken_at);
        conn.note_listening(now, taken, is_held, peek.outbox.is_some());
        conn.check_signs(now, is_paused)?;
        let begun_at = conn.incoming.begun_at.map(|at| at.max(conn.paused_at));
        let is_late = |at| now.since(at) > self.settings.frame_timeout + TICK * 3;
        if !is_paused && !conn.outgoing.is_wild && begun_at.is_some_and(is_late) {
            return Err(format!("a frame drips, and it is still open at {now:?}"));
        }
        let begun_at = record_begun_at.map(|at| at.max(conn.paused_at));
        if !is_paused && begun_at.is_some_and(is_late) {
            return Err("a record drips, and it is still open".into());
        }
        if let Some(reason) = must_end
            && ((is_idle && !is_paused) || reason == CloseReason::TlsRecord)
            && peek.has_read_ahead
        {
            return Err(format!("it must end with {reason}, and is still open"));
        }
        let stall_most = self.settings.stall_timeout + Duration::from_secs(1);
        let stuck_since = peek.stalled_since.or(peek.taken_at);
        if stuck_since.is_some_and(|since| now.since(since) > stall_most) {
            return Err("stalled, and still open".into());
        }
        if is_idle && !is_paused && (is_over || has_unread) {
            return Err("the shard does not read received bytes".into());
        }
        if is_idle && peek.outbox.is_some() && has_room {
            return Err("the shard does not write although there is room".into());
        }
        if conn.incoming.bad.is_some_and(|(end, _)| end <= consumed) && !is_paused {
            return Err("the stream went bad, and it is still open".into());
        }
        if !is_quiet {
            return Ok(());
        }
        let look = Look { now, consumed, is_queue: true, sealed_in: None };
        let look_for_answers = if peek.is_held_back { Look { consumed: 0, ..look } } else { look };
        if let Some(outbox) = peek.outbox {
            if self.dice.chance(1 << 14) {
                let mut outgoing = conn.outgoing.clone();
                outgoing.take(&outbox.waiting(), &self.book, look)?;
                outgoing.settle(&self.book, look_for_answers, &peek.lags)?;
            }
        } else {
            self.book.expired += conn.outgoing.settle(&self.book, look_for_answers, &[])?;
        }
        Ok(())
    }

    /// Notes the connections that were stalled, or lagged, at any time of the last turn.
    pub(super) fn note_slow(&mut self) {
        let turn = self.book.turn;
        if self.is_quiet() {
            self.book.note_quiet();
        }
        let begun = self.shard.take_slow();
        for index in &self.live {
            let conn = &mut self.conns[*index];
            let Some(id) = conn.id else { continue };
            let peek = self.shard.shard().peek(id);
            let has_begun = |lags| begun.contains(&(id.slot(), lags));
            if has_begun(false) || peek.as_ref().is_some_and(|peek| peek.stalled_since.is_some()) {
                conn.outgoing.stalled_in.note(turn);
            }
            if has_begun(true) || peek.as_ref().is_some_and(|peek| !peek.lags.is_empty()) {
                conn.outgoing.lagged_in.note(turn);
            }
        }
    }

    /// Checks, while nothing is on its way, that each topic counts each of its members once.
    fn check_topics(&self) -> Result<(), String> {
        for (id, topic) in self.topics.iter().enumerate() {
            let members = topic.members.iter().filter_map(|index| self.conns[*index].id);
            let members: BTreeMap<ConnId, u32> = members.map(|conn| (conn, 1)).collect();
            if topic.counts != members {
                return Err(format!("topic {id} has {members:?} and counts {:?}", topic.counts));
            }
        }
        for index in &self.live {
            let conn = &self.conns[*index];
            let peek = conn.id.and_then(|id| self.shard.shard().peek(id));
            let Some(peek) = peek.filter(|_| conn.phase == Phase::Open) else { continue };
            let mut topics: Vec<usize> = peek.topics.iter().map(|id| id.0 as usize).collect();
            let mut expected = conn.topics.clone();
            topics.sort_unstable();
            expected.sort_unstable();
            if topics != expected {
                return Err(format!("connection {index} is in {topics:?}, not in {expected:?}"));
            }
            let resumes: Vec<usize> = peek.resumes.iter().map(|id| id.0 as usize).collect();
            if !resumes.iter().eq(conn.resumes.keys()) {
                return Err(format!("connection {index} resumes {resumes:?}: {:?}", conn.resumes));
            }
            if !conn.refused.is_empty() {
                return Err(format!("connection {index} is not refused {:?}", conn.refused));
            }
        }
        Ok(())
    }

    /// Whether a share of the budget was short in the last turn.
    fn was_tight(&self) -> bool {
        let budget = self.shard.budget();
        // The most that a turn takes before it relieves the budget.
        let is_share_tight = |(share, before): (Share, usize)| {
            let used = before.max(budget.used_of(share)) + 2 * LEASE_BYTES;
            used > budget.bytes_max_of(share) / 8 * 7
        };
        let before: usize = self.used_before[1..].iter().sum();
        let rest: usize = Share::ALL[1..].iter().map(|share| budget.used_of(*share)).sum();
        let rest_max = budget.bytes_max() - budget.bytes_max_of(Share::Messages);
        Share::ALL.into_iter().zip(self.used_before).any(is_share_tight)
            || before.max(rest) + 2 * LEASE_BYTES > rest_max / 8 * 7
            || budget.refused() > self.refused_before
    }

    /// Whether a connection may end for this reason.
    pub(super) fn check_end(
        &mut self,
        index: usize,
        id: ConnId,
        reason: CloseReason,
    ) -> Result<(), String> {
        let now = self.shard.now();
        let is_tight = self.was_tight();
        let conn = &mut self.conns[index];
        if conn.id != Some(id) || conn.phase != Phase::Open {
            return Err(format!("{id:?} ends as {:?} of {:?}", conn.phase, conn.id));
        }
        let link = self.shard.net().link_of(conn.peer);
        let (consumed, readable) = (conn.consumed(link), conn.readable(link));
        let record_begun_at = conn.record_begun_at(link);
        let has_sign = conn.incoming.has_sign(consumed, readable);
        let has_whole_frame = conn.incoming.has_whole_frame(consumed, readable);
        let is_current = self.is_up_to_date;
        let begun_at = conn.incoming.begun_at.map(|at| at.max(conn.held_at));
        let lasted = |since| now.since(since) + TICK;
        let may = match reason {
            CloseReason::HeartbeatMissed => {
                let is_silent = lasted(conn.incoming.heard_at) >= conn.heartbeat * 2;
                let may_be_silent = conn.format != Format::Sse && conn.was_asked(now);
                conn.format != Format::Sse && !is_current
                    || (is_silent && may_be_silent && !has_sign && conn.paused_at < now)
            }
            CloseReason::FrameTimeout => {
                let is_late = begun_at.is_some_and(|at| lasted(at) >= self.settings.frame_timeout);
                let is_record_late =
                    record_begun_at.is_some_and(|at| lasted(at) >= self.settings.frame_timeout);
                conn.outgoing.is_wild
                    || !is_current
                    || (is_late && !has_whole_frame)
                    || is_record_late
            }
            CloseReason::Stalled => !is_current || conn.may_be_stalled(now, &self.settings),
            CloseReason::BudgetExhausted => !is_current || is_tight,
            CloseReason::Malformed | CloseReason::FrameTooLarge => {
                let is_bad = |(end, why): (u64, _)| why == reason && end <= consumed + 5;
                conn.incoming.bad.is_some_and(is_bad) || conn.asked.contains(&reason)
            }
            CloseReason::PeerClosed
            | CloseReason::PeerReset
            | CloseReason::KernelTimeout
            | CloseReason::SocketError
            | CloseReason::Replaced
            | CloseReason::ClosedByOperator
            | CloseReason::TlsRecord
            | CloseReason::Draining => conn.asked.contains(&reason),
            CloseReason::RateLimited => self.settings.frames_per_second > 0,
            CloseReason::TlsKeysSpent => conn.tls.as_ref().is_some_and(|tls| tls.is_limited),
            CloseReason::HelloTimeout
            | CloseReason::Unauthorized
            | CloseReason::Revoked
            | CloseReason::Expired
            | CloseReason::StoreUnavailable
            | CloseReason::TooManyConnections
            | CloseReason::TlsHandshake
            | CloseReason::Internal => false,
        };
        if !may {
            let outline = conn.outline();
            return Err(format!("connection {index} ends at {now:?} with {reason}: {outline}"));
        }
        let was_closed = conn.asked.iter().filter(|asked| **asked == reason).count() == 1;
        let is_bad = conn.incoming.bad.is_some_and(|(_, why)| why == reason);
        conn.must_echo = reason == CloseReason::PeerClosed && was_closed && is_bad;
        let keeps_queue = matches!(reason, CloseReason::Replaced | CloseReason::Draining);
        conn.outgoing.ended_in = (!keeps_queue).then_some(self.book.turn);
        Ok(())
    }

    /// Settles the counts of connections whose socket is gone.
    pub(super) fn bury_the_dead(&mut self) -> Result<(), String> {
        self.freed.clear();
        for at in (0..self.live.len()).rev() {
            let index = self.live[at];
            let conn = &mut self.conns[index];
            let Phase::Ended(reason) = conn.phase else { continue };
            let link = self.shard.net().link_of(conn.peer);
            let has_failed = link.has_failed();
            let is_closed = match link.owner {
                Owner::Closed => true,
                Owner::Aborted => false,
                Owner::Offered(_) | Owner::Shard => continue,
            };
            // Nothing follows on a failed socket, however it is closed.
            if is_closed && !has_failed && !conn.outgoing.is_whole() {
                return Err(format!("connection {index} ended within a frame, with {reason}"));
            }
            let tls = conn.tls.as_ref();
            if is_closed && tls.is_some_and(|tls| !tls.is_whole()) {
                return Err(format!("connection {index} ended within a record, with {reason}"));
            }
            let is_told = is_told(reason) && tls.is_none_or(|tls| !tls.is_mute);
            let is_cut = tls.is_some_and(|tls| !tls.has_farewell) && !has_failed;
            if is_closed && is_told && is_cut {
                return Err(format!("connection {index} ended without an alert, with {reason}"));
            }
            if is_closed {
                conn.check_last_words(reason, is_told)
                    .map_err(|what| format!("connection {index} ended with {reason}: {what}"))?;
            }
            if let Some(behind) = conn.closed_behind
                && is_closed
                && matches!(reason, CloseReason::Replaced | CloseReason::Draining)
            {
                let now = self.shard.net().now();
                conn.outgoing
                    .check_all_before(behind, &self.book, now)
                    .map_err(|what| format!("connection {index} ended with {reason}: {what}"))?;
            }
            self.book.maybe_gone += conn.outgoing.directs.len() as u64;
            conn.phase = Phase::Over;
            conn.outgoing = Outgoing::default();
            conn.incoming.unsent.clear();
            self.freed.extend(conn.id.map(ConnId::slot));
            let peer = conn.peer;
            self.shard.net().bury(peer);
            self.live.swap_remove(at);
        }
        Ok(())
    }

    /// Checks that nothing is left.
    pub(super) fn check_nothing_left(&mut self) -> Result<(), String> {
        let stats = std::sync::Arc::clone(self.shard.stats());
        let gone = stats.dropped[DropRule::Gone as usize].get();
        let left = [
            ("live connections", self.live.len() as u64),
            ("drains to be reported", u64::from(!self.drains.is_over)),
            ("table entries", stats.table_entries.get()),
            ("connections", stats.connections.get()),
            ("lingering", stats.lingering.get()),
            ("memberships", stats.memberships.get()),
            ("queued items", stats.queued_items.get()),
            ("queued bytes", stats.queued_bytes.get()),
            ("stalled", stats.stalled.get()),
            ("fan-outs", stats.fanouts.get()),
            ("budget", (self.shard.budget().used() - self.foreign) as u64),
            ("credits", self.shard.mailbox().depth() as u64),
            ("sockets", self.shard.net().sockets_held() as u64),
            ("uncounted drops", self.book.gone.saturating_sub(gone)),
            ("drops of nothing", gone.saturating_sub(self.book.gone + self.book.maybe_gone)),
        ];
        if let Some((what, count)) = left.iter().find(|(_, count)| *count > 0) {
            return Err(format!("left at the end: {count} {what}"));
        }
        self.check_topics()?;
        self.shard.check()
    }
}

/// Whether the device is told the reason.
fn is_told(reason: CloseReason) -> bool {
    !matches!(
        reason,
        CloseReason::PeerClosed
            | CloseReason::PeerReset
            | CloseReason::KernelTimeout
            | CloseReason::SocketError
    )
}
