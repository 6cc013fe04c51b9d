//! The task that takes the reports of one shard.
//!
//! Some credits return only when the task takes the report that answers their command. So it takes
//! reports even while it waits for a credit; otherwise task and shard would wait for each other.
//! Reports that it cannot carry out yet stay in the [`Dispatcher`]. Their number is bounded: at
//! most `RECEIVED_BYTES_MAX` of frames from devices (beyond that the shard stops reading from its
//! devices), one adoption for each unsettled connection, and one close for each settled one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::error;
use weir_engine::handover::NotUnderstood;
use weir_engine::{ConnId, Keeper, Taken};
use weir_wire::handover::v1;
use weir_wire::handover::v1::waiting_frame::What as Waits;

use super::ended::Ended;
use super::terms::Terms;
use super::{Asker, Dispatcher, Results, What};
use crate::base::handover::refused;
use crate::connection::reports::{BATCH_REPORTS, Reports};
use crate::core::handle::Handle;
use crate::core::pauses::Pause;
use crate::core::state::SharedState;
use crate::observe::readiness::{Part, PartState};

/// The terms of connections that another process has handed over.
pub(crate) struct TakenTerms {
    terms: Terms,
    /// Those whose new token the other process was checking.
    refreshing: Vec<ConnId>,
    /// What has waited for the answers of hooks.
    waiting: Vec<What>,
}

impl TakenTerms {
    /// Makes them of what was handed over; `taken` are the connections of this shard. Those that
    /// have ended count until their ends are carried out.
    pub(crate) fn import(
        shared: &SharedState,
        (shard, taken): (usize, &[Taken]),
        exported: v1::Terms,
    ) -> Result<TakenTerms, NotUnderstood> {
        let mut terms = Terms::new(shared.config().auth.expiring_notice);
        let refreshing = terms.import(&exported, shard, |grant| shared.auth.share(grant))?;
        let waiting = waiting(shared, (shard, taken), exported.waiting)?;
        Ok(TakenTerms { terms, refreshing, waiting })
    }

    fn go_on(self, dispatcher: &mut Dispatcher) {
        let TakenTerms { terms, refreshing, waiting } = self;
        dispatcher.terms = terms;
        refreshing.into_iter().for_each(|conn| dispatcher.ask_for_token_again(conn));
        waiting.into_iter().for_each(|what| dispatcher.receive_moved(what));
    }
}

/// What has waited in another process.
fn waiting(
    shared: &SharedState,
    (shard, taken): (usize, &[Taken]),
    exported: Vec<v1::WaitingFrame>,
) -> Result<Vec<What>, NotUnderstood> {
    if exported.is_empty() {
        return Ok(Vec::new());
    }
    let asker =
        |&Taken { id, device, origin, .. }: &Taken| (id, Asker { conn: id, device, origin });
    let open = taken.iter().filter(|taken| !taken.is_closing);
    let mut askers: HashMap<ConnId, Asker> = open.map(asker).collect();
    // No shard tells of those that have ended.
    for v1::WaitingFrame { conn, what } in &exported {
        let Some(Waits::Ended(ended)) = what else { continue };
        let asker = Ended::asker(ended, ConnId::from_u64(*conn), shard)?;
        if askers.insert(asker.conn, asker).is_some() {
            return Err(refused("terms.waiting: the end of an open or ended connection", *conn));
        }
        shared.take_over(shard, asker.origin)?;
    }
    let knows = |topic| shared.router.knows(topic);
    let what = |v1::WaitingFrame { conn, what }| {
        let id = ConnId::from_u64(conn);
        // Nothing comes behind the end.
        let asker = match &what {
            Some(Waits::Ended(_)) => askers.remove(&id),
            Some(Waits::Frame(_) | Waits::First(_)) | None => askers.get(&id).copied(),
        };
        let asker = asker.ok_or_else(|| refused("terms.waiting: an unknown connection", conn))?;
        What::import(what, asker, knows)
    };
    exported.into_iter().map(what).collect()
}

/// Takes and carries out the reports of one shard until the shard has stopped.
///
/// `taken`: the terms of connections that another process has handed over.
pub(crate) async fn run(
    handle: Handle,
    shard: usize,
    mut reports: Reports,
    taken: Option<TakenTerms>,
) {
    let shared = Arc::clone(handle.shared());
    let room = Arc::clone(reports.room());
    let _watch = Watch { shared: Arc::clone(&shared), shard };
    let (mut dispatcher, results) = Dispatcher::new(handle, shard, Arc::clone(&room));
    let Results { mut found, mut answered } = results;
    taken.into_iter().for_each(|taken| taken.go_on(&mut dispatcher));
    let mut rechecks = shared.rechecks.receiver(shard);
    let mut pauses = shared.pauses.receiver(shard);
    let mut pause: Option<(Pause, Instant)> = None;
    let mut batch = Vec::with_capacity(BATCH_REPORTS);
    let mut retry_after = PAUSE_MIN;
    loop {
        let before = dispatcher.carried_out();
        let is_starved = !dispatcher.work().await;
        shared.dispatchers[shard].set(dispatcher.footprint());
        let is_late = pause.as_ref().is_some_and(|(_, late)| *late <= Instant::now());
        if reports.is_empty()
            && (dispatcher.is_idle() || is_late && dispatcher.is_movable())
            && let Some((asked, _)) = pause.take()
            && stand_still(asked, dispatcher.export()).await == Keeper::Other
        {
            return;
        }
        let wait = match pause {
            Some(_) => Some(PAUSE_MIN),
            None if is_starved => Some(retry_after),
            None => dispatcher.until_next_look(),
        };
        let received = tokio::select! {
            biased;
            received = reports.receive(&mut batch) => received,
            // The dispatcher keeps a sender, so the channel never closes.
            Some(found) = found.recv() => {
                dispatcher.take_found(found);
                true
            }
            // Likewise.
            Some(answered) = answered.recv() => {
                dispatcher.take_answered(answered);
                true
            }
            // The shared state keeps a sender, so the channel never closes.
            Some(recheck) = rechecks.recv() => {
                dispatcher.take_recheck(recheck);
                true
            }
            // Likewise.
            Some(asked) = pauses.recv() => {
                pause = Some((asked, Instant::now() + ANSWERS_PATIENCE));
                true
            }
            () = sleep(wait.unwrap_or_default()), if wait.is_some() => true,
        };
        // After progress the next try comes soon.
        let is_stuck = is_starved && dispatcher.carried_out() == before;
        retry_after = if is_stuck { (retry_after * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
        if !received {
            return;
        }
        for report in batch.drain(..) {
            dispatcher.take(report);
        }
        while let Ok(found) = found.try_recv() {
            dispatcher.take_found(found);
        }
        while let Ok(answered) = answered.try_recv() {
            dispatcher.take_answered(answered);
        }
        if room.take_awaited() {
            shared.mailbox(shard).wake();
        }
    }
}

/// Waits until it is known who goes on.
async fn stand_still(Pause { is_still, keeper }: Pause, terms: v1::Terms) -> Keeper {
    match is_still.send(terms) {
        Ok(()) => keeper.await.unwrap_or(Keeper::Itself),
        // The one who asked has given up.
        Err(_) => Keeper::Itself,
    }
}

/// Reports to readiness that a shard has stopped, or that the task for its reports has failed. The
/// shard's connections leave the presence of their topics.
struct Watch {
    shared: Arc<SharedState>,
    shard: usize,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.shared.drains.is_ending() {
            error!(
                shard = self.shard,
                "a shard has stopped by itself: the gateway is not ready any more"
            );
            let cause = format!("shard {} has stopped by itself", self.shard);
            self.shared.readiness.set(Part::Shards, PartState::Failed, Some(cause));
            self.shared.router.forget_shard(self.shard);
            self.shared.calls.end_shard(self.shard);
        }
    }
}

/// Most hooks and stores answer within some milliseconds. Then they are not asked again.
const ANSWERS_PATIENCE: Duration = Duration::from_millis(10);
/// The pause before a credit is tried again; a turn of a busy shard takes about as long.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(16);

#[cfg(test)]
mod tests {
    use weir_engine::{DeviceRef, Origin, Transport};
    use weir_wire::format::Format;
    use weir_wire::v1::client_message::Kind;
    use weir_wire::v1::{ClientMessage, Publish, publish};
    use weir_wire::{CloseReason, ProstMessage};

    use super::*;
    use crate::base::config::{Actor, TopicClass};
    use crate::base::model::Spoken;
    use crate::topics::{Found, Range, Subscriber};
    use crate::{Config, Gateway};

    /// A gateway for one connection, which retains what devices publish in `t`.
    async fn start() -> (Gateway, Arc<SharedState>) {
        let mut config = Config::default();
        config.listen.tcp = vec!["127.0.0.1:0".parse().unwrap()];
        (config.listen.udp, config.listen.http, config.listen.admin) = (vec![], vec![], None);
        config.threads.shards = 1;
        config.threads.pin = false;
        config.connection.drain_timeout = Duration::ZERO;
        config.memory.budget_bytes = 16 << 20;
        config.limits.connections_max = 1;
        config.limits.connections_per_source_max = 1;
        config.topic_classes = vec![TopicClass {
            pattern: "t".to_owned(),
            retention_messages: 10,
            publish: vec![Actor::Devices],
            ..Default::default()
        }];
        let gateway = Gateway::builder().config(config).start().await.unwrap();
        let shared = Arc::clone(gateway.parts().0);
        (gateway, shared)
    }

    /// What a connection leaves behind in the front when it has ended: its message, and its end.
    fn ended(shared: &SharedState, conn: ConnId) -> (DeviceRef, Origin, Vec<v1::WaitingFrame>) {
        let peer = Some([192, 0, 2, 1].into());
        let entered = shared.admission.enter(Transport::Tcp, Spoken::Frames, peer, false);
        let unsettled = entered.unwrap();
        assert_eq!(shared.admission.settle(), Ok(0));
        let client = shared.clients.enter("client/1");
        let origin = Origin::new(unsettled.source(), 0, Format::Stream, client.number());
        let pin = shared.devices.pin("d");
        shared.devices.enter(&pin, (unsettled.order(), conn), true, || ()).unwrap();
        let device = pin.device();
        client.settle();
        unsettled.settle();
        let topic = shared.router.id("t").unwrap();
        let payload = Some(publish::Payload::Text("last words".to_owned()));
        let publish = Publish { topic: "t".to_owned(), payload, ..Publish::default() };
        let frame = ClientMessage { kind: Some(Kind::Publish(publish)) }.encode_to_vec();
        let ended = Ended {
            conn,
            device,
            origin,
            reason: CloseReason::PeerClosed,
            transport: Transport::Tcp,
            peer: None,
            age_ticks: 3,
            topics: [topic].into(),
        };
        let whats = [Waits::Frame(frame), Waits::Ended(ended.export())];
        let waits = |what| v1::WaitingFrame { conn: conn.to_u64(), what: Some(what) };
        (device, origin, whats.map(waits).into())
    }

    #[tokio::test]
    async fn a_connection_that_has_ended_counts_until_its_end_is_carried_out() {
        let conn = ConnId::from_u64(1);
        let ((old, here), (new, there)) = (start().await, start().await);
        let credit = here.mailbox(0).try_credit(weir_engine::CreditKind::Control).unwrap();
        let subscribed =
            here.router.subscribe(credit, "t", Subscriber::new(conn, Format::Stream), || None);
        assert!(subscribed.is_ok());
        let (device, origin, waiting) = ended(&here, conn);
        let exported = here.router.export(&mut crate::topics::SentRings::default());
        let mut rings = crate::topics::EarlyRings::new(there.engine().budget());
        there.router.import(exported, &mut rings).unwrap();
        there.import_callers(here.export_callers()).unwrap();
        let import = |waiting, taken: &[Taken]| {
            let terms = v1::Terms { waiting, ..v1::Terms::default() };
            TakenTerms::import(&there, (0, taken), terms)
        };
        let taken = import(waiting.clone(), &[]).ok().unwrap();
        there.end_take_over();
        assert!(there.devices.has(device, conn));
        assert_eq!((there.clients.count(), there.admission.source_count()), (1, 1));
        assert!(there.admission.settle().is_err(), "it has the only place");
        let (mut dispatcher, _results) = Dispatcher::new(new.handle(), 0, Arc::default());
        taken.go_on(&mut dispatcher);
        assert!(dispatcher.work().await && dispatcher.is_idle());
        assert!(!there.devices.has(device, conn));
        assert_eq!(there.clients.count(), 0);
        assert_eq!(there.admission.settle(), Ok(0));
        let range = Range { after: None, messages_max: 10, bytes_max: 1 << 20 };
        let Found::Here(history) = there.router.history("t", range) else { panic!("it is here") };
        assert_eq!(history.messages.len(), 1, "what it has sent comes before its end");
        // What cannot be is refused.
        let first_behind: Vec<_> = waiting.iter().rev().cloned().collect();
        assert!(import(first_behind, &[]).is_err(), "a frame behind the end");
        let twice = [&waiting[1..], &waiting[1..]].concat();
        assert!(import(twice, &[]).is_err(), "it ends twice");
        let taken = Taken { id: conn, device, origin, is_closing: false };
        assert!(import(waiting.clone(), &[taken]).is_err(), "its shard has it");
        assert!(import(waiting[..1].to_vec(), &[]).is_err(), "nobody has sent the frame");
        new.shutdown().await;
        old.shutdown().await;
    }
}
