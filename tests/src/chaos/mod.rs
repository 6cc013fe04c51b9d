//! Chaos on real processes: three nodes and their Redis, to which something bad happens while
//! clients listen and publishers publish. Then each client has got each message in order and once,
//! or was told that some are lost; and no connection was lost but those of a node that was killed.
//!
//! | part | does |
//! |---|---|
//! | `fault` | starts nodes and Redis; has the fault happen |
//! | `clients` | clients that come back and go on where they were |
//! | `seen` | what one client has seen of a topic, and what it was told |
//! | `publishers` | publishers that send each message until it is accepted |
//! | `ledger` | what was published, and where it stands |
//! | `devices` | devices with two connections, or revoked while a node is alone |

mod clients;
mod devices;
mod fault;
mod ledger;
mod publishers;
mod seen;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use self::clients::{Crowd, lock};
pub use self::devices::{race, revoke};
pub use self::fault::Fault;
use self::fault::Machines;
use self::publishers::Publishers;
use self::seen::Fate;
use crate::admin::Answer;
use crate::program::raise_open_files;
use crate::wait::{PATIENCE, now, pause, rest};

/// How much happens.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Clients, spread over the nodes.
    pub clients: usize,
    /// Topics.
    pub topics: usize,
    /// Topics that each client is in.
    pub topics_each: usize,
    /// Messages a second, to all topics together.
    pub rate: usize,
    /// How often the fault happens.
    pub times: usize,
    /// How long messages flow before the fault, and after all is well again.
    pub flow: Duration,
    /// How long Redis, or a connection to it, is away.
    pub outage: Duration,
    /// How long Redis does nothing.
    pub stop: Duration,
    /// For how long a replica has got nothing when it takes over.
    pub tail: Duration,
    /// Slots of a Redis Cluster that move.
    pub slots: usize,
}

impl Default for Scale {
    /// So small that the tests of the repository can afford it.
    fn default() -> Scale {
        Scale {
            clients: 60,
            topics: 6,
            topics_each: 2,
            rate: 60,
            times: 1,
            flow: Duration::from_millis(500),
            outage: Duration::from_millis(1500),
            stop: Duration::from_secs(3),
            tail: Duration::from_millis(500),
            slots: 400,
        }
    }
}

impl Scale {
    /// The default, or what the environment says: `WEIR_CHAOS_CLIENTS`, `…_TOPICS`, `…_RATE`, `…_TIMES`. With more
    /// clients, faults last longer.
    pub fn read() -> Result<Scale> {
        let small = Scale::default();
        let clients = Self::number("CLIENTS", small.clients)?;
        let lengths = match clients > small.clients {
            false => small.clone(),
            true => Scale {
                flow: Duration::from_secs(2),
                outage: Duration::from_secs(5),
                stop: Duration::from_secs(20),
                tail: Duration::from_secs(1),
                slots: 1000,
                ..small.clone()
            },
        };
        Ok(Scale {
            clients,
            topics: Self::number("TOPICS", small.topics)?,
            rate: Self::number("RATE", small.rate)?,
            times: Self::number("TIMES", small.times)?,
            ..lengths
        })
    }

    /// The number in the variable `WEIR_CHAOS_` with this name behind it, or the default.
    pub fn number(name: &str, default: usize) -> Result<usize> {
        let name = format!("WEIR_CHAOS_{name}");
        let value = std::env::var(&name).ok();
        value.map_or(Ok(default), |value| {
            value.parse().with_context(|| format!("{name} is a number"))
        })
    }
}

/// What came of one fault.
#[derive(Debug, Default)]
pub struct Round {
    /// From its end until all clients were connected, all nodes had Redis, and a new message in each
    /// topic had reached all its clients.
    pub well_after: Duration,
    /// Messages that were accepted.
    pub messages: usize,
    /// Losses that clients were told of, of each client and topic.
    pub told: usize,
    /// Messages that clients have not got, and were told to be lost.
    pub told_messages: usize,
    /// Messages that clients have not got without a word, and other broken promises.
    pub untold: usize,
    /// Messages that stand in several epochs: those that Redis kept came again behind the loss that was told, and those
    /// that it lost were published again.
    pub repeated: usize,
    /// Connections that ended although their node had not.
    pub lost_connections: usize,
    /// The first of what is wrong.
    pub problems: Vec<String>,
}

impl fmt::Display for Round {
    /// As `cargo xtask chaos` reads it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Round { messages, told, told_messages, untold, repeated, lost_connections, .. } = self;
        let well_after = self.well_after.as_millis();
        write!(
            out,
            "well_after_ms={well_after} messages={messages} told={told} told_messages={told_messages} \
             untold={untold} repeated={repeated} lost_connections={lost_connections}"
        )
    }
}

/// Has a fault happen as often as `scale` says.
///
/// Errors: something did not start, or did not become well again.
pub fn run(fault: Fault, scale: &Scale, mut handle: impl FnMut(&Round)) -> Result<()> {
    raise_open_files()?;
    let mut world = World::start(fault, scale.clone())?;
    for round in 0..scale.times {
        let outcome = world.run(round);
        match outcome {
            Ok(outcome) => handle(&outcome),
            Err(error) => bail!("{error:#}\n{}", world.report()),
        }
    }
    Ok(())
}

/// Everything that runs.
struct World {
    fault: Fault,
    scale: Scale,
    // Ends first: what the end of the nodes does to clients means nothing.
    _clients: Clients,
    publishers: Publishers,
    crowd: Arc<Crowd>,
    machines: Machines,
}

/// The clients' tasks. Dropped, they end at once.
struct Clients {
    crowd: Arc<Crowd>,
    runtime: Option<Runtime>,
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.crowd.end();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl World {
    fn start(fault: Fault, scale: Scale) -> Result<World> {
        // While a node is away that hears nothing, several times as many messages come.
        let away = usize::try_from(scale.outage.as_millis())? * scale.rate / scale.topics / 1000;
        let kept = if fault == Fault::Outgrown { away.div_ceil(4) } else { KEPT };
        let machines = Machines::start(fault, kept)?;
        let sizes = (scale.topics, scale.clients, scale.topics_each);
        let crowd = Arc::new(Crowd::new(machines.doors(), sizes));
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        for index in 0..scale.clients {
            runtime.spawn(Arc::clone(&crowd).run(index));
        }
        let clients = Clients { crowd: Arc::clone(&crowd), runtime: Some(runtime) };
        // As many as are busy when an answer takes half a second.
        let workers = (scale.rate / 2).max(4);
        let publishers = Publishers::start(&crowd, machines.admins(), (scale.rate, workers));
        let world = World { fault, scale, _clients: clients, publishers, crowd, machines };
        until("all clients are there", || Ok(world.crowd.missing() == 0))?;
        Ok(world)
    }

    fn run(&mut self, round: usize) -> Result<Round> {
        self.publishers.go_on();
        self.crowd.set_restless(true);
        pause(self.scale.flow);
        if let Some(victim) = Machines::victim(self.fault, round) {
            self.crowd.set_killed(victim, true);
        }
        let over = self.machines.inflict(self.fault, round, &self.scale)?;
        let fresh = self.publishers.next_number();
        until("all is well again", || self.is_well(fresh))?;
        let well_after = over.elapsed();
        pause(self.scale.flow);
        self.settle()?;
        let outcome = self.judge(well_after)?;
        self.mend()?;
        Ok(outcome)
    }

    /// Whether clients and nodes are connected, and a new message has come through in each topic.
    fn is_well(&self, fresh: u64) -> Result<bool> {
        if self.crowd.missing() > 0 {
            return Ok(false);
        }
        let came_through = |topic: usize| {
            let message = self.crowd.ledger.first_fresh(topic, fresh);
            message.is_some_and(|message| self.crowd.behind(topic, message) == 0)
        };
        Ok((0..self.scale.topics).all(came_through) && self.nodes_have_redis()?)
    }

    fn nodes_have_redis(&self) -> Result<bool> {
        for node in self.machines.living() {
            if node.metrics()?.sum("weir_broker_reachable", "") != 1.0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lets everything that flows arrive.
    fn settle(&self) -> Result<()> {
        self.crowd.set_restless(false);
        self.publishers.pause();
        until("all messages are answered", || Ok(self.publishers.unanswered() == 0))?;
        let last = self.publishers.next_number();
        self.publishers.publish_to_all();
        until("the last messages have come", || {
            let has_come = |topic: usize| {
                let message = self.crowd.ledger.newest(topic, last);
                message.is_some_and(|message| self.crowd.behind(topic, message) == 0)
            };
            Ok((0..self.scale.topics).all(has_come))
        })
    }

    /// Compares what was published with what each client has seen.
    fn judge(&self, well_after: Duration) -> Result<Round> {
        let (mut messages, mut told, mut told_messages) = (0, 0, 0);
        for topic in 0..self.scale.topics {
            let answered = self.crowd.ledger.answered(topic);
            messages += answered.len();
            for (listener, seen) in self.crowd.views(topic) {
                let seen = lock(seen);
                told += seen.told();
                for message in &answered {
                    match seen.fate(*message) {
                        Fate::Seen | Fate::Earlier => {}
                        Fate::Told => told_messages += 1,
                        Fate::Untold => self.crowd.note_problem(format!(
                            "{} has not got {message:?} of {}, and was not told: {seen:?}",
                            listener.name(),
                            self.crowd.topics[topic],
                        )),
                    }
                }
            }
        }
        if told > 0 && !self.fault.may_lose() {
            self.crowd.note_problem(format!("{told} losses are told, and there were none"));
        }
        self.look_at_nodes()?;
        let lost = self.crowd.take_lost();
        let (untold, mut problems) = self.crowd.take_problems();
        problems.extend(lost.iter().take(LOST_SHOWN).cloned());
        let (repeated, lost_connections) = (self.crowd.ledger.repeated(), lost.len());
        Ok(Round {
            well_after,
            messages,
            told,
            told_messages,
            untold,
            repeated,
            lost_connections,
            problems,
        })
    }

    /// Each client has one connection, and each node knows all nodes.
    fn look_at_nodes(&self) -> Result<()> {
        until("each client has one connection, and the nodes know each other", || {
            let mut connections = 0.0;
            for node in self.machines.living() {
                connections += node.metrics()?.connections("settled");
                let nodes: Value =
                    serde_json::from_str(&Answer::get(node.admin, "/v1/nodes")?.body)?;
                let nodes = nodes["nodes"].as_array().context("a list of nodes")?;
                let mut numbers: Vec<u64> =
                    nodes.iter().filter_map(|node| node["number"].as_u64()).collect();
                numbers.dedup();
                if numbers.len() != self.machines.living().count() {
                    return Ok(false);
                }
            }
            #[expect(clippy::cast_precision_loss, reason = "some thousands")]
            let expected = self.scale.clients as f64;
            Ok(connections == expected)
        })
    }

    /// Makes everything as it was, and forgets what has been seen.
    fn mend(&mut self) -> Result<()> {
        let killed = self.machines.killed;
        self.machines.mend()?;
        if let Some(node) = killed {
            self.crowd.set_killed(node, false);
        }
        until("the nodes have Redis", || self.nodes_have_redis())?;
        self.crowd.ledger.clear();
        for topic in 0..self.scale.topics {
            self.crowd.views(topic).for_each(|(_, seen)| lock(seen).begin_again());
        }
        Ok(())
    }

    /// What there is to see, for those who look for the cause.
    fn report(&self) -> String {
        let (count, problems) = self.crowd.take_problems();
        let mut report = format!(
            "{} clients are missing, {} messages are not answered, {count} problems: {problems:#?}\n",
            self.crowd.missing(),
            self.publishers.unanswered(),
        );
        for topic in 0..self.scale.topics {
            let newest = self.crowd.ledger.newest(topic, 0);
            let behind = newest.map(|newest| self.crowd.behind(topic, newest));
            report.push_str(&format!("topic {topic}: newest {newest:?}, behind {behind:?}\n"));
        }
        for node in self.machines.living() {
            let log = node.log();
            let lines: Vec<&str> = log.lines().rev().take(LINES_SHOWN).collect();
            let lines: Vec<&str> = lines.into_iter().rev().collect();
            report.push_str(&format!("log of {}:\n{}\n", node.admin, lines.join("\n")));
        }
        report
    }
}

fn until(what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = now() + PATIENCE.min(WELL_MAX);
    while !is_so()? {
        ensure!(now() < deadline, "waited in vain until {what}");
        rest();
    }
    Ok(())
}

/// Longer than anything takes that works, and shorter than a run of many rounds.
const WELL_MAX: Duration = Duration::from_secs(120);
/// Messages of a topic that Redis and the nodes keep: more than a round has.
const KEPT: usize = 1000;
const LOST_SHOWN: usize = 10;
const LINES_SHOWN: usize = 40;
