//! Activations by datagrams.

use std::time::Duration;

use crate::activations::{ANSWER_MARK, Activations, Tokens};
use crate::scenario::udp::caller::{COUNT_DIGITS, Script, read_count, write_count};
use crate::sys::datagrams::Batch;

/// Requests of devices for their tokens, by datagram.
pub(super) struct Activating {
    activations: Activations,
    sockets: u64,
    datagram: Vec<u8>,
    /// The tokens of a round.
    pub(super) tokens: Tokens,
    /// Requests that were rightly refused.
    pub(super) refused: u64,
}

impl Activating {
    pub(super) fn new(activations: Activations, sockets: u32) -> Activating {
        let sockets = u64::from(sockets);
        let (datagram, tokens) = (Vec::new(), Tokens::default());
        Activating { activations, sockets, datagram, tokens, refused: 0 }
    }

    /// Sockets take turns.
    fn number(&self, socket: usize, number: u64) -> u64 {
        number * self.sockets + socket as u64
    }
}

impl Script for Activating {
    /// Longer than the gateway may take.
    const LOST_AFTER: Duration = Duration::from_secs(3);

    fn write(&mut self, socket: usize, number: u64, batch: &mut Batch, place: usize) {
        self.datagram.clear();
        self.datagram.push(b'{');
        let number_of_all = self.number(socket, number);
        self.activations.write(number_of_all, &mut self.datagram);
        self.datagram.extend_from_slice(b",\"id\":");
        let at = self.datagram.len();
        self.datagram.resize(at + COUNT_DIGITS, 0);
        write_count(&mut self.datagram[at..], number);
        self.datagram.push(b'}');
        batch.set(place, &self.datagram);
    }

    fn number_of(&mut self, socket: usize, answer: &[u8]) -> Option<u64> {
        let number = read_count(answer)?;
        self.datagram.clear();
        let is_hit = self.activations.write(self.number(socket, number), &mut self.datagram);
        let is_right = if is_hit {
            self.tokens.take(answer)
        } else {
            let refused = answer.strip_prefix(ANSWER_MARK);
            let is_refused =
                refused.is_some_and(|rest| rest.starts_with(b"\"error\":\"unauthorized\""));
            self.refused += u64::from(is_refused);
            is_refused
        };
        is_right.then_some(number)
    }
}
