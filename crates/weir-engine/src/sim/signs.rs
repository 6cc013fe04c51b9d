//! Signs of life in a run: those asked for, given, and due; and the farewell.

use weir_wire::CloseReason;
use weir_wire::format::Format;

use super::conn::Conn;
use super::outgoing::Outgoing;
use crate::settings::ShardSettings;
use crate::time::{Nanos, TICK};

impl Conn {
    /// Notes whether the shard listens to the connection, and whether something waits for it.
    ///
    /// `taken`: the bytes that its socket has taken.
    pub(super) fn note_listening(
        &mut self,
        now: Nanos,
        taken: u64,
        is_held: bool,
        is_waiting: bool,
    ) {
        if self.took.0 != taken {
            self.took = (taken, now);
        }
        // Either state lasts to the end of the turn in which it ends.
        if std::mem::replace(&mut self.is_held, is_held) || is_held {
            self.held_at = now;
        }
        if std::mem::replace(&mut self.is_waiting, is_waiting) || is_waiting {
            self.waited_at = now;
        }
    }

    /// Checks that due signs of life were asked for or given, and that a connection without signs
    /// of life has ended.
    pub(super) fn check_signs(&mut self, now: Nanos, is_paused: bool) -> Result<(), String> {
        let heard_at = self.incoming.heard_at;
        let silent_since = heard_at.max(self.paused_at);
        let silence = now.since(silent_since);
        match self.format {
            Format::Stream if silence > self.heartbeat * 2 + TICK * 2 && !is_paused => {
                return Err(format!("silent, and still open at {now:?}"));
            }
            Format::Stream => {}
            Format::Sse => {
                let since = self.outgoing.beat_at.unwrap_or(self.held_at);
                let since = since.max(self.waited_at).max(self.held_at).max(self.paused_at);
                if !self.is_waiting && now.since(since) > self.heartbeat + TICK * 2 {
                    return Err(format!("no comment since {since:?}, at {now:?}"));
                }
            }
            Format::WsProtobuf | Format::WsJson => {
                let silence = silence.min(now.since(self.waited_at));
                if is_paused || silence <= self.heartbeat + TICK * 2 {
                    self.asked_by = None;
                    return Ok(());
                }
                let asked_by = *self.asked_by.get_or_insert(now);
                if now.since(asked_by) > self.heartbeat + TICK * 2 {
                    return Err(format!("silent, and still open at {now:?}"));
                }
                let is_asked = self.outgoing.beat_at.is_some_and(|at| at >= heard_at);
                if !is_asked {
                    return Err(format!("not asked for a sign of life at {now:?}"));
                }
            }
        }
        Ok(())
    }

    /// Whether it had time to answer a request for a sign of life, and took all other bytes.
    pub(super) fn was_asked(&self, now: Nanos) -> bool {
        let lasted = |since| now.since(since) + TICK * 2 >= self.heartbeat;
        match self.format {
            Format::Stream | Format::Sse => true,
            Format::WsProtobuf | Format::WsJson => {
                let beat_at = self.outgoing.beat_at.filter(|at| *at >= self.incoming.heard_at);
                beat_at.is_some_and(lasted) && !self.is_waiting
            }
        }
    }

    /// Whether enough has waited long enough. For a connection whose only sign of life is its
    /// socket: whether the socket has given none.
    pub(super) fn may_be_stalled(&self, now: Nanos, settings: &ShardSettings) -> bool {
        let lasted = |since| now.since(since) + TICK;
        let took_nothing = self.format != Format::Stream && lasted(self.took.1) >= self.heartbeat;
        let is_late = |since| lasted(since) >= settings.stall_timeout;
        took_nothing || self.stalled_at.or(self.taken_at).map_or(self.is_paused, is_late)
    }

    /// Checks that the farewell fits the end.
    pub(super) fn check_last_words(
        &self,
        reason: CloseReason,
        is_told: bool,
    ) -> Result<(), String> {
        let Outgoing { goodbye, close, is_wild, .. } = &self.outgoing;
        let (goodbye, close, is_wild) = (*goodbye, *close, *is_wild);
        if !matches!(self.format, Format::WsProtobuf | Format::WsJson) {
            return if is_told && goodbye.is_none() { Err("no Goodbye".into()) } else { Ok(()) };
        }
        let is_bad = self.incoming.bad.is_some_and(|(_, why)| why == reason);
        match (goodbye, close) {
            (Some(code), Some(close)) if close.map(u32::from) == Some(code) => Ok(()),
            (None, None) if !is_told && !self.must_echo => Ok(()),
            (None, Some(_)) if is_wild => Ok(()),
            (None, Some(close)) if is_bad && self.incoming.last_word == Some(close) => Ok(()),
            _ => Err(format!("the last words are {goodbye:?} and {close:?}")),
        }
    }
}
