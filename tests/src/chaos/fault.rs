//! The faults, and what they are inflicted on: several nodes and their Redis.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::process::Signal;

use super::Scale;
use crate::databases::Redis;
use crate::program::Server;
use crate::proxy::Proxy;
use crate::redis_cluster::RedisCluster;
use crate::wait::{now, pause};

/// What happens while messages flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A node is killed.
    NodeKilled,
    /// A node does nothing for some time, and then goes on.
    NodeStopped,
    /// Redis is killed, and comes back empty.
    RedisKilled,
    /// Redis is killed, and comes back with what its append-only file holds.
    RedisKilledWithFile,
    /// Redis is killed, and a replica takes over that lacks the last messages.
    Failover,
    /// Redis does nothing for some time, and then goes on.
    RedisStopped,
    /// Connections to Redis are closed, and new ones too.
    Cut,
    /// What goes to and from Redis takes longer.
    Delayed,
    /// Nothing goes to and from Redis, and no connection closes.
    Blackholed,
    /// The same, for longer than Redis keeps messages.
    Outgrown,
    /// A node is killed, another one is cut off, and Redis is killed and comes back, all at once.
    Mixed,
    /// Slots of a Redis Cluster move.
    Resharded,
    /// A primary of a Redis Cluster is killed, and its replica takes over.
    PrimaryKilled,
}

impl Fault {
    /// All of them, with the names of their tests.
    const ALL: [(Fault, &'static str); 13] = [
        (Fault::NodeKilled, "node_killed"),
        (Fault::NodeStopped, "node_stopped"),
        (Fault::RedisKilled, "redis_killed"),
        (Fault::RedisKilledWithFile, "redis_killed_with_file"),
        (Fault::Failover, "failover"),
        (Fault::RedisStopped, "redis_stopped"),
        (Fault::Cut, "cut"),
        (Fault::Delayed, "delayed"),
        (Fault::Blackholed, "blackholed"),
        (Fault::Outgrown, "outgrown"),
        (Fault::Mixed, "mixed"),
        (Fault::Resharded, "resharded"),
        (Fault::PrimaryKilled, "primary_killed"),
    ];

    /// Whether Redis may lose messages that it has accepted, or cannot tell that it has not.
    pub(super) fn may_lose(self) -> bool {
        match self {
            Fault::RedisKilled
            | Fault::RedisKilledWithFile
            | Fault::Failover
            | Fault::Outgrown
            | Fault::Mixed
            | Fault::PrimaryKilled => true,
            Fault::NodeKilled
            | Fault::NodeStopped
            | Fault::RedisStopped
            | Fault::Cut
            | Fault::Delayed
            | Fault::Blackholed
            | Fault::Resharded => false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Fault::ALL.iter().find(|(fault, _)| fault == self);
        out.write_str(found.map_or("", |(_, name)| *name))
    }
}

/// The Redis that holds the nodes together.
enum Broker {
    /// One server, and a proxy before it for each node.
    Single(Redis, Vec<Proxy>),
    /// Two servers; the number is that of the primary.
    Pair([Redis; 2], usize),
    Cluster(RedisCluster),
}

/// The nodes and their Redis.
pub(super) struct Machines {
    broker: Broker,
    pub(super) nodes: Vec<Server>,
    /// The node that is killed.
    pub(super) killed: Option<usize>,
}

impl Machines {
    /// Nodes that keep so many messages of each topic.
    pub(super) fn start(fault: Fault, kept: usize) -> Result<Machines> {
        let broker = Broker::start(fault)?;
        let nodes = (0..NODES).map(|node| start_node(node, &broker.urls(node), kept));
        Ok(Machines { nodes: nodes.collect::<Result<_>>()?, broker, killed: None })
    }

    /// Where devices connect to each node.
    pub(super) fn doors(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.tcp).collect()
    }

    /// The admin APIs of each node.
    pub(super) fn admins(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.admin).collect()
    }

    /// The nodes that are not killed.
    pub(super) fn living(&self) -> impl Iterator<Item = &Server> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(|(index, _)| Some(*index) != self.killed).map(|(_, node)| node)
    }

    /// Those between the nodes and their only Redis.
    pub(super) fn proxies(&self) -> &[Proxy] {
        match &self.broker {
            Broker::Single(_, proxies) => proxies,
            Broker::Pair(..) | Broker::Cluster(_) => &[],
        }
    }

    /// Which node a round kills.
    pub(super) fn victim(fault: Fault, round: usize) -> Option<usize> {
        matches!(fault, Fault::NodeKilled | Fault::Mixed).then_some(round % NODES)
    }

    /// Has the fault happen; when it was over.
    pub(super) fn inflict(&mut self, fault: Fault, round: usize, scale: &Scale) -> Result<Instant> {
        if fault == Fault::Mixed {
            self.mix(round, scale)?;
            return Ok(now());
        }
        if let Some(victim) = Self::victim(fault, round) {
            self.kill(victim)?;
            return Ok(now());
        }
        if fault == Fault::NodeStopped {
            let node = &self.nodes[round % NODES];
            node.signal(Signal::STOP)?;
            pause(scale.stop);
            node.signal(Signal::CONT)?;
            return Ok(now());
        }
        match &mut self.broker {
            Broker::Single(redis, proxies) => {
                // Where others must go on, or nothing is outgrown, it is one node.
                let hit = if fault == Fault::Outgrown {
                    vec![&proxies[round % NODES]]
                } else {
                    hit(proxies, round)
                };
                single(fault, redis, &hit, round, scale)?;
            }
            Broker::Pair(servers, primary) => fail_over(servers, primary, scale)?,
            Broker::Cluster(cluster) if fault == Fault::Resharded => {
                let primaries = cluster.primaries();
                let (from, to) = (primaries[round % 2], primaries[(round + 1) % 2]);
                cluster.reshard(scale.slots, from, to)?;
            }
            Broker::Cluster(cluster) => {
                let primaries = cluster.primaries();
                let index = primaries[round % primaries.len()];
                cluster.redis[index].kill()?;
                let over = now();
                // It comes back when its replica has taken over, and becomes that one's replica.
                while cluster.primaries().len() < primaries.len() {
                    ensure!(over.elapsed() < crate::wait::PATIENCE, "no replica takes over");
                    crate::wait::rest();
                }
                cluster.redis[index].restart()?;
                return Ok(over);
            }
        }
        Ok(now())
    }

    fn kill(&mut self, victim: usize) -> Result<()> {
        self.nodes[victim].kill()?;
        self.killed = Some(victim);
        Ok(())
    }

    /// The order is another one in each round.
    fn mix(&mut self, round: usize, scale: &Scale) -> Result<()> {
        let step = scale.outage / 4;
        for turn in 0..4 {
            match (turn + round) % 4 {
                0 => self.kill(round % NODES)?,
                1 => self.proxies()[(round + 1) % NODES].freeze(),
                2 => self.proxies()[(round + 2) % NODES].delay(DELAY),
                _ => {
                    if let Broker::Single(redis, _) = &mut self.broker {
                        redis.kill()?;
                        pause(step);
                        redis.restart()?;
                    }
                }
            }
            pause(step);
        }
        self.proxies().iter().for_each(Proxy::heal);
        Ok(())
    }

    /// Makes everything as it was before the fault.
    pub(super) fn mend(&mut self) -> Result<()> {
        if let Some(node) = self.killed.take() {
            self.nodes[node].restart()?;
        }
        match &mut self.broker {
            Broker::Single(..) => {}
            Broker::Pair(servers, primary) => {
                let (primary, replica) = (*primary, 1 - *primary);
                servers[replica].restart()?;
                servers[replica].replicate(&servers[primary])?;
            }
            Broker::Cluster(cluster) => {
                cluster.await_whole()?;
                let primaries = cluster.primaries();
                for (index, redis) in cluster.redis.iter().enumerate() {
                    if !primaries.contains(&index) {
                        redis.await_info("replication", "master_link_status:up")?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Broker {
    fn start(fault: Fault) -> Result<Broker> {
        Ok(match fault {
            // No failover happens but those that are wanted.
            Fault::Resharded => Broker::Cluster(RedisCluster::start(3, Duration::from_secs(15))?),
            Fault::PrimaryKilled => {
                Broker::Cluster(RedisCluster::start(3, Duration::from_secs(1))?)
            }
            Fault::Failover => {
                let pair = [start_redis(&QUICK)?, start_redis(&QUICK)?];
                pair[1].replicate(&pair[0])?;
                Broker::Pair(pair, 0)
            }
            Fault::RedisKilledWithFile | Fault::Mixed => single_with(&["--appendonly", "yes"])?,
            Fault::NodeKilled
            | Fault::NodeStopped
            | Fault::RedisKilled
            | Fault::RedisStopped
            | Fault::Cut
            | Fault::Delayed
            | Fault::Blackholed
            | Fault::Outgrown => single_with(&[])?,
        })
    }

    /// Where a node finds it.
    fn urls(&self, node: usize) -> Vec<String> {
        match self {
            Broker::Single(_, proxies) => vec![format!("redis://{}", proxies[node].addr)],
            Broker::Pair(servers, _) => servers.iter().map(Redis::url).collect(),
            Broker::Cluster(cluster) => cluster.redis.iter().map(Redis::url).collect(),
        }
    }
}

fn single_with(arguments: &[&str]) -> Result<Broker> {
    let redis = start_redis(arguments)?;
    let proxies = (0..NODES).map(|_| Proxy::start(redis.addr)).collect::<Result<_>>()?;
    Ok(Broker::Single(redis, proxies))
}

fn start_redis(arguments: &[&str]) -> Result<Redis> {
    let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
    Redis::start_with(|_| Ok(arguments.clone()))
}

fn start_node(number: usize, redis: &[String], kept: usize) -> Result<Server> {
    Server::start(&format!(
        r#"
[auth]
anonymous = true
[threads]
# Several nodes share this machine.
pin = false
[cluster]
redis = {redis:?}
node = "node{number}"
# So short that topics are left, and joined again.
leave_delay = "300ms"
[[topic_classes]]
pattern = "*"
retention_messages = {kept}
retention_ttl = "10m"
"#
    ))
}

/// The nodes whose way to Redis a round concerns: each alone, then all at once.
fn hit(proxies: &[Proxy], round: usize) -> Vec<&Proxy> {
    let hit = |index: usize| round % (NODES + 1) == NODES || round % (NODES + 1) == index;
    let proxies = proxies.iter().enumerate();
    proxies.filter(|(index, _)| hit(*index)).map(|(_, proxy)| proxy).collect()
}

fn single(
    fault: Fault,
    redis: &mut Redis,
    hit: &[&Proxy],
    round: usize,
    scale: &Scale,
) -> Result<()> {
    match fault {
        Fault::RedisKilled | Fault::RedisKilledWithFile => {
            redis.kill()?;
            pause(scale.outage);
            redis.restart()?;
        }
        Fault::RedisStopped => {
            redis.suspend()?;
            pause(scale.stop);
            redis.resume()?;
        }
        Fault::Cut => {
            hit.iter().for_each(|proxy| proxy.cut());
            pause(scale.outage);
            hit.iter().for_each(|proxy| proxy.heal());
        }
        Fault::Delayed => {
            hit.iter().for_each(|proxy| proxy.delay(DELAY));
            pause(scale.outage);
            hit.iter().for_each(|proxy| proxy.heal());
        }
        Fault::Blackholed | Fault::Outgrown => {
            hit.iter().for_each(|proxy| proxy.freeze());
            pause(scale.outage);
            // Of a cable that is back, or of a firewall that has forgotten what was connected.
            let heal = if round.is_multiple_of(2) { Proxy::heal } else { Proxy::heal_but_forget };
            hit.iter().for_each(|proxy| heal(proxy));
        }
        Fault::NodeKilled
        | Fault::NodeStopped
        | Fault::Mixed
        | Fault::Failover
        | Fault::Resharded
        | Fault::PrimaryKilled => {
            bail!("{fault:?} does not happen to one Redis")
        }
    }
    Ok(())
}

/// Kills the primary when its replica has got nothing for some time, and promotes that.
fn fail_over(servers: &mut [Redis; 2], primary: &mut usize, scale: &Scale) -> Result<()> {
    let replica = 1 - *primary;
    servers[replica].detach()?;
    pause(scale.tail);
    servers[*primary].kill()?;
    pause(scale.outage);
    servers[replica].promote()?;
    *primary = replica;
    Ok(())
}

/// Nodes of the cluster.
pub(super) const NODES: usize = 3;
/// Each way.
const DELAY: Duration = Duration::from_millis(200);
/// A Redis that serves replicas at once.
const QUICK: [&str; 2] = ["--repl-diskless-sync-delay", "0"];
