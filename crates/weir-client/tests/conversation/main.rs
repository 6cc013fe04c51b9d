//! The client in conversation with a scripted peer over a real socket.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod peer;
mod resume;
mod talk;
mod tls;
