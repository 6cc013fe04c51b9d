//! The kernel under a shard: epoll, sockets, the bell. The only place for unsafe code.

mod epoll;

pub(crate) use epoll::{Epoll, bell};
