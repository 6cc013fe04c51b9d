//! Limits on connections and sources, and rates.

pub(crate) mod admission;
mod assignments;
pub(crate) mod bucket;
pub(crate) mod duplicates;
pub(crate) mod http_ledger;
pub(crate) mod rates;
pub(crate) mod sources;
