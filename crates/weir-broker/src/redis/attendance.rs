//! Which topics have subscribers on which node: a hash for each topic, with the stays of the nodes that have some.
//!
//! Topics stand in the index of the stay, beside those with members, under a name that no topic can have.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use redis::Value;

use super::client::Client;
use super::devices::RECORD_KEPT;
use super::scripts::ATTEND;
use super::servers::Request;
use super::values::{array, damaged, int};
use crate::contract::{Error, Event};
use crate::records::{Attendance, Name, Occupancy};

impl Client {
    pub(super) async fn attend_all(
        &self,
        topics: Vec<Attendance>,
    ) -> Result<Vec<Occupancy>, Error> {
        let (_permit, until) = self.admit(topics.len())?;
        let interruptions = self.context.interruptions.load(Ordering::Relaxed);
        let (come, go): (Vec<_>, Vec<_>) = topics.iter().partition(|one| one.is_attended);
        let come: Vec<Name> = come.iter().map(|one| in_index(&one.topic)).collect();
        let go: Vec<Name> = go.iter().map(|one| in_index(&one.topic)).collect();
        let (entering, unwritten) = self.begin_entering(&come, interruptions);
        let stay = entering.stay().clone();
        if !unwritten.is_empty() {
            self.write_index(&stay, &unwritten, until).await?;
            self.present().written(&unwritten, interruptions);
        }
        let marks: HashMap<&Name, _> = {
            let present = self.present();
            go.iter().filter_map(|topic| Some((topic, present.mark(topic)?))).collect()
        };
        let call = Some(self.present().next_call());
        let stays = (stay.name.as_str(), stay.before.as_deref());
        let request = |one: &Attendance| self.attend_request(one, stays, call);
        let answers = self.servers.run(topics.iter().map(request).collect(), 0, until).await;
        let answers = answers.into_iter().map(|answer| occupancy(&answer?).map_err(damaged));
        let answers: Vec<_> = answers.collect();
        let mut emptied = Vec::new();
        for (one, answer) in topics.iter().zip(&answers) {
            let name = in_index(&one.topic);
            if answer.is_ok()
                && let Some(mark) = marks.get(&name)
            {
                let entry = self.present().emptied(&name, mark);
                emptied.extend(entry.map(|entry| (name, entry)));
            }
        }
        self.forget(&stay, emptied, until).await;
        answers.into_iter().collect()
    }

    /// Says that a stay has subscribers to a topic, or has none any more. Calls for this node have a number.
    fn attend_request(
        &self,
        one: &Attendance,
        (stay, before): (&str, Option<&str>),
        call: Option<u64>,
    ) -> Request {
        let place = self.keys.place(&one.topic);
        let mut keys = vec![place.key('o')];
        keys.extend(call.map(|_| place.part('j', &self.context.instance)));
        let mut command = ATTEND.run(keys.iter());
        command.arg(if one.is_attended { "come" } else { "go" });
        command.arg(stay).arg(before.unwrap_or_default()).arg(&self.context.instance);
        command.arg(if one.is_sure { "1" } else { "0" });
        command.arg(RECORD_KEPT.as_millis().to_string()).arg(EMPTY_KEPT_MS);
        command.arg(call.map(|call| call.to_string()).unwrap_or_default());
        Request { slot: place.slot, command }
    }

    /// Ends what a stay attends of a topic; `None`: the entry of the index is about members.
    pub(super) fn end_attendance(
        &self,
        entry: &Name,
        (stay, call): (&str, Option<u64>),
    ) -> Option<Request> {
        // Whether an answer to the same request was lost is not known.
        let topic = attended(entry)?;
        let gone = Attendance { topic, is_attended: false, is_sure: false };
        Some(self.attend_request(&gone, (stay, None), call))
    }

    /// Tells this node if a stay was the last one of a topic.
    pub(super) fn tell_end(&self, entry: &Name, answer: &Value) -> Result<(), Error> {
        let Occupancy { ended, .. } = occupancy(answer).map_err(damaged)?;
        if let (Some(topic), Some(occupancy)) = (attended(entry), ended) {
            self.context.handler.handle(Event::Vacated { topic, occupancy });
        }
        Ok(())
    }

    /// Keeps what is known of a topic's occupancy, and asks whether a stay is part of it; `None`: the entry of the index
    /// is about members.
    pub(super) fn renew_attendance(&self, entry: &Name, stay: &str) -> Option<[Request; 2]> {
        let place = self.keys.place(&attended(entry)?);
        let mut keep = redis::cmd("PEXPIRE");
        keep.arg(place.key('o')).arg(RECORD_KEPT.as_millis().to_string());
        let mut ask = redis::cmd("HEXISTS");
        ask.arg(place.key('o')).arg(stay);
        Some([keep, ask].map(|command| Request { slot: place.slot, command }))
    }
}

/// Reads the answer of `scripts/attend.lua`.
fn occupancy(answer: &Value) -> Result<Occupancy, String> {
    let [begun, ended] = array(answer)? else {
        return Err("an occupancy is cut".to_owned());
    };
    let number = |value| match u64::try_from(int(value)?) {
        Ok(number) => Ok((number > 0).then_some(number)),
        Err(error) => Err(error.to_string()),
    };
    Ok(Occupancy { begun: number(begun)?, ended: number(ended)? })
}

/// The name by which a topic with subscribers stands in the index.
fn in_index(topic: &Name) -> Name {
    format!("{ATTENDED}{topic}").into()
}

/// Whether an entry of the index is about subscribers, not members.
pub(super) fn is_attended(entry: &Name) -> bool {
    entry.starts_with(ATTENDED)
}

/// The topic of such an entry.
fn attended(entry: &Name) -> Option<Name> {
    entry.strip_prefix(ATTENDED).map(Name::from)
}

/// No topic's name has a control character.
const ATTENDED: char = '\u{1}';
/// How long it is known who has ended the last occupancy: for longer than a call is repeated.
const EMPTY_KEPT_MS: u32 = 300_000;
