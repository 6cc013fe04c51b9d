//! Calls: those of the connection's device to backends, and its answers to those of backends.

use weir_wire::ErrorCode;
use weir_wire::v1::{Answer, Call, Cancel};

use super::{Asker, Dispatcher, Job};
use crate::backends::calls::NotBegun;
use crate::base::frames;
use crate::observe::traces::{note, note_failure};

impl Dispatcher {
    /// Begins a call in a task of its own, which sends the answer.
    pub(super) fn call(&mut self, asker: Asker, call: Call) {
        let conn = asker.conn;
        let Some(device) = self.shared.devices.id_of(asker.device, conn) else { return };
        let mut span = self.shared.tracer.begin("call", None);
        note(&mut span, "rpc.method", &call.method);
        let grant = self.grant(asker);
        let begun = self.shared.calls.begin(conn, call, |callers| grant.may_call(callers));
        drop(grant);
        match begun {
            Ok(mut begun) => {
                begun.span = span;
                tokio::spawn(async move { begun.ask(&device).await });
            }
            Err(NotBegun::Answer(outcome, frame)) => {
                note_failure(&mut span, Some(outcome.name()));
                self.jobs.push_front(Job::Send { conn, frame });
            }
            Err(NotBegun::Id(message)) => {
                note_failure(&mut span, Some(ErrorCode::InvalidField.name()));
                self.answer(conn, frames::error(ErrorCode::InvalidField, message, "", 0));
            }
        }
    }

    pub(super) fn take_answer(&self, asker: Asker, answer: Answer) {
        self.shared.calls.answered(asker.conn, answer);
    }

    pub(super) fn cancel_call(&self, asker: Asker, cancel: Cancel) {
        self.shared.calls.cancelled(asker.conn, cancel.id);
    }
}
