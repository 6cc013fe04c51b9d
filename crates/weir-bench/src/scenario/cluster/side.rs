//! Nodes with their clients and publishers: a cluster, or one node alone.

use std::time::Duration;

use anyhow::{Context, Result};
use toml::{Table, Value};

use super::publishers::{Pace, Published, Publishers};
use crate::cli::ClusterArgs;
use crate::http::Http;
use crate::metrics::Metrics;
use crate::protocol::{Check, Collect, OpenPlan, Seen, Streams};
use crate::redis::{Redis, Usage};
use crate::report::Report;
use crate::scenario::{Setup, arrival_of};
use crate::spawn::Target;
use crate::stats::{real, whole};
use crate::worker::topic;
use crate::workers::{Totals, Workers};

/// Nodes, with the clients of each.
pub(super) struct Side {
    /// Named in errors.
    name: &'static str,
    pub(super) nodes: Vec<Target>,
    pub(super) clients: Vec<Workers>,
    pub(super) publishers: Publishers,
    pub(super) topics: Vec<String>,
}

/// What a side has done in a round.
pub(super) struct Round {
    pub(super) published: Published,
    /// What the clients of each node got.
    pub(super) totals: Vec<Totals>,
    /// CPU time of all nodes.
    pub(super) cpu: Duration,
    /// What Redis did.
    pub(super) redis: Usage,
    /// What the nodes handed to the broker: messages, and the batches in which they left.
    pub(super) offered: u64,
    pub(super) batches: u64,
}

/// The readings at the beginning of a round.
pub(super) struct Readings {
    cpu: Duration,
    redis: Usage,
    offered: u64,
    batches: u64,
}

impl Side {
    /// The nodes of a cluster in this Redis: running ones, or new ones. The clients are shared out
    /// among the nodes.
    pub(super) fn cluster(
        args: &ClusterArgs,
        setup: &Setup,
        (url, prefix): (&str, &str),
        clients: &[u32],
    ) -> Result<Side> {
        let mut nodes = Vec::new();
        for at in &args.nodes_at {
            nodes.push(Target::running(at.tcp, Some(at.http), at.admin, at.pid, None));
        }
        let token = args.token.clone().unwrap_or_else(token);
        for number in (1..=args.nodes).filter(|_| args.nodes_at.is_empty()) {
            let mut settings = settings(args, &token)?;
            let mut cluster = Table::new();
            cluster.insert("redis".to_owned(), url.into());
            cluster.insert("prefix".to_owned(), prefix.into());
            cluster.insert("node".to_owned(), format!("node{number}").into());
            settings.insert("cluster".to_owned(), cluster.into());
            nodes.push(Target::start(&args.target()?, setup.server_cpus.as_ref(), &settings)?);
        }
        // Of nodes of which one will be killed, that one gets no publisher.
        let publishing = nodes.len() - usize::from(args.crowd.is_some());
        Side::open("cluster", args, setup, (nodes, publishing), (&token, clients))
    }

    /// One node without Redis.
    pub(super) fn alone(args: &ClusterArgs, setup: &Setup) -> Result<Side> {
        let token = token();
        let settings = settings(args, &token)?;
        let node = Target::start(&args.target()?, setup.server_cpus.as_ref(), &settings)?;
        let clients = args.alone.unwrap_or(args.clients);
        Side::open("one node", args, setup, (vec![node], 1), (&token, &[clients]))
    }

    fn open(
        name: &'static str,
        args: &ClusterArgs,
        setup: &Setup,
        (nodes, publishing): (Vec<Target>, usize),
        (token, counts): (&str, &[u32]),
    ) -> Result<Side> {
        let topics: Vec<String> =
            (0..args.topics).map(|stream| topic(&setup.topic_prefix, stream)).collect();
        let mut clients = Vec::new();
        for (node, count) in nodes.iter().zip(counts) {
            let mut workers = setup.workers(*count)?;
            let plan = OpenPlan {
                check: Check::Offsets,
                ..setup.plan(node.addr, args.size, Streams::Count(args.topics))
            };
            workers.open(&plan, |_, plan| plan)?;
            clients.push(workers);
        }
        let edge = |number: u32| {
            let node = &nodes[number as usize % publishing];
            let edge = node.edge.context("a node has no HTTP")?;
            Ok(Http::new(edge, Some(token.to_owned())))
        };
        let https = (0..args.publishers).map(edge).collect::<Result<_>>()?;
        let publishers = Publishers::new(https, &topics, args.size);
        Ok(Side { name, nodes, clients, publishers, topics })
    }

    /// Publishes for some time, waits for all messages, and measures.
    pub(super) fn round(&mut self, pace: Pace, redis: &mut Redis) -> Result<Round> {
        let before = self.begin(redis)?;
        let published = self.publishers.run(pace, |_| Ok(()))?;
        self.end(before, published, redis)
    }

    pub(super) fn begin(&mut self, redis: &mut Redis) -> Result<Readings> {
        self.clients.iter_mut().try_for_each(Workers::begin)?;
        self.readings(redis)
    }

    pub(super) fn end(
        &mut self,
        before: Readings,
        published: Published,
        redis: &mut Redis,
    ) -> Result<Round> {
        let totals = self.collect()?;
        let after = self.readings(redis)?;
        Ok(Round {
            published,
            totals,
            cpu: after.cpu.saturating_sub(before.cpu),
            redis: after.redis.since(&before.redis),
            offered: after.offered - before.offered,
            batches: after.batches - before.batches,
        })
    }

    /// Waits until all clients have all messages that were answered.
    fn collect(&mut self) -> Result<Vec<Totals>> {
        let lasts = self.publishers.answered().into_iter().map(|seen| u32::try_from(seen.last));
        let lasts = lasts.collect::<Result<Vec<u32>, _>>().context("too many messages")?;
        let order: Collect = arrival_of(&lasts, false);
        self.clients.iter_mut().map(|clients| clients.collect(&order)).collect()
    }

    fn readings(&mut self, redis: &mut Redis) -> Result<Readings> {
        let (mut cpu, mut offered, mut batches) = (Duration::ZERO, 0, 0);
        for node in &mut self.nodes {
            let metrics = node.metrics()?;
            offered += counter(&metrics, "weir_broker_offered_total");
            batches += counter(&metrics, "weir_broker_batches_total");
        }
        for node in &self.nodes {
            cpu += Target::cpu(node.pid)?;
        }
        Ok(Readings { cpu, redis: redis.usage()?, offered, batches })
    }

    /// Fails the run if a client missed a message without notice, got one twice, or saw another order
    /// than other clients and the publishers.
    pub(super) fn check(
        &self,
        report: &mut Report,
        what: &str,
        published: &Published,
        totals: &[Totals],
    ) {
        for (node, totals) in (1..).zip(totals) {
            report.check_messages(&format!("{}, {what}, node {node}", self.name), totals);
        }
        self.check_order(report, what, published, totals);
    }

    /// The same for the order alone.
    pub(super) fn check_order(
        &self,
        report: &mut Report,
        what: &str,
        published: &Published,
        totals: &[Totals],
    ) {
        let name = self.name;
        let answered = self.publishers.answered();
        let topic = |stream: u32| &self.topics[stream as usize];
        let mut known: Vec<Option<(usize, Seen)>> = vec![None; self.topics.len()];
        for (node, totals) in (1..).zip(totals) {
            for (stream, seen) in &totals.tally.seen {
                let at = *stream as usize;
                // Of a message without an answer only the clients know where it stands.
                let is_told = published.uncertain > 0 || *seen == answered[at];
                report.check(is_told, || {
                    format!(
                        "{name}, {what}, node {node}, topic {}: clients saw {} messages up to offset {}, \
                         but publishers were answered {} up to {}, or others",
                        topic(*stream), seen.count, seen.last, answered[at].count, answered[at].last
                    )
                });
                let (first, expected) = *known[at].get_or_insert((node, *seen));
                report.check(*seen == expected, || {
                    format!(
                        "{name}, {what}, topic {}: up to offset {}, the clients of node {node} saw other \
                         messages than those of node {first}",
                        topic(*stream), seen.last.min(expected.last)
                    )
                });
            }
        }
        let restarted = self.publishers.restarted();
        report.check(restarted == 0, || {
            format!("{name}, {what}: {restarted} topics have more than one epoch")
        });
    }

    /// Ends clients and nodes.
    pub(super) fn stop(self, report: &mut Report) {
        drop((self.publishers, self.clients));
        self.nodes.into_iter().for_each(|node| node.stop(report));
    }
}

/// A counter of a node.
pub(super) fn counter(metrics: &Metrics, name: &str) -> u64 {
    whole(metrics.sum(name, &[]).unwrap_or(0.0))
}

/// A secret of this run.
fn token() -> String {
    format!("bench-{:016x}", rand::random::<u64>())
}

/// A service that may publish, and a class that keeps messages.
fn settings(args: &ClusterArgs, token: &str) -> Result<Table> {
    let mut settings =
        format!("[[auth.services]]\nname = \"bench\"\ntoken = \"{token}\"\nmay = [\"publish\"]")
            .parse::<Table>()
            .context("the settings are TOML")?;
    let mut class = Table::new();
    class.insert("pattern".to_owned(), "bench/*".into());
    if args.retention > 0 {
        let bytes = u64::from(args.retention) * (args.size as u64 + OVERHEAD_BYTES);
        class.insert("retention_messages".to_owned(), i64::from(args.retention).into());
        class.insert("retention_bytes".to_owned(), i64::try_from(bytes)?.into());
    }
    settings.insert("topic_classes".to_owned(), Value::Array(vec![Value::Table(class)]));
    Ok(settings)
}

impl Round {
    /// Messages that clients got.
    pub(super) fn delivered(&self) -> u64 {
        self.totals.iter().map(|totals| totals.tally.delivered).sum()
    }

    /// CPU microseconds of the nodes for each message that was published.
    pub(super) fn cpu_us_per_publish(&self) -> Option<f64> {
        per(self.cpu, self.published.accepted)
    }

    /// CPU microseconds of the nodes for each message that a client got.
    pub(super) fn cpu_us_per_delivery(&self) -> Option<f64> {
        per(self.cpu, self.delivered())
    }

    /// CPU microseconds of Redis for each message that was published.
    pub(super) fn redis_us_per_publish(&self) -> Option<f64> {
        per(self.redis.cpu, self.published.accepted)
    }

    /// Messages in a call of the script.
    pub(super) fn batch(&self) -> Option<f64> {
        (self.batches > 0).then(|| real(self.offered) / real(self.batches))
    }

    /// Calls of scripts in a read of Redis.
    pub(super) fn calls_per_read(&self) -> Option<f64> {
        let calls = self.redis.calls_of("evalsha");
        (self.redis.reads > 0).then(|| real(calls) / real(self.redis.reads))
    }
}

/// Microseconds for each of a number; `None` of none.
pub(super) fn per(time: Duration, count: u64) -> Option<f64> {
    (count > 0).then(|| time.as_secs_f64() * 1e6 / real(count))
}

/// Bytes that a message may take in the ring beside its payload.
const OVERHEAD_BYTES: u64 = 512;
