//! What the end-to-end tests share: the built programs as children, and a device that speaks frames over a real socket.

mod admin;
mod authority;
mod device;
mod forger;
mod program;
mod s_client;

pub use admin::{Answer, Metrics};
pub use authority::{Authority, Leaf};
pub use device::Device;
pub use forger::{Forger, Heard, framed, read_record};
pub use program::{Server, free_port, program, raise_open_files};
pub use s_client::SClient;
