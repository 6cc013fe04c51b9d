//! One run: a loss, and everything until all clients are back.

use super::clients::{Agenda, Group, Library, Notice, STEP_MS};
use super::costs;
use super::limits::{Limits, Settings};
use super::node::Node;
use super::redis::{Claims, Price, Redis};

/// A cluster, and what happens to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scenario {
    pub(super) nodes: u64,
    pub(super) lost: u64,
    /// Connections of each node.
    pub(super) connections: u64,
    /// Redis' primaries.
    pub(super) shards: u64,
    /// Topics that a device has for itself: each is followed and read at Redis.
    pub(super) own_topics: u64,
    pub(super) notice: Notice,
    pub(super) library: Library,
    pub(super) settings: Settings,
    pub(super) seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    /// Clients that lost their connection.
    pub(super) clients: u64,
    /// Every [`SAMPLE_MS`]: how many had been welcomed again, and how many Redis knew again.
    pub(super) samples: Vec<(u64, u64)>,
    /// When half of them, 99 % and all had been welcomed again (ms); `None`: never.
    pub(super) back_ms: [Option<u64>; 3],
    /// When Redis knew all of them again.
    pub(super) claimed_ms: Option<u64>,
    pub(super) attempts: u64,
    pub(super) limits: Limits,
    /// The most handshakes that waited at a node.
    pub(super) queue_peak: u64,
    /// The most claims that waited at a node.
    pub(super) claims_peak: u64,
    /// CPU time until 99 % were back, in percent: of the nodes, and of Redis.
    pub(super) cpu_percent: u64,
    pub(super) redis_percent: u64,
}

/// A cluster on its way back.
struct Cluster {
    scenario: Scenario,
    agenda: Agenda,
    nodes: Vec<(Node, Claims)>,
    redis: Redis,
    limits: Limits,
    attempts: u64,
    welcomed: u64,
    claimed: u64,
}

impl Scenario {
    /// Runs it.
    pub(super) fn run(&self) -> Run {
        let clients = self.lost * self.connections;
        let mut cluster = Cluster::new(self);
        let mut run = Run {
            clients,
            samples: Vec::new(),
            back_ms: [None; 3],
            claimed_ms: None,
            attempts: 0,
            limits: Limits::default(),
            queue_peak: 0,
            claims_peak: 0,
            cpu_percent: 0,
            redis_percent: 0,
        };
        for now in 0..END_STEPS {
            if (now * STEP_MS).is_multiple_of(SAMPLE_MS) {
                run.samples.push((cluster.welcomed, cluster.claimed));
            }
            cluster.step(now);
            debug_assert_eq!(cluster.clients(), clients, "no client is lost or doubled");
            run.note(&cluster, now);
            if run.claimed_ms.is_some() || cluster.is_full() {
                break;
            }
        }
        run.samples.push((cluster.welcomed, cluster.claimed));
        run.attempts = cluster.attempts;
        run.queue_peak = cluster.nodes.iter().map(|(node, _)| node.queue_peak).max().unwrap_or(0);
        let claims = cluster.nodes.iter().map(|(_, claims)| claims.waiting_peak);
        run.claims_peak = claims.max().unwrap_or(0);
        run.limits = cluster.limits;
        run
    }
}

impl Run {
    /// Notes the first moments at which enough clients are back.
    fn note(&mut self, cluster: &Cluster, now: u64) {
        let elapsed = (now + 1) * STEP_MS;
        for (percent, at) in PERCENTS.into_iter().zip(&mut self.back_ms) {
            if at.is_none() && cluster.welcomed * 100 >= self.clients * percent {
                *at = Some(elapsed);
                if percent == 99 {
                    let live = cluster.nodes.len() as u64;
                    let busy: u64 = cluster.nodes.iter().map(|(node, _)| node.busy_ns).sum();
                    self.cpu_percent = busy / (live * costs::CORES * elapsed * 10_000);
                    self.redis_percent = cluster.redis.busy_ns / (elapsed * 10_000);
                }
            }
        }
        if cluster.claimed == self.clients {
            self.claimed_ms = Some(elapsed);
        }
    }
}

impl Cluster {
    fn new(scenario: &Scenario) -> Cluster {
        let Scenario { nodes, lost, connections, settings, .. } = scenario;
        let mut agenda = Agenda::new(scenario.library, scenario.seed);
        agenda.lose(lost * connections, scenario.notice);
        // If all are lost, they begin again, without connections.
        let (live, settled) =
            if lost == nodes { (*nodes, 0) } else { (nodes - lost, *connections) };
        let topics = nodes * connections * scenario.own_topics;
        let mut redis = Redis::new(scenario.shards, topics);
        // The subscriptions of the lost nodes end first.
        redis.work(0, lost * connections * (1 + scenario.own_topics) * costs::END_NS);
        Cluster {
            scenario: *scenario,
            agenda,
            nodes: (0..live).map(|_| (Node::new(settled, settings), Claims::default())).collect(),
            redis,
            limits: Limits::default(),
            attempts: 0,
            welcomed: 0,
            claimed: 0,
        }
    }

    fn step(&mut self, now: u64) {
        let trying = self.agenda.next();
        self.attempts += trying.total();
        if self.scenario.lost == self.scenario.nodes && now < RESTART_STEPS {
            // Nobody listens: the kernel refuses.
            self.agenda.fail(&trying, false);
            return;
        }
        let arrivals = self.choose_nodes(&trying);
        let count = self.nodes.len();
        let price = self.price(now);
        let mut unheard = Group::default();
        let (mut reset, mut told) = (Group::default(), Group::default());
        // Another node has the first turn at Redis in each step.
        for turn in 0..count {
            let index = (turn + usize::try_from(now).unwrap_or(0)) % count;
            let (node, claims) = &mut self.nodes[index];
            let (claimed, sent) = claims.step(now, price, &mut self.redis, &mut self.limits);
            self.claimed += claimed;
            let settings = &self.scenario.settings;
            if arrivals[index].is_empty() && node.is_idle(settings) {
                continue;
            }
            let front_ns = sent * price.node_ns;
            let outcome = node.step(now, &arrivals[index], front_ns, settings, &mut self.limits);
            claims.enter(outcome.welcomed);
            self.welcomed += outcome.welcomed;
            reset.merge(&outcome.reset);
            told.merge(&outcome.told);
            unheard.merge(&outcome.unheard);
        }
        self.agenda.fail(&reset, true);
        self.agenda.come_back(&told);
        // The same attempt goes on.
        self.attempts -= unheard.total();
        self.agenda.send_again(&unheard);
    }

    /// What Redis takes now for all that a device needs there.
    fn price(&self, now: u64) -> Price {
        let Scenario { notice, own_topics, .. } = self.scenario;
        let claim = match notice {
            // The node has taken its claims back.
            Notice::Drain { .. } => costs::CLAIM_NEW,
            Notice::Reset { .. } if now < NODE_TTL_STEPS => costs::CLAIM_LEFT,
            Notice::Reset { .. } | Notice::Silence { .. } => costs::CLAIM_DEAD,
        };
        let live = self.nodes.len() as u64;
        Price {
            node_ns: costs::CLAIM_AT_NODE.ns(live),
            redis_ns: claim.ns(live) + own_topics * costs::TOPIC_NS,
        }
    }

    /// Each attempt goes to a node that lives, as a balancer that counts connects chooses it.
    fn choose_nodes(&mut self, trying: &Group) -> Vec<Group> {
        let count = self.nodes.len() as u64;
        let mut arrivals = vec![Group::default(); self.nodes.len()];
        for (kind, clients) in trying.kinds() {
            let (each, rest) = (clients / count, clients % count);
            for arrival in &mut arrivals {
                arrival.add(kind, each);
            }
            for _ in 0..rest {
                let node = self.agenda.dice().below(count);
                arrivals[usize::try_from(node).unwrap_or(0)].add(kind, 1);
            }
        }
        arrivals
    }

    /// All clients, wherever they are.
    fn clients(&self) -> u64 {
        let inside = self.nodes.iter().map(|(node, _)| node.unsettled() + node.held());
        self.agenda.waiting() + inside.sum::<u64>() + self.welcomed
    }

    /// Whether no node has room for those that are still out.
    fn is_full(&self) -> bool {
        let max = self.scenario.settings.connections_max;
        self.welcomed < self.scenario.lost * self.scenario.connections
            && self.nodes.iter().all(|(node, _)| node.settled >= max)
    }
}

/// The distance of two samples.
pub(super) const SAMPLE_MS: u64 = 100;
const PERCENTS: [u64; 3] = [50, 99, 100];
const STEPS_PER_SECOND: u64 = 1_000 / STEP_MS;
/// `cluster.node_ttl`.
const NODE_TTL_STEPS: u64 = 6 * STEPS_PER_SECOND;
/// Assumed: all nodes listen again this long after they were lost together.
const RESTART_STEPS: u64 = 30 * STEPS_PER_SECOND;
/// Half an hour.
const END_STEPS: u64 = 1_800 * STEPS_PER_SECOND;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::limits::{Limit, Sources, Transport};

    /// One of two small nodes ends, and no limit is in the way.
    fn small() -> Scenario {
        let settings = Settings {
            unsettled_max: 1_000_000,
            queue_max: 1_000_000,
            accept_backlog: 1_000_000,
            ..Settings::RAISED
        };
        Scenario {
            nodes: 2,
            lost: 1,
            connections: 10_000,
            shards: 1,
            own_topics: 0,
            notice: Notice::Reset { over_ms: 0 },
            library: Library::Rust,
            settings,
            seed: 7,
        }
    }

    fn check_time(found: Option<u64>, from_ms: u64, to_ms: u64) {
        assert!(found.is_some_and(|ms| (from_ms..=to_ms).contains(&ms)), "{found:?}");
    }

    /// How often a limit was met.
    fn met(run: &Run, limit: Limit) -> u64 {
        run.limits.met().iter().filter(|met| met.limit == limit).map(|met| met.count).sum()
    }

    #[test]
    fn a_seed_repeats_a_run_and_another_does_not() {
        let tight = Settings { queue_max: 100, ..small().settings };
        let scenario = Scenario { settings: tight, ..small() };
        let first = scenario.run();
        assert_eq!(first, scenario.run());
        assert_ne!(first, Scenario { seed: 8, ..scenario }.run());
    }

    #[test]
    fn each_client_is_back_exactly_once_whatever_happens() {
        let shipped = Settings { connections_max: 30_000, ..Settings::SHIPPED };
        let sources = Sources { count: 10, per_second: 50, burst: 100 };
        for settings in [
            shipped,
            Settings { queue_max: 50, has_ticket_secret: true, ..shipped },
            Settings { unsettled_max: 20, accept_backlog: 10, ..shipped },
            Settings { transport: Transport::Plain, unsettled_max: 20, ..shipped },
            Settings { sources: Some(sources), ..shipped },
        ] {
            for library in [Library::Rust, Library::JavaScript] {
                for (nodes, lost) in [(2, 1), (10, 3), (4, 4)] {
                    let run = Scenario { nodes, lost, library, settings, ..small() }.run();
                    // `run` itself looks at each step that no client is lost or doubled.
                    let last = run.samples.last().copied();
                    assert_eq!(last, Some((lost * 10_000, lost * 10_000)), "{settings:?}");
                    assert!(run.attempts >= run.clients);
                }
            }
        }
    }

    #[test]
    fn without_limits_the_delay_decides() {
        let run = small().run();
        // A delay of 250 to 500 ms, a round trip to connect, and one for the handshake.
        check_time(run.back_ms[0], 250 + 200, 500 + 200);
        let cpu_ms = 10_000 * costs::FULL_NS / (costs::CORES * 700_000);
        check_time(run.back_ms[2], 500 + 200 - 20, 500 + 200 + cpu_ms);
        assert_eq!((run.attempts, run.limits.met()), (10_000, &[][..]));
    }

    #[test]
    fn many_handshakes_take_the_cpu_time_that_arithmetic_says() {
        let run = Scenario { connections: 100_000, ..small() }.run();
        let cpu_ms = 100_000 * costs::FULL_NS / (costs::CORES * 1_000_000) * 100
            / (100 - costs::CPU_BUSY_PERCENT);
        check_time(run.back_ms[2], cpu_ms + 450, cpu_ms * 11 / 10 + 450);
        assert_eq!(run.attempts, 100_000);
    }

    #[test]
    fn claims_take_the_time_of_redis_that_arithmetic_says() {
        let run = Scenario { nodes: 11, lost: 10, ..small() }.run();
        let each = costs::CLAIM_LEFT.ns(1) + costs::END_NS;
        let redis_ms = run.clients * each / 10_000 / (100 - costs::REDIS_BUSY_PERCENT);
        let all_ms = redis_ms
            + run.clients * (costs::CLAIM_AT_NODE.ns(1) + costs::CLAIM_TRIPS_NS) / 1_000_000;
        check_time(run.claimed_ms, redis_ms, all_ms + 1_000);
    }

    #[test]
    fn a_cluster_without_room_takes_nobody() {
        let settings = Settings { connections_max: 10_000, ..small().settings };
        let run = Scenario { settings, ..small() }.run();
        assert_eq!((run.back_ms, run.claimed_ms), ([None; 3], None));
    }

    #[test]
    fn refusals_and_late_handshakes_are_met_as_limits() {
        let check = |settings: Settings, limit: Limit| {
            let run = Scenario { connections: 100_000, settings, ..small() }.run();
            assert!(met(&run, limit) > 0, "{limit:?}: {:?}", run.limits);
            assert!(run.attempts > run.clients || limit == Limit::Backlog);
        };
        let all = small().settings;
        check(Settings { queue_max: 100, ..all }, Limit::Queue);
        check(Settings { unsettled_max: 100, ..all }, Limit::Unsettled);
        check(Settings { accept_backlog: 100, ..all }, Limit::Backlog);
        let endless = Settings {
            connections_max: 10_000_000,
            unsettled_max: 10_000_000,
            queue_max: 10_000_000,
            accept_backlog: 10_000_000,
            ..all
        };
        let late = Scenario { connections: 5_000_000, settings: endless, ..small() };
        let run = late.run();
        assert!(met(&run, Limit::Patience) > 0, "{:?}", run.limits);
    }

    #[test]
    fn openings_that_outrun_the_claims_cost_no_claim_twice() {
        let settings = Settings { transport: Transport::Plain, ..small().settings };
        let run = Scenario { connections: 1_000_000, settings, ..small() }.run();
        assert!(run.claims_peak > 100_000, "{}", run.claims_peak);
        // The node alive has as many devices of its own, which Redis knows.
        let redis_ms = |claim: costs::Call| {
            let each = claim.ns(1) + costs::END_NS;
            run.clients * each / 10_000 / (100 - costs::REDIS_BUSY_PERCENT)
        };
        let rest_ms =
            run.clients * (costs::CLAIM_AT_NODE.ns(1) + costs::CLAIM_TRIPS_NS) / 1_000_000;
        check_time(
            run.claimed_ms,
            redis_ms(costs::CLAIM_LEFT),
            redis_ms(costs::CLAIM_DEAD) + rest_ms,
        );
    }
}
