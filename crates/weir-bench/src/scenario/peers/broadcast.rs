//! Messages to all subscribers of one topic.

use std::time::Duration;

use anyhow::{Context, Result};
use toml::Table;

use super::super::{BaselineSet, Round, Setup};
use super::{Contestant, Figures, kinds, plan_for, start_for_devices};
use crate::baseline::Trigger;
use crate::cli::PeersArgs;
use crate::payload::foreign::Protocol;
use crate::protocol::Streams;
use crate::publish::{BaselineSink, ForeignSink, HttpSink, Sink};
use crate::report::Report;
use crate::spawn::{RivalKind, Target};
use crate::stats::whole;
use crate::tls::TlsClient;
use crate::worker::topic;
use crate::workers::{Workers, turns};

const CONNECTIONS: u32 = 10_000;

/// A server with its clients and its publisher.
struct Side {
    contestant: Contestant,
    feed: Feed,
    /// Frame of the last message, in bytes.
    frame_bytes: u64,
}

/// What publishes, and what receives.
enum Feed {
    Server { sink: Box<dyn Sink + Send>, workers: Workers, seqs: Vec<u32>, pid: u32 },
    Bare(BaselineSet),
}

/// Measures the servers in turn.
pub(super) fn run(args: &PeersArgs, setup: &Setup, report: &mut Report) -> Result<Vec<Contestant>> {
    let connections = args.connections.unwrap_or(CONNECTIONS);
    report.set("connections", connections);
    report.set("size", args.size);
    report.set("rate", args.rate);
    let kinds = kinds(args, &RivalKind::ALL, report);
    let target = Target::start(&args.target, setup.server_cpus.as_ref(), &Table::new())?;
    let plan = setup.plan(target.addr, args.size, Streams::Count(1));
    let topic = topic(&setup.topic_prefix, 0);
    let mut workers = setup.workers(connections)?;
    workers.open(&plan, |_, plan| plan)?;
    let sink = Box::new(HttpSink::new(target.another_http(), vec![topic.clone()]));
    let mut sides = vec![Side::new(Contestant::weir(), sink, workers, target.pid)];
    let mut rivals = Vec::new();
    for kind in kinds {
        let rival = start_for_devices(args, setup, kind)?;
        let plan = plan_for(plan.clone(), &rival);
        let mut workers = setup.workers(connections)?;
        workers.open(&plan, |_, plan| plan).with_context(|| kind.name())?;
        let tls = plan.tls.as_ref().map(TlsClient::new).transpose()?;
        let topics = vec![topic.clone()];
        let sink: Box<dyn Sink + Send> = match kind.protocol() {
            Protocol::Weir => Box::new(HttpSink::new(rival.admin(), topics)),
            other @ (Protocol::Nats | Protocol::Mqtt) => {
                Box::new(ForeignSink::connect(other, rival.addr, tls.as_ref(), topics)?)
            }
        };
        sides.push(Side::new(Contestant::rival(&rival), sink, workers, rival.pid()));
        rivals.push(rival);
    }
    let bare = setup.baseline(Trigger::Level, connections, args.size, &setup.topic_prefix)?;
    sides.push(Side { contestant: Contestant::bare(), feed: Feed::Bare(bare), frame_bytes: 0 });
    measure(args, &mut sides, &topic, report)?;
    let contestants = sides.into_iter().map(|side| side.contestant).collect();
    drop(rivals);
    target.stop(report);
    Ok(contestants)
}

/// All warm up; then the rounds, and another one begins in each.
fn measure(args: &PeersArgs, sides: &mut [Side], topic: &str, report: &mut Report) -> Result<()> {
    let messages = |seconds: f64| u32::try_from(whole((args.rate * seconds).max(1.0)));
    let warm_up = messages(args.warm_up_seconds * WARM_UP_RATE)?;
    for side in &mut *sides {
        let load = (args.rate * WARM_UP_RATE, warm_up, args.size);
        side.round(load, topic, (0, report))?;
    }
    let frame_bytes = sides.first().map_or(0, |side| side.frame_bytes);
    let each = messages(args.seconds / f64::from(args.rounds))?;
    for turn in turns(args.rounds, sides.len()) {
        let side = &mut sides[turn];
        let load = (args.rate, each, args.size);
        let figures = side.round(load, topic, (frame_bytes, report))?;
        side.contestant.rounds.push(figures);
    }
    Ok(())
}

impl Side {
    fn new(contestant: Contestant, sink: Box<dyn Sink + Send>, workers: Workers, pid: u32) -> Side {
        let feed = Feed::Server { sink, workers, seqs: vec![0], pid };
        Side { contestant, feed, frame_bytes: 0 }
    }

    /// A round; `frame_bytes` is how long the frames of the baseline are.
    fn round(
        &mut self,
        load: (f64, u32, usize),
        topic: &str,
        (frame_bytes, report): (u64, &mut Report),
    ) -> Result<Figures> {
        let round = match &mut self.feed {
            Feed::Server { sink, workers, seqs, pid } => {
                let pid = *pid;
                Round::run(workers, sink, seqs, load, |_| Target::cpu(pid))?
            }
            Feed::Bare(BaselineSet { baselines, workers, seqs }) => {
                let frame_bytes = Some(frame_bytes).filter(|bytes| *bytes > 0);
                let topic = topic.to_owned();
                let mut sink = BaselineSink { baselines, topic, frame_bytes };
                Round::run(workers, &mut sink, seqs, load, |sink| BaselineSet::cpu(sink.baselines))?
            }
        };
        self.frame_bytes = round.totals.tally.frame_bytes;
        report.check_messages(self.contestant.name, &round.totals);
        let late = round.published.late_max;
        Ok(vec![
            ("cpu_us_per_message", round.cpu_us_per_message()),
            ("lag_p50_ms", round.totals.lags.quantile_ms(0.5)),
            ("lag_p99_ms", round.totals.lags.quantile_ms(0.99)),
            ("publish_late_max_ms", Some(ms(late))),
        ])
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Messages come more often before the rounds: Java compiles what has run some thousand times.
const WARM_UP_RATE: f64 = 4.0;
