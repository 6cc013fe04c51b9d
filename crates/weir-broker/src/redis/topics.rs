//! Topics in Redis: publishing, reading, positions.

use std::time::Duration;

use redis::{Cmd, Value};

use super::client::Client;
use super::keys::Place;
use super::scripts::{PUBLISH, READ, TOPS, new_epoch};
use super::servers::Request;
use super::values::{array, damaged, number, text};
use crate::contract::{Error, Published};
use crate::records::{Batch, Entry, History, HistoryQuery, Name, Position, Received};

impl Client {
    pub(super) async fn publish_all(&self, batches: Vec<Batch>) -> Vec<Result<Published, Error>> {
        let (permit, until) = match self.admit(batches.len()) {
            Ok(admitted) => admitted,
            Err(error) => return batches.iter().map(|_| Err(error.clone())).collect(),
        };
        let requests = batches.iter().map(|batch| self.publish_request(batch)).collect();
        let answers = self.servers.run(requests, self.wait_replicas, until).await;
        drop(permit);
        let answers = answers.into_iter().zip(&batches);
        answers.map(|(answer, batch)| published(&answer?, batch.entries.len())).collect()
    }

    fn publish_request(&self, batch: &Batch) -> Request {
        let place = self.keys.place(&batch.topic);
        let command = publish_command(&place, &self.context.instance, self.topic_kept, batch);
        Request { slot: place.slot, command }
    }

    pub(super) async fn read_all(&self, queries: Vec<HistoryQuery>) -> Result<Vec<History>, Error> {
        let (_permit, until) = self.admit(queries.len())?;
        let request = |query: &HistoryQuery| {
            let place = self.keys.place(&query.topic);
            let mut command = READ.run([place.key('t'), place.key('s')].iter());
            command
                .arg(new_epoch())
                .arg(millis(self.topic_kept))
                .arg(query.after)
                .arg(query.messages_max)
                .arg(query.bytes_max);
            Request { slot: place.slot, command }
        };
        let requests = queries.iter().map(request).collect();
        let answers = self.servers.run(requests, 0, until).await;
        answers.into_iter().map(|answer| history(&answer?).map_err(damaged)).collect()
    }

    pub(super) async fn all_tops(&self, topics: Vec<Name>) -> Result<Vec<Position>, Error> {
        let (_permit, until) = self.admit(topics.len().div_ceil(TOPS_MAX))?;
        let mut tops = vec![Position { epoch: 0, offset: 0 }; topics.len()];
        let keys: Vec<_> = topics.iter().map(|topic| self.keys.place(topic)).collect();
        // A script may touch one slot of a cluster; of a single Redis, everything.
        let is_single = self.servers.is_single();
        let slot = |index: usize| if is_single { 0 } else { keys[index].slot };
        let mut order: Vec<usize> = (0..topics.len()).collect();
        order.sort_by_key(|&index| slot(index));
        let groups: Vec<&[usize]> = order
            .chunk_by(|&one, &other| slot(one) == slot(other))
            .flat_map(|group| group.chunks(TOPS_MAX))
            .collect();
        let request = |group: &&[usize]| {
            let keys: Vec<_> = group.iter().map(|&index| keys[index].key('t')).collect();
            let mut command = TOPS.run(keys.iter());
            command.arg(new_epoch()).arg(millis(self.topic_kept));
            Request { slot: slot(group[0]), command }
        };
        let requests = groups.iter().map(request).collect();
        let answers = self.servers.run(requests, 0, until).await;
        for (group, answer) in groups.into_iter().zip(answers) {
            let answer = answer?;
            let values = array(&answer).map_err(damaged)?;
            if values.len() != 2 * group.len() {
                return Err(damaged("positions are missing"));
            }
            for (&index, pair) in group.iter().zip(values.chunks_exact(2)) {
                let epoch = number(&pair[0]).map_err(damaged)?;
                tops[index] = Position { epoch, offset: number(&pair[1]).map_err(damaged)? };
            }
        }
        Ok(tops)
    }
}

/// Publishes a batch to the topic at a place. Without messages the topic is remembered for `topic_kept`.
pub(super) fn publish_command(
    place: &Place,
    publisher: &str,
    topic_kept: Duration,
    batch: &Batch,
) -> Cmd {
    let mut keys = vec![place.key('t'), place.key('s')];
    let mut keyed = String::new();
    for entry in &batch.entries {
        keyed.push(if entry.idempotency_key.is_some() { '1' } else { '0' });
        keys.extend(entry.idempotency_key.iter().map(|key| place.part('i', key)));
    }
    if keys.len() == 2 {
        keyed.clear();
    }
    let (messages_max, ttl) = match batch.retention {
        Some(retention) => (retention.messages_max, retention.ttl),
        None => (0, Duration::ZERO),
    };
    // Expiry is renewed at most so often.
    let late = ((ttl + topic_kept) / 8).clamp(LATE_MIN, LATE_MAX);
    let mut command = PUBLISH.run(keys.iter());
    command
        .arg(place.key('c'))
        .arg(new_epoch())
        .arg(publisher)
        .arg(batch.id.0)
        .arg(messages_max)
        .arg(millis(ttl))
        .arg(millis(topic_kept))
        .arg(millis(Entry::KEY_KEPT))
        .arg(millis(late))
        .arg(keyed);
    for entry in &batch.entries {
        command.arg(&entry.payload);
    }
    command
}

/// Reads the answer of `scripts/publish.lua` to a batch of so many messages.
fn published(answer: &Value, count: usize) -> Result<Published, Error> {
    let words = text(answer).map_err(damaged)?;
    parse_published(words, count).ok_or_else(|| damaged(format!("{words:?} is no answer")))
}

fn parse_published(words: &str, count: usize) -> Option<Published> {
    let mut words = words.split(' ');
    let epoch = words.next()?.parse().ok()?;
    let nodes = words.next()?.parse().ok()?;
    let mut next = words.next()?.parse().ok()?;
    let mut known = words.map(|known| {
        let mut numbers = known.split(':').map(str::parse::<u64>);
        let mut number = || numbers.next()?.ok();
        Some((number()?, Position { epoch: number()?, offset: number()? }))
    });
    let mut hit = known.next();
    let mut positions = Vec::with_capacity(count);
    for index in 0..count {
        match hit {
            Some(Some((at, position))) if usize::try_from(at).is_ok_and(|at| at == index) => {
                positions.push(position);
                hit = known.next();
            }
            Some(None) => return None,
            Some(Some(_)) | None => {
                positions.push(Position { epoch, offset: next });
                next += 1;
            }
        }
    }
    Some(Published { epoch, positions, nodes })
}

/// Reads the answer of `scripts/read.lua`.
fn history(answer: &Value) -> Result<History, String> {
    let [epoch, top, began, first, messages @ ..] = array(answer)? else {
        return Err("a history is cut".to_owned());
    };
    let top = Position { epoch: number(epoch)?, offset: number(top)? };
    let message = |pair: &[Value]| match pair {
        [offset, Value::BulkString(payload)] => {
            Ok(Received { offset: number(offset)?, payload: payload.clone() })
        }
        _ => Err("a message is cut".to_owned()),
    };
    let messages = messages.chunks(2).map(message).collect::<Result<_, _>>()?;
    Ok(History { top, first: number(first)?, began: number(began)?, messages })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Topics in a script.
const TOPS_MAX: usize = 256;
const LATE_MIN: Duration = Duration::from_millis(100);
const LATE_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch: u64, offset: u64) -> Position {
        Position { epoch, offset }
    }

    #[test]
    fn an_answer_names_each_position() {
        let parse = |words, count| parse_published(words, count);
        let positions = vec![at(7, 5), at(7, 6)];
        assert_eq!(parse("7 2 5", 2), Some(Published { epoch: 7, positions, nodes: 2 }));
        let positions = vec![at(3, 9), at(7, 5), at(7, 1), at(7, 6)];
        let expected = Published { epoch: 7, positions, nodes: 0 };
        assert_eq!(parse("7 0 5 0:3:9 2:7:1", 4), Some(expected));
        for words in ["", "7", "7 1", "7 1 x", "7 1 5 0:3"] {
            assert_eq!(parse(words, 1), None, "{words:?}");
        }
    }
}
