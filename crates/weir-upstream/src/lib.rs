//! Calls to other services: a named upstream, its endpoints, and the connections to them.
//!
//! It knows requests and answers. It knows no devices, topics or shards.
//!
//! Begin with `upstream`.
//!
//! | part | does | does not |
//! |---|---|---|
//! | `upstream` | [`Upstream::send`]: one request to one named service | choose the service |
//! | `settings` | [`Settings`] of an upstream, and their checks | read files |
//! | `address` | an address, as text has it | look up names |
//! | `names` | the endpoints that stand behind the addresses | connect |
//! | `dial` | a connected stream to an endpoint | speak HTTP |
//! | `body` | [`Outgoing`] and [`Incoming`]: bodies of requests and answers | keep whole bodies |
//! | `error` | [`SendError`]: why there is no answer | retry |
//! | `status` | figures for metrics and views | draw them |

mod address;
mod body;
mod dial;
mod error;
mod names;
mod settings;
mod status;
mod upstream;

pub use body::{Incoming, Outgoing};
pub use error::{DialError, SendError};
pub use settings::{Protocol, Settings, SettingsError};
pub use status::{EndpointState, EndpointStatus, Failures, Status};
pub use upstream::{SendOptions, Upstream};
