//! Requests in an upgrade. What the old process has begun it carries out and answers. The new one
//! knows of it, so that a repeated request is not carried out twice, and hears what has become of it.

use std::collections::HashSet;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::Nanos;
use weir_wire::handover::v1;

use super::{FRONT_TIMEOUT, Handler, Retries, new_retries};
use crate::base::config::UdpConfig;
use crate::limits::duplicates::Key;
use crate::observe::counters::udp::Count;

/// What a thread of another process remembers.
pub(in crate::udp) struct Memory {
    pub(in crate::udp) retries: Retries,
    /// Requests that it carries out.
    pub(in crate::udp) begun: HashSet<Key>,
}

/// Tells the process that goes on what has become of a request. It returns when that one will hear it.
pub(crate) type TellEnded = Arc<dyn Fn(v1::LinkDatagram) + Send + Sync>;

/// Who is told what has become of the requests that were begun here.
#[derive(Default)]
pub(super) enum Audience {
    #[default]
    Nobody,
    /// It is not known yet whether another process goes on.
    Perhaps(Vec<v1::LinkDatagram>),
    /// The process that goes on.
    Process(TellEnded),
}

impl Memory {
    /// Of nothing.
    pub(in crate::udp) fn new(config: &UdpConfig) -> Memory {
        Memory { retries: new_retries(config), begun: HashSet::new() }
    }
}

impl Handler {
    /// The answers to requests that may come again, and the requests that are being carried out, for
    /// another process. From here on it is kept what becomes of them.
    pub(in crate::udp) fn export(&mut self) -> (v1::Duplicates, Vec<v1::RequestKey>) {
        self.audience = Audience::Perhaps(Vec::new());
        (self.duplicates.export(|answer| answer.to_vec()), self.duplicates.begun())
    }

    /// This process goes on.
    pub(in crate::udp) fn go_on(&mut self) {
        self.audience = Audience::Nobody;
    }

    /// Another process goes on, and is told what has become of the requests that were begun here.
    pub(in crate::udp) fn tell(&mut self, tell: TellEnded) {
        let before = mem::replace(&mut self.audience, Audience::Process(tell));
        if let Audience::Perhaps(ended) = before {
            ended.into_iter().for_each(|ended| self.audience.hear(|| ended));
        }
    }

    /// Whether this process has nothing to tell another one later.
    pub(super) fn has_told(&self) -> bool {
        self.begun_elsewhere.is_empty() || matches!(self.audience, Audience::Nobody)
    }

    /// Ends a request with its answer. `None`: nothing was done.
    pub(super) fn end(&mut self, like: Key, answer: Option<Box<[u8]>>, now: Nanos) {
        let request = Some(like.export());
        let news = || v1::LinkDatagram { request, answer: answer.as_deref().map(<[u8]>::to_vec) };
        self.audience.hear(news);
        if self.duplicates.end(like, answer, now) {
            self.count(Count::Forgotten, 1);
        }
    }

    /// The old process has ended a request.
    pub(in crate::udp) fn ended_elsewhere(
        &mut self,
        like: Key,
        answer: Option<Box<[u8]>>,
        now: Nanos,
    ) {
        if self.begun_elsewhere.remove(&like) {
            self.end(like, answer, now);
        }
    }

    /// Forgets the requests of an old process that has not told what has become of them. They are
    /// carried out if they come again.
    pub(in crate::udp) fn forget_elsewhere(&mut self, now: Nanos) {
        if !self.begun_elsewhere.is_empty() && now >= self.known_elsewhere_until {
            for like in mem::take(&mut self.begun_elsewhere) {
                self.end(like, None, now);
            }
        }
    }
}

impl Audience {
    fn hear(&mut self, news: impl FnOnce() -> v1::LinkDatagram) {
        match self {
            Audience::Nobody => {}
            Audience::Perhaps(ended) => ended.push(news()),
            Audience::Process(tell) => tell(news()),
        }
    }
}

/// The old process has answered everything by then, and has told it.
pub(super) const KNOWN_ELSEWHERE: Duration = FRONT_TIMEOUT.saturating_add(Duration::from_secs(2));
