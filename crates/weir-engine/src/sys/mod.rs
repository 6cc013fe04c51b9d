//! The kernel and C below a shard: epoll, sockets, descriptor tables, wakers, ciphers. All unsafe code is here.

pub(crate) mod aead;
pub mod datagrams;
pub(crate) mod descriptors;
mod epoll;
mod peer_name;
mod thread;

pub(crate) use epoll::{Epoll, FrontWaker, OWN_TABLE_DESCRIPTORS, OwnTable, counter, waker};
pub use thread::ThreadShare;
