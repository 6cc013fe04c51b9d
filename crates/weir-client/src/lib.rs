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
//! A [`Client`] is one connection and nothing else: no task of its own, no thread, no hidden reconnect. What keeps the
//! connection alive happens inside [`Client::next`], which therefore wants to be polled. Coming back after an end is
//! the caller's loop, with [`Backoff`] for how long to wait and [`Client::positions`] for where to go on:
//!
//! ```no_run
//! # use weir_client::{Backoff, Client, Event, Options};
//! # async fn run() {
//! let mut options = Options::device("thermometer-7").topic("weather");
//! let mut backoff = Backoff::default();
//! loop {
//!     let delay = match Client::connect("127.0.0.1:7070", options.clone()).await {
//!         Ok(mut client) => {
//!             let since = std::time::Instant::now();
//!             let delay = loop {
//!                 let next = client.next().await;
//!                 backoff.handle_lasted(since.elapsed());
//!                 match next {
//!                     Ok(Some(Event::Goodbye(goodbye))) => break backoff.after_goodbye(&goodbye),
//!                     Ok(Some(Event::Subscribed(told))) if told.recovered => {
//!                         println!("{}: all that was missed follows", told.topic);
//!                     }
//!                     Ok(Some(event)) => println!("{event:?}"),
//!                     Ok(None) => break Some(backoff.after_close()),
//!                     Err(error) => break backoff.after_error(&error),
//!                 }
//!             };
//!             options.topics = client.positions();
//!             delay
//!         }
//!         Err(error) => backoff.after_error(&error),
//!     };
//!     let Some(delay) = delay else { break };
//!     tokio::time::sleep(delay).await;
//! }
//! # }
//! ```
//!
//! With TLS, [`Options::tls`] says whom to believe:
//!
//! ```no_run
//! # fn options() -> Result<weir_client::Options, Box<dyn std::error::Error>> {
//! # use weir_client::{Options, TlsOptions};
//! let tls = TlsOptions::new("gateway.example", &std::fs::read("ca.pem")?)?;
//! let options = Options::device("thermometer-7").tls(tls);
//! # Ok(options)
//! # }
//! ```
#![forbid(unsafe_code)]

mod backoff;
mod buffer;
mod client;
mod error;
mod event;
mod options;
mod positions;
mod tls;

pub use backoff::Backoff;
pub use client::Client;
pub use error::ClientError;
pub use event::{
    Event, Expiring, Goodbye, Payload, Position, Publication, Published, Push, ServerError,
    Subscribed, Unsubscribed,
};
pub use options::{Options, Subscription};
pub use tls::{TlsError, TlsOptions};
pub use weir_wire::{Advice, CloseReason};
