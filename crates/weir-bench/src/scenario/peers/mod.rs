//! `peers`: Weir and other servers do the same work in turn, with the same clients.
//!
//! Each kind of work has a file, which starts the servers and measures rounds. All of them give the
//! same form of report: a list of contestants, each with the figures of its rounds.

mod broadcast;
mod echo;
mod handshake;
mod idle;
mod udp;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use super::Setup;
use crate::cli::{PeersArgs, Work};
use crate::payload::foreign::Protocol;
use crate::protocol::OpenPlan;
use crate::report::Report;
use crate::spawn::{Rival, RivalKind, Service};
use crate::stats::{median, milli};
use crate::tls::credentials::KeyKind;
use crate::tls::{COMMON_GROUP, TlsPlan, TlsVersion};

/// A server that takes part, and the figures of its rounds.
struct Contestant {
    name: &'static str,
    description: Vec<String>,
    rounds: Vec<Figures>,
}

/// Figures of one round by name; `None`: not measured.
type Figures = Vec<(&'static str, Option<f64>)>;

/// The names of those that are no other server.
const WEIR: &str = "weir";
const BARE: &str = "bare";

/// Runs the scenario.
pub(crate) fn run(args: &PeersArgs, report: &mut Report) -> Result<()> {
    if args.target.spawn.is_none() {
        bail!("peers starts all servers itself: it needs --spawn");
    }
    for name in &args.only {
        if !RivalKind::ALL.iter().any(|kind| kind.name() == name) {
            bail!("there is no peer {name}: the peers are netty, nats and mosquitto");
        }
    }
    report.set("work", args.work.name());
    // As in `idle`, servers at rest run with all CPUs.
    let mut setup = Setup::new(&args.run, Some(&args.target), args.work != Work::Idle)?;
    if let Some(tls) = &mut setup.tls {
        agree(tls, args.target.tls.tls_key);
    }
    let contestants = match args.work {
        Work::Idle => idle::run(args, &setup, report)?,
        Work::Broadcast => broadcast::run(args, &setup, report)?,
        Work::Echo => echo::run(args, &setup, report)?,
        Work::Handshake => handshake::run(args, &setup, report)?,
        Work::Udp => udp::run(args, &setup, report)?,
    };
    report.set("contestants", contestants.iter().map(Contestant::shown).collect::<Vec<_>>());
    report.check(contestants.iter().all(|one| !one.rounds.is_empty()), || {
        "a server was not measured".to_owned()
    });
    let agreed = setup.handshakes.agreed();
    report
        .check(agreed.len() <= 1, || format!("the servers agreed on different things: {agreed:?}"));
    setup.describe(report);
    Ok(())
}

/// Leaves the servers no choice: each would agree on another suite and group. The version is 1.3 unless
/// the options say otherwise.
fn agree(tls: &mut TlsPlan, key: KeyKind) {
    let version = *tls.version.get_or_insert(TlsVersion::Tls13);
    let suite = match (version, key) {
        (TlsVersion::Tls13, _) => "TLS13_AES_128_GCM_SHA256",
        (TlsVersion::Tls12, KeyKind::Ecdsa) => "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        (TlsVersion::Tls12, KeyKind::Rsa) => "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    };
    tls.suite.get_or_insert_with(|| suite.to_owned());
    tls.group = (version == TlsVersion::Tls13).then(|| COMMON_GROUP.to_owned());
}

impl Contestant {
    fn weir() -> Contestant {
        Contestant { name: WEIR, description: Vec::new(), rounds: Vec::new() }
    }

    /// The baseline of the bench.
    fn bare() -> Contestant {
        Contestant { name: BARE, description: Vec::new(), rounds: Vec::new() }
    }

    fn rival(rival: &Rival) -> Contestant {
        let (name, description) = (rival.kind.name(), rival.description.clone());
        Contestant { name, description, rounds: Vec::new() }
    }

    fn shown(&self) -> Value {
        let names = self.rounds.first().into_iter().flatten().map(|(name, _)| *name);
        let middle = |name: &str| {
            let values = self.rounds.iter().flatten().filter(|(known, _)| *known == name);
            median(values.filter_map(|(_, value)| *value)).map(milli)
        };
        let medians = names.map(|name| (name.to_owned(), middle(name).into()));
        json!({
            "name": self.name,
            "description": self.description,
            "medians": medians.collect::<Map<_, _>>(),
            "rounds": self.rounds.iter().map(shown).collect::<Vec<_>>(),
        })
    }
}

fn shown(figures: &Figures) -> Value {
    let figures = figures.iter().map(|(name, value)| ((*name).to_owned(), value.map(milli).into()));
    Value::Object(figures.collect())
}

/// The kinds that shall take part; those that cannot be started are reported.
fn kinds(args: &PeersArgs, able: &[RivalKind], report: &mut Report) -> Vec<RivalKind> {
    let mut skipped: Vec<String> = Vec::new();
    let mut kinds = Vec::new();
    for kind in able {
        if !args.only.is_empty() && !args.only.iter().any(|name| name == kind.name()) {
            continue;
        }
        match kind.describe(&args.scripts) {
            Ok(_) => kinds.push(*kind),
            Err(error) => skipped.push(format!("{}: {error:#}", kind.name())),
        }
    }
    report.set("skipped", skipped);
    kinds
}

/// Starts a server for connections of devices, with TLS if the options say so.
fn start_for_devices(args: &PeersArgs, setup: &Setup, kind: RivalKind) -> Result<Rival> {
    let service = if args.target.tls.tls {
        Service::SecureDevices(args.target.tls.credentials()?)
    } else {
        Service::Devices
    };
    Rival::start(kind, &args.scripts, service, setup.server_cpus.as_ref())
}

/// The plan of clients for another server.
fn plan_for(plan: OpenPlan, rival: &Rival) -> OpenPlan {
    let protocol = rival.kind.protocol();
    let tls = plan.tls.map(|tls| {
        let alpn = if protocol == Protocol::Weir { tls.alpn.clone() } else { Vec::new() };
        TlsPlan { alpn, ..tls }
    });
    OpenPlan { addr: rival.addr, protocol, tls, ..plan }
}
