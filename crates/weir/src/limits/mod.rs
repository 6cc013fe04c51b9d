//! How much a source may do, and how many connections there may be.

pub(crate) mod admission;
mod assignments;
pub(crate) mod bucket;
pub(crate) mod http_ledger;
pub(crate) mod rates;
pub(crate) mod sources;
