//! What the edges share: the shared state, publishing, events, the handle of an embedding program.

pub(crate) mod adoptions;
pub(crate) mod events;
pub(crate) mod handle;
pub(crate) mod inspect;
pub(crate) mod publish;
pub(crate) mod rights;
pub(crate) mod state;
