//! Messages to devices and to all: to the broker, and from it to the connections of this node.

use std::sync::Arc;

use weir_broker::Name;
use weir_engine::{Command, ConnId};
use weir_wire::CloseReason;

use crate::base::clock::unix_millis;
use crate::base::mailboxes;
use crate::base::model::{NodesReached, PublishError, RETRY_AFTER, Target};
use crate::core::publish::Draft;
use crate::core::publishing::{Publishing, Sending};
use crate::core::state::SharedState;
use crate::observe::counters::{ClusterLimit, FromBroker, PublishTarget};
use crate::topics::Envelope;

impl SharedState {
    /// Hands a message to a device or to all to the broker. The connections of this node get it
    /// like those of all nodes: from the broker.
    pub(in crate::core) fn send_to_nodes(
        &self,
        target: Target<'_>,
        draft: &Draft<'_>,
    ) -> Result<Publishing, PublishError> {
        let busy = || PublishError::Busy(RETRY_AFTER);
        let node = self.node.as_ref().ok_or_else(busy)?;
        let permit = Arc::clone(&node.sending).try_acquire_owned().map_err(|_| {
            self.counters().count_cluster_limit(ClusterLimit::Messages);
            busy()
        })?;
        let (broker, message) = (Arc::clone(node.cluster.broker()), draft.entry());
        let sending = |connections, target| Sending {
            accepted: draft.accepted(connections),
            target,
            counters: Arc::clone(self.counters()),
            permit,
        };
        Ok(match target {
            Target::Device(id) => {
                let connections = self.devices.look_at(id, |conns| conns.len());
                let device = Name::from(id);
                let call = async move {
                    broker.to_device(device, message).await.map(NodesReached::Subscribed)
                };
                Publishing::ask(&node.runtime, call, sending(connections, PublishTarget::Device))
            }
            Target::All | Target::Topic(_) => {
                let call = async move {
                    let reach = broker.to_all(message).await?;
                    Ok(NodesReached::All { reached: reach.reached, live: reach.live })
                };
                let connections = self.devices.connection_count();
                Publishing::ask(&node.runtime, call, sending(connections, PublishTarget::All))
            }
        })
    }

    /// Delivers a message that the broker has carried here; `None`: to all.
    pub(in crate::core) fn deliver(&self, device: Option<&str>, payload: &[u8]) {
        let outcome = match Envelope::decode(payload) {
            None => FromBroker::Unknown,
            Some(envelope) => match envelope.rest(unix_millis()) {
                None => FromBroker::Expired,
                Some(ttl) => {
                    let draft = Draft::of_node(self, envelope.push, ttl);
                    let accepted = match device {
                        Some(id) => self.publish_to_device(id, &draft),
                        None => self.publish_to_all(&draft),
                    };
                    let is_busy = matches!(accepted, Err(PublishError::Busy(_)));
                    if is_busy && self.devices.hold_back(device, payload) {
                        return;
                    }
                    accepted.map_or(FromBroker::Lost, |_| FromBroker::Delivered)
                }
            },
        };
        self.counters().count_from_broker(outcome);
    }

    /// Closes a connection that its device has replaced at another node.
    pub(in crate::core) fn evict(&self, device: &str, conn: ConnId) {
        if !self.devices.evict(device, conn) {
            return;
        }
        let evict = Command::Evict(conn, CloseReason::Replaced);
        if let Err(evict) = self.mailbox(conn.shard()).try_push(evict) {
            // No record names the connection any more, so nothing else would close it.
            let mailboxes = Arc::clone(self.mailboxes());
            tokio::spawn(async move {
                mailboxes::push(&mailboxes[conn.shard()], evict).await;
            });
        }
    }
}
