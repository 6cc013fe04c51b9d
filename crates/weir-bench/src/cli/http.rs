//! The options of requests over HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::common::{RunArgs, TargetArgs, content, rate};
use super::tls::TlsArgs;
use crate::baseline::http::HttpBaselineArgs;
use crate::protocol::HttpStyle;

#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Start this program with a scratch configuration, measure it and stop it.
    #[arg(long, value_name = "WEIR", conflicts_with_all = ["addr", "pid"])]
    pub(crate) spawn: Option<PathBuf>,
    /// Measure any running HTTP server: its address.
    #[arg(long = "connect", requires = "pid", required_unless_present = "spawn")]
    pub(crate) addr: Option<SocketAddr>,
    /// The process that answers: for nginx, the worker.
    #[arg(long)]
    pub(crate) pid: Option<u32>,
    /// With --spawn: a TOML file whose keys override the scratch configuration.
    #[arg(long, value_name = "FILE", conflicts_with = "addr")]
    pub(crate) config_extra: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// The path of the requests.
    #[arg(long, default_value = "/rest/hello")]
    pub(crate) path: String,
    /// Use HTTP/2; without TLS, with prior knowledge.
    #[arg(long)]
    pub(crate) h2: bool,
    /// Open a connection for each request.
    #[arg(long)]
    pub(crate) per_connection: bool,
    /// Requests in flight on each HTTP/1.1 connection.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ["per_connection", "h2"], value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) pipeline: u32,
    /// Requests in flight on each HTTP/2 connection.
    #[arg(long, value_name = "N", default_value_t = 32, requires = "h2", conflicts_with = "per_connection", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) streams: u32,
    /// Connections at the same time [default: 64; for HTTP/2, 16].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_000))]
    pub(crate) connections: Option<u32>,
    /// Seconds of load on each server, all rounds together.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = rate)]
    pub(crate) seconds: f64,
    /// Instead of --seconds: answers from each server in each round.
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,
    /// Milliseconds at the start of each round that do not count.
    #[arg(long, value_name = "MS", default_value_t = 300)]
    pub(crate) warm_up_ms: u64,
    /// Rounds; each gives one figure, and the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Also measure bare responders and nginx, in turn with the server.
    #[arg(long)]
    pub(crate) compare: bool,
    /// The program nginx, if it is not in the path.
    #[arg(long, value_name = "NGINX", default_value = "nginx", requires = "compare")]
    pub(crate) nginx: PathBuf,
    /// Also measure Netty, started by the script in this directory.
    #[arg(long, value_name = "DIRECTORY", requires = "compare")]
    pub(crate) scripts: Option<PathBuf>,
    /// Seconds of load on Netty before the rounds; Java compiles what it runs often.
    #[arg(long, value_name = "S", default_value_t = 10.0, requires = "scripts", value_parser = rate)]
    pub(crate) warm_up_seconds: f64,
}

/// A bare HTTP server that runs until it is killed.
#[derive(Debug, Subcommand)]
pub(crate) enum HttpBaseline {
    /// Answers every request head with the same bytes; knows nothing else about HTTP/1.1.
    HttpEpoll {
        #[command(flatten)]
        server: HttpBaselineArgs,
        /// The answer, in hexadecimal.
        #[arg(long, hide = true)]
        answer: Option<String>,
        /// Bytes of content of the answer, instead of "Hello World".
        #[arg(long, value_name = "BYTES", conflicts_with = "answer", value_parser = content)]
        content_bytes: Option<usize>,
    },
    /// Only hyper, on one thread.
    HttpHyper {
        #[command(flatten)]
        server: HttpBaselineArgs,
        /// Use HTTP/2 instead of HTTP/1.1.
        #[arg(long)]
        h2: bool,
    },
}

impl HttpArgs {
    /// How requests use connections.
    pub(crate) fn style(&self) -> HttpStyle {
        match (self.h2, self.per_connection) {
            (false, false) => HttpStyle::Http1,
            (false, true) => HttpStyle::PerConnection,
            (true, false) => HttpStyle::Http2,
            (true, true) => HttpStyle::Http2PerConnection,
        }
    }

    /// Requests in flight on each connection.
    pub(crate) fn depth(&self) -> u32 {
        match self.style() {
            HttpStyle::Http1 => self.pipeline,
            HttpStyle::Http2 => self.streams,
            HttpStyle::PerConnection | HttpStyle::Http2PerConnection => 1,
        }
    }

    /// Connections at the same time.
    pub(crate) fn connections(&self) -> u32 {
        self.connections.unwrap_or(if self.h2 { 16 } else { 64 })
    }

    /// The program to start, if any.
    pub(crate) fn target(&self) -> TargetArgs {
        TargetArgs {
            spawn: self.spawn.clone(),
            addr: None,
            http: None,
            admin: None,
            pid: self.pid,
            admin_token: None,
            token: None,
            config_extra: self.config_extra.clone(),
            budget_bytes: None,
            stall_timeout: None,
            tls: self.tls.clone(),
        }
    }
}
