//! The ids of connections in a run: none comes twice, and each carries a number that its node had.

use std::collections::BTreeSet;

use super::dice::Dice;
use crate::id::{ConnId, OwnNode};

/// What is known of ids.
pub(super) struct Ids {
    node: OwnNode,
    /// Every number that the node has had, in order.
    numbers: Vec<u16>,
    seen: BTreeSet<ConnId>,
    retired: u64,
}

impl Ids {
    /// Gives the node its first number.
    pub(super) fn begin(node: &OwnNode, dice: &mut Dice) -> Self {
        let mut ids = Self {
            node: node.clone(),
            numbers: vec![node.number()],
            seen: BTreeSet::new(),
            retired: 0,
        };
        if dice.chance(1 << 15) {
            ids.renumber(dice);
        }
        ids
    }

    /// Connections that a slot takes until it is retired.
    pub(super) fn drawn_generation_max(dice: &mut Dice) -> u32 {
        [2, 30, ConnId::GENERATION_MAX][dice.index(3)]
    }

    /// The node loses its number and gets another.
    pub(super) fn renumber(&mut self, dice: &mut Dice) {
        let number = [1, 2, ConnId::NODES_MAX - 1][dice.index(3)];
        assert!(self.node.renumber(number), "there is room for {number}");
        self.numbers.push(number);
    }

    /// Takes note of how many slots are retired; whether they are more now.
    pub(super) fn note_retired(&mut self, retired: u64) -> bool {
        std::mem::replace(&mut self.retired, retired) < retired
    }

    /// How many numbers the node has had.
    pub(super) fn renumbered(&self) -> usize {
        self.numbers.len()
    }

    /// The id of a connection that was offered when the node had had so many numbers.
    pub(super) fn enter(&mut self, conn: ConnId, renumbered: usize) -> Result<(), String> {
        if !self.numbers[renumbered - 1..].contains(&conn.node()) {
            return Err(format!("{conn:?} has a number that its node had not"));
        }
        if !self.seen.insert(conn) {
            return Err(format!("{conn:?} comes twice"));
        }
        Ok(())
    }
}

/// The same connection at another node.
pub(super) fn foreign(conn: ConnId) -> ConnId {
    ConnId::from_u64(conn.to_u64() ^ 1 << 63)
}
