//! Calls that go on while another process takes over their connections.
//!
//! Who asked, or was asked, outside stays with the process that has asked: a request for the answer
//! of a device, or the call of a backend. The other process has the connection, and passes on what
//! concerns the call: see [`MovedCalls`].

use std::convert::Infallible;

use tokio::sync::oneshot;
use weir_engine::ConnId;
use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::Calls;
use crate::base::handover::{check_column, refused};

/// The calls that have begun in the other process.
#[derive(Debug, Default)]
pub(crate) struct MovedCalls {
    /// Calls of devices. The end of the channel tells that the call was given up, or that its
    /// connection has ended; the other process then need not pass its answer on.
    pub(crate) own: Vec<MovedCall<Infallible>>,
    /// Calls that devices are to answer. The answer belongs to the other process. The end of the
    /// channel tells that there will be none.
    pub(crate) asked: Vec<MovedCall<weir_wire::v1::Answer>>,
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
    /// The connections that answer calls, and the calls that go on. From here on devices are not
    /// called, until [`Calls::resume`].
    pub(crate) fn export(&self) -> v1::Calls {
        self.table.export()
    }

    /// Devices are called again.
    pub(crate) fn resume(&self) {
        self.table.resume();
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
}
