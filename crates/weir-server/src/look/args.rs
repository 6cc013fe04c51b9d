//! The options of the commands that look at a running gateway.

use clap::{Args, ValueEnum};

use crate::options::AdminArgs;

#[derive(Debug, Args)]
pub(crate) struct ConnectionsArgs {
    /// List only connections of this device.
    #[arg(long, value_name = "ID")]
    pub(crate) device: Option<String>,
    /// List only connections in this topic.
    #[arg(long)]
    pub(crate) topic: Option<String>,
    /// List the connections of the node with this number, not those of the node that answers.
    #[arg(long, value_name = "N")]
    pub(crate) node: Option<u16>,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TopicsArgs {
    /// List only topics whose names begin with this text.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// The device's id.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: AdminArgs,
}

/// Show the services that the gateway calls, and each of their endpoints.
#[derive(Debug, Args)]
pub(crate) struct UpstreamsArgs {
    /// Print each upstream as a JSON object on one line, as `GET /v1/stats` has it.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: AdminArgs,
}

/// Show the last ends of connections, the newest first: which device, and why. The gateway keeps
/// the last 1,000.
///
/// An end without a connection's number was refused before it settled. Its device is then what it
/// claimed to be.
#[derive(Debug, Args)]
pub(crate) struct ClosesArgs {
    /// Show only ends of this device's connections.
    #[arg(long, value_name = "ID")]
    pub(crate) device: Option<String>,
    /// Show only ends for this reason, such as `peer_closed`.
    #[arg(long, value_name = "REASON")]
    pub(crate) reason: Option<String>,
    /// Show at most this many, up to 1000.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: usize,
    /// Print each end as a JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: AdminArgs,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Print only events of these types.
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    pub(crate) types: Vec<EventType>,
    /// Print only events of this device.
    #[arg(long, value_name = "ID")]
    pub(crate) device: Option<String>,
    /// Print only subscriptions of topics whose names begin with this text.
    #[arg(long, value_name = "TEXT")]
    pub(crate) topic: Option<String>,
    /// Print the events of this share of the connections only, from 0 to 1.
    #[arg(long, value_name = "SHARE")]
    pub(crate) sample: Option<f64>,
    /// Stop after this many events.
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Print each event as a JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: AdminArgs,
}

/// Watch the figures of a running gateway: connections, messages, delays, memory, shards, and why
/// connections end. `q` quits, Tab changes the lowest part.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Print the figures as a JSON object on one line, each second: the documents of
    /// `GET /v1/stats`.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the figures once, without a screen.
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) api: AdminArgs,
}

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventType {
    /// A connection is welcomed.
    Connected,
    /// A connection has ended.
    Disconnected,
    /// A topic accepted a connection.
    Subscribed,
    /// A connection asked to leave a topic.
    Unsubscribed,
    /// The process has taken the place of another one.
    Upgraded,
    /// A new process has not taken over.
    #[value(name = "upgrade_failed")]
    UpgradeFailed,
}

/// How much of a list to print, and how.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// List at most this many.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: usize,
    /// Print each as a JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: AdminArgs,
}

impl EventType {
    /// As the admin API writes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EventType::Connected => "connected",
            EventType::Disconnected => "disconnected",
            EventType::Subscribed => "subscribed",
            EventType::Unsubscribed => "unsubscribed",
            EventType::Upgraded => "upgraded",
            EventType::UpgradeFailed => "upgrade_failed",
        }
    }
}
