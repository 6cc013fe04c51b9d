//! Nodes in Redis: numbers, announcements, and revocations.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::client::Client;
use super::keys::Interest;
use super::message::stream_id;
use super::scripts::{ANNOUNCE, NODES, RETIRE, REVOCATIONS, REVOKE};
use super::values::{array, damaged, int, number, text};
use crate::contract::{Error, Event};
use crate::records::{Name, Node, NodeNumber, Revocation, RevocationId, Revocations, Scope};

/// A node that lives.
struct Listed {
    node: String,
    /// What it tells of itself, if it has done so.
    told: Option<Node>,
    /// Under which name its members stand; nothing: it has none.
    stay: String,
}

impl Client {
    /// Announces this node, and keeps its number or leases one.
    pub(super) async fn announce_as(&self, node: Option<Node>) -> Result<(), Error> {
        let (_permit, until) = self.admit(1)?;
        let asked = Instant::now();
        let own = self.context.number.load(Ordering::Relaxed);
        let lease_ends = *self.lease_ends.lock().unwrap_or_else(PoisonError::into_inner);
        // By this node's own clock, as Redis may have forgotten it.
        let kept = if lease_ends.is_some_and(|end| asked < end) { own } else { 0 };
        let (stay, next) = {
            let present = self.present();
            (present.has_begun().then(|| present.stay().name), present.next())
        };
        let shared = self.keys.shared();
        let keys = ['k', 'o', 'w', 'h', 'y', 'z'].map(|kind| shared.key(kind));
        let mut command = ANNOUNCE.run(keys.iter());
        command
            .arg(&self.cluster)
            .arg(&self.context.instance)
            .arg(self.node_kept.as_millis().to_string())
            .arg(LEASE.as_millis().to_string())
            .arg(kept)
            .arg(rand::random_range(1..NUMBERS))
            .arg(node.map(|node| written(&node)).unwrap_or_default())
            .arg(stay.as_deref().unwrap_or_default())
            .arg(&next.name);
        let answer = self.run_one(shared.slot, command, until).await?;
        if let Ok(found) = text(&answer) {
            let (prefix, found, own) =
                (self.prefix.clone(), found.to_owned(), self.cluster.clone());
            return Err(Error::OtherCluster { prefix, found, own });
        }
        let (leased, is_next, time) = read_announced(&answer).map_err(damaged)?;
        if leased == 0 {
            return Err(Error::Refused(format!("all {} numbers of nodes are taken", NUMBERS - 1)));
        }
        self.clock().handle_answer(asked, Instant::now(), time);
        *self.lease_ends.lock().unwrap_or_else(PoisonError::into_inner) = Some(asked + LEASE);
        if leased != own {
            self.context.number.store(leased, Ordering::Relaxed);
            if own != 0 {
                self.context.handler.handle(Event::Renumbered(NodeNumber(leased)));
                self.servers.leave(vec![Interest::Node(NodeNumber(own))], until).await?;
            }
            let own = vec![Interest::Node(NodeNumber(leased))];
            self.servers.join(own, until, None::<()>).await?;
        }
        if is_next && self.present().begin(&next) {
            tracing::warn!("this node was away for too long, or Redis has lost its presence");
            self.context.handler.handle(Event::Gap(Scope::All));
        }
        Ok(())
    }

    /// The nodes that live.
    async fn listed(&self, until: Instant) -> Result<Vec<Listed>, Error> {
        let shared = self.keys.shared();
        let keys = ['w', 'h', 'y'].map(|kind| shared.key(kind));
        let answer = self.run_one(shared.slot, NODES.run(keys.iter()), until).await?;
        let listed = read_nodes(&answer).map_err(damaged)?;
        let lived = listed.iter().map(|listed| listed.node.clone()).collect();
        *self.lived.lock().unwrap_or_else(PoisonError::into_inner) = lived;
        Ok(listed)
    }

    /// The nodes that live.
    pub(super) async fn living(&self, until: Instant) -> Result<Vec<String>, Error> {
        Ok(self.listed(until).await?.into_iter().map(|listed| listed.node).collect())
    }

    /// Under which names the members of the nodes that live stand.
    pub(super) async fn living_stays(&self, until: Instant) -> Result<Vec<String>, Error> {
        let stays = self.listed(until).await?.into_iter().map(|listed| listed.stay);
        Ok(stays.filter(|stay| !stay.is_empty()).collect())
    }

    /// The nodes that lived when last looked at.
    pub(super) fn lived(&self) -> Vec<String> {
        self.lived.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) async fn list_nodes(&self) -> Result<Vec<Node>, Error> {
        let (_permit, until) = self.admit(1)?;
        let listed = self.listed(until).await?;
        let mut nodes: Vec<_> = listed.into_iter().filter_map(|listed| listed.told).collect();
        nodes.sort_by_key(|node| node.number);
        Ok(nodes)
    }

    pub(super) async fn retire_all(&self) -> Result<(), Error> {
        self.unclaim_all().await?;
        self.exit_all().await?;
        let (_permit, until) = self.admit(1)?;
        let shared = self.keys.shared();
        let keys = ['w', 'h', 'y', 'o'].map(|kind| shared.key(kind));
        let mut command = RETIRE.run(keys.iter());
        command
            .arg(&self.context.instance)
            .arg(self.context.number.load(Ordering::Relaxed))
            .arg(self.present().stay().name);
        self.run_one(shared.slot, command, until).await.map(drop)
    }

    pub(super) async fn revoke_device(&self, device: Name) -> Result<RevocationId, Error> {
        let (_permit, until) = self.admit(1)?;
        let shared = self.keys.shared();
        let keys = ['b', 'v'].map(|kind| shared.key(kind));
        let mut command = REVOKE.run(keys.iter());
        command.arg(shared.key('r')).arg(&*device).arg(REVOCATIONS_KEPT.as_millis().to_string());
        let answer = self.run_one(shared.slot, command, until).await?;
        revocation_id(&answer).map_err(damaged)
    }

    pub(super) async fn read_revocations(
        &self,
        after: Option<RevocationId>,
    ) -> Result<Revocations, Error> {
        let (_permit, until) = self.admit(1)?;
        let shared = self.keys.shared();
        let keys = ['b', 'v'].map(|kind| shared.key(kind));
        let mut command = REVOCATIONS.run(keys.iter());
        command
            .arg(after.map(|id| format!("{}-{}", id.0, id.1)).unwrap_or_default())
            .arg(Revocations::PAGE)
            .arg(REVOCATIONS_KEPT.as_millis().to_string());
        let answer = self.run_one(shared.slot, command, until).await?;
        read_page(&answer).map_err(damaged)
    }
}

/// What a node tells of itself, as Redis keeps it: number, last revocation, name; the rest is free text.
fn written(node: &Node) -> String {
    let revoked_to = node.revoked_to.as_ref().map(|id| format!("{}-{}", id.0, id.1));
    let name = node.name.replace('\n', " ");
    format!("{}\n{}\n{name}\n{}", node.number.0, revoked_to.unwrap_or_default(), node.about)
}

fn read_node(written: &str) -> Result<Option<Node>, String> {
    let mut lines = written.splitn(4, '\n');
    let parts = [lines.next(), lines.next(), lines.next(), lines.next()];
    let [Some(number), Some(revoked_to), Some(name), Some(about)] = parts else {
        // It has not told anything yet.
        return if written.is_empty() { Ok(None) } else { Err("a node is cut".to_owned()) };
    };
    let number = number.parse().map_err(|_| format!("{number:?} is no number of a node"))?;
    Ok(Some(Node {
        number: NodeNumber(number),
        name: name.to_owned(),
        revoked_to: stream_id(revoked_to).map(|(first, second)| RevocationId(first, second)),
        about: about.to_owned(),
    }))
}

fn read_nodes(answer: &Value) -> Result<Vec<Listed>, String> {
    let read = |three: &[Value]| match three {
        [node, written, stay] => Ok(Listed {
            node: text(node)?.to_owned(),
            told: read_node(text(written)?)?,
            stay: text(stay)?.to_owned(),
        }),
        _ => Err("a node is cut".to_owned()),
    };
    array(answer)?.chunks(3).map(read).collect()
}

/// The number of a node that was announced, and whether its next stay has begun.
fn read_announced(answer: &Value) -> Result<(u16, bool, i64), String> {
    let [leased, is_next, time] = array(answer)? else {
        return Err("an announcement is cut".to_owned());
    };
    let leased = u16::try_from(int(leased)?).map_err(|error| error.to_string())?;
    let time = i64::try_from(number(time)?).map_err(|error| error.to_string())?;
    Ok((leased, int(is_next)? == 1, time))
}

fn revocation_id(value: &Value) -> Result<RevocationId, String> {
    let id = text(value)?;
    let id = stream_id(id).ok_or_else(|| format!("{id:?} is no id of a revocation"))?;
    Ok(RevocationId(id.0, id.1))
}

fn read_page(answer: &Value) -> Result<Revocations, String> {
    let [is_complete, revoked @ ..] = array(answer)? else {
        return Err("a page is cut".to_owned());
    };
    let read = |pair: &[Value]| match pair {
        [id, device] => Ok(Revocation { id: revocation_id(id)?, device: text(device)?.into() }),
        _ => Err("a revocation is cut".to_owned()),
    };
    let revoked = revoked.chunks(2).map(read).collect::<Result<_, _>>()?;
    Ok(Revocations { revoked, is_complete: int(is_complete)? == 1 })
}

/// For how long a node has its number.
const LEASE: Duration = Duration::from_secs(86_400);
/// Numbers have 10 bits, and 0 is none.
const NUMBERS: u16 = 1 << 10;
/// For how long revocations are kept.
const REVOCATIONS_KEPT: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_tells_comes_back() {
        for revoked_to in [None, Some(RevocationId(17, 3))] {
            let (name, about) = ("a b".to_owned(), "{\n}\n".to_owned());
            let node = Node { number: NodeNumber(1023), name, revoked_to, about };
            assert_eq!(read_node(&written(&node)), Ok(Some(node)));
        }
        assert_eq!(read_node(""), Ok(None));
        assert!(read_node("1\n\nname").is_err());
        assert!(read_node("x\n\nname\n").is_err());
    }
}
