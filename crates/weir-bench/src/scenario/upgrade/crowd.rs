//! The clients of all transports, and a load on them.

use std::time::Duration;

use anyhow::{Context, Result};
use weir_wire::format::Format;

use super::sink::{Insistent, Told};
use crate::cli::UpgradeArgs;
use crate::clock;
use crate::protocol::{
    Check, ChurnPlan, Collect, ComeBack, HelloPlan, OpenPlan, PublishPlan, Reading, SlowPlan,
    Streams, Transport, Ways,
};
use crate::publish::{Published, Schedule};
use crate::scenario::{ARRIVAL_PATIENCE, Setup, publish_beside};
use crate::spawn::Target;
use crate::stats::{is_in_share, real, whole};
use crate::tls::{TlsPlan, TlsVersion};
use crate::worker::topic;
use crate::workers::{Churned, Totals, Workers};

/// All clients of a run.
pub(super) struct Crowd {
    groups: Vec<Group>,
    /// They hear what devices publish.
    listeners: Workers,
    /// Clients that come and go.
    guests: Option<(Workers, ChurnPlan)>,
    sink: Insistent,
    /// Messages published so far, by topic, and by publishing connection.
    seqs: Vec<u32>,
    spoken: Vec<u32>,
    /// The topic to which devices publish, and their number.
    said: String,
    publishers: u32,
    /// The share of connections that drop, and do not publish.
    dropping: f64,
    connections: u32,
}

/// Connections with the same TLS.
struct Group {
    workers: Workers,
    /// Those with lower numbers publish.
    publishers_below: u32,
}

/// A load: seconds, and how much of each kind there is in a second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) seconds: f64,
    /// Messages to each connection.
    pub(super) rate: f64,
    /// Messages that connections publish, all together.
    pub(super) publishes: f64,
    /// Pings, all together.
    pub(super) pings: f64,
    /// Bytes of a payload.
    pub(super) size: usize,
}

/// What came of a load.
#[derive(Debug, Default)]
pub(super) struct Phase {
    pub(super) published: Published,
    /// Messages for which a publishing connection's socket had no room.
    pub(super) unsent: u64,
    /// What the connections got of the topics.
    pub(super) totals: Totals,
    /// What the listeners got from devices.
    pub(super) heard: Totals,
    /// The clients that came and went.
    pub(super) guests: Option<Churned>,
    /// What the backend was told that publishes.
    pub(super) told: Told,
    /// Open connections that stay, of those that were opened.
    pub(super) open: u64,
}

/// Connections that hear what devices publish.
pub(super) const LISTENERS: u32 = 2;
/// So many connections at least share a topic, and every so manieth may publish.
const PER_TOPIC: u32 = 40;
const PER_PUBLISHER: u32 = 10;
/// Messages a second of a publishing connection, if there are enough connections.
const EACH_PER_SECOND: f64 = 1.0;
/// Time that a guest stays, and after which a refused one comes again.
const GUEST_HOLDS_MS: u64 = 500;
const AGAIN_MS: u64 = 100;
/// Receive buffer of clients that stop reading.
const SLOW_BUFFER: usize = 8192;

impl Crowd {
    /// Connects so many clients of all transports.
    pub(super) fn open(
        setup: &Setup,
        target: &Target,
        args: &UpgradeArgs,
        connections: u32,
    ) -> Result<Crowd> {
        let topics = args.topics.min(connections / PER_TOPIC).max(1);
        let plan = OpenPlan {
            slow: args.stall.map(|share| SlowPlan { share, recv_buffer: SLOW_BUFFER }),
            ..setup.plan(target.addr, args.size, Streams::Count(topics))
        };
        let tls = plan.tls.clone();
        let only = |version| tls.clone().map(|tls| TlsPlan { version: Some(version), ..tls });
        let kinds = [None, only(TlsVersion::Tls13), only(TlsVersion::Tls12)];
        let speakers_max = whole(args.publishes / EACH_PER_SECOND).max(1);
        let (mut groups, mut first, mut publishers) = (Vec::new(), 0, 0);
        let dropping = args.resume.unwrap_or(0.0);
        for (tls, count) in kinds.into_iter().zip(shares(connections, args.tls)) {
            if count == 0 {
                continue;
            }
            let (addr, edge) = match &tls {
                None => (target.plain, target.plain_edge),
                Some(_) => (target.addr, target.edge),
            };
            let plan = OpenPlan { addr, tls, ..plan.clone() };
            let plan = setup.plan_by(Transport::Mixed, edge, plan)?;
            let mut workers = setup.workers(count)?.numbered_from(first);
            workers.open(&plan, |_, plan| plan)?;
            let share = speakers_max * u64::from(count) / u64::from(connections);
            let share = u32::try_from(share)?.min(count / PER_PUBLISHER).max(1);
            let publishers_below = first + share;
            publishers += speakers(&plan, dropping, first..publishers_below);
            groups.push(Group { workers, publishers_below });
            first += count;
        }
        let prefix = format!("{}said/", setup.topic_prefix);
        let said = topic(&prefix, 0);
        let mut listeners = setup.workers(LISTENERS)?;
        let listening = OpenPlan {
            addr: target.plain,
            tls: None,
            check: Check::Room(connections),
            topic_prefix: prefix,
            ..setup.plan(target.plain, args.size, Streams::Count(1))
        };
        listeners.open(&listening, |_, plan| plan)?;
        let topic_of = |stream| topic(&setup.topic_prefix, stream);
        let guests = args.storm.map(|rate| guests(setup, target, (args, rate), topic_of(0), tls));
        Ok(Crowd {
            groups,
            listeners,
            guests: guests.transpose()?,
            sink: Insistent::new(target.another_http(), (0..topics).map(topic_of).collect()),
            seqs: vec![0; topics as usize],
            spoken: vec![0; connections as usize],
            said,
            publishers,
            dropping,
            connections,
        })
    }

    /// Connections that publish.
    pub(super) fn publishers(&self) -> u32 {
        self.publishers
    }

    /// Topics of the connections.
    pub(super) fn topics(&self) -> usize {
        self.seqs.len()
    }

    /// The load with all that it brings, while `meanwhile` runs.
    pub(super) fn phase<T>(
        &mut self,
        load: Load,
        meanwhile: impl FnOnce(&mut Hands<'_>) -> Result<T>,
    ) -> Result<(Phase, T)> {
        for group in &mut self.groups {
            group.workers.begin()?;
        }
        self.listeners.begin()?;
        let plans = self.publish_plans(load);
        for (group, plan) in self.groups.iter_mut().zip(&plans) {
            group.workers.begin_publishing(plan)?;
        }
        if let Some((guests, plan)) = &mut self.guests {
            plan.count = whole(plan.rate * load.seconds).max(1);
            guests.begin_churn(plan)?;
        }
        let count = u32::try_from(whole((load.rate * load.seconds).max(1.0)))?;
        let start = clock::monotonic();
        let schedule = Schedule { start, rate: load.rate, count, size: load.size };
        let (mut phase, mut result) = (Phase::default(), None);
        let Crowd { groups, sink, seqs, .. } = self;
        phase.published = publish_beside(sink, &schedule, seqs, |_| {
            result = Some(meanwhile(&mut Hands { groups, start })?);
            Ok(())
        })?;
        phase.told = sink.take_told();
        for (group, plan) in self.groups.iter_mut().zip(&plans) {
            let sent = group.workers.end_publishing(plan)?;
            phase.unsent += sent.unsent;
            self.spoken.iter_mut().zip(sent.sent).for_each(|(all, sent)| *all = sent.max(*all));
        }
        if let Some((guests, plan)) = &mut self.guests {
            phase.guests = Some(guests.end_churn(plan)?);
        }
        self.collect(&mut phase)?;
        Ok((phase, result.context("nothing was done meanwhile")?))
    }

    fn collect(&mut self, phase: &mut Phase) -> Result<()> {
        let wait_ms = u64::try_from(ARRIVAL_PATIENCE.as_millis())?;
        let order =
            |published: &[u32]| Collect { published: published.to_vec(), wait_ms, slow_too: true };
        for group in &mut self.groups {
            phase.totals.join(group.workers.collect(&order(&self.seqs))?);
        }
        phase.heard = self.listeners.collect(&order(&self.spoken))?;
        let tally = &phase.totals.tally;
        phase.open = tally.open + tally.open_slow + phase.heard.tally.open;
        Ok(())
    }

    /// What each group publishes and pings.
    fn publish_plans(&self, load: Load) -> Vec<PublishPlan> {
        let rate = load.publishes / f64::from(self.publishers.max(1));
        let count = u32::try_from(whole((rate * load.seconds).max(1.0))).unwrap_or(u32::MAX);
        let of = |group: &Group| PublishPlan {
            topic: self.said.clone(),
            publishers: group.publishers_below,
            except: self.dropping,
            rate,
            count,
            size: load.size,
            pings: load.pings * f64::from(group.workers.count()) / f64::from(self.connections),
        };
        self.groups.iter().map(of).collect()
    }

    /// Closes all.
    pub(super) fn close(&mut self) -> Result<()> {
        for group in &mut self.groups {
            group.workers.close()?;
        }
        self.listeners.close()
    }
}

/// What can be done to the clients while a load lasts.
pub(super) struct Hands<'a> {
    groups: &'a mut Vec<Group>,
    start: Duration,
}

impl Hands<'_> {
    /// Waits until this time after the start of the load.
    pub(super) fn await_second(&self, second: f64) {
        clock::sleep_until(self.start + Duration::from_secs_f64(second));
    }

    /// Changes how the slow clients read.
    pub(super) fn read(&mut self, reading: Reading) -> Result<()> {
        self.groups.iter_mut().try_for_each(|group| group.workers.read(reading))
    }

    /// Drops a share of the clients. They come back one after the other over this time.
    pub(super) fn come_back(&mut self, share: f64, spread_ms: u64) -> Result<()> {
        let plan = ComeBack { to: Vec::new(), share, spread_ms, again_ms: Some(AGAIN_MS) };
        self.groups.iter_mut().try_for_each(|group| group.workers.come_back(plan.clone()))
    }
}

/// Connections without TLS, with version 1.3, and with 1.2.
fn shares(connections: u32, tls: f64) -> [u32; 3] {
    let all = u32::try_from(whole(f64::from(connections) * tls)).unwrap_or(connections);
    let all = all.min(connections);
    [connections - all, all.div_ceil(2), all / 2]
}

/// Those of these connections that can send and do not drop.
fn speakers(plan: &OpenPlan, dropping: f64, numbers: std::ops::Range<u32>) -> u32 {
    let speak = numbers
        .filter(|number| plan.form_of(*number) != Format::Sse && !is_in_share(*number, dropping));
    u32::try_from(speak.count()).unwrap_or(u32::MAX)
}

/// Clients that come and go at a rate.
fn guests(
    setup: &Setup,
    target: &Target,
    (args, rate): (&UpgradeArgs, f64),
    topic: String,
    tls: Option<TlsPlan>,
) -> Result<(Workers, ChurnPlan)> {
    let tls = tls.filter(|_| args.storm_tls);
    let tls = tls.map(|tls| TlsPlan { version: Some(TlsVersion::Tls13), ..tls });
    let plan = ChurnPlan {
        addr: if tls.is_some() { target.addr } else { target.plain },
        source: setup.another_source(),
        hello: HelloPlan { token: String::new(), subscribe: true },
        topic,
        rate,
        count: 0,
        hold_ms: GUEST_HOLDS_MS,
        ways: Ways { tls, retry_ms: Some(AGAIN_MS), ..Ways::default() },
    };
    Ok((setup.workers(1)?, plan))
}

/// Deliveries a second of a load on so many connections.
pub(super) fn deliveries(load: Load, connections: u32) -> f64 {
    load.rate * real(connections.into()) + load.publishes * f64::from(LISTENERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_tls_is_each_version() {
        assert_eq!(shares(15_000, 0.5), [7500, 3750, 3750]);
        assert_eq!(shares(9, 1.0), [0, 5, 4]);
        assert_eq!(shares(8, 0.0), [8, 0, 0]);
    }
}
