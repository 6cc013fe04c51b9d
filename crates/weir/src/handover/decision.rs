//! The decision of an upgrade: after `Commit`, one process owns all connections, also when one of the
//! two dies.
//!
//! The old process writes `Commit`. The new one writes `Committed` before it reads, seals or sends
//! anything. If the old one reads `Committed`, it owns nothing any more; if the pair ends without
//! it, the old one owns everything. After a silence the old one makes sure that `Committed` cannot
//! come any more: it stops the new process, reads the pair to its end, and kills the new process
//! only if it has not written `Committed`. So it never kills the new owner.
//!
//! The old process may die while it holds the new one stopped. The kernel then lets the new one run
//! again, because that has asked for it ([`super::Predecessor::from_environment`]).
//!
//! Both sides are plain states here; [`decide`] and [`own`] give them ears and hands.

use std::time::Duration;

use weir_engine::Nanos;
use weir_wire::handover::v1;
use weir_wire::handover::v1::link_message::Kind as Message;

use super::link::{Heard, Link, LinkError};
use super::process::NewProcess;

/// What a side reads in the pair, as far as the decision goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Word {
    /// The old process gives everything away.
    Commit,
    /// The new process owns everything.
    Committed,
    /// Anything else.
    Other,
    /// The pair has ended.
    End,
    /// Nothing is there, or nothing came in time.
    Nothing,
}

/// The old process after it has written `Commit`. A state is named by what it does next.
///
/// ```text
/// Listen ──Committed──────────────────────────────► Moved
///   │  └───End───────────────┐                        ▲ ▲
///   │ silence, other words   │                        │ │
///   ▼                        │                        │ │
/// Stop ──► Look ──nothing, ──┴─► Kill ──► LookLast ───┘ │
///            │     End                       │ End      │
///            │ Committed                     ▼          │
///            └──────► GoOn ───────────┐    Kept         │
///                                     └─────────────────┘
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum OldSide {
    /// Waits for a word, for a limited time.
    Listen,
    /// Stops the new process, and waits until it stands.
    Stop,
    /// Reads what is in the pair.
    Look,
    /// Lets the new process run again.
    GoOn,
    /// Kills the new process, and waits for its exit.
    Kill,
    /// Reads the pair to its end. Nobody writes there any more.
    LookLast,
    /// The new process owns everything.
    Moved,
    /// The old process owns everything, and the new one has ended.
    Kept,
}

impl OldSide {
    /// Something was read, or the time is over.
    pub(super) fn handle_word(&mut self, word: Word) {
        *self = match (*self, word) {
            (OldSide::Listen | OldSide::LookLast, Word::Committed) => OldSide::Moved,
            (OldSide::Listen, Word::End) => OldSide::Kill,
            (OldSide::Listen, Word::Nothing | Word::Other | Word::Commit) => OldSide::Stop,
            (OldSide::Look, Word::Committed) => OldSide::GoOn,
            (OldSide::Look, Word::End | Word::Nothing) => OldSide::Kill,
            (OldSide::LookLast, Word::End | Word::Nothing) => OldSide::Kept,
            // It reads on.
            (state @ (OldSide::Look | OldSide::LookLast), Word::Other | Word::Commit) => state,
            (
                state @ (OldSide::Stop
                | OldSide::GoOn
                | OldSide::Kill
                | OldSide::Moved
                | OldSide::Kept),
                _,
            ) => state,
        };
    }

    /// The new process has been stopped, continued or killed, as the state asks for.
    pub(super) fn handle_done(&mut self) {
        *self = match *self {
            OldSide::Stop => OldSide::Look,
            OldSide::GoOn => OldSide::Moved,
            OldSide::Kill => OldSide::LookLast,
            state @ (OldSide::Listen
            | OldSide::Look
            | OldSide::LookLast
            | OldSide::Moved
            | OldSide::Kept) => state,
        };
    }
}

/// The new process after it has written `Ready`. A state is named by what it does next.
///
/// ```text
/// Listen ──Commit──► Write ──written, or End──► Owner
///   └──────End, other words──► Left
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum NewSide {
    /// Waits for a word, without a limit: the old process may stand still.
    Listen,
    /// Writes `Committed`.
    Write,
    /// It owns everything.
    Owner,
    /// It owns nothing, and exits without touching a socket.
    Left,
}

impl NewSide {
    /// Something was read.
    pub(super) fn handle_word(&mut self, word: Word) {
        *self = match (*self, word) {
            (NewSide::Listen, Word::Commit) => NewSide::Write,
            (NewSide::Listen, Word::End | Word::Other | Word::Committed) => NewSide::Left,
            (NewSide::Listen, Word::Nothing) => NewSide::Listen,
            (state @ (NewSide::Write | NewSide::Owner | NewSide::Left), _) => state,
        };
    }

    /// `Committed` is in the pair, or the old process has died: it never closes its end before it
    /// has decided.
    pub(super) fn handle_written(&mut self) {
        if *self == NewSide::Write {
            *self = NewSide::Owner;
        }
    }
}

/// Writes `Commit`, and decides for the old process. `true`: the new one owns everything.
///
/// Cost: blocks for `pause_max`, and then until the new process has been killed.
pub(super) fn decide(link: &Link, new: &mut NewProcess, pause_max: Duration) -> bool {
    let until = Nanos::now().after(pause_max);
    let commit = Message::Commit(v1::LinkCommit {});
    let mut old = match link.send_quietly(commit, until) {
        Ok(()) => OldSide::Listen,
        // It has not got the word, and must not get it later.
        Err(_) => OldSide::Kill,
    };
    loop {
        match old {
            OldSide::Listen => old.handle_word(word(link.hear(until))),
            OldSide::Look | OldSide::LookLast => old.handle_word(word(link.hear(Nanos::default()))),
            OldSide::Stop => {
                new.stop();
                old.handle_done();
            }
            OldSide::GoOn => {
                new.go_on();
                old.handle_done();
            }
            OldSide::Kill => {
                new.kill();
                old.handle_done();
            }
            OldSide::Moved => return true,
            OldSide::Kept => return false,
        }
    }
}

/// Writes `Ready`, and decides for the new process. `true`: it owns everything.
///
/// Cost: blocks as long as the old process lives and says nothing.
pub(super) fn own(link: &Link) -> bool {
    let far = Nanos(u64::MAX);
    if link.send_quietly(Message::Ready(v1::LinkReady {}), far).is_err() {
        return false;
    }
    let mut new = NewSide::Listen;
    loop {
        match new {
            NewSide::Listen => new.handle_word(word(link.hear(far))),
            NewSide::Write => {
                let committed = Message::Committed(v1::LinkCommitted {});
                match link.send_quietly(committed, far) {
                    Ok(()) | Err(LinkError::Ended) => new.handle_written(),
                    // It must not serve while the old process may not know, and must not give up:
                    // the old one may have died. If it lives, it ends this process.
                    Err(_) => link.wait_a_moment(),
                }
            }
            NewSide::Owner => return true,
            NewSide::Left => return false,
        }
    }
}

fn word(heard: Result<Heard, LinkError>) -> Word {
    match heard {
        Ok(Heard::Message(Message::Commit(_))) => Word::Commit,
        Ok(Heard::Message(Message::Committed(_))) => Word::Committed,
        Ok(Heard::Message(_)) | Err(LinkError::NotUnderstood(_) | LinkError::NoRoom { .. }) => {
            Word::Other
        }
        Ok(Heard::End) | Err(LinkError::Ended) => Word::End,
        Ok(Heard::Nothing) | Err(LinkError::Silent) => Word::Nothing,
        // The kernel cannot read the pair any more.
        Err(LinkError::Failed(_) | LinkError::TooManyOnTheirWay { .. } | LinkError::Io(_)) => {
            Word::End
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    /// Two processes and what is on its way between them.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct World {
        /// `None`: it waits for `Ready`.
        old: Option<OldSide>,
        old_died: bool,
        new: NewSide,
        /// How the new process ended, if it did.
        new_ended: Option<End>,
        /// Stopped by the old process.
        is_stopped: bool,
        to_new: Vec<Word>,
        to_old: Vec<Word>,
        /// `Commit` was written.
        is_asked: bool,
        /// A third process may let the new one run again while the old one looks.
        has_outsider: bool,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    enum End {
        Killed,
        Died,
        Exited,
    }

    /// Mistakes that the test must find.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Mistake {
        None,
        /// The old process resumes after a silence.
        ResumesWithoutKilling,
        /// It kills the new process without a look at a process that stands.
        KillsAtOnce,
        /// It does not read the pair after the end of the new process.
        TakesTheEndForNo,
        /// The new process serves before it has written `Committed`.
        OwnsTooEarly,
        /// Nobody lets it run again when the old process dies.
        StandsForEver,
    }

    /// Notes what may happen next.
    type Add<'a> = dyn FnMut(&dyn Fn(&mut World)) + 'a;

    impl World {
        fn begin(has_outsider: bool) -> World {
            World {
                has_outsider,
                old: None,
                old_died: false,
                new: NewSide::Listen,
                new_ended: None,
                is_stopped: false,
                to_new: Vec::new(),
                // The new process has written `Ready`.
                to_old: vec![Word::Other],
                is_asked: false,
            }
        }

        /// Everything that may happen next.
        fn next(&self, mistake: Mistake) -> Vec<World> {
            let mut all = Vec::new();
            let mut add = |change: &dyn Fn(&mut World)| {
                let mut world = self.clone();
                change(&mut world);
                all.push(world);
            };
            let decided = matches!(self.old, Some(OldSide::Kept | OldSide::Moved));
            if !self.old_died && !decided {
                add(&|world| {
                    world.old_died = true;
                    world.is_stopped &= mistake == Mistake::StandsForEver;
                });
                self.old_goes_on(mistake, &mut add);
            }
            if self.new_ended.is_none() {
                add(&|world| world.new_ended = Some(End::Died));
                add(&|world| world.is_stopped &= !world.has_outsider);
                if !self.is_stopped {
                    self.new_goes_on(mistake, &mut add);
                }
            }
            all
        }

        fn old_goes_on(&self, mistake: Mistake, add: &mut Add<'_>) {
            let hears = |world: &mut World| match world.to_old.is_empty() {
                false => world.to_old.remove(0),
                true if world.new_ended.is_some() => Word::End,
                true => Word::Nothing,
            };
            match self.old {
                None => {
                    // `Ready` is there: it writes `Commit`. If nobody reads it, it has not got there.
                    add(&|world| {
                        world.to_old.clear();
                        world.is_asked = world.new_ended.is_none();
                        world.to_new.push(Word::Commit);
                        world.old = Some(OldSide::Listen);
                    });
                }
                Some(OldSide::Stop) => add(&|world| {
                    world.is_stopped = mistake != Mistake::KillsAtOnce;
                    world.old.as_mut().unwrap().handle_done();
                    match mistake {
                        Mistake::ResumesWithoutKilling => world.old = Some(OldSide::Kept),
                        Mistake::KillsAtOnce => world.old = Some(OldSide::Kill),
                        Mistake::None
                        | Mistake::TakesTheEndForNo
                        | Mistake::OwnsTooEarly
                        | Mistake::StandsForEver => {}
                    }
                }),
                Some(OldSide::GoOn) => add(&|world| {
                    world.is_stopped = false;
                    world.old.as_mut().unwrap().handle_done();
                }),
                Some(OldSide::Kill) => add(&|world| {
                    world.new_ended.get_or_insert(End::Killed);
                    world.old.as_mut().unwrap().handle_done();
                    if mistake == Mistake::TakesTheEndForNo {
                        world.old = Some(OldSide::Kept);
                    }
                }),
                Some(_) => add(&|world| {
                    let word = hears(world);
                    world.old.as_mut().unwrap().handle_word(word);
                }),
            }
        }

        fn new_goes_on(&self, mistake: Mistake, add: &mut Add<'_>) {
            match self.new {
                NewSide::Listen => {
                    let end = if self.old_died { Word::End } else { Word::Nothing };
                    add(&|world| {
                        let word =
                            if world.to_new.is_empty() { end } else { world.to_new.remove(0) };
                        world.new.handle_word(word);
                        if mistake == Mistake::OwnsTooEarly && world.new == NewSide::Write {
                            world.new = NewSide::Owner;
                        }
                    });
                    // A program with a mistake.
                    add(&|world| world.to_old = vec![Word::Other]);
                }
                NewSide::Write => add(&|world| {
                    world.to_old.push(Word::Committed);
                    world.new.handle_written();
                }),
                NewSide::Left => add(&|world| world.new_ended = Some(End::Exited)),
                NewSide::Owner => {}
            }
        }

        /// What must hold in every state, and once nothing more happens.
        fn check(&self, is_last: bool) -> Result<(), &'static str> {
            let old_owns = !self.old_died && matches!(self.old, Some(OldSide::Kept));
            // What it has sent is sent, also if it has died since.
            let new_owned = self.new == NewSide::Owner;
            if old_owns && new_owned {
                return Err("both have owned the connections after Commit");
            }
            if old_owns && self.new_ended.is_none() {
                return Err("the old process goes on, and the new one lives");
            }
            if new_owned && self.new_ended == Some(End::Killed) && !self.has_outsider {
                return Err("the old process has killed the owner");
            }
            if self.old == Some(OldSide::Moved) && !new_owned {
                return Err("the old process has left, and nobody has taken over");
            }
            let new_lives = self.new_ended.is_none();
            if is_last && self.old_died && new_lives && !new_owned {
                return Err("a new process waits for a dead one");
            }
            if is_last && self.old_died && self.is_asked && self.new_ended == Some(End::Exited) {
                return Err("the new process has left, although it was asked to own everything");
            }
            Ok(())
        }
    }

    /// Tries all that can happen.
    fn explore(mistake: Mistake, has_outsider: bool) -> Result<usize, &'static str> {
        let begin = World::begin(has_outsider);
        let mut seen = HashSet::from([begin.clone()]);
        let mut waiting = VecDeque::from([begin]);
        while let Some(world) = waiting.pop_front() {
            let next: Vec<World> =
                world.next(mistake).into_iter().filter(|next| *next != world).collect();
            // A process that lives may die at any time: nothing else is left to happen.
            let is_last = next
                .iter()
                .all(|next| next.old_died != world.old_died || next.new_ended == Some(End::Died));
            world.check(is_last)?;
            waiting.extend(next.into_iter().filter(|next| seen.insert(next.clone())));
        }
        Ok(seen.len())
    }

    #[test]
    fn one_process_owns_everything_whatever_happens_when() {
        for has_outsider in [false, true] {
            let states = explore(Mistake::None, has_outsider).unwrap();
            assert!(states > 100, "{states}");
        }
    }

    #[test]
    fn mistakes_in_the_decision_are_found() {
        for (mistake, has_outsider) in [
            (Mistake::ResumesWithoutKilling, false),
            (Mistake::KillsAtOnce, false),
            (Mistake::TakesTheEndForNo, true),
            (Mistake::OwnsTooEarly, false),
            (Mistake::StandsForEver, false),
        ] {
            assert!(explore(mistake, has_outsider).is_err(), "{mistake:?}");
        }
    }
}
