//! `upgrade`: a gateway is upgraded again and again while all transports are connected to it. Its
//! clients may notice a pause and nothing else.

mod crowd;
mod fit;
mod meter;
mod sink;
mod sweep;
mod verdict;

use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use toml::Table;

use self::crowd::{Crowd, Hands, LISTENERS, Load, Phase};
use self::meter::{Meter, Metered};
use super::Setup;
use crate::cli::UpgradeArgs;
use crate::protocol::Reading;
use crate::report::Report;
use crate::spawn::{Target, Upgraded, upgrade_settings};
use crate::stats::{Lags, median, milli, real, whole};

/// A gateway with its clients.
struct Run {
    setup: Setup,
    target: Target,
    crowd: Crowd,
    meter: Meter,
    load: Load,
    connections: u32,
}

/// An upgrade, and what clients saw meanwhile.
struct Round {
    upgraded: Upgraded,
    phase: Phase,
}

/// Messages that a topic keeps: more than any client misses while it is away.
const KEPT_SECONDS: f64 = 30.0;
const KEPT_MIN: u64 = 100;
/// The least that a gateway accepts: room for a message of the largest size.
const KEPT_BYTES_MIN: u64 = 128 << 10;
/// Bytes that a message may take in a ring beside its payload.
const OVERHEAD_BYTES: u64 = 512;
/// Part of the time between two upgrades that lies before one; if clients stall, their queues fill
/// in it.
const BEFORE: f64 = 0.25;
const BEFORE_STALLED: f64 = 0.5;
/// Dropped clients come back over this part of that time.
const RETURN: f64 = 0.25;
/// Seconds in which each connection is pinged once at the end.
const ROLL_CALL_SECONDS: f64 = 3.0;

/// Runs the scenario.
pub(crate) fn run(args: &UpgradeArgs, report: &mut Report) -> Result<()> {
    report.set("tls_share", args.tls);
    report.set("upgrades", args.upgrades());
    report.figure("every_s", Some(args.every.as_secs_f64()));
    report.set("rate", args.rate);
    report.set("publishes", args.publishes);
    report.set("pings", args.pings);
    report.set("size", args.size);
    if !args.sweep.is_empty() {
        return sweep::run(args, report);
    }
    let mut run = Run::start(args, args.connections)?;
    report.set("connections", args.connections);
    report.set("listeners", LISTENERS);
    report.set("topics", run.crowd.topics());
    report.set("publishers", run.crowd.publishers());
    report.figure("deliveries_per_second", Some(crowd::deliveries(run.load, run.connections)));
    let (quiet, ()) = run.crowd.phase(run.load, |_| Ok(()))?;
    verdict::check_phase(report, "quiet phase", &quiet, run.connections);
    let mut rounds = Vec::new();
    for number in 1..=args.upgrades() {
        crate::workers::progress("upgrade", number, args.upgrades());
        let round = run.upgrade(args)?;
        let what = format!("upgrade {number}");
        verdict::check_phase(report, &what, &round.phase, run.connections);
        // Who dropped does not move.
        let least = if args.resume.is_some() { 0 } else { run.connections + LISTENERS };
        verdict::check_upgrade(report, &what, &round.upgraded, least);
        rounds.push(round);
    }
    let roll_call = Load {
        seconds: ROLL_CALL_SECONDS,
        pings: real(run.connections.into()) / ROLL_CALL_SECONDS,
        ..run.load
    };
    let (last, ()) = run.crowd.phase(roll_call, |_| Ok(()))?;
    verdict::check_phase(report, "afterwards", &last, run.connections);
    fill(report, &quiet, &rounds);
    fill_guests(report, &rounds);
    fill_meter(report, run.meter.finish()?);
    run.setup.describe(report);
    run.crowd.close()?;
    drop(run.crowd);
    run.target.stop(report);
    Ok(())
}

impl Run {
    fn start(args: &UpgradeArgs, connections: u32) -> Result<Run> {
        let target_args = args.target();
        let setup = Setup::new(&args.run, Some(&target_args), true)?;
        let udp = free_addr()?;
        let settings = settings(args, udp)?;
        let target = Target::start(&target_args, setup.server_cpus.as_ref(), &settings)?;
        let crowd = Crowd::open(&setup, &target, args, connections)?;
        let meter = Meter::start(udp, format!("{}meter", setup.topic_prefix))?;
        let load = Load {
            seconds: args.every.as_secs_f64(),
            rate: args.rate,
            publishes: args.publishes,
            pings: args.pings,
            size: args.size,
        };
        Ok(Run { setup, target, crowd, meter, load, connections })
    }

    /// Upgrades once, under load.
    fn upgrade(&mut self, args: &UpgradeArgs) -> Result<Round> {
        let Run { target, crowd, load, .. } = self;
        let seconds = load.seconds;
        let before = if args.stall.is_some() { BEFORE_STALLED } else { BEFORE } * seconds;
        let (phase, upgraded) = crowd.phase(*load, |hands: &mut Hands<'_>| {
            if args.stall.is_some() {
                hands.read(Reading::Stop)?;
            }
            hands.await_second(before);
            if let Some(share) = args.resume {
                hands.come_back(share, whole(seconds * RETURN * 1000.0))?;
            }
            let upgraded = target.upgrade()?;
            if args.stall.is_some() {
                hands.read(Reading::Full)?;
            }
            Ok(upgraded)
        })?;
        Ok(Round { upgraded, phase })
    }
}

/// Settings of the gateway: devices may publish without a limit, and topics keep what clients that
/// drop miss.
fn settings(args: &UpgradeArgs, udp: SocketAddr) -> Result<Table> {
    let messages = whole(args.rate * KEPT_SECONDS).max(KEPT_MIN);
    let bytes = (messages * (args.size as u64 + OVERHEAD_BYTES)).max(KEPT_BYTES_MIN);
    let text = format!(
        "[[topic_classes]]\npattern = \"bench/*\"\npublish = [\"devices\", \"services\"]\n\
         retention_messages = {messages}\nretention_bytes = {bytes}\n\
         [limits]\npublishes_per_second = 0\n[listen]\nudp = [\"{udp}\"]\n\
         [udp]\ndatagrams_per_source_per_second = 0\n\
         [[auth.tokens]]\ntoken = \"{token}\"\ndevice = \"{token}\"\n",
        token = meter::TOKEN
    );
    let mut settings: Table = text.parse().context("the settings of the gateway")?;
    settings.extend(upgrade_settings());
    Ok(settings)
}

/// An address for datagrams.
fn free_addr() -> Result<SocketAddr> {
    let socket = UdpSocket::bind("127.0.0.1:0").context("no free port")?;
    Ok(socket.local_addr()?)
}

/// The lags of all rounds together.
fn merged<'a>(lags: impl Iterator<Item = &'a Lags>) -> Lags {
    let mut all = Lags::new();
    lags.for_each(|lags| all.add(&lags.counts()));
    all
}

fn fill(report: &mut Report, quiet: &Phase, rounds: &[Round]) {
    let pauses = || rounds.iter().map(|round| round.upgraded.moved.pause_ms);
    report.figure("pause_median_ms", median(pauses()));
    report.figure("pause_max_ms", pauses().reduce(f64::max));
    let busy = |of: fn(&Phase) -> &Lags| merged(rounds.iter().map(|round| of(&round.phase)));
    let lags = [
        (QUIET_LAG, &quiet.totals.lags),
        (LAG, &busy(|phase| &phase.totals.lags)),
        (QUIET_DEVICE_LAG, &quiet.heard.lags),
        (DEVICE_LAG, &busy(|phase| &phase.heard.lags)),
        (QUIET_PING, &quiet.totals.lags_ping),
        (PING, &busy(|phase| &phase.totals.lags_ping)),
    ];
    for (names, lags) in lags {
        fill_lags(report, names, lags);
    }
    let sum = |of: &dyn Fn(&Round) -> u64| rounds.iter().map(of).sum::<u64>();
    report.set("delivered", sum(&|round| round.phase.totals.tally.delivered));
    report.set("device_delivered", sum(&|round| round.phase.heard.tally.delivered));
    report.set("pongs", sum(&|round| round.phase.totals.tally.pongs));
    report.set("lost", sum(&|round| lost(&round.phase)));
    report.set("doubled", sum(&|round| doubled(&round.phase)));
    report.set("closed", sum(&|round| closed(&round.phase)));
    report.set("publish_busy", sum(&|round| round.phase.told.busy));
    report.set("publish_broken", sum(&|round| round.phase.told.broken));
    report.set("recovered", sum(&|round| round.phase.totals.tally.recovered));
    report.set("old_bytes_max", rounds.iter().map(|round| round.upgraded.moved.old_bytes).max());
    report.set("new_bytes_max", rounds.iter().map(|round| round.upgraded.moved.new_bytes).max());
    let rows: Vec<Value> = (1..).zip(rounds).map(|(number, round)| row(number, round)).collect();
    report.set("rounds", rows);
}

fn lost(phase: &Phase) -> u64 {
    let tally = &phase.totals.tally;
    tally.lost() + tally.gaps_slow + tally.missing_slow + phase.heard.tally.lost()
}

fn doubled(phase: &Phase) -> u64 {
    phase.totals.tally.duplicates + phase.heard.tally.duplicates
}

fn closed(phase: &Phase) -> u64 {
    let closed_by = [&phase.totals, &phase.heard].map(|totals| &totals.tally.closed_by);
    closed_by.into_iter().flat_map(|by| by.values()).sum()
}

/// Median, 99th percentile and maximum of lags, by the names of their fields.
fn fill_lags(report: &mut Report, names: [&'static str; 3], lags: &Lags) {
    for (name, quantile) in names.into_iter().zip(QUANTILES) {
        report.figure(name, lags.quantile_ms(quantile));
    }
}

const QUANTILES: [f64; 3] = [0.5, 0.99, 1.0];
const QUIET_LAG: [&str; 3] = ["quiet_lag_p50_ms", "quiet_lag_p99_ms", "quiet_lag_max_ms"];
const LAG: [&str; 3] = ["lag_p50_ms", "lag_p99_ms", "lag_max_ms"];
const QUIET_DEVICE_LAG: [&str; 3] =
    ["quiet_device_lag_p50_ms", "quiet_device_lag_p99_ms", "quiet_device_lag_max_ms"];
const DEVICE_LAG: [&str; 3] = ["device_lag_p50_ms", "device_lag_p99_ms", "device_lag_max_ms"];
const QUIET_PING: [&str; 3] = ["quiet_ping_p50_ms", "quiet_ping_p99_ms", "quiet_ping_max_ms"];
const PING: [&str; 3] = ["ping_p50_ms", "ping_p99_ms", "ping_max_ms"];
const GUEST_CONNECT: [&str; 3] =
    ["guest_connect_p50_ms", "guest_connect_p99_ms", "guest_connect_max_ms"];
const DATAGRAM: [&str; 3] = ["datagram_p50_ms", "datagram_p99_ms", "datagram_max_ms"];

fn row(number: u32, Round { upgraded, phase }: &Round) -> Value {
    let moved = &upgraded.moved;
    let lag = |quantile| phase.totals.lags.quantile_ms(quantile).map(milli);
    let counts = |kinds: &[crate::spawn::UpgradedCount]| -> Value {
        kinds.iter().map(|kind| (kind.kind.clone(), Value::from(kind.count))).collect()
    };
    json!({
        "upgrade": number,
        "pause_ms": milli(moved.pause_ms),
        "took_ms": milli(upgraded.took.as_secs_f64() * 1000.0),
        "moved": upgraded.connections(),
        "moved_by": counts(&moved.moved),
        "stayed_by": counts(&moved.stayed),
        "finished": upgraded.left.finished,
        "state_bytes": moved.bytes,
        "old_bytes": moved.old_bytes,
        "new_bytes": moved.new_bytes,
        "lag_p50_ms": lag(0.5),
        "lag_p99_ms": lag(0.99),
        "lag_max_ms": lag(1.0),
        "device_lag_max_ms": phase.heard.lags.max_ms().map(milli),
        "ping_max_ms": phase.totals.lags_ping.max_ms().map(milli),
        "publish_busy": phase.told.busy,
        "publish_longest_ms": milli(phase.told.longest.as_secs_f64() * 1000.0),
        "lost": lost(phase),
        "doubled": doubled(phase),
        "closed": closed(phase),
    })
}

/// The clients that came and went during the upgrades.
fn fill_guests(report: &mut Report, rounds: &[Round]) {
    let mut all = crate::workers::Churned::default();
    let guests = rounds.iter().filter_map(|round| round.phase.guests.as_ref());
    for guests in guests.clone() {
        all.tally.welcomed += guests.tally.welcomed;
        for (by, count) in &guests.tally.refused {
            *all.tally.refused.entry(by.clone()).or_insert(0) += count;
        }
        all.connects.add(&guests.connects.counts());
    }
    if guests.count() > 0 {
        report.set("guests", all.tally.welcomed);
        report.set("guests_refused_by", json!(all.tally.refused));
        fill_lags(report, GUEST_CONNECT, &all.connects);
    }
}

fn fill_meter(report: &mut Report, metered: Metered) {
    report.set("datagrams", metered.published);
    report.set("datagrams_repeated", metered.repeated);
    fill_lags(report, DATAGRAM, &metered.lags);
    report.check(metered.published > 0, || "no datagram was answered".to_owned());
}
