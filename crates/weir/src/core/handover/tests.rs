//! A gateway goes on with the callers of another.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::Transport;
use weir_wire::ProstMessage;
use weir_wire::format::Format;

use super::*;
use crate::base::model::Spoken;
use crate::core::drain::{DrainOptions, DrainState};
use crate::core::handle::ShardSilent;
use crate::limits::admission::AcceptOrder;
use crate::observe::counters::ConnectRefuseCause;
use crate::{Config, Gateway};

const FREE: &str = "127.0.0.1:0";

pub(super) async fn start(change: impl FnOnce(&mut Config)) -> (Gateway, Arc<SharedState>) {
    let mut config = Config::default();
    config.listen.tcp = vec![FREE.parse().unwrap()];
    config.listen.udp = vec![];
    config.listen.http = vec![];
    config.listen.admin = None;
    config.threads.pin = false;
    config.memory.budget_bytes = 16 << 20;
    config.limits.connections_per_source_max = 3;
    config.connection.drain_timeout = Duration::ZERO;
    change(&mut config);
    let gateway = Gateway::builder().config(config).start().await.unwrap();
    let shared = Arc::clone(gateway.parts().0);
    (gateway, shared)
}

/// What a settled connection holds of the front.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settled {
    shard: usize,
    conn: ConnId,
    origin: Origin,
    order: AcceptOrder,
}

pub(super) fn connect(
    shared: &SharedState,
    device: &str,
    number: u64,
) -> Result<Settled, ConnectRefuseCause> {
    let peer: IpAddr = [192, 0, 2, 1].into();
    let unsettled = shared.admission.enter(Transport::Tcp, Spoken::Frames, Some(peer), false)?;
    let shard = shared.admission.settle()?;
    let client = shared.clients.enter("client/1");
    let origin = Origin::new(unsettled.source(), 0, Format::Stream, client.number());
    let (pin, order) = (shared.devices.pin(device), unsettled.order());
    let conn = ConnId::from_u64(number);
    shared.devices.enter(&pin, (order, conn), true, || ()).unwrap();
    shared.calls.enter(conn);
    client.settle();
    unsettled.settle();
    Ok(Settled { shard, conn, origin, order })
}

fn moved(from: &SharedState, to: &SharedState, settled: &[Settled]) {
    let bytes = from.export_callers().encode_to_vec();
    let taken = to.import_callers(v1::Callers::decode(&*bytes).unwrap()).unwrap();
    assert_eq!(taken.change, CredentialsChange { admits_less: false, grants: false });
    for Settled { shard, origin, .. } in settled {
        to.take_over(*shard, *origin).unwrap();
    }
    to.end_take_over();
}

#[tokio::test]
async fn a_gateway_goes_on_with_the_callers_of_another() {
    let (old, here) = start(|_| ()).await;
    let (new, there) = start(|_| ()).await;
    let settled: Vec<Settled> =
        (1..=2).map(|number| connect(&here, &format!("d{number}"), number).unwrap()).collect();
    let unsettled = here.admission.enter(Transport::Tcp, Spoken::Frames, None, false);
    let stays = here.clients.enter("stays");
    // Far ahead, as after years.
    here.message_ids.store(u64::MAX / 2, Ordering::Relaxed);
    moved(&here, &there, &settled);
    for Settled { conn, origin, order, .. } in &settled {
        let device = format!("d{}", conn.to_u64());
        assert_eq!(there.devices.connections_of(&device), Some(vec![*conn]));
        assert_eq!(there.admission.source(*origin), here.admission.source(*origin));
        assert_eq!(there.clients.name(origin.client()).as_deref(), Some("client/1"));
        assert!(there.calls.are_answered(&[*conn]));
        let (one, other) = (here.admission.age(*order), there.admission.age(*order));
        assert!(one.abs_diff(other) < Duration::from_secs(20), "{one:?} {other:?}");
    }
    assert_eq!((there.clients.count(), there.admission.source_count()), (1, 1));
    assert_eq!(there.next_message_id(), u64::MAX / 2);
    // One more may come from this source, later than all others.
    let third = connect(&there, "d3", 3).unwrap();
    assert!(settled.iter().all(|settled| settled.order < third.order));
    assert_eq!(connect(&there, "d4", 4).err(), Some(ConnectRefuseCause::SourceConnections));
    for Settled { shard, conn, origin, .. } in settled.iter().chain([&third]) {
        assert!(
            there.devices.has(there.devices.pin(&format!("d{}", conn.to_u64())).device(), *conn)
        );
        there.clients.leave(origin.client());
        there.admission.release(*shard);
        there.admission.leave(*origin);
    }
    assert_eq!((there.clients.count(), there.admission.source_count()), (0, 0));
    drop((unsettled, stays));
    old.shutdown().await;
    new.shutdown().await;
}

#[tokio::test]
async fn what_is_revoked_meanwhile_is_revoked_by_whoever_goes_on() {
    let (old, here) = start(|_| ()).await;
    let (new, there) = start(|_| ()).await;
    let settled = connect(&here, "d", 1).unwrap();
    moved(&here, &there, &[settled]);
    assert_eq!(here.revoke("d").await, Err(ShardSilent { shard: 0 }));
    assert_eq!(here.devices.connections_of("d"), Some(vec![settled.conn]));
    here.resume_callers();
    assert_eq!(here.devices.connections_of("d"), None);
    let held_back = v1::HeldBack::from(HeldBack::Revoke("d".into()));
    there.carry_out(HeldBack::from(held_back));
    assert_eq!(there.devices.connections_of("d"), None);
    old.shutdown().await;
    new.shutdown().await;
}

#[tokio::test]
async fn an_emptied_node_stays_closed_until_its_drain_is_cancelled() {
    let (old, here) = start(|_| ()).await;
    let (new, there) = start(|_| ()).await;
    let options = DrainOptions { share: 1.0, lead: Duration::ZERO, over: Duration::ZERO };
    here.drain(options).unwrap();
    while here.drain_info().state != DrainState::Drained {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    moved(&here, &there, &[]);
    let (one, other) = (here.drain_info(), there.drain_info());
    assert_eq!(
        (other.state, other.options, other.since_ms),
        (one.state, one.options, one.since_ms)
    );
    assert!(!there.is_ready());
    assert_eq!(connect(&there, "d", 1).err(), Some(ConnectRefuseCause::Draining));
    there.cancel_drain().await.unwrap();
    assert!(there.is_ready() && connect(&there, "d", 1).is_ok());
    let again = there.drain(options).unwrap();
    assert_eq!(again.state, DrainState::Announced);
    while there.drain_info().state != DrainState::Drained {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    old.shutdown().await;
    new.shutdown().await;
}

#[tokio::test]
async fn damaged_callers_are_refused() {
    let (old, here) = start(|_| ()).await;
    connect(&here, "d", 1).unwrap();
    let exported = here.export_callers();
    let damages: &[fn(&mut v1::Callers)] = &[
        |callers| callers.devices = None,
        |callers| {
            let leaving = v1::LeavingConn { conn: u64::MAX, device: "d".to_owned(), order: 1 };
            callers.devices.as_mut().unwrap().stripes[0].leaving.push(leaving);
        },
        |callers| callers.auth = None,
        |callers| callers.admin = None,
        |callers| callers.admission = None,
        |callers| callers.admission.as_mut().unwrap().next_order = u64::MAX,
        |callers| callers.publish_rates = None,
        |callers| callers.datagram_rates = None,
        |callers| callers.idempotency = None,
        |callers| callers.clients = None,
        |callers| callers.ends = None,
        |callers| callers.numbers = None,
        |callers| callers.numbers.as_mut().unwrap().tickets.push(1),
        |callers| callers.numbers.as_mut().unwrap().tickets[0] = u64::MAX,
        |callers| callers.numbers.as_mut().unwrap().drains_ended.push(1),
        |callers| callers.numbers.as_mut().unwrap().drain = None,
        |callers| drain(callers).state = 99,
        |callers| drain(callers).state = DrainState::Draining as u32,
        |callers| drain(callers).number = u32::MAX,
        |callers| drain(callers).share = f64::NAN.to_bits(),
        |callers| drain(callers).over = u64::MAX,
        |callers| callers.calls = None,
        |callers| callers.calls.as_mut().unwrap().conns.push(7),
        |callers| callers.calls.as_mut().unwrap().conns[0] = u64::MAX,
        |callers| {
            let calls = callers.calls.as_mut().unwrap();
            (calls.own_conns, calls.own_ids) = (vec![1, 1], vec![5, 5]);
        },
        |callers| {
            let calls = callers.calls.as_mut().unwrap();
            (calls.asked_conns, calls.asked_ids) = (vec![9], vec![5]);
        },
    ];
    for (nth, damage) in damages.iter().enumerate() {
        let (new, there) = start(|_| ()).await;
        let mut callers = exported.clone();
        damage(&mut callers);
        assert!(there.import_callers(callers).is_err(), "damage {nth}");
        new.shutdown().await;
    }
    assert!(here.take_over(9, Origin::of(Format::Stream)).is_err());
    assert!(here.take_over(0, Origin::new(1 << 20, 0, Format::Stream, 0)).is_err());
    old.shutdown().await;
}

/// Whatever has happened to the bytes, nothing panics, neither then nor afterwards.
#[tokio::test]
async fn garbled_callers_do_no_harm() {
    let (old, here) = start(|_| ()).await;
    for number in 1..=3 {
        connect(&here, &format!("d{number}"), number).unwrap();
    }
    let bytes = here.export_callers().encode_to_vec();
    for round in 0..40_usize {
        let mut bytes = bytes.clone();
        for step in 0..3 {
            // Spread over the whole.
            let at = (round * 7_919 + step * 104_729) % bytes.len();
            bytes[at] ^= u8::try_from(1 << ((round + step) % 8)).unwrap();
        }
        let Ok(callers) = v1::Callers::decode(&*bytes) else { continue };
        let (new, there) = start(|_| ()).await;
        if there.import_callers(callers).is_ok() {
            there.end_take_over();
            let _ = connect(&there, "d9", 9);
            let _ = there.revoke("d1").await;
            there.sweep();
            there.next_message_id();
        }
        new.shutdown().await;
    }
    old.shutdown().await;
}

fn drain(callers: &mut v1::Callers) -> &mut v1::DrainState {
    callers.numbers.as_mut().unwrap().drain.as_mut().unwrap()
}

#[tokio::test]
async fn calls_under_way_are_heard_of_by_the_other_process() {
    let (new, there) = start(|_| ()).await;
    let conn = ConnId::from_u64(1);
    let calls = v1::Calls {
        conns: vec![1],
        answer_calls: vec![true],
        last: vec![7],
        own_conns: vec![1, 1],
        own_ids: vec![3, 4],
        asked_conns: vec![1, 1],
        asked_ids: vec![6, 7],
    };
    let mut moved = there.calls.import(&calls).unwrap();
    let mut exported = there.calls.export();
    assert_eq!(exported, calls);
    exported.conns.clear();
    assert!(there.calls.import(&exported).is_err(), "columns differ");
    // The device gives one call up, and answers another.
    there.calls.cancelled(conn, 4);
    let answer = weir_wire::v1::Answer { id: 6, ..Default::default() };
    there.calls.answered(conn, answer.clone());
    assert!(moved.own[0].ended.try_recv().is_err_and(is_open));
    assert!(!moved.own[1].ended.try_recv().is_err_and(is_open));
    assert_eq!(moved.asked[0].ended.try_recv(), Ok(answer));
    assert!(moved.asked[1].ended.try_recv().is_err_and(is_open));
    there.calls.end(conn);
    assert!(!moved.own[0].ended.try_recv().is_err_and(is_open));
    assert!(!moved.asked[1].ended.try_recv().is_err_and(is_open));
    assert_eq!((moved.own[0].conn, moved.own[0].id), (conn, 3));
    new.shutdown().await;
}

fn is_open(error: tokio::sync::oneshot::error::TryRecvError) -> bool {
    error == tokio::sync::oneshot::error::TryRecvError::Empty
}
