//! What one client has seen of one topic, and whether it was told of everything that it has not.

use weir_client::{Position, Subscribed, Unsubscribed};

/// A client's view of a topic whose class retains messages: each one comes once and in order, or
/// the client is told that some are lost.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The last message seen, or where the topic began for this client.
    at: Option<Position>,
    /// Whether the subscription on the current connection is answered.
    is_in: bool,
    /// What was seen without a break, in order.
    runs: Vec<Run>,
    /// What the client was told to be lost.
    losses: Vec<Loss>,
}

/// All messages of an epoch after one offset, up to another.
#[derive(Debug, Clone, Copy)]
struct Run {
    epoch: u64,
    after: u64,
    up_to: u64,
}

/// All messages after one position, up to another.
#[derive(Debug, Clone, Copy)]
struct Loss {
    after: Position,
    up_to: Position,
}

/// What became of a message, for one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Seen,
    /// The client was told that it may be lost.
    Told,
    /// It was published before the client came.
    Earlier,
    Untold,
}

impl Seen {
    /// The last message seen.
    pub(super) fn at(&self) -> Option<Position> {
        self.at
    }

    /// Whether the topic's messages come now.
    pub(super) fn is_in(&self) -> bool {
        self.is_in
    }

    /// Losses that were told.
    pub(super) fn told(&self) -> usize {
        self.losses.len()
    }

    /// Forgets what was seen, except the place.
    pub(super) fn begin_again(&mut self) {
        self.runs.clear();
        self.losses.clear();
        self.runs.extend(self.at.map(Run::begin));
    }

    /// The connection has ended.
    pub(super) fn handle_end(&mut self) {
        self.is_in = false;
    }

    /// Errors: what breaks the rules of the protocol, or goes unreported by the client.
    pub(super) fn handle_subscribed(&mut self, told: &Subscribed) -> Result<(), String> {
        let was_in = std::mem::replace(&mut self.is_in, true);
        let Some(position) = told.position else {
            return Err(format!("no position in {told:?}"));
        };
        let Some(at) = self.at else {
            self.go_on_at(position);
            return Ok(());
        };
        if position == at {
            return Ok(());
        }
        if told.recovered {
            return Err(format!("recovered at {position:?} instead of {at:?}"));
        }
        let loss = Loss { after: at, up_to: position };
        self.go_on_at(position);
        self.losses.push(loss);
        if was_in && position.epoch == at.epoch && position.offset < at.offset {
            return Err(format!("goes back: {loss:?}"));
        }
        match told.lost_after {
            Some(lost_after) if lost_after == at => Ok(()),
            lost_after => Err(format!("the client says {lost_after:?} of {loss:?}")),
        }
    }

    /// Errors: it is no answer of ours, and for no reason that there is.
    pub(super) fn handle_unsubscribed(&mut self, told: &Unsubscribed) -> Result<(), String> {
        self.is_in = false;
        match told.reason.as_str() {
            "fell_behind" => Ok(()),
            reason => Err(format!("unsubscribed: {reason:?}")),
        }
    }

    /// A message came; its position.
    ///
    /// Errors: it is not the next one.
    pub(super) fn handle_push(&mut self, offset: u64) -> Result<Position, String> {
        let (Some(at), true) = (self.at, self.is_in) else {
            return Err(format!("offset {offset} without a subscription"));
        };
        let position = Position { offset, ..at };
        self.at = Some(Position { offset: offset.max(at.offset), ..at });
        if offset != at.offset + 1 {
            if offset > at.offset {
                self.runs.push(Run { epoch: at.epoch, after: offset - 1, up_to: offset });
            }
            return Err(format!("offset {offset} came after {at:?}"));
        }
        if let Some(run) = self.runs.last_mut() {
            run.up_to = offset;
        }
        Ok(position)
    }

    /// What became of a message of this topic.
    pub(super) fn fate(&self, of: Position) -> Fate {
        let is_seen =
            |run: &Run| run.epoch == of.epoch && run.after < of.offset && of.offset <= run.up_to;
        if self.runs.iter().any(is_seen) {
            return Fate::Seen;
        }
        let has_run = self.runs.iter().any(|run| run.epoch == of.epoch);
        if self.losses.iter().any(|loss| loss.covers(of, has_run)) {
            return Fate::Told;
        }
        match self.runs.first() {
            Some(run) if run.epoch == of.epoch && of.offset <= run.after => Fate::Earlier,
            _ => Fate::Untold,
        }
    }

    fn go_on_at(&mut self, position: Position) {
        self.at = Some(position);
        self.runs.push(Run::begin(position));
    }
}

impl Run {
    fn begin(at: Position) -> Run {
        Run { epoch: at.epoch, after: at.offset, up_to: at.offset }
    }
}

impl Loss {
    /// Whether a message is among the lost ones. Of an epoch that the client has never been in,
    /// nothing tells when it was; it may have come and gone between two others.
    fn covers(&self, of: Position, has_run: bool) -> bool {
        let Loss { after, up_to } = *self;
        let is_after = of.epoch == after.epoch && of.offset > after.offset;
        let is_before = of.epoch == up_to.epoch && of.offset <= up_to.offset;
        if after.epoch == up_to.epoch {
            return is_after && is_before;
        }
        is_after || is_before || !has_run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(epoch: u64, offset: u64) -> Position {
        Position { epoch, offset }
    }

    fn subscribed(position: Position, recovered: bool, lost_after: Option<Position>) -> Subscribed {
        Subscribed { topic: "t".to_owned(), position: Some(position), recovered, lost_after }
    }

    /// One that has seen the offsets 6 and 7 of epoch 1.
    fn seen() -> Seen {
        let mut seen = Seen::default();
        seen.handle_subscribed(&subscribed(at(1, 5), false, None)).unwrap();
        assert_eq!(seen.handle_push(6), Ok(at(1, 6)));
        assert_eq!(seen.handle_push(7), Ok(at(1, 7)));
        seen
    }

    #[test]
    fn each_message_has_a_fate() {
        let mut seen = seen();
        seen.handle_subscribed(&subscribed(at(3, 2), false, Some(at(1, 7)))).unwrap();
        seen.handle_push(3).unwrap();
        for (of, expected) in [
            (at(1, 5), Fate::Earlier),
            (at(1, 6), Fate::Seen),
            (at(1, 7), Fate::Seen),
            (at(1, 8), Fate::Told),
            // Nobody of the clients has been in epoch 2.
            (at(2, 1), Fate::Told),
            (at(3, 2), Fate::Told),
            (at(3, 3), Fate::Seen),
            (at(3, 4), Fate::Untold),
        ] {
            assert_eq!(seen.fate(of), expected, "{of:?}");
        }
        assert_eq!(seen.told(), 1);
        seen.begin_again();
        assert_eq!((seen.fate(at(3, 3)), seen.fate(at(3, 4))), (Fate::Earlier, Fate::Untold));
    }

    #[test]
    fn what_comes_twice_or_too_early_is_found() {
        assert!(seen().handle_push(7).is_err());
        let mut seen = seen();
        assert!(seen.handle_push(9).is_err());
        assert_eq!(seen.fate(at(1, 8)), Fate::Untold);
        assert_eq!(seen.fate(at(1, 9)), Fate::Seen);
        seen.handle_end();
        assert!(seen.handle_push(10).is_err());
    }

    #[test]
    fn a_return_goes_on_or_tells() {
        let mut one = seen();
        one.handle_end();
        one.handle_subscribed(&subscribed(at(1, 7), true, None)).unwrap();
        assert_eq!(one.handle_push(8), Ok(at(1, 8)));
        // It says that it goes on, and does not.
        one.handle_end();
        assert!(one.handle_subscribed(&subscribed(at(1, 9), true, None)).is_err());
        // It says that it does not, and the client keeps that to itself.
        for position in [at(1, 9), at(2, 0)] {
            let mut other = seen();
            other.handle_end();
            assert!(other.handle_subscribed(&subscribed(position, false, None)).is_err());
        }
    }
}
