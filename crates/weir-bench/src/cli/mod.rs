//! The command line.

mod activate;
mod call;
mod cluster;
mod common;
mod hooks;
mod http;
mod million;
mod peers;
mod proxy;
mod publish;
mod scenarios;
mod tls;
mod udp;
mod upgrade;

use clap::{Parser, Subcommand};

use crate::baseline::Trigger;
use crate::baseline::udp::Style;

pub(crate) use activate::*;
pub(crate) use call::CallArgs;
pub(crate) use cluster::ClusterArgs;
pub(crate) use common::{RunArgs, TargetArgs};
pub(crate) use hooks::{HooksArgs, HooksWork};
pub(crate) use http::*;
pub(crate) use million::MillionArgs;
pub(crate) use peers::{PeersArgs, Work};
pub(crate) use proxy::{BalanceArgs, Failure, PeerProxies, ProxyArgs};
pub(crate) use publish::PublishArgs;
pub(crate) use scenarios::*;
#[cfg(test)]
pub(crate) use tls::TlsArgs;
pub(crate) use udp::UdpArgs;
pub(crate) use upgrade::UpgradeArgs;

/// Measures a Weir gateway, or the best result that the machine can reach without a gateway.
#[derive(Debug, Parser)]
#[command(name = "weir-bench", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Memory of idle connections.
    Idle(IdleArgs),
    /// As many connections as the machine holds, in one server: memory, CPU at rest, a message to
    /// all.
    Million(MillionArgs),
    /// CPU and lag of messages to many connections, compared with a bare send loop.
    Broadcast(BroadcastArgs),
    /// Clients that stop reading, or read too slowly.
    Stall(StallArgs),
    /// Messages and their answers, in a closed loop or at a fixed rate, compared with a bare echo.
    Echo(EchoArgs),
    /// All clients publish into one topic and receive all messages.
    Room(RoomArgs),
    /// Clients that reconnect and get their missed messages.
    Resume(ResumeArgs),
    /// Connections that come and go at a rate, while other connections stay.
    Churn(ChurnArgs),
    /// A few connections of high priority among many, under a flood of messages.
    Priorities(PrioritiesArgs),
    /// The newest value of each key for clients behind a slow link.
    Conflate(ConflateArgs),
    /// Full and resumed TLS handshakes, compared with their cryptography and their sockets alone.
    Handshake(HandshakeArgs),
    /// Many clients reconnect at once over TLS while others receive messages.
    Storm(StormArgs),
    /// All attacks at once while many clients receive messages, compared with the same attacks on a process that discards
    /// them.
    Siege(SiegeArgs),
    /// Requests over HTTP, compared with bare responders and nginx.
    Http(HttpArgs),
    /// Requests through the reverse proxy, compared with those of nginx and pingora.
    Proxy(ProxyArgs),
    /// Three endpoints, one slow and one failing, behind the reverse proxy, nginx and pingora.
    Balance(BalanceArgs),
    /// Services that are asked about connections and told of events.
    Hooks(HooksArgs),
    /// `POST /v1/publish` to one subscriber: CPU time and allocations of each request.
    Publish(PublishArgs),
    /// Calls by datagram, compared with bare echoes in batches and one by one.
    Udp(UdpArgs),
    /// Calls of many devices to a backend at once, and calls of a backend to devices of which some are
    /// silent.
    Call(CallArgs),
    /// Activations of devices over HTTP or by datagram.
    Activate(ActivateArgs),
    /// The cost of each stage of an activation: nothing, the access log, Redis, and stores.
    Stages(StagesArgs),
    /// Upgrades while all transports are connected, with what clients see of them.
    Upgrade(UpgradeArgs),
    /// Several nodes over one Redis, with clients and publishers at all of them, compared with one node
    /// and with Redis alone.
    Cluster(ClusterArgs),
    /// Weir and other servers (Netty, NATS, Mosquitto) in turn, with the same clients.
    Peers(PeersArgs),
    /// Baselines alone: a send loop and an echo (level- and edge-triggered), or a bare HTTP server.
    #[command(args_conflicts_with_subcommands = true)]
    Baseline(BaselineArgs),
    #[command(flatten)]
    Process(Process),
}

/// Processes that the bench starts for itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Process {
    #[command(name = "worker-process", hide = true)]
    Worker,
    #[command(name = "holder-process", hide = true)]
    Holder,
    #[command(name = "exchange-process", hide = true)]
    Exchange {
        #[arg(long, value_delimiter = ',')]
        script: Vec<usize>,
    },
    #[command(name = "udp-process", hide = true)]
    Udp {
        #[arg(long, value_enum)]
        style: Style,
    },
    #[command(name = "attack-process", hide = true)]
    Attack,
    #[command(name = "discard-process", hide = true)]
    Discard,
    #[command(name = "memory-process", hide = true)]
    Memory,
    #[command(name = "gateway-process", hide = true)]
    Gateway,
    #[command(name = "baseline-process", hide = true)]
    Baseline {
        #[arg(long, value_enum)]
        trigger: Trigger,
    },
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use super::common::duration;
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn documented_command_lines_are_understood() {
        for line in [
            "weir-bench idle --spawn target/release/weir --connections 15000 --json",
            "weir-bench broadcast --spawn w --connections 10000 --size 256 --rate 1 --seconds 20 --json",
            "weir-bench broadcast --addr 127.0.0.1:7070 --admin 127.0.0.1:7090 --pid 1 --all",
            "weir-bench million --spawn w --connections 1500000 --tls-share 0.5 --json",
            "weir-bench million --spawn w --connections 100000 --shards 6 --reserve-bytes 1073741824",
            "weir-bench stall --spawn w --stalled-share 0.1 --budget-bytes 8388608 --stall-timeout 10s",
            "weir-bench stall --spawn w --drain-share 0.8",
            "weir-bench echo --spawn w --connections 16384 --size 256 --seconds 10 --json",
            "weir-bench echo --spawn w --rate 50000",
            "weir-bench room --spawn w --connections 1000 --size 32 --tick-ms 1000 --seconds 10 --json",
            "weir-bench room --spawn w --connections 10000 --publishers 0 --rate 100 --tick-ms 200",
            "weir-bench broadcast --spawn w --rate 100 --tick-ms 200",
            "weir-bench broadcast --spawn w --size 16 --silent-topics 1000000",
            "weir-bench resume --spawn w --connections 10000 --share 0.5 --rate 100 --restart --json",
            "weir-bench churn --spawn w --connections 10000 --churn-rate 2000 --seconds 120 --json",
            "weir-bench priorities --spawn w --connections 10000 --high 100 --json",
            "weir-bench conflate --spawn w --connections 1000 --keys 50 --rate 5 --tick-ms 200",
            "weir-bench idle --spawn w --tls --tls-version 1.2 --tls-resume 0.5 --tls-client-cert",
            "weir-bench echo --spawn w --tls --tls-suite TLS13_AES_128_GCM_SHA256 --tls-key rsa",
            "weir-bench idle --addr 127.0.0.1:1 --admin 127.0.0.1:2 --pid 1 --tls --tls-ca ca.pem",
            "weir-bench handshake --spawn w --tls --tls-key rsa --handshakes 500 --json",
            "weir-bench storm --spawn w --tls --tls-resume 0.9 --returning 5000 --json",
            "weir-bench siege --spawn w --connections 5000 --seconds 120 --only h2_heads,noise --json",
            "weir-bench idle --spawn w --transport ws-json --tls",
            "weir-bench idle --addr 127.0.0.1:1 --http 127.0.0.1:3 --admin 127.0.0.1:2 --pid 1 --transport sse",
            "weir-bench broadcast --spawn w --connections 10000 --transport mixed --json",
            "weir-bench http --spawn w --compare --json",
            "weir-bench http --spawn w --compare --scripts bench/peers --json",
            "weir-bench http --spawn w --compare --h2 --tls --streams 32 --connections 16",
            "weir-bench http --spawn w --pipeline 16 --requests 100000",
            "weir-bench http --spawn w --per-connection --tls --tls-key rsa --tls-resume 1 --tls-session-ids",
            "weir-bench http --connect 127.0.0.1:1 --pid 1 --path /",
            "weir-bench proxy --spawn w --json",
            "weir-bench proxy --spawn w --size 65536 --connections 32 --scripts bench/peers --json",
            "weir-bench proxy --spawn w --h2 --streams 16 --rounds 3 --json",
            "weir-bench balance --spawn w --json",
            "weir-bench balance --spawn w --failures reset --rate 500 --slow-ms 100 --seconds 5 --json",
            "weir-bench hooks notices --spawn w --rate 10000 --json",
            "weir-bench hooks lag --spawn w --slow-ms 1000 --guests 100 --rounds 1 --json",
            "weir-bench hooks connect --spawn w --questions 1000 --json",
            "weir-bench publish --spawn w --size 256 --json",
            "weir-bench udp --spawn w --calls 1000000 --json",
            "weir-bench udp --addr 127.0.0.1:1 --admin 127.0.0.1:2 --pid 1 --udp 127.0.0.1:1 --token t --rate 1000",
            "weir-bench call --spawn w --json",
            "weir-bench call --spawn w --devices 1000 --called 100 --silent-share 0.5 --deadline 500ms",
            "weir-bench activate --spawn w --json",
            "weir-bench activate --spawn w --over h2 --stages log+redis+mongodb-single --misses 0.1",
            "weir-bench activate --spawn w --over udp --devices 1000 --activations 10000 --concurrency 64",
            "weir-bench activate --spawn w --stages redis+embedded --redis redis://127.0.0.1:1 --redis-pid 1",
            "weir-bench upgrade --spawn w --connections 200 --tls 0 --upgrades 2 --every 1s --storm 2000 --storm-tls",
            "weir-bench upgrade --spawn w --stall --rate 20 --size 4096 --json",
            "weir-bench upgrade --spawn w --sweep 1000,2000,18000 --json",
            "weir-bench stages --json",
            "weir-bench stages --stages nothing,log,embedded-single --seconds 2 --rounds 5",
            "weir-bench cluster --spawn w --compare --json",
            "weir-bench peers idle --spawn w --tls --tls-version 1.3 --rounds 1 --json",
            "weir-bench peers broadcast --spawn w --only netty,nats --connections 1000 --json",
            "weir-bench peers handshake --spawn w --tls --tls-version 1.2 --scripts bench/peers",
            "weir-bench cluster --spawn w --clients 3000 --topics 1 --rate 20 --compare --alone 1000",
            "weir-bench cluster --spawn w --clients 1000 --crowd 10000 --rate 300 --return-ms 0",
            "weir-bench cluster --nodes-at 127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,4 --token t --redis redis://127.0.0.1:6379",
            "weir-bench baseline http-epoll --listen 127.0.0.1:1 --pin 0",
            "weir-bench baseline http-hyper --h2 --certificate c --key k",
            "weir-bench baseline --trigger edge --pin-server 0 --pin-client none",
        ] {
            if let Err(error) = Cli::try_parse_from(line.split(' ')) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn command_lines_that_make_no_sense_are_refused() {
        for line in [
            "weir-bench idle",
            "weir-bench idle --addr 127.0.0.1:7070",
            "weir-bench idle --spawn w --addr 127.0.0.1:7070 --admin 127.0.0.1:1 --pid 1",
            "weir-bench broadcast --spawn w --size 15",
            "weir-bench broadcast --spawn w --all --silent-topics 5",
            "weir-bench million --spawn w --tls-share 1.5",
            "weir-bench million --addr 127.0.0.1:1 --admin 127.0.0.1:2 --pid 1 --tls-share 0.5",
            "weir-bench broadcast --spawn w --rate 0",
            "weir-bench stall --spawn w --stalled-share 1.1",
            "weir-bench echo --spawn w --size 257",
            "weir-bench idle --spawn w --tls-version 1.3",
            "weir-bench idle --spawn w --tls --tls-resume 1.1",
            "weir-bench idle --spawn w --tls --tls-ca ca.pem",
            "weir-bench http",
            "weir-bench proxy",
            "weir-bench proxy --spawn w --size 0",
            "weir-bench proxy --spawn w --streams 2",
            "weir-bench balance --spawn w --failures smoke",
            "weir-bench hooks --spawn w",
            "weir-bench hooks dream --spawn w",
            "weir-bench publish --spawn w --size 31",
            "weir-bench udp --spawn w --udp 127.0.0.1:1",
            "weir-bench siege --addr 127.0.0.1:1 --admin 127.0.0.1:2 --pid 1 --rate 0",
            "weir-bench call",
            "weir-bench call --spawn w --size 5",
            "weir-bench activate",
            "weir-bench activate --spawn w --misses 1",
            "weir-bench activate --spawn w --redis redis://127.0.0.1:1",
            "weir-bench activate --spawn w --stages log+redis",
            "weir-bench upgrade",
            "weir-bench upgrade --spawn w --tls 1.1",
            "weir-bench upgrade --spawn w --every 1ms",
            "weir-bench upgrade --spawn w --stall --resume",
            "weir-bench upgrade --spawn w --sweep 1000 --storm 5",
            "weir-bench upgrade --spawn w --storm-tls",
            "weir-bench stages --stages nothing,sql",
            "weir-bench peers",
            "weir-bench peers idle",
            "weir-bench peers fly --spawn w",
            "weir-bench cluster",
            "weir-bench cluster --nodes-at 127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,4",
            "weir-bench cluster --nodes-at 127.0.0.1:1 --redis redis://127.0.0.1:6379",
            "weir-bench cluster --spawn w --crowd 10",
            "weir-bench cluster --spawn w --alone 10",
            "weir-bench http --connect 127.0.0.1:1",
            "weir-bench http --spawn w --h2 --pipeline 2",
            "weir-bench http --spawn w --streams 2",
            "weir-bench http --spawn w --per-connection --pipeline 2",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(duration("10s").unwrap(), Duration::from_secs(10));
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration("2m").unwrap(), Duration::from_secs(120));
        for text in ["", "10", "s", "1.5s", "-1s", "10 s", "99999999999999999999s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_round_has_a_message_at_least() {
        let load =
            |rate, seconds, rounds| LoadArgs { connections: 1, size: 64, rate, seconds, rounds };
        assert_eq!(load(1.0, 20.0, 5).messages_per_round(), 4);
        assert_eq!(load(1.0, 1.0, 5).messages_per_round(), 1);
        assert_eq!(load(20.0, 30.0, 1).messages_per_round(), 600);
    }
}
