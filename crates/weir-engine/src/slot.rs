//! Places of connections in the tables of their shard.

use std::fmt;
use std::ops::Range;

/// A place in a shard's table of connections.
///
/// Shape: 4 bytes; below 2^22, or [`Slot::NONE`]. A slot is used again: a [`crate::ConnId`] tells its connections apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot(u32);

/// A place in a shard's table of connections with TLS.
///
/// Shape: 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TlsSlot(u32);

impl Slot {
    /// No connection: the end of a list, or a member that has left.
    pub(crate) const NONE: Slot = Slot(u32::MAX);

    /// The slot at `index` of the table.
    pub(crate) const fn at(index: u32) -> Slot {
        Slot(index)
    }

    /// The slots at these indices of the table.
    pub(crate) fn all(indices: Range<u32>) -> impl DoubleEndedIterator<Item = Slot> {
        indices.map(Slot)
    }

    /// Its index in the table.
    pub(crate) const fn index(self) -> u32 {
        self.0
    }

    /// The slot itself; `None` for [`Slot::NONE`].
    pub(crate) fn some(self) -> Option<Slot> {
        (self != Slot::NONE).then_some(self)
    }
}

impl TlsSlot {
    /// A connection without TLS.
    pub(crate) const NONE: TlsSlot = TlsSlot(u32::MAX);

    /// The slots at these indices of the table.
    pub(crate) fn all(indices: Range<u32>) -> impl DoubleEndedIterator<Item = TlsSlot> {
        indices.map(TlsSlot)
    }

    /// Its index in the table.
    pub(crate) const fn index(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

const _: () = assert!(size_of::<Slot>() == 4);
