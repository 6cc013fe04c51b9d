//! Occupied and vacated in a cluster: one node tells each, whichever nodes have subscribers.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use weir_tests::{Device, Redis, Server};

use super::receiver::{Receiver, SECRET};

const NODES: [&str; 3] = ["a", "b", "c"];

/// Nodes whose notices all go to one process; the names of their receivers are those of the nodes.
struct Nodes {
    receiver: Receiver,
    nodes: BTreeMap<&'static str, Server>,
    _directory: TempDir,
    _redis: Redis,
}

impl Nodes {
    fn start() -> Result<Nodes> {
        let (redis, directory) = (Redis::start()?, tempfile::tempdir()?);
        let mut receiver = Receiver::new()?;
        receiver.start()?;
        let start = |name| {
            let config = format!(
                "[auth]\nanonymous = true\n[cluster]\nredis = \"{}\"\nnode = \"{name}\"\nnode_ttl = \"2s\"\n\
                 presence_kept = \"2s\"\n[[topic_classes]]\npattern = \"own/*\"\nscope = \"node\"\n\
                 [[upstreams]]\nname = \"api\"\naddresses = [\"127.0.0.1:{}\"]\n\
                 [hooks]\nnotices_file = \"{}/{name}.db\"\n\
                 [[hooks.receivers]]\nname = \"{name}\"\nupstream = \"api\"\nsecret = \"{SECRET}\"\n\
                 batch_delay = \"5ms\"\nbackoff_max = \"200ms\"\nevents = [\"occupied\", \"vacated\"]\n",
                redis.url(),
                receiver.port,
                directory.path().display(),
            );
            Ok((name, Server::start(&config)?))
        };
        let nodes = NODES.into_iter().map(start).collect::<Result<_>>()?;
        Ok(Nodes { receiver, nodes, _directory: directory, _redis: redis })
    }

    /// A subscriber at a node.
    fn subscriber(&self, node: &str, topic: &str) -> Result<Device> {
        let device = format!("{node}-{}", topic.replace('/', "-"));
        Device::greet(self.nodes[node].tcp, &device, &[topic])
    }

    /// What all nodes together have told of a topic: event, claim and node; the oldest claim first.
    fn told(&self, topic: &str) -> Result<Vec<(String, u64, &'static str)>> {
        let mut told = Vec::new();
        for node in NODES {
            for notice in self.receiver.once(node)?.iter().filter(|notice| notice["topic"] == topic)
            {
                let event = notice["event"].as_str().context("an event")?.to_owned();
                told.push((event, claim(notice)?, node));
            }
        }
        told.sort_by(|(one, claim, _), (other, other_claim, _)| {
            (claim, one).cmp(&(other_claim, other))
        });
        Ok(told)
    }

    /// Waits until so much was told of a topic: `occupied` and `vacated` by turns, with one claim
    /// for each pair.
    fn wait(&self, topic: &str, count: usize) -> Result<Vec<(String, u64, &'static str)>> {
        let deadline = weir_tests::now() + weir_tests::PATIENCE;
        let told = loop {
            let told = self.told(topic)?;
            if told.len() >= count {
                break told;
            }
            ensure!(weir_tests::now() < deadline, "of {topic} only {told:?} was told");
            weir_tests::rest();
        };
        ensure!(told.len() == count, "{told:?}");
        for pair in told.chunks(2) {
            ensure!(pair[0].0 == "occupied", "{told:?}");
            ensure!(
                pair.get(1).is_none_or(|end| end.0 == "vacated" && end.1 == pair[0].1),
                "{told:?}"
            );
        }
        Ok(told)
    }
}

fn claim(notice: &Value) -> Result<u64> {
    notice["claim"].as_u64().with_context(|| format!("no claim in {notice}"))
}

#[test]
fn a_topic_of_the_cluster_is_occupied_once_and_vacated_once() -> Result<()> {
    let mut nodes = Nodes::start()?;
    let first = nodes.subscriber("a", "room/1")?;
    assert_eq!(nodes.wait("room/1", 1)?[0].2, "a");
    // A topic that is told of later shows that nothing more was told of this one: each node tells in
    // order.
    let others = [nodes.subscriber("b", "room/1")?, nodes.subscriber("c", "room/1")?];
    let fences: Vec<Device> = NODES
        .iter()
        .map(|node| nodes.subscriber(node, &format!("fence/{node}")))
        .collect::<Result<_>>()?;
    for node in NODES {
        nodes.wait(&format!("fence/{node}"), 1)?;
    }
    drop(first);
    drop(fences);
    for node in NODES {
        nodes.wait(&format!("fence/{node}"), 2)?;
    }
    nodes.wait("room/1", 1)?;
    let [at_b, at_c] = others;
    drop(at_b);
    let here = nodes.subscriber("b", "fence/last")?;
    nodes.wait("fence/last", 1)?;
    nodes.wait("room/1", 1)?;
    drop(at_c);
    assert_eq!(nodes.wait("room/1", 2)?[1].2, "c");
    // Somebody comes back elsewhere.
    let again = nodes.subscriber("b", "room/1")?;
    assert_eq!(nodes.wait("room/1", 3)?[2].2, "b");
    // A node that ends in order tells what ends with it, and leaves the rest to others.
    let shared = [nodes.subscriber("b", "room/2")?, nodes.subscriber("a", "room/2")?];
    nodes.wait("room/2", 1)?;
    let ends = nodes.nodes.get_mut("b").context("a node")?;
    ends.signal(Signal::TERM)?;
    ensure!(ends.wait()?.success(), "{}", ends.log());
    assert_eq!(nodes.wait("room/1", 4)?[3].2, "b");
    nodes.wait("fence/last", 2)?;
    nodes.wait("room/2", 1)?;
    drop((again, here, shared));
    assert_eq!(nodes.wait("room/2", 2)?[1].2, "a");
    Ok(())
}

#[test]
fn another_node_tells_what_a_dead_one_leaves_behind() -> Result<()> {
    let mut nodes = Nodes::start()?;
    let _gone = nodes.subscriber("a", "room/1")?;
    let _both = nodes.subscriber("a", "room/2")?;
    nodes.wait("room/2", 1)?;
    let stays = nodes.subscriber("b", "room/2")?;
    nodes.wait("room/1", 1)?;
    let killed = nodes.nodes.get_mut("a").context("a node")?;
    killed.kill()?;
    let told = nodes.wait("room/1", 2)?;
    ensure!(told[1].2 != "a", "{told:?}");
    nodes.wait("room/2", 1)?;
    drop(stays);
    assert_eq!(nodes.wait("room/2", 2)?[1].2, "b");
    // It comes back, and has nothing to make up for.
    nodes.nodes.get_mut("a").context("a node")?.restart()?;
    let _returned = nodes.subscriber("a", "room/1")?;
    assert_eq!(nodes.wait("room/1", 3)?[2].2, "a");
    nodes.wait("room/2", 2)?;
    Ok(())
}
