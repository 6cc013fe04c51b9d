//! Sessions in Redis: a string for each, which Redis removes when its time is over.

use redis::Value;

use super::client::Client;
use super::keys::Place;
use super::servers::Request;
use super::values::damaged;
use crate::contract::{Error, check_sessions};
use crate::records::{SessionId, StoredSession};

impl Client {
    pub(super) async fn keep_all_sessions(
        &self,
        kept: Vec<StoredSession>,
        forgotten: Vec<SessionId>,
    ) -> Result<(), Error> {
        check_sessions(&kept)?;
        let (_permit, until) = self.admit(kept.len() + forgotten.len())?;
        let keep = |session: &StoredSession| {
            let place = self.session_place(session.id);
            let mut command = redis::cmd("SET");
            let ttl = session.ttl.as_millis().max(1).to_string();
            command.arg(place.key(KIND)).arg(&session.sealed).arg("PX").arg(ttl);
            Request { slot: place.slot, command }
        };
        let forget = |id: &SessionId| {
            let place = self.session_place(*id);
            let mut command = redis::cmd("UNLINK");
            command.arg(place.key(KIND));
            Request { slot: place.slot, command }
        };
        let requests = forgotten.iter().map(forget).chain(kept.iter().map(keep)).collect();
        let answers = self.servers.run(requests, 0, until).await;
        answers.into_iter().try_for_each(|answer| answer.map(drop))
    }

    pub(super) async fn find_session(&self, id: SessionId) -> Result<Option<Vec<u8>>, Error> {
        let (_permit, until) = self.admit(1)?;
        let place = self.session_place(id);
        let mut command = redis::cmd("GET");
        command.arg(place.key(KIND));
        let answer = self.run_one(place.slot, command, until).await?;
        if answer == Value::Nil {
            return Ok(None);
        }
        let Value::BulkString(sealed) = answer else {
            return Err(damaged(format!("a session was expected, not {answer:?}")));
        };
        Ok(Some(sealed))
    }

    fn session_place(&self, id: SessionId) -> Place {
        let hex: String = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
        self.keys.place(&hex.into())
    }
}

/// The kind of a session's key.
const KIND: char = 'e';
