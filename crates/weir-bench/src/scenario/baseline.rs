//! `baseline`: the best result that the machine can reach without a gateway.

use anyhow::{Result, bail};

use super::broadcast::merged;
use super::{BaselineSet, Round, Setup, arrival_of};
use crate::baseline::Trigger;
use crate::cli::BaselineArgs;
use crate::clock;
use crate::payload::Header;
use crate::protocol::to_hex;
use crate::publish::{BaselineSink, Published, Schedule, frame_of};
use crate::report::Report;
use crate::stats::median;
use crate::worker::topic;

/// Runs the scenario.
pub(crate) fn run(args: &BaselineArgs, report: &mut Report) -> Result<()> {
    let load = &args.load;
    let setup = Setup::new(&args.run, None, true)?;
    let triggers =
        args.trigger.map_or_else(|| vec![Trigger::Level, Trigger::Edge], |trigger| vec![trigger]);
    report.set("connections", load.connections);
    report.set("size", load.size);
    report.set("rate", load.rate);
    let mut sets = Vec::new();
    for trigger in &triggers {
        sets.push(setup.baseline(*trigger, load.connections, load.size, &setup.topic_prefix)?);
    }
    let messages = load.messages_per_round();
    let mut sends = Vec::new();
    let mut echoes: Vec<Vec<Round>> = triggers.iter().map(|_| Vec::new()).collect();
    for round in 0..=load.rounds {
        crate::workers::progress("round", round, load.rounds);
        // The first round only warms up.
        let messages = if round == 0 { 1 } else { messages };
        let sent = send(&mut sets[0], load.rate, messages, load.size, &setup.topic_prefix)?;
        let mut echoed = Vec::new();
        for set in &mut sets {
            echoed.push(echo(set, load.rate, messages, load.size, &setup.topic_prefix)?);
        }
        if round > 0 {
            sends.push(sent);
            echoes.iter_mut().zip(echoed).for_each(|(all, one)| all.push(one));
        }
    }
    let middle = |rounds: &[Round]| median(rounds.iter().filter_map(Round::cpu_us_per_message));
    report.set("delivered", sends.iter().map(|round| round.totals.tally.delivered).sum::<u64>());
    report.set(
        "lost",
        sends
            .iter()
            .chain(echoes.iter().flatten())
            .map(|round| round.totals.tally.lost())
            .sum::<u64>(),
    );
    report.figure("floor_us_per_message", middle(&sends));
    for (trigger, rounds) in triggers.iter().zip(&echoes) {
        let (name, what) = match trigger {
            Trigger::Level => ("echo_level_us_per_message", "level-triggered echo"),
            Trigger::Edge => ("echo_edge_us_per_message", "edge-triggered echo"),
        };
        report.figure(name, middle(rounds));
        rounds.iter().for_each(|round| report.check_messages(what, &round.totals));
    }
    if let [level, edge] = &echoes[..] {
        report.figure(
            "edge_to_level",
            middle(edge).zip(middle(level)).map(|(edge, level)| edge / level),
        );
    }
    let lags = merged(sends.iter().map(|round| &round.totals));
    report.figure("lag_p50_ms", lags.quantile_ms(0.5));
    report.figure("lag_p99_ms", lags.quantile_ms(0.99));
    report.set("frame_bytes", sends.iter().map(|round| round.totals.tally.frame_bytes).max());
    report.set("messages_per_round", messages);
    report.set("rounds", load.rounds);
    sends.iter().for_each(|round| report.check_messages("send loop", &round.totals));
    setup.describe(report);
    Ok(())
}

/// The baseline sends to all connections.
fn send(
    set: &mut BaselineSet,
    rate: f64,
    messages: u32,
    size: usize,
    prefix: &str,
) -> Result<Round> {
    let BaselineSet { baselines, workers, seqs } = set;
    let mut sink = BaselineSink { baselines, topic: topic(prefix, 0), frame_bytes: None };
    Round::run(workers, &mut sink, seqs, (rate, messages, size), |sink| {
        BaselineSet::cpu(sink.baselines)
    })
}

/// Each connection sends and the baseline sends back.
fn echo(
    set: &mut BaselineSet,
    rate: f64,
    messages: u32,
    size: usize,
    prefix: &str,
) -> Result<Round> {
    let BaselineSet { baselines, workers, seqs } = set;
    let [seq] = &mut seqs[..] else { bail!("a baseline has one stream") };
    workers.begin()?;
    let before = BaselineSet::cpu(baselines)?;
    let schedule = Schedule { start: clock::monotonic(), rate, count: messages, size };
    let mut text = String::new();
    for number in 0..messages {
        clock::sleep_until(schedule.start + schedule.length() * number / messages);
        Header { stream: 0, seq: *seq, sent_ns: clock::realtime_ns() }.compose(size, &mut text);
        workers.emit(to_hex(&frame_of(&topic(prefix, 0), &text, None)))?;
        *seq += 1;
    }
    clock::sleep_until(schedule.start + schedule.length());
    let totals = workers.collect(&arrival_of(&[*seq], false))?;
    let cpu = BaselineSet::cpu(baselines)?.saturating_sub(before);
    Ok(Round { published: Published::default(), totals, cpu })
}
