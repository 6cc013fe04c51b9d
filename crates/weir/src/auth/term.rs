//! Until when credentials hold.

use weir_store::Millis;

use super::GrantRef;

/// Until when the credentials of a connection hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) ends: Millis,
    pub(crate) grant: GrantRef,
}
