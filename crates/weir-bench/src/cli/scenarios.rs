//! The options of each scenario.

use std::time::Duration;

use clap::Args;

use super::common::{RunArgs, TargetArgs, duration, echo_size, rate, share, size, small_size};
use super::http::HttpBaseline;
use crate::baseline::Trigger;
use crate::protocol::Transport;

#[derive(Debug, Args)]
pub(crate) struct IdleArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Connections.
    #[arg(long, value_name = "N", default_value_t = 15_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,
    /// Memory counts as settled when it has not changed for this time.
    #[arg(long, value_name = "TIME", default_value = "6s", value_parser = duration)]
    pub(crate) settle: Duration,
    /// Without --spawn: one topic for each connection, instead of one for every 1,000 connections.
    #[arg(long, conflicts_with = "spawn")]
    pub(crate) own_topics: bool,
    /// Format and transport of the messages.
    #[arg(long, value_enum, value_name = "TRANSPORT", default_value = "tcp")]
    pub(crate) transport: Transport,
}

#[derive(Debug, Args)]
pub(crate) struct BroadcastArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    /// Topics, to which the connections are assigned in turn.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) topics: u32,
    /// Publish to all connections instead of to topics.
    #[arg(long, conflicts_with = "topics")]
    pub(crate) all: bool,
    /// Format and transport of the messages.
    #[arg(long, value_enum, value_name = "TRANSPORT", default_value = "tcp")]
    pub(crate) transport: Transport,
    /// Further topics without messages, to which the connections subscribe: each to its share.
    #[arg(long, value_name = "T", default_value_t = 0, conflicts_with = "all", value_parser = clap::value_parser!(u32).range(..=10_000_000))]
    pub(crate) silent_topics: u32,
    /// Tick of the topics [default: none; with a running server, its own].
    #[arg(long, value_name = "MS", conflicts_with_all = ["all", "addr"], value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) tick_ms: Option<u32>,
}

/// A load of messages, split into rounds.
#[derive(Debug, Clone, Args)]
pub(crate) struct LoadArgs {
    /// Connections.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,
    /// Bytes of a payload, at least 16.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = small_size)]
    pub(crate) size: usize,
    /// Messages a second to each connection.
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// Seconds of load, all rounds together.
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = rate)]
    pub(crate) seconds: f64,
    /// Rounds; each gives one figure, and the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
}

#[derive(Debug, Args)]
pub(crate) struct StallArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Connections.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,
    /// Bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = size)]
    pub(crate) size: usize,
    /// Messages a second to each connection.
    #[arg(long, value_name = "R", default_value_t = 20.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// Share of the clients that stop reading.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = share)]
    pub(crate) stalled_share: f64,
    /// Instead of --stalled-share: all clients read at this share of the offered rate, then at full
    /// speed.
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "stalled_share")]
    pub(crate) drain_share: Option<f64>,
    /// Seconds of load before any client is slow.
    #[arg(long, value_name = "S", default_value_t = 15.0, value_parser = rate)]
    pub(crate) quiet_seconds: f64,
    /// Seconds of load with slow clients [default: stall_timeout and 10 s more; with --drain-share,
    /// 30].
    #[arg(long, value_name = "S", value_parser = rate)]
    pub(crate) seconds: Option<f64>,
    /// With --drain-share: seconds of load at full speed afterwards.
    #[arg(long, value_name = "S", default_value_t = 15.0, value_parser = rate)]
    pub(crate) recover_seconds: f64,
    /// `SO_RCVBUF` of slow clients.
    #[arg(long, value_name = "BYTES", default_value_t = 8192)]
    pub(crate) recv_buffer: usize,
}

#[derive(Debug, Args)]
pub(crate) struct EchoArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Connections.
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,
    /// Bytes of random data in a message, 1 to 256.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = echo_size)]
    pub(crate) size: usize,
    /// Open loop: messages a second on all connections together [default: a closed loop with one
    /// message in flight on each].
    #[arg(long, value_name = "R", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Seconds of load on the server, and the same on the baseline, all rounds together.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = rate)]
    pub(crate) seconds: f64,
    /// Rounds; each gives one figure, and the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
}

#[derive(Debug, Args)]
pub(crate) struct RoomArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Connections.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,
    /// Connections that publish [default: all]. 0: a backend publishes over the admin API.
    #[arg(long, value_name = "P")]
    pub(crate) publishers: Option<u32>,
    /// Bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 32, value_parser = size)]
    pub(crate) size: usize,
    /// Messages a second from each publisher.
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// Tick of the topic; 0: none.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(..=60_000))]
    pub(crate) tick_ms: u32,
    /// Seconds of load.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = rate)]
    pub(crate) seconds: f64,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Connections.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,
    /// Share of the connections that drop and come back.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    pub(crate) share: f64,
    /// Time over which the dropped connections come back, one after the other.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub(crate) return_ms: u64,
    /// Bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub(crate) size: usize,
    /// Messages a second to each connection.
    #[arg(long, value_name = "R", default_value_t = 100.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// Tick of the topic; 0: none.
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=60_000))]
    pub(crate) tick_ms: u32,
    /// Seconds of load; the drop comes after a third of them.
    #[arg(long, value_name = "S", default_value_t = 15.0, value_parser = rate)]
    pub(crate) seconds: f64,
    /// Restart the server afterwards; all clients reconnect.
    #[arg(long, requires = "spawn")]
    pub(crate) restart: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChurnArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Connections that stay.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,
    /// Connections that come, per second.
    #[arg(long, value_name = "R", default_value_t = 2000.0, value_parser = rate)]
    pub(crate) churn_rate: f64,
    /// How long each of them stays after its welcome.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub(crate) hold_ms: u64,
    /// Bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub(crate) size: usize,
    /// Messages a second to each connection that stays.
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// Seconds of load before they come.
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = rate)]
    pub(crate) quiet_seconds: f64,
    /// Seconds in which they come.
    #[arg(long, value_name = "S", default_value_t = 120.0, value_parser = rate)]
    pub(crate) seconds: f64,
}

#[derive(Debug, Args)]
pub(crate) struct PrioritiesArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Connections, including those of high priority.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) connections: u32,
    /// Connections of high priority.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) high: u32,
    /// Bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub(crate) size: usize,
    /// Messages a second to each connection during the flood.
    #[arg(long, value_name = "R", default_value_t = 100.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// Messages a second to each connection before the flood.
    #[arg(long, value_name = "R", default_value_t = 2.0, value_parser = rate)]
    pub(crate) quiet_rate: f64,
    /// Tick of the topic; 0: none.
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=60_000))]
    pub(crate) tick_ms: u32,
    /// Seconds of the quiet phase.
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = rate)]
    pub(crate) quiet_seconds: f64,
    /// Seconds of the flood.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = rate)]
    pub(crate) seconds: f64,
}

#[derive(Debug, Args)]
pub(crate) struct ConflateArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Connections, all behind a slow link.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,
    /// Keys of the topic.
    #[arg(long, value_name = "K", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) keys: u32,
    /// Bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 32, value_parser = size)]
    pub(crate) size: usize,
    /// Messages a second for each key.
    #[arg(long, value_name = "R", default_value_t = 5.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// Tick of the topic.
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) tick_ms: u32,
    /// Bytes a second that each client reads at most.
    #[arg(long, value_name = "BYTES", default_value_t = 2048.0, value_parser = rate)]
    pub(crate) link_bytes_per_second: f64,
    /// `SO_RCVBUF` of each client.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    pub(crate) recv_buffer: usize,
    /// Seconds of load, on each server.
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = rate)]
    pub(crate) seconds: f64,
    /// Leave out the server without conflation.
    #[arg(long)]
    pub(crate) only_conflated: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HandshakeArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Handshakes in a round, of each kind.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) handshakes: u32,
    /// Clients that connect at the same time.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) window: u32,
    /// Rounds; each gives one figure, and the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Handshakes that stop halfway, to measure their memory; 0: none.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=16_000))]
    pub(crate) halfway: u32,
}

#[derive(Debug, Args)]
pub(crate) struct StormArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Connections that stay and receive messages.
    #[arg(long, value_name = "N", default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,
    /// Clients that come back at once; each has connected before.
    #[arg(long, value_name = "M", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=18_000))]
    pub(crate) returning: u32,
    /// A refused client tries again after half of this time to the whole of it.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) retry_ms: u64,
    /// Bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub(crate) size: usize,
    /// Messages a second to each connection that stays.
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// Seconds of load before the clients come back.
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = rate)]
    pub(crate) quiet_seconds: f64,
    /// Seconds of load from the moment at which the clients come back.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = rate)]
    pub(crate) seconds: f64,
}

#[derive(Debug, Args)]
pub(crate) struct SiegeArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Healthy connections that receive messages.
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=18_000))]
    pub(crate) connections: u32,
    /// Bytes of a payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub(crate) size: usize,
    /// Broadcasts a second.
    #[arg(long, value_name = "R", default_value_t = 5.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// Seconds of load before the attacks.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = rate)]
    pub(crate) quiet_seconds: f64,
    /// Seconds of load while the attacks go to a process that discards them.
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = rate)]
    pub(crate) baseline_seconds: f64,
    /// Seconds of load under attack.
    #[arg(long, value_name = "S", default_value_t = 120.0, value_parser = rate)]
    pub(crate) seconds: f64,
    /// Milliseconds before an attacker replaces a closed connection.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub(crate) pause_ms: u64,
    /// Make only these attacks [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct BaselineArgs {
    #[command(subcommand)]
    pub(crate) server: Option<HttpBaseline>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    /// Measure the echo with this kind of epoll only [default: both, in turn].
    #[arg(long, value_enum)]
    pub(crate) trigger: Option<Trigger>,
}

impl LoadArgs {
    /// Messages of a stream in one round: at least one.
    pub(crate) fn messages_per_round(&self) -> u32 {
        let messages = (self.rate * self.seconds / f64::from(self.rounds)).round().clamp(1.0, 1e9);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it lies between 1 and a billion"
        )]
        let messages = messages as u32;
        messages
    }
}
