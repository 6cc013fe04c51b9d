//! What the front knows of its callers, in a process that takes over from another: devices,
//! credentials, limits, and numbers that go on.

use std::sync::atomic::Ordering;

use weir_engine::Nanos;
use weir_engine::handover::NotUnderstood;
use weir_engine::{Command, ConnId, Origin};
use weir_wire::CloseReason;
use weir_wire::handover::v1;

use crate::auth::CredentialsChange;
use crate::auth::devices::HeldBack;
use crate::backends::calls::MovedCalls;
use crate::base::handover::{check_column, count, refused};
use crate::base::mailboxes;
use crate::core::state::SharedState;
use crate::observe::upgrades::UpgradeLimit;
use crate::provisioning::activation::Activator;

/// What remains to be done for what was taken over.
pub(crate) struct TakenOver {
    /// What the configuration of this process changes for the connections that move.
    pub(crate) change: CredentialsChange,
    /// Calls that have begun in the other process.
    pub(crate) calls: MovedCalls,
}

impl SharedState {
    /// Everything but topics, shards and dispatchers. From here on devices are not revoked, and
    /// messages with an idempotency key are refused, until [`SharedState::resume_callers`].
    ///
    /// The caller has exported the topics before, so that every message that they have taken has its
    /// answer. It sees to it that shards and dispatchers rest, no drain runs, and no other
    /// configuration is applied. The result contains keys and tokens.
    pub(crate) fn export_callers(&self) -> v1::Callers {
        let now = Nanos::now();
        v1::Callers {
            devices: Some(self.devices.export()),
            auth: Some(self.auth.export()),
            admin: Some(self.admin_access.export()),
            admission: Some(self.admission.export()),
            publish_rates: Some(self.publish_rates.export(now)),
            datagram_rates: Some(self.datagram_rates.export(now)),
            idempotency: Some(self.idempotency.export()),
            clients: Some(self.clients.export()),
            ends: Some(self.ends.export()),
            numbers: Some(v1::Numbers {
                message_id: self.message_ids.load(Ordering::Relaxed),
                tickets: self.adoptions.iter().map(|adoptions| adoptions.next_ticket()).collect(),
                drains_ended: self.drains.export_ended(),
                drain: Some(self.drains.export()),
                notices_began: self.notices.began_micros(),
            }),
            calls: Some(self.calls.export()),
            tls: self.tls.as_ref().map(|tls| tls.contexts().export()),
            node: self.node.as_ref().map(|node| node.export()),
            activation: self.activator.as_ref().map(Activator::export),
        }
    }

    /// Goes on where another process has stopped. Nothing was served here so far. Afterwards each
    /// connection is to be counted with [`SharedState::take_over`].
    pub(crate) fn import_callers(&self, callers: v1::Callers) -> Result<TakenOver, NotUnderstood> {
        let config = self.config();
        let devices = part("callers.devices", callers.devices)?;
        let conns = devices.stripes.iter().flat_map(|stripe| {
            stripe.conns.iter().copied().chain(stripe.leaving.iter().map(|leaving| leaving.conn))
        });
        let is_foreign = |conn: &u64| ConnId::from_u64(*conn).shard() >= self.adoptions.len();
        if let Some(conn) = conns.into_iter().find(is_foreign) {
            return Err(refused("devices.conns: one of a shard that there is not", conn));
        }
        self.devices.import(devices)?;
        let change = self.auth.import(part("callers.auth", callers.auth)?, &config)?;
        self.admin_access.import(part("callers.admin", callers.admin)?)?;
        self.admission.import(part("callers.admission", callers.admission)?, &config.limits)?;
        self.publish_rates.import(&part("callers.publish_rates", callers.publish_rates)?)?;
        self.datagram_rates.import(&part("callers.datagram_rates", callers.datagram_rates)?)?;
        self.idempotency.import(part("callers.idempotency", callers.idempotency)?)?;
        self.clients.import(part("callers.clients", callers.clients)?)?;
        self.ends.import(part("callers.ends", callers.ends)?)?;
        self.import_numbers(&part("callers.numbers", callers.numbers)?)?;
        let calls = self.calls.import(&part("callers.calls", callers.calls)?)?;
        // A process without TLS has no connection whose session could be resumed here.
        if let (Some(tls), Some(sessions)) = (&self.tls, callers.tls) {
            tls.contexts().import(sessions)?;
        }
        if let Some(node) = &self.node {
            node.import(&part("callers.node", callers.node)?, &self.devices)?;
        }
        if let (Some(activator), Some(failures)) = (&self.activator, callers.activation) {
            activator.import(failures)?;
        }
        Ok(TakenOver { change, calls })
    }

    fn import_numbers(&self, numbers: &v1::Numbers) -> Result<(), NotUnderstood> {
        check_column("numbers.tickets", numbers.tickets.len(), self.adoptions.len())?;
        for (adoptions, ticket) in self.adoptions.iter().zip(&numbers.tickets) {
            adoptions.go_on_from(count("numbers.tickets", *ticket)?);
        }
        // Its own start may be later than all ids of the other process.
        self.message_ids.fetch_max(numbers.message_id, Ordering::Relaxed);
        self.notices.go_on_from(count("numbers.notices_began", numbers.notices_began)?);
        let drain = numbers.drain.as_ref().ok_or_else(|| refused("numbers.drain", 0_u32))?;
        self.import_drain(drain, &numbers.drains_ended)
    }

    /// Counts a connection that a shard has taken over, unless it is closing: the end of that one
    /// has been reported to the other process.
    pub(crate) fn take_over(&self, shard: usize, origin: Origin) -> Result<(), NotUnderstood> {
        self.admission.take_over(shard, origin)?;
        self.clients.take_over(origin.client())
    }

    /// Closes connections that were revoked or replaced in the old process, where their shard may
    /// not have heard of it in time. One that is closing anyway closes as before.
    pub(crate) async fn close_leaving(&self) {
        for conn in self.devices.leaving() {
            let evict = Command::Evict(conn, CloseReason::Revoked);
            mailboxes::push(self.mailbox(conn.shard()), evict).await;
        }
    }

    /// All connections are counted.
    pub(crate) fn end_take_over(&self) {
        self.clients.end_take_over();
    }

    /// Goes on here: the other process has not taken over. Called within a tokio runtime.
    pub(crate) fn resume_callers(&self) {
        self.idempotency.resume();
        let waiting = self.devices.resume();
        self.upgrades.reach(UpgradeLimit::HeldBack, waiting.forgotten);
        for held_back in waiting.all {
            self.carry_out(held_back);
        }
    }

    /// Carries out what came for a device while the tables were handed over. Called within a tokio
    /// runtime.
    pub(crate) fn carry_out(&self, held_back: HeldBack) {
        match held_back {
            // Closes that wait for room go on by themselves. Nothing is handed over now.
            HeldBack::Revoke(device) => drop(self.revoke_soon(&device)),
            HeldBack::Evict(device, conn) => self.evict(&device, conn),
            HeldBack::Deliver(device, message) => self.deliver(device.as_deref(), &message),
        }
    }
}

impl From<HeldBack> for v1::HeldBack {
    fn from(held_back: HeldBack) -> v1::HeldBack {
        match held_back {
            HeldBack::Revoke(device) => {
                v1::HeldBack { device: device.into(), ..v1::HeldBack::default() }
            }
            HeldBack::Evict(device, conn) => {
                let conn = Some(conn.to_u64());
                v1::HeldBack { device: device.into(), conn, message: None }
            }
            HeldBack::Deliver(device, message) => {
                let (device, message) = (device.unwrap_or_default(), Some(message.into()));
                v1::HeldBack { device: device.into(), conn: None, message }
            }
        }
    }
}

impl From<v1::HeldBack> for HeldBack {
    fn from(v1::HeldBack { device, conn, message }: v1::HeldBack) -> HeldBack {
        match (conn, message) {
            (_, Some(message)) => {
                let device = Some(device).filter(|device| !device.is_empty());
                HeldBack::Deliver(device.map(Box::from), message.into())
            }
            (Some(conn), None) => HeldBack::Evict(device.into(), ConnId::from_u64(conn)),
            (None, None) => HeldBack::Revoke(device.into()),
        }
    }
}

fn part<T>(field: &'static str, part: Option<T>) -> Result<T, NotUnderstood> {
    part.ok_or_else(|| refused(field, 0_u32))
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
