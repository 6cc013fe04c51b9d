//! What is under a shard: epoll, sockets and wakers of the kernel, ciphers in C. The only place for unsafe code.

pub(crate) mod aead;
pub mod datagrams;
mod epoll;
mod thread;

pub(crate) use epoll::{Epoll, waker};
pub use thread::ThreadShare;
