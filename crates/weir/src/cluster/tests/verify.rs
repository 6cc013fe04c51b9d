//! What has to be true after a run.

use std::collections::BTreeMap;

use weir_broker::Name;

use super::clients::{Jump, Stage, is_kept};
use super::node::{is_late, key_of};
use super::run::{Run, TOPICS};
use crate::topics::Envelope;
use weir_wire::hot;

/// The texts that the broker has accepted at each place: topic, epoch, offset.
type Journal = BTreeMap<(&'static str, u64, u64), Vec<String>>;

fn journal(run: &Run) -> Result<Journal, String> {
    let mut journal = Journal::new();
    for topic in TOPICS {
        for (position, payload) in run.memory.journal(topic) {
            let envelope = Envelope::decode(&payload).ok_or("an envelope is damaged")?;
            let hot::Payload::Text(text) = envelope.push.payload else { panic!("texts only") };
            let place = (topic, position.epoch, position.offset);
            journal.entry(place).or_default().push(text.to_owned());
        }
    }
    Ok(journal)
}

/// Where a client has missed an offset without a notice, the message had expired, or a newer one of
/// its key had taken its place.
pub(super) fn check_jumps(run: &Run) -> Result<(), String> {
    let journal = journal(run)?;
    for Jump { client, topic, epoch, missing } in &run.clients.jumps {
        let Some(topic) = TOPICS.iter().find(|name| *name == topic) else { continue };
        for offset in missing.clone() {
            let texts = journal.get(&(*topic, *epoch, offset)).map_or(&[][..], Vec::as_slice);
            let is_replaced = |text: &String| {
                let newer = (*topic, *epoch, offset + 1)..=(*topic, *epoch, u64::MAX);
                let mut newer = journal.range(newer).flat_map(|(_, texts)| texts);
                topic.starts_with("keys") && newer.any(|newer| key_of(newer) == key_of(text))
            };
            if !texts.iter().any(|text| is_late(text) || is_replaced(text)) {
                let history = run.clients.history(*client, topic);
                return Err(format!("client {client}, {topic}: {offset} is missing\n{history}"));
            }
        }
    }
    Ok(())
}

/// A place stands for one message: that which the broker accepted there.
pub(super) fn check_messages(run: &Run) -> Result<(), String> {
    let journal = journal(run)?;
    let mut seen: BTreeMap<(&str, u64, u64), &str> = BTreeMap::new();
    let accepted = run.accepted.lock().unwrap();
    let accepted = accepted
        .iter()
        .map(|(topic, position, text)| ((topic.as_str(), position.epoch, position.offset), text));
    let delivered = run.clients.delivered.iter();
    let delivered =
        delivered.map(|(topic, epoch, offset, text)| ((topic.as_str(), *epoch, *offset), text));
    for (place, text) in accepted.chain(delivered) {
        if !journal.get(&place).is_some_and(|texts| texts.contains(text)) {
            return Err(format!(
                "{text} at {place:?}, where the broker has {:?}",
                journal.get(&place)
            ));
        }
        let before = seen.insert(place, text);
        if before.is_some_and(|before| before != text) {
            return Err(format!("{text} at {place:?}, where {before:?} was before"));
        }
    }
    Ok(())
}

/// Everybody who is in a topic has come to its end.
pub(super) async fn check_positions(run: &Run) -> Result<(), String> {
    let node = run.nodes[0].as_ref().ok_or("node 0 is down")?;
    let names: Vec<Name> = TOPICS.iter().map(|topic| Name::from(*topic)).collect();
    let tops = node.cluster.broker().tops(names).await;
    let tops = tops.map_err(|error| format!("the broker has not healed: {error}"))?;
    for (topic, top) in TOPICS.iter().zip(tops) {
        for (number, client) in run.clients.list.iter().enumerate() {
            let Some(view) = client.views.get(*topic) else { continue };
            let position = view.position.map(|position| (position.epoch, position.offset));
            if view.stage != Stage::In || position != Some((top.epoch, top.offset)) {
                let history = run.clients.history(number, topic);
                let (stage, kept) = (view.stage, is_kept(topic));
                return Err(format!(
                    "client {number} is {stage:?} at {position:?} in {topic} (kept: {kept}), which ends at {top:?}\n{history}"
                ));
            }
        }
    }
    Ok(())
}

/// Nothing is left at a node, and the broker sends it nothing more.
pub(super) fn check_end(run: &Run) -> Result<(), String> {
    for node in run.nodes.iter().flatten() {
        node.check_end().map_err(|what| format!("at the end of {}: {what}", node.name))?;
        let joined = run.memory.joined(&node.name);
        if !joined.is_empty() {
            return Err(format!("{} has left all topics, but not {joined:?}", node.name));
        }
    }
    Ok(())
}
