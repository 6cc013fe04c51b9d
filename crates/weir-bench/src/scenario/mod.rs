//! The scenarios and their shared parts.

pub(crate) mod activate;
pub(crate) mod balance;
pub(crate) mod baseline;
mod beside;
pub(crate) mod broadcast;
pub(crate) mod call;
pub(crate) mod churn;
pub(crate) mod cluster;
pub(crate) mod conflate;
mod contestants;
pub(crate) mod echo;
pub(crate) mod handshake;
pub(crate) mod hooks;
pub(crate) mod http;
pub(crate) mod idle;
pub(crate) mod million;
pub(crate) mod peers;
pub(crate) mod priorities;
pub(crate) mod proxy;
pub(crate) mod publish;
pub(crate) mod resume;
pub(crate) mod room;
mod sampler;
pub(crate) mod siege;
pub(crate) mod stages;
pub(crate) mod stall;
pub(crate) mod storm;
pub(crate) mod udp;
pub(crate) mod upgrade;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use serde_json::json;

use crate::baseline::{Baseline, Trigger};
use crate::cli::{RunArgs, TargetArgs};
use crate::clock;
use crate::payload::foreign::Protocol;
use crate::process::{Cpus, Pin};
use crate::protocol::{Check, Collect, HelloPlan, OpenPlan, Streams, Transport};
use crate::publish::{Published, Schedule, Sink};
use crate::report::Report;
use crate::stats::real;
use crate::tls::{RESUMED, TlsPlan};
use crate::workers::{Handshakes, Totals, Workers};

/// The choices of a run.
pub(crate) struct Setup {
    /// CPUs of the measured server; `None`: any.
    pub(crate) server_cpus: Option<Cpus>,
    /// CPUs of the load generator.
    pub(crate) client_cpus: Option<Cpus>,
    /// Second byte of the source addresses, chosen for this run, so that ports in TIME_WAIT do not
    /// disturb it.
    source: u8,
    /// Prefix of this run's topics.
    pub(crate) topic_prefix: String,
    window: u32,
    patience_ms: u64,
    token: String,
    tls: Option<TlsPlan>,
    handshakes: Handshakes,
}

/// One round of messages to a set of connections.
pub(crate) struct Round {
    /// The published messages.
    pub(crate) published: Published,
    /// The received messages.
    pub(crate) totals: Totals,
    /// CPU time of the sending process.
    pub(crate) cpu: Duration,
}

/// Baselines, with the workers whose connections they hold: one baseline per worker.
pub(crate) struct BaselineSet {
    /// The baselines.
    pub(crate) baselines: Vec<Baseline>,
    /// The workers.
    pub(crate) workers: Workers,
    /// Next number of each stream.
    pub(crate) seqs: Vec<u32>,
}

/// A rate so high that guests come as fast as possible, or as fast as the window permits.
const AT_ONCE: f64 = 1e6;
/// Longest wait for messages in flight after the last publish.
pub(crate) const ARRIVAL_PATIENCE: Duration = Duration::from_secs(15);

impl Setup {
    /// Chooses CPUs and addresses. `auto` pins, unless the scenario wants no pinning.
    pub(crate) fn new(run: &RunArgs, target: Option<&TargetArgs>, auto: bool) -> Result<Setup> {
        let halves = if auto { Cpus::allowed(None)?.halves() } else { None };
        let running = target.and_then(|target| target.pid);
        let server_cpus = match (&run.pin_server, running) {
            (Pin::Cpus(cpus), _) => Some(cpus.clone()),
            (Pin::None, _) => None,
            // The baseline gets the CPUs of the running server.
            (Pin::Auto, Some(pid)) => Some(Cpus::allowed(Some(pid))?),
            (Pin::Auto, None) => halves.as_ref().map(|(server, _)| server.clone()),
        };
        let client_cpus = match (&run.pin_client, running) {
            (Pin::Cpus(cpus), _) => Some(cpus.clone()),
            (Pin::Auto, None) => halves.map(|(_, client)| client),
            (Pin::None, _) | (Pin::Auto, Some(_)) => None,
        };
        if let Some(cpus) = &client_cpus {
            cpus.bind_thread()?;
        }
        let tls = target.map(|target| target.tls.plan(target.spawn.is_some())).transpose()?;
        Ok(Setup {
            server_cpus,
            client_cpus,
            source: rand::random_range(64..=250),
            topic_prefix: format!("bench/{:04x}/", rand::random::<u16>()),
            window: run.connect_window,
            patience_ms: u64::try_from(run.connect_timeout.as_millis())?,
            token: target.and_then(|target| target.token.clone()).unwrap_or_default(),
            tls: tls.flatten(),
            handshakes: Handshakes::default(),
        })
    }

    /// Second byte of source addresses that no other connection of this run uses.
    pub(crate) fn another_source(&self) -> u8 {
        self.source.wrapping_add(1)
    }

    /// A plan for devices that subscribe to the topic of their stream.
    pub(crate) fn plan(&self, addr: SocketAddr, size: usize, streams: Streams) -> OpenPlan {
        OpenPlan {
            addr,
            first: 0,
            count: 0,
            source: self.source,
            window: self.window,
            patience_ms: self.patience_ms,
            size,
            hello: Some(HelloPlan { token: self.token.clone(), subscribe: true }),
            streams,
            topic_prefix: self.topic_prefix.clone(),
            slow: None,
            check: Check::Streams,
            transport: Transport::Tcp,
            protocol: Protocol::Weir,
            edge: None,
            tls: self.tls.clone(),
        }
    }

    /// The same for devices with this transport; `edge` is the address for HTTP clients.
    pub(crate) fn plan_by(
        &self,
        transport: Transport,
        edge: Option<SocketAddr>,
        plan: OpenPlan,
    ) -> Result<OpenPlan> {
        if transport != Transport::Tcp && edge.is_none() {
            bail!("--transport with --addr needs --http ADDR");
        }
        let tls = plan.tls.map(|tls| TlsPlan { alpn: transport.alpn(), ..tls });
        Ok(OpenPlan { transport, edge, tls, ..plan })
    }

    /// Starts workers.
    pub(crate) fn workers(&self, connections: u32) -> Result<Workers> {
        Workers::start(connections, self.client_cpus.as_ref(), self.handshakes.clone())
    }

    /// Starts baselines and workers and connects them; `topic` stands in the frames.
    pub(crate) fn baseline(
        &self,
        trigger: Trigger,
        connections: u32,
        size: usize,
        prefix: &str,
    ) -> Result<BaselineSet> {
        let mut workers = self.workers(connections)?;
        let baselines =
            (0..workers.processes()).map(|_| Baseline::start(trigger, self.server_cpus.as_ref()));
        let mut baselines: Vec<Baseline> = baselines.collect::<Result<_>>()?;
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let plan = OpenPlan {
            hello: None,
            topic_prefix: prefix.to_owned(),
            tls: None,
            ..self.plan(nowhere, size, Streams::Count(1))
        };
        workers.open(&plan, |index, plan| OpenPlan { addr: baselines[index].addr, ..plan })?;
        for ((_, count), baseline) in workers.shares().into_iter().zip(&mut baselines) {
            baseline.wait_for(count.into())?;
        }
        Ok(BaselineSet { baselines, workers, seqs: vec![0] })
    }

    /// Reports the choice of CPUs, and the agreed TLS parameters of the opened connections.
    pub(crate) fn describe(&self, report: &mut Report) {
        report.set("tls", self.tls.is_some());
        if let Some(plan) = &self.tls {
            let agreed = self.handshakes.take();
            report.set("tls_handshakes", json!(agreed));
            let resumed = resumed_share(&agreed);
            report.figure("tls_resumed_share", resumed);
            report.check(resumed.is_none_or(|share| share >= plan.resume - RESUMED_SLACK), || {
                format!("{resumed:?} of the handshakes resumed a session, not {}", plan.resume)
            });
        }
        report.set("server_cpus", self.server_cpus.as_ref().map(Cpus::to_string));
        report.set("client_cpus", self.client_cpus.as_ref().map(Cpus::to_string));
    }
}

impl BaselineSet {
    /// CPU time of all baselines.
    pub(crate) fn cpu(baselines: &[Baseline]) -> Result<Duration> {
        baselines.iter().map(Baseline::cpu).sum()
    }
}

impl Round {
    /// Publishes by the schedule, waits for the messages and measures; `meanwhile` runs during the
    /// schedule.
    pub(crate) fn run<S: Sink + Send>(
        workers: &mut Workers,
        sink: &mut S,
        seqs: &mut [u32],
        load: (f64, u32, usize),
        cpu: impl Fn(&S) -> Result<Duration>,
    ) -> Result<Round> {
        workers.begin()?;
        let before = cpu(sink)?;
        let (rate, count, size) = load;
        let schedule = Schedule { start: clock::monotonic() + LEAD, rate, count, size };
        let published = publish_beside(sink, &schedule, seqs, |_| Ok(()))?;
        clock::sleep_until(schedule.start + schedule.length());
        let totals = workers.collect(&arrival_of(seqs, false))?;
        let cpu = cpu(sink)?.saturating_sub(before);
        Ok(Round { published, totals, cpu })
    }

    /// CPU microseconds per delivered message; `None` without messages.
    pub(crate) fn cpu_us_per_message(&self) -> Option<f64> {
        let delivered = self.totals.tally.delivered;
        (delivered > 0).then(|| self.cpu.as_secs_f64() * 1e6 / real(delivered))
    }
}

/// Share of handshakes that resumed a session; `None` without any.
pub(crate) fn resumed_share(agreed: &BTreeMap<String, u64>) -> Option<f64> {
    let all: u64 = agreed.values().sum();
    let resumed: u64 =
        agreed.iter().filter(|(what, _)| what.ends_with(RESUMED)).map(|(_, count)| count).sum();
    (all > 0).then(|| real(resumed) / real(all))
}

/// Shortfall of the share of resumed handshakes that is allowed: a client without a ticket makes a
/// full handshake.
const RESUMED_SLACK: f64 = 0.02;
/// Time between the start of a schedule and its first message.
const LEAD: Duration = Duration::from_millis(10);

/// The order to wait for all messages published so far.
pub(crate) fn arrival_of(seqs: &[u32], slow_too: bool) -> Collect {
    let wait_ms = u64::try_from(ARRIVAL_PATIENCE.as_millis()).unwrap_or(u64::MAX);
    Collect { published: seqs.to_vec(), wait_ms, slow_too }
}

/// Publishes in another thread while this one runs `beside`, which receives a function that says
/// whether publishing goes on.
pub(crate) fn publish_beside<S: Sink + Send>(
    sink: &mut S,
    schedule: &Schedule,
    seqs: &mut [u32],
    beside: impl FnOnce(&dyn Fn() -> bool) -> Result<()>,
) -> Result<Published> {
    thread::scope(|scope| {
        let publisher = scope.spawn(|| crate::publish::run(sink, schedule, seqs));
        let result = beside(&|| !publisher.is_finished());
        let published = publisher.join().map_err(|_| anyhow!("the publishing thread panicked"))?;
        result?;
        published
    })
}
