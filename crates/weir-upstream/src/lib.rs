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
//! | `names` | the endpoints that stand behind the addresses, kept current by DNS | connect |
//! | `dial` | a connected stream to an endpoint, plain or TLS, direct or through a proxy | speak HTTP |
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
pub use dial::{DialError, DialStatus, DialStep};
pub use error::SendError;
pub use names::NamesStatus;
pub use settings::{
    DnsSettings, IpFamilies, Protocol, ProxySettings, Secret, Settings, SettingsError, TlsSettings,
};
pub use status::{EndpointState, EndpointStatus, Failures, Status};
pub use upstream::{SendOptions, Upstream};
