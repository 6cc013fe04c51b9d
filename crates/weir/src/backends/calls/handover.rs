//! Calls that go on while another process takes over their connections.
//!
//! Who asked, or was asked, outside stays with the process that has asked: a request for the answer
//! of a device, or the call of a backend. The other process has the connection. Each tells the other
//! what concerns the call, in a [`v1::LinkCall`], as long as both are there.
//!
//! ```text
//!   process that has asked            process with the connection
//!     answer of the backend   ──────►   sends it to the device
//!     the caller has gone     ──────►   sends Cancel to the device
//!     answers its caller      ◄──────   answer of the device
//!     gives up                ◄──────   the device gives up, or its connection has ended
//! ```

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use weir_engine::ConnId;
use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;
use weir_wire::v1::Answer;
use weir_wire::{CallCode, ProstMessage as _};

use super::exchange::Fault;
use super::to_backend::frame;
use super::{CallDirection, Calls};
use crate::base::handover::{HandingOver, check_column, refused};

/// The calls that have begun in the other process.
#[derive(Debug, Default)]
pub(crate) struct MovedCalls {
    /// Calls of devices. The end of the channel tells that the call was answered or given up, or that
    /// its connection has ended.
    pub(crate) own: Vec<MovedCall<Infallible>>,
    /// Calls that devices are to answer. The answer belongs to the other process. The end of the
    /// channel tells that there will be none.
    pub(crate) asked: Vec<MovedCall<Answer>>,
}

/// A call that has begun in the other process.
#[derive(Debug)]
pub(crate) struct MovedCall<T> {
    pub(crate) conn: ConnId,
    /// Its id, which the connection knows.
    pub(crate) id: u32,
    pub(crate) ended: oneshot::Receiver<T>,
}

impl Calls {
    /// The connections that answer calls, and the calls that go on. The door is shut.
    pub(crate) fn export(&self) -> v1::Calls {
        self.table.export()
    }

    /// Goes on with the calls of another process. There were none here so far.
    pub(crate) fn import(&self, calls: &v1::Calls) -> Result<MovedCalls, NotUnderstood> {
        let count = calls.conns.len();
        check_column("calls.answer_calls", calls.answer_calls.len(), count)?;
        check_column("calls.last", calls.last.len(), count)?;
        check_column("calls.own_ids", calls.own_ids.len(), calls.own_conns.len())?;
        check_column("calls.asked_ids", calls.asked_ids.len(), calls.asked_conns.len())?;
        let table = &self.table;
        for (nth, conn) in calls.conns.iter().enumerate() {
            let is_new =
                table.import(ConnId::from_u64(*conn), calls.answer_calls[nth], calls.last[nth]);
            if !is_new {
                return Err(refused("calls.conns", *conn));
            }
        }
        let mut moved = MovedCalls::default();
        for (conn, id) in calls.own_conns.iter().zip(&calls.own_ids) {
            let (conn, id) = (ConnId::from_u64(*conn), *id);
            let ended = table.import_own(conn, id);
            let ended = ended.ok_or_else(|| refused("calls.own_ids", id))?;
            moved.own.push(MovedCall { conn, id, ended });
        }
        for (conn, id) in calls.asked_conns.iter().zip(&calls.asked_ids) {
            let (conn, id) = (ConnId::from_u64(*conn), *id);
            let ended = table.import_asked(conn, id);
            let ended = ended.ok_or_else(|| refused("calls.asked_ids", id))?;
            moved.asked.push(MovedCall { conn, id, ended });
        }
        Ok(moved)
    }

    /// The process that takes over hears of calls here. Call it before the door says that it has.
    pub(crate) fn tell_to(&self, other: mpsc::Sender<v1::LinkCall>) {
        self.way.tell_to(other);
    }

    /// Sees to the calls that have begun in the old process, as long as that is there. Called within
    /// a tokio runtime.
    pub(crate) fn go_on(
        self: &Arc<Self>,
        MovedCalls { own, asked }: MovedCalls,
        old: &mpsc::Sender<v1::LinkCall>,
    ) {
        for MovedCall { conn, id, ended } in own {
            let (calls, old) = (Arc::clone(self), old.clone());
            tokio::spawn(async move {
                tokio::select! {
                    _ = ended => {
                        // Without the old process nobody has to know.
                        let _ = old.send(news(conn, id, true, None)).await;
                    }
                    () = old.closed() => {
                        let text = "the process that has asked the backend has ended; the backend                                     may have done what was asked";
                        let fault = Fault::new(CallCode::Uncertain, text.to_owned());
                        calls.answer_device(conn, id, frame(fault.into_answer(id))).await;
                    }
                }
            });
        }
        for MovedCall { conn, id, ended } in asked {
            let (calls, old) = (Arc::clone(self), old.clone());
            tokio::spawn(async move {
                let answer = tokio::select! {
                    answer = ended => answer.ok(),
                    () = old.closed() => return calls.give_up_moved(conn, id),
                };
                let has_answered = answer.is_some();
                let answer = answer.map(|answer| answer.encode_to_vec());
                let told = old.send(news(conn, id, false, answer)).await;
                if told.is_err() && has_answered {
                    calls.counters.calls.late(CallDirection::ToDevice);
                }
            });
        }
    }

    /// Hears what the other process tells.
    pub(crate) async fn hear(&self, call: v1::LinkCall) {
        let v1::LinkCall { conn, id, is_of_device, answer } = call;
        let conn = ConnId::from_u64(conn);
        if !self.way.has(conn) {
            return;
        }
        match (is_of_device, answer) {
            (true, Some(frame)) => {
                self.answer_device(conn, id, frame.into()).await;
            }
            (true, None) => self.cancelled(conn, id),
            (false, Some(answer)) => {
                if let Ok(answer) = Answer::decode(&*answer) {
                    self.answered(conn, Answer { id, ..answer });
                }
            }
            // The one who waits learns it, wherever it is.
            (false, None) => self.give_up_moved(conn, id),
        }
    }

    /// Answers a call of a device, at whichever process it is; `false`: it does not wait any more.
    pub(super) async fn answer_device(&self, conn: ConnId, id: u32, frame: Box<[u8]>) -> bool {
        let mut frame = Some(frame);
        // Until the shard takes the answer the call goes on, also for a process that takes over.
        let finish = || if self.table.finish(conn, id) { frame.take() } else { None };
        match self.way.send(conn, finish).await {
            Ok(is_sent) => is_sent,
            Err(HandingOver) => {
                let answer = frame.take().map(Vec::from);
                self.table.finish(conn, id) && self.way.tell(news(conn, id, true, answer)).await
            }
        }
    }

    /// Nobody waits for the answer of a device any more.
    fn give_up_moved(&self, conn: ConnId, id: u32) {
        if self.table.give_up(conn, id) {
            self.cancel(conn, id);
        }
    }
}

/// What one process tells the other of a call.
pub(super) fn news(
    conn: ConnId,
    id: u32,
    is_of_device: bool,
    answer: Option<Vec<u8>>,
) -> v1::LinkCall {
    v1::LinkCall { conn: conn.to_u64(), id, is_of_device, answer }
}
