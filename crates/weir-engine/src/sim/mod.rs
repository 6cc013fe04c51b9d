//! The simulated network: a shard in virtual time, with injected faults, reproducible from a seed.
//!
//! Not part of the product: it exists under `cfg(test)` and the feature `sim`.
//!
//! [`SimNet`] is the kernel as a shard sees it through [`Net`](crate::Net). [`SimShard`] is one shard on top of it,
//! stepped by hand, for tests of the shard and of the router above it:
//!
//! ```
//! use std::time::Duration;
//! use weir_engine::sim::{Reports, SimShard};
//! use weir_engine::{
//!     Adoption, Budget, Command, DeviceRef, Origin, Priority, Report, ShardSettings,
//! };
//!
//! let budget = Budget::new(1 << 20);
//! let mut shard = SimShard::new(0, ShardSettings::default(), budget, Reports::default(), 1);
//! let (peer, socket) = shard.connect();
//! let adoption = Adoption {
//!     socket,
//!     ticket: 7,
//!     device: DeviceRef(0),
//!     heartbeat: Duration::from_secs(60),
//!     priority: Priority::Normal,
//!     origin: Origin::default(),
//!     publish_limited: true,
//!     positions: None,
//!     read_ahead: Vec::new(),
//!     tls: None,
//! };
//! shard.push(Command::Adopt(Box::new(adoption)));
//! shard.settle();
//! let Some(Report::Adopted { conn, ticket: 7 }) = shard.front_mut().pop() else { panic!() };
//! shard.push(Command::Welcome(conn, Box::from(*b"\x00")));
//! shard.settle();
//! assert_eq!(shard.peer_read(peer), b"\x00");
//! shard.advance(Duration::from_secs(1));
//! ```
//!
//! [`Run`] drives such a shard at random and compares it with a reference model after every turn;
//! [`run_seed`] runs one.
//!
//! [`Blocks`] is a shard's pool of blocks by itself, for its benchmark.
//!
//! The files, from the bottom up:
//! - `fault` and `dice` decide the faults and their times; `link` and `net` are the kernel.
//! - `book` knows all frames that were sent. `edge` and `secure` are a device's end of formats and
//!   of TLS.
//! - `incoming`, `owed`, `positions`, `outgoing`, `conn` and `topic` are the reference model.
//! - `shard` and `front` are stepped by hand; `driver` makes a run with them.
//! - `asks`, `rooms` and `drains` are the front's acts in a run, `peers` and `records` those of devices.
//! - `verify` and `signs` compare the shard with the model.

mod asks;
mod blocks;
mod book;
mod conn;
mod dice;
mod drains;
mod driver;
mod edge;
mod fault;
mod front;
mod ids;
mod incoming;
mod link;
mod net;
mod outgoing;
mod owed;
mod peers;
mod positions;
mod records;
mod rooms;
mod secure;
mod shard;
mod signs;
mod topic;
mod verify;

pub use blocks::{Blocks, PooledBlock};
pub use dice::Dice;
pub use driver::{Failure, Run, Summary, run_seed};
pub use fault::{Fault, Faults};
pub use front::Reports;
pub use link::{PeerId, PeerView};
pub use net::{Offer, SimNet, SimOffer, SimSocket};
pub use shard::SimShard;

pub use crate::seeded_bug::SeededBug;
