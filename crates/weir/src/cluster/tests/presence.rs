//! Who is in a topic: what nodes list, and what clients know of it, after all has settled.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_broker::Name;

use super::clients::Stage;
use super::node::Node;
use super::run::{CLIENTS, Run, TOPICS};

/// Whether the class of a topic has presence.
pub(super) fn has_presence(topic: &str) -> bool {
    !matches!(topic, "live/1" | "live/2")
}

/// Checks that everybody knows who is there.
pub(super) async fn check(run: &mut Run) -> Result<(), String> {
    wait_for_the_dead(run).await?;
    list_members(run).await?;
    check_lists(run).await
}

/// Lets so much time pass that what nodes had that were killed is gone.
async fn wait_for_the_dead(run: &mut Run) -> Result<(), String> {
    let until = Instant::now() + PRESENCE_KEPT * 5;
    while Instant::now() < until {
        for node in run.nodes.iter_mut().flatten() {
            node.turn(&mut run.clients, None);
        }
        sleep(Duration::from_millis(200)).await;
        run.check()?;
    }
    Ok(())
}

/// Clients that have to ask who is in a topic do so.
async fn list_members(run: &mut Run) -> Result<(), String> {
    for client in 0..CLIENTS {
        for topic in TOPICS.into_iter().filter(|topic| has_presence(topic)) {
            let of_client = &mut run.clients.list[client];
            let (Some((node, _)), Some(view)) = (of_client.conn, of_client.views.get_mut(topic))
            else {
                continue;
            };
            let Some(node) = run.nodes[node].as_ref().filter(|_| view.present.needs_list) else {
                continue;
            };
            view.present.ask();
            let listed = members(node, topic).await?;
            view.present.list(listed);
        }
    }
    Ok(())
}

/// Every node lists those who are in a topic, and watchers know who they are.
async fn check_lists(run: &Run) -> Result<(), String> {
    for topic in TOPICS.into_iter().filter(|topic| has_presence(topic)) {
        let clients =
            run.clients.list.iter().filter(|client| {
                client.views.get(topic).is_some_and(|view| view.stage == Stage::In)
            });
        let there = clients.filter_map(|client| client.conn);
        let there: BTreeSet<u64> = there.map(|(_, conn)| conn.to_u64()).collect();
        for node in run.nodes.iter().flatten() {
            let listed = members(node, topic).await?;
            if listed != there {
                return Err(format!("{} lists {listed:?} in {topic}, not {there:?}", node.name));
            }
        }
        for (number, client) in run.clients.list.iter().enumerate() {
            let Some(view) = client.views.get(topic) else { continue };
            let present = &view.present;
            if view.stage == Stage::In && present.is_asked && present.connections != there {
                let (history, known) = (run.clients.history(number, topic), &present.connections);
                return Err(format!(
                    "client {number} knows of {known:?} in {topic}, not of {there:?}\n{history}"
                ));
            }
        }
    }
    Ok(())
}

/// The members of a topic, as a node lists them, page by page.
async fn members(node: &Node, topic: &str) -> Result<BTreeSet<u64>, String> {
    let (mut listed, mut after) = (BTreeSet::new(), None);
    loop {
        let page = node.cluster.broker().members(Name::from(topic), after, 3).await;
        let page = page.map_err(|error| format!("the broker has not healed: {error}"))?;
        after = page.members.last().map(|member| member.connection);
        listed.extend(page.members.iter().map(|member| member.connection.0));
        if page.is_last {
            return Ok(listed);
        }
    }
}

/// How long members outlive their node.
pub(super) const PRESENCE_KEPT: Duration = Duration::from_secs(2);
