//! The kernel and C below a shard: epoll, sockets, wakers, ciphers. All unsafe code is here.

pub(crate) mod aead;
pub mod datagrams;
mod epoll;
mod thread;

pub(crate) use epoll::{Epoll, waker};
pub use thread::ThreadShare;
