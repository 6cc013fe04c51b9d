//! A gateway in a process of the bench, through the public library. The bench counts its
//! allocations and hands it stores.

mod devices;
mod instant;

use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};
use weir::{Config, DeviceStore, Gateway, Resources, Right, ServiceConfig};

use crate::peer::Peer;
use crate::process::Cpus;
use crate::spawn::Target;
use crate::stages::Stage;
use crate::sys::allocator::{Allocations, allocations, count_allocations};

pub(crate) use devices::DevicesPlan;

/// A handle of the gateway's process, which is killed when the handle is dropped.
pub(crate) struct Embedded {
    peer: Peer,
    addrs: Addrs,
}

/// The task of the gateway.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EmbeddedPlan {
    /// Allocations are counted while a service with this token publishes.
    Publish(String),
    /// Devices activate.
    Activate(Box<DevicesPlan>),
}

/// The addresses of the gateway's listeners.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Addrs {
    tcp: SocketAddr,
    http: SocketAddr,
    admin: SocketAddr,
}

/// An order to the process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EmbeddedOrder {
    /// Start; answered with [`EmbeddedAnswer::Started`].
    Start(EmbeddedPlan),
    /// Report the allocations; answered with [`EmbeddedAnswer::Allocated`].
    Count,
    /// End in good order; answered with [`EmbeddedAnswer::Stopped`].
    Stop,
}

/// An answer of the process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EmbeddedAnswer {
    Started(Addrs),
    Allocated(Allocations),
    Stopped,
    Failed(String),
}

impl Embedded {
    /// Starts a gateway in a process.
    pub(crate) fn start(plan: EmbeddedPlan, cpus: Option<&Cpus>) -> Result<Embedded> {
        let mut peer = Peer::start("gateway-process", &[], cpus)?;
        let answer = ask(&mut peer, &EmbeddedOrder::Start(plan))?;
        let EmbeddedAnswer::Started(addrs) = answer else { return Err(unexpected(answer)) };
        Ok(Embedded { peer, addrs })
    }

    /// The gateway as a server to measure.
    pub(crate) fn target(&self) -> Target {
        let Addrs { tcp, http, admin } = self.addrs;
        Target::running(tcp, Some(http), admin, self.peer.pid(), None)
    }

    /// The gateway's allocations so far.
    pub(crate) fn allocations(&mut self) -> Result<Allocations> {
        let answer = ask(&mut self.peer, &EmbeddedOrder::Count)?;
        let EmbeddedAnswer::Allocated(allocations) = answer else {
            return Err(unexpected(answer));
        };
        Ok(allocations)
    }

    /// Stops the gateway in good order.
    pub(crate) fn stop(mut self) -> Result<()> {
        let answer = ask(&mut self.peer, &EmbeddedOrder::Stop)?;
        let EmbeddedAnswer::Stopped = answer else { return Err(unexpected(answer)) };
        Ok(())
    }
}

fn ask(peer: &mut Peer, order: &EmbeddedOrder) -> Result<EmbeddedAnswer> {
    peer.say(order)?;
    peer.hear(PATIENCE)
}

/// Runs the process until standard input ends.
pub(crate) fn run() -> Result<()> {
    let mut host = None;
    for line in io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?)? {
            EmbeddedOrder::Start(plan) => Host::start(&plan).map(|(started, addrs)| {
                host = Some(started);
                EmbeddedAnswer::Started(addrs)
            }),
            EmbeddedOrder::Count => Ok(EmbeddedAnswer::Allocated(allocations())),
            EmbeddedOrder::Stop => {
                host.take().map_or(Ok(()), Host::stop).map(|()| EmbeddedAnswer::Stopped)
            }
        };
        let answer = answer.unwrap_or_else(|error| EmbeddedAnswer::Failed(format!("{error:#}")));
        let mut output = io::stdout().lock();
        serde_json::to_writer(&mut output, &answer)?;
        writeln!(output)?;
    }
    Ok(())
}

/// A gateway with its store and its runtime.
struct Host {
    gateway: Gateway,
    devices: Option<Arc<DeviceStore>>,
    runtime: Runtime,
}

impl Host {
    fn start(plan: &EmbeddedPlan) -> Result<(Host, Addrs)> {
        let config = config(plan);
        let runtime = runtime(&config)?;
        let mut builder = Gateway::builder().config(config);
        let devices = match plan {
            EmbeddedPlan::Publish(_) => {
                count_allocations();
                None
            }
            EmbeddedPlan::Activate(plan) => Some(runtime.block_on(devices::open(plan))?),
        };
        if let Some(devices) = &devices {
            builder = builder.devices(Arc::clone(devices));
        }
        let gateway = runtime.block_on(builder.start())?;
        let first = |addrs: &[SocketAddr]| addrs.first().copied().context("it does not listen");
        let addrs = Addrs {
            tcp: first(gateway.tcp_addrs())?,
            http: first(gateway.http_addrs())?,
            admin: gateway.admin_addr().context("it has no admin API")?,
        };
        Ok((Host { gateway, devices, runtime }, addrs))
    }

    fn stop(self) -> Result<()> {
        let Host { gateway, devices, runtime } = self;
        runtime.block_on(async move {
            gateway.shutdown().await;
            match devices {
                Some(devices) => Ok(devices.close().await?),
                None => Ok(()),
            }
        })
    }
}

/// The same threads as in the program `weir`.
fn runtime(config: &Config) -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(Resources::detect().front_threads(&config.threads))
        .thread_name("weir-front")
        .on_thread_start(weir::schedule_front_thread)
        .enable_all()
        .build()
        .context("cannot start the front threads")
}

/// The same settings as in a program's scratch configuration.
fn config(plan: &EmbeddedPlan) -> Config {
    let mut config = Config::default();
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    config.listen.tcp = vec![free];
    config.listen.http = vec![free];
    config.listen.udp = Vec::new();
    config.listen.admin = Some(free);
    config.auth.anonymous = Some(true);
    config.connection.drain_timeout = Duration::from_secs(1);
    match plan {
        EmbeddedPlan::Publish(token) => {
            let (token, name) = (token.clone(), "bench".to_owned());
            config.auth.services = vec![ServiceConfig { token, name, may: vec![Right::Publish] }];
        }
        EmbeddedPlan::Activate(plan) => {
            config.activation.failures_per_source_per_minute = 0;
            if plan.stages.has(Stage::Log) {
                config.access_log.path = plan.directory.join("access.log");
            }
        }
    }
    config
}

fn unexpected(answer: EmbeddedAnswer) -> anyhow::Error {
    match answer {
        EmbeddedAnswer::Failed(why) => anyhow::anyhow!("the embedded gateway: {why}"),
        other @ (EmbeddedAnswer::Started(_)
        | EmbeddedAnswer::Allocated(_)
        | EmbeddedAnswer::Stopped) => {
            anyhow::anyhow!("the embedded gateway said {other:?}")
        }
    }
}

/// Longest wait for an answer, during which all devices may be imported.
const PATIENCE: Duration = Duration::from_secs(600);
