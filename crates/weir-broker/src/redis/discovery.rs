//! Which Redis nodes there are, and which slots each has.

use std::cmp::Reverse;

use redis::{Pipeline, Value};
use tokio::task::JoinSet;

use super::dial::SharedDialer;
use super::keys::{SLOTS, Slot};
use super::options::Address;
use super::requests::ask;
use super::values;

/// The primaries, and what each has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) primaries: Vec<Address>,
    /// For each slot the index of its primary; `None`: the one primary has all.
    pub(super) owners: Option<Box<[Option<u16>]>>,
}

impl Layout {
    /// The primary that has a slot.
    pub(super) fn owner(&self, slot: Slot) -> Option<&Address> {
        match &self.owners {
            None => self.primaries.first(),
            Some(owners) => self.primaries.get(usize::from(owners[usize::from(slot)]?)),
        }
    }

    /// A slot that a primary has.
    pub(super) fn slot_of(&self, primary: usize) -> Option<u16> {
        let Some(owners) = &self.owners else { return Some(0) };
        let is_its = |owner: &Option<u16>| owner.map(usize::from) == Some(primary);
        owners.iter().position(is_its).and_then(|slot| u16::try_from(slot).ok())
    }
}

/// What one Redis node says.
enum Seen {
    Primary { address: Address, rank: Rank },
    Replica,
    Cluster(Layout),
}

/// How much speaks for a primary, where several claim to be one. The least is right.
///
/// After a failover the old one may come back as a primary: alone, or without data.
type Rank = (Reverse<u64>, bool);

/// Asks these Redis nodes, all at once. Where much speaks for several, it is the first of them.
///
/// # Errors
/// Why none of them leads to a primary.
pub(super) async fn discover(
    dialer: &SharedDialer,
    addresses: Vec<Address>,
) -> Result<Layout, String> {
    let mut asking = JoinSet::new();
    for (index, address) in addresses.into_iter().enumerate() {
        let dialer = dialer.clone();
        asking.spawn(async move { (index, look(&dialer, address).await) });
    }
    let mut why = "no Redis node is known".to_owned();
    let mut primaries = Vec::new();
    while let Some(seen) = asking.join_next().await {
        match seen {
            // The first answer of a cluster will do.
            Ok((_, Ok(Seen::Cluster(layout)))) => return Ok(layout),
            Ok((index, Ok(Seen::Primary { address, rank }))) => {
                primaries.push((rank, index, address));
            }
            Ok((_, Ok(Seen::Replica))) => "all are replicas".clone_into(&mut why),
            Ok((_, Err(error))) => why = error,
            Err(error) => why = error.to_string(),
        }
    }
    match primaries.into_iter().min_by_key(|(rank, index, _)| (*rank, *index)) {
        Some((_, _, address)) => Ok(Layout { primaries: vec![address], owners: None }),
        None => Err(why),
    }
}

async fn look(dialer: &SharedDialer, address: Address) -> Result<Seen, String> {
    let conn = dialer.dial_for_requests(&address).await?;
    let mut pipeline = Pipeline::new();
    pipeline.cmd("INFO").arg("cluster").cmd("INFO").arg("replication").cmd("CLUSTER").arg("SLOTS");
    let answers = ask(&conn, &pipeline).await.map_err(|why| format!("{address}: {why}"))?;
    let [cluster, replication, slots] = &answers[..] else { return Err("no answer".to_owned()) };
    let info = |answer| values::text(answer).map_err(|why| format!("{address}: {why}"));
    if info(cluster)?.contains("cluster_enabled:1") {
        let layout = layout(slots, &address);
        return layout.map(Seen::Cluster).map_err(|why| format!("{address}: {why}"));
    }
    let replication = info(replication)?;
    if !replication.contains("role:master") {
        return Ok(Seen::Replica);
    }
    let number = |name| field(replication, name).and_then(|text| text.parse().ok()).unwrap_or(0);
    let (replicas, written): (u64, u64) =
        (number("connected_slaves:"), number("master_repl_offset:"));
    Ok(Seen::Primary { address, rank: (Reverse(replicas), written == 0) })
}

/// What stands behind a name in the answer to `INFO`.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Reads the answer to `CLUSTER SLOTS`: first and last slot, then the primary and its replicas.
fn layout(slots: &Value, asked: &Address) -> Result<Layout, String> {
    let ranges = values::array(slots)?;
    let mut primaries: Vec<Address> = Vec::new();
    let mut owners = vec![None; SLOTS].into_boxed_slice();
    for range in ranges {
        let [first, last, primary, ..] = values::array(range)? else {
            return Err("a range of slots has no primary".to_owned());
        };
        let [host, port, ..] = values::array(primary)? else {
            return Err("a primary has no address".to_owned());
        };
        // A node that does not know its own address leaves it out.
        let host = values::text(host).ok().filter(|host| !host.is_empty() && *host != "?");
        let host = host.map_or_else(|| asked.host.clone(), str::to_owned);
        let port = u16::try_from(values::int(port)?).map_err(|error| error.to_string())?;
        let address = Address { host, port };
        let index = primaries.iter().position(|known| *known == address).unwrap_or_else(|| {
            primaries.push(address);
            primaries.len() - 1
        });
        let index = u16::try_from(index).map_err(|error| error.to_string())?;
        let (first, last) = (values::int(first)?, values::int(last)?);
        let range = usize::try_from(first).ok().zip(usize::try_from(last).ok());
        let range = range.and_then(|(first, last)| owners.get_mut(first..=last));
        range.ok_or("a range of slots cannot be")?.fill(Some(index));
    }
    if primaries.is_empty() {
        return Err("the cluster has no slots".to_owned());
    }
    Ok(Layout { primaries, owners: Some(owners) })
}
