//! The kernel under a shard: epoll, sockets, the bell. The only place for unsafe code.

mod epoll;
mod thread;

pub(crate) use epoll::{Epoll, bell};
pub use thread::ThreadShare;
