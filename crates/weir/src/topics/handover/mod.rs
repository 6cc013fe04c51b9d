//! Hands all topics over to another process, and takes them from one.
//!
//! The old process stands still ([`Router::stand_still`]), then exports; the new one imports into a
//! router that has been made from its configuration and has no topic yet. Topics keep their ids,
//! epochs and offsets; connections and resumes keep their numbers. Under another configuration
//! classes are found anew by the topics' names, as by a reload.
//!
//! What only the broker can tell is asked anew: the new process joins all topics of the cluster that
//! the old one followed, and reads what was published meanwhile. Its members and its attendance are
//! told again. Watchers of topics of the cluster hear that they may have missed something.
//!
//! [`Router::stand_still`]: super::Router::stand_still

mod export;
mod gate;
mod import;
mod rings;

use weir_engine::ConnId;
use weir_engine::handover::NotUnderstood;

pub(super) use gate::Gate;
pub(crate) use rings::{EarlyRings, SentRings};

use crate::base::handover::{narrow, refused};

/// The pairs of a list.
pub(super) fn pairs(
    field: &'static str,
    list: &[u32],
) -> Result<impl Iterator<Item = (u32, u32)>, NotUnderstood> {
    let (pairs, rest) = list.as_chunks::<2>();
    match rest {
        [] => Ok(pairs.iter().map(|[one, two]| (*one, *two))),
        [left, ..] => Err(refused(field, *left)),
    }
}

/// An offset, or a time: far enough from the end that it can grow for ever.
pub(super) fn growing(field: &'static str, value: u64) -> Result<u64, NotUnderstood> {
    if value > u64::MAX / 4 { Err(refused(field, value)) } else { Ok(value) }
}

/// The number of shards, which tells whether a connection can be here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shards(usize);

impl Shards {
    /// The connection with this id.
    pub(super) fn conn(self, field: &'static str, id: u64) -> Result<ConnId, NotUnderstood> {
        let conn = ConnId::from_u64(id);
        if conn.shard() < self.0 { Ok(conn) } else { Err(refused(field, id)) }
    }

    /// The index of a shard.
    pub(super) fn index(self, field: &'static str, shard: u32) -> Result<usize, NotUnderstood> {
        let index = narrow(field, shard)?;
        if index < self.0 { Ok(index) } else { Err(refused(field, shard)) }
    }
}
