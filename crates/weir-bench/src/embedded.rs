//! A gateway in a process of the bench, through the gateway's public library: what a gateway does inside can be counted
//! there.

use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};
use weir::{Config, Gateway, Resources, Right, ServiceConfig};

use crate::peer::Peer;
use crate::process::Cpus;
use crate::sys::allocator::{Allocations, allocations, count_allocations};

/// The gateway, seen from the process that directs it; killed when dropped.
pub(crate) struct Embedded {
    peer: Peer,
    /// Where devices connect.
    pub(crate) tcp: SocketAddr,
    /// Where HTTP is spoken.
    pub(crate) http: SocketAddr,
}

/// What the gateway is like.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EmbeddedPlan {
    /// Token of a service that may publish.
    pub(crate) service_token: String,
}

/// An order to the process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EmbeddedOrder {
    /// Start; answered with [`EmbeddedAnswer::Started`].
    Start(EmbeddedPlan),
    /// Tell what was allocated; answered with [`EmbeddedAnswer::Allocated`].
    Count,
}

/// An answer of the process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EmbeddedAnswer {
    Started { tcp: SocketAddr, http: SocketAddr },
    Allocated(Allocations),
    Failed(String),
}

impl Embedded {
    /// Starts one.
    pub(crate) fn start(plan: EmbeddedPlan, cpus: Option<&Cpus>) -> Result<Embedded> {
        let mut peer = Peer::start("gateway-process", &[], cpus)?;
        peer.say(&EmbeddedOrder::Start(plan))?;
        match peer.hear(PATIENCE)? {
            EmbeddedAnswer::Started { tcp, http } => Ok(Embedded { peer, tcp, http }),
            other @ (EmbeddedAnswer::Allocated(_) | EmbeddedAnswer::Failed(_)) => {
                Err(unexpected(other))
            }
        }
    }

    /// What it has allocated so far.
    pub(crate) fn allocations(&mut self) -> Result<Allocations> {
        self.peer.say(&EmbeddedOrder::Count)?;
        match self.peer.hear(PATIENCE)? {
            EmbeddedAnswer::Allocated(allocations) => Ok(allocations),
            other @ (EmbeddedAnswer::Started { .. } | EmbeddedAnswer::Failed(_)) => {
                Err(unexpected(other))
            }
        }
    }
}

/// Runs the process until standard input ends.
pub(crate) fn run() -> Result<()> {
    let mut gateway = None;
    for line in io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?)? {
            EmbeddedOrder::Start(plan) => match Host::start(&plan) {
                Ok(started) => {
                    let answer = started.addrs()?;
                    gateway = Some(started);
                    answer
                }
                Err(error) => EmbeddedAnswer::Failed(format!("{error:#}")),
            },
            EmbeddedOrder::Count => EmbeddedAnswer::Allocated(allocations()),
        };
        let mut output = io::stdout().lock();
        serde_json::to_writer(&mut output, &answer)?;
        writeln!(output)?;
    }
    drop(gateway);
    Ok(())
}

/// A gateway and its runtime.
struct Host {
    gateway: Gateway,
    _runtime: Runtime,
}

impl Host {
    fn start(plan: &EmbeddedPlan) -> Result<Host> {
        count_allocations();
        let config = config(plan);
        let runtime = runtime(&config)?;
        let gateway = runtime.block_on(Gateway::builder().config(config).start())?;
        Ok(Host { gateway, _runtime: runtime })
    }

    fn addrs(&self) -> Result<EmbeddedAnswer> {
        let first = |addrs: &[SocketAddr]| addrs.first().copied().context("it does not listen");
        let (tcp, http) = (first(self.gateway.tcp_addrs())?, first(self.gateway.http_addrs())?);
        Ok(EmbeddedAnswer::Started { tcp, http })
    }
}

/// Threads as the program `weir` has them.
fn runtime(config: &Config) -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(Resources::detect().front_threads(&config.threads))
        .thread_name("weir-front")
        .on_thread_start(weir::schedule_front_thread)
        .enable_all()
        .build()
        .context("cannot start the front threads")
}

fn config(plan: &EmbeddedPlan) -> Config {
    let mut config = Config::default();
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    config.listen.tcp = vec![free];
    config.listen.http = vec![free];
    config.listen.udp = Vec::new();
    config.listen.admin = None;
    config.auth.anonymous = Some(true);
    config.auth.services = vec![ServiceConfig {
        token: plan.service_token.clone(),
        name: "bench".to_owned(),
        may: vec![Right::Publish],
    }];
    config
}

fn unexpected(answer: EmbeddedAnswer) -> anyhow::Error {
    match answer {
        EmbeddedAnswer::Failed(why) => anyhow::anyhow!("the embedded gateway: {why}"),
        other @ (EmbeddedAnswer::Started { .. } | EmbeddedAnswer::Allocated(_)) => {
            anyhow::anyhow!("the embedded gateway said {other:?}")
        }
    }
}

/// Longest time that an answer takes.
const PATIENCE: Duration = Duration::from_secs(30);
