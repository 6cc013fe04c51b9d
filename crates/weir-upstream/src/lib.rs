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
//! | `outgoing` | [`Outgoing`]: a body of a request, for one try after another | send |
//! | `incoming` | [`Incoming`]: a body of an answer; its end frees the connection | keep whole bodies |
//! | `error` | [`SendError`]: why there is no answer | retry |
//! | `balance` | the endpoint for a request: the lighter of two | connect |
//! | `endpoint` | an endpoint's health, load and connections | choose between endpoints |
//! | `attempt` | one try of a request at one endpoint | decide about another try |
//! | `retry` | whether a request is tried again | send |
//! | `head` | the head of a request, as each try sends it | send |
//! | `trace` | [`TrySpans`]: a span for each try (W3C Trace Context) | collect spans |
//! | `upkeep` | connections opened ahead and closed in time | send |
//! | `status` | figures for metrics and views | draw them |

mod address;
mod attempt;
mod balance;
mod dial;
mod endpoint;
mod error;
mod head;
mod incoming;
mod names;
mod outgoing;
mod retry;
mod settings;
mod status;
mod trace;
mod upkeep;
mod upstream;

pub use dial::{DialError, DialStatus, DialStep};
pub use error::SendError;
pub use incoming::Incoming;
pub use names::NamesStatus;
pub use outgoing::Outgoing;
pub use settings::{
    DnsSettings, EjectionSettings, IpFamilies, PoolSettings, Protocol, ProxySettings,
    RetrySettings, Secret, Settings, SettingsError, TlsSettings,
};
pub use status::{EndpointState, EndpointStatus, Failures, Status};
pub use trace::{TrySpan, TrySpans};
pub use upstream::{SendOptions, Upstream};
