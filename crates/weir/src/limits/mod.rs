//! How much a source may do, and how many connections there may be.

pub(crate) mod admission;
pub(crate) mod rates;
pub(crate) mod sources;
