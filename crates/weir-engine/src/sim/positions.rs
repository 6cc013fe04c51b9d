//! The reference model of event ids: the positions that a reader is told must agree with the
//! messages that came.

use std::collections::BTreeMap;

use weir_wire::v1::Position;

use super::book::{Book, Says, epoch_of};

/// The topics of a reader of events, as the reader sees them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    /// Each id names the positions of all topics.
    tells_all: bool,
    topics: BTreeMap<usize, At>,
}

/// The reader's state in one topic.
#[derive(Debug, Clone, Copy)]
struct At {
    /// The offset of the last message, and the offset in the last id.
    came: u64,
    told: u64,
    /// Whether the reader has not been told that it left the topic.
    is_in: bool,
}

impl Told {
    /// A reader that has been told nothing yet.
    pub(crate) fn new(tells_all: bool) -> Self {
        Self { tells_all, topics: BTreeMap::new() }
    }

    /// Notes an event with frame `number` (`None`: one of the shard's own), and checks its id.
    ///
    /// A reader that comes back with the id gets the messages after its positions. So all messages
    /// before them must have come or never come, and no later message may have come or been
    /// skipped. `check_all_came` says whether all of a topic up to an offset has come, or may never
    /// come.
    pub(crate) fn take_id(
        &mut self,
        number: Option<u32>,
        id: Option<&[Position]>,
        book: &Book,
        check_all_came: impl Fn(usize, u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let sent = number.map(|number| book.sent(number));
        let own = match sent.map(|sent| (sent.says, sent.topic)) {
            Some((Says::Nothing, Some(topic))) => {
                let offset = sent.map_or(0, |sent| sent.of_topic.offset);
                self.note_came(topic, offset)?;
                Some(topic)
            }
            Some((Says::Subscribed(topic, offset), _)) => {
                let at = At { came: offset, told: offset, is_in: true };
                self.topics.insert(topic, at);
                Some(topic)
            }
            Some((Says::Unsubscribed(topic, offset), _)) => offset.map(|_| topic),
            Some((Says::Nothing | Says::Welcome, _)) | None => None,
        };
        match (own, id) {
            (Some(topic), Some(id)) => self.check_id(topic, id, check_all_came)?,
            (None, None) => {}
            (own, id) => return Err(format!("an event of topic {own:?} has the id {id:?}")),
        }
        if let Some(Says::Unsubscribed(topic, _)) = sent.map(|sent| sent.says)
            && let Some(at) = self.topics.get_mut(&topic)
        {
            at.is_in = false;
        }
        Ok(())
    }

    fn note_came(&mut self, topic: usize, offset: u64) -> Result<(), String> {
        let at = self.topics.get_mut(&topic).ok_or("an event of a topic before Subscribed")?;
        if offset <= at.told || offset <= at.came {
            return Err(format!(
                "offset {offset} of topic {topic} came behind its position: {at:?}"
            ));
        }
        at.came = offset;
        Ok(())
    }

    fn check_id(
        &mut self,
        own: usize,
        id: &[Position],
        check_all_came: impl Fn(usize, u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let topics = self.topics.clone();
        let is_due = |topic: &usize, at: &At| at.is_in && (*topic == own || self.tells_all);
        let is_named = |topic: usize| id.iter().any(|position| position.epoch == epoch_of(topic));
        if let Some((topic, _)) =
            topics.iter().find(|(topic, at)| is_due(topic, at) && !is_named(**topic))
        {
            return Err(format!("topic {topic} is not named by {id:?}"));
        }
        for Position { epoch, offset } in id {
            let known = topics.iter().find(|(topic, _)| epoch_of(**topic) == *epoch);
            let (topic, at) = known.ok_or_else(|| format!("{id:?} names a foreign topic"))?;
            if !at.is_in {
                continue;
            }
            if *offset < at.came || *offset < at.told {
                return Err(format!("{id:?} goes back in topic {topic}: {at:?}"));
            }
            check_all_came(*topic, *offset)
                .map_err(|what| format!("{id:?} names offset {offset} of topic {topic}: {what}"))?;
            if let Some(at) = self.topics.get_mut(topic) {
                at.told = *offset;
            }
        }
        Ok(())
    }
}
