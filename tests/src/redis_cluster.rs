//! A Redis Cluster of three primaries, of real processes.

use std::cell::Cell;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::databases::Redis;
use crate::program::free_port;
use crate::wait::{PATIENCE, now, rest};

/// Three primaries, each with a third of the slots, and replicas of some; killed when dropped.
pub struct RedisCluster {
    /// The primaries, then the replicas of the first ones, as they were at the start.
    pub redis: Vec<Redis>,
}

impl RedisCluster {
    /// Starts them, with this many replicas: of the first primary, of the second, and so on. Who is silent for `timeout`
    /// counts as failed: the shorter it is, the sooner a replica takes over, also on a machine that is merely slow.
    pub fn start(replicas: usize, timeout: Duration) -> Result<RedisCluster> {
        let timeout = timeout.as_millis().to_string();
        let mut redis = Vec::new();
        let mut buses = Vec::new();
        for _ in 0..PRIMARIES.len() + replicas {
            let bus = Cell::new(0);
            redis.push(Redis::start_with(|_| {
                bus.set(free_port()?);
                let port = bus.get().to_string();
                let arguments = [
                    ["--cluster-enabled", "yes"],
                    ["--cluster-port", &port],
                    ["--cluster-node-timeout", &timeout],
                    ["--repl-diskless-sync-delay", "0"],
                ];
                Ok(arguments.into_iter().flatten().map(str::to_owned).collect())
            })?);
            buses.push(bus.get());
        }
        let cluster = RedisCluster { redis };
        for (redis, (first, last)) in cluster.redis.iter().zip(PRIMARIES) {
            command(redis, &format!("CLUSTER ADDSLOTSRANGE {first} {last}"))?;
        }
        for (other, bus) in cluster.redis.iter().zip(&buses).skip(1) {
            let port = other.addr.port();
            command(&cluster.redis[0], &format!("CLUSTER MEET 127.0.0.1 {port} {bus}"))?;
        }
        cluster.await_whole()?;
        for (index, replica) in cluster.redis[PRIMARIES.len()..].iter().enumerate() {
            let primary = cluster.id(index % PRIMARIES.len())?;
            command(replica, &format!("CLUSTER REPLICATE {primary}"))?;
            replica.await_info("replication", "master_link_status:up")?;
        }
        Ok(cluster)
    }

    /// Waits until each knows all the others, and all slots are served.
    pub fn await_whole(&self) -> Result<()> {
        let known = format!("cluster_known_nodes:{}", self.redis.len());
        let deadline = now() + PATIENCE;
        for redis in &self.redis {
            loop {
                let info = redis.command("CLUSTER INFO").unwrap_or_default();
                if info.contains("cluster_state:ok") && info.contains(&known) {
                    break;
                }
                ensure!(now() < deadline, "the Redis Cluster does not stand: {info}");
                rest();
            }
        }
        Ok(())
    }

    /// The id of a Redis node.
    pub fn id(&self, index: usize) -> Result<String> {
        let answer = self.redis[index].command("CLUSTER MYID")?;
        Ok(answer.lines().nth(1).context("an id")?.to_owned())
    }

    /// Which of them are primaries now.
    pub fn primaries(&self) -> Vec<usize> {
        let is_primary = |redis: &Redis| {
            redis.command("INFO replication").is_ok_and(|info| info.contains("role:master"))
        };
        (0..self.redis.len()).filter(|&index| is_primary(&self.redis[index])).collect()
    }

    /// Moves so many slots with their keys, as an operator does, and waits for its end.
    pub fn reshard(&self, slots: usize, from: usize, to: usize) -> Result<()> {
        let (from_id, to_id) = (self.id(from)?, self.id(to)?);
        let output = Command::new("redis-cli")
            .args(["--cluster", "reshard", &self.redis[from].addr.to_string()])
            .args(["--cluster-from", &from_id, "--cluster-to", &to_id])
            .args(["--cluster-slots", &slots.to_string(), "--cluster-yes"])
            .stdin(Stdio::null())
            .output()
            .context("running redis-cli, which comes with redis-server")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let end = said.char_indices().rev().nth(SAID_MAX).map_or(0, |(index, _)| index);
            bail!("redis-cli ended with {}: {}", output.status, &said[end..]);
        }
        Ok(())
    }
}

/// Has a Redis carry out a command that answers with OK.
fn command(redis: &Redis, line: &str) -> Result<()> {
    let answer = redis.command(line)?;
    ensure!(answer.starts_with('+'), "{line}: {answer}");
    Ok(())
}

/// The first and the last slot of each primary.
const PRIMARIES: [(u16, u16); 3] = [(0, 5460), (5461, 10_922), (10_923, 16_383)];
/// Characters of the end of what a program said.
const SAID_MAX: usize = 500;
