//! The end of credentials.

use weir_store::Millis;

use super::GrantRef;

/// The credentials of a connection: their end, and their grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) ends: Millis,
    pub(crate) grant: GrantRef,
}
