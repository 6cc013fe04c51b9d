//! A small asynchronous client for the Weir gateway.
//!
//! ```no_run
//! use weir_client::{Client, Event, Options};
//!
//! # async fn run() -> Result<(), weir_client::ClientError> {
//! let options = Options::device("thermometer-7").topic("weather").topic("alarms");
//! let mut client = Client::connect("127.0.0.1:7070", options).await?;
//! while let Some(event) = client.next().await? {
//!     if let Event::Push(push) = event {
//!         println!("{} {}: {:?}", push.topic, push.offset, push.payload);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | part | holds |
//! |---|---|
//! | `client` | begin here: [`Client`], one connection |
//! | `options` | the settings of a connection: [`Options`] |
//! | `event` | events from the server, and messages to publish: [`Event`], [`Publication`] |
//! | `call` | calls to backends and of backends, and their answers: [`Call`], [`CallAnswer`] |
//! | `payload` | the content of messages and calls |
//! | `positions` | how far each topic has been read |
//! | `backoff` | how long to wait before the next connection: [`Backoff`] |
//! | `tls` | which servers to trust: [`TlsOptions`] |
//! | `buffer` | received bytes until they form a frame |
//! | `error` | why an operation failed: [`ClientError`] |
//!
//! The client has no task and no thread of its own, and never reconnects by itself. [`Client::next`] keeps the
//! connection alive, so the program must poll it. [`Backoff`] shows the loop that connects again.
#![forbid(unsafe_code)]

mod backoff;
mod buffer;
mod call;
mod client;
mod error;
mod event;
mod options;
mod payload;
mod positions;
mod tls;

pub use backoff::Backoff;
pub use call::{Answered, Call, CallAnswer, CallError};
pub use client::Client;
pub use error::ClientError;
pub use event::{
    Event, Expiring, Goodbye, Member, Position, Presence, Publication, Published, Push,
    ServerError, Subscribed, Unsubscribed,
};
pub use options::{Options, Subscription};
pub use payload::Payload;
pub use tls::{TlsError, TlsOptions};
pub use weir_wire::{Advice, CloseReason};
