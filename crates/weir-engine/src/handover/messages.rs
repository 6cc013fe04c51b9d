//! The messages of exports: each is sent once, and shared again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use weir_wire::handover::v1;

use super::{MessageExport, NotUnderstood};
use crate::budget::Budget;
use crate::message::Message;

/// The messages that a part of a process exports, each once.
///
/// The number of a message is its address: no other message has it as long as this one is kept, and
/// everything that is exported is kept until the other process has taken over.
#[derive(Debug, Default)]
pub struct Messages {
    known: HashSet<u64, foldhash::fast::RandomState>,
    exports: Vec<v1::Message>,
}

/// The messages that a process has from another one, by their numbers there.
#[derive(Debug)]
pub struct ImportedMessages {
    budget: Arc<Budget>,
    known: HashMap<u64, Arc<Message>, foldhash::fast::RandomState>,
}

impl Messages {
    /// The number of a message. The first call exports it, behind the messages that it contains.
    pub fn number(&mut self, message: &Arc<Message>) -> u64 {
        let number = Arc::as_ptr(message) as u64;
        if self.known.insert(number) {
            let singles = message.singles().iter().map(|single| self.number(single)).collect();
            self.exports.push(message.export(number, singles).encode());
        }
        number
    }

    /// The messages that this part sends, without those that were taken before.
    pub fn take_exports(&mut self) -> Vec<v1::Message> {
        std::mem::take(&mut self.exports)
    }
}

impl ImportedMessages {
    /// None so far. All will be charged to `budget`, even beyond its limits: they were accepted.
    pub fn new(budget: &Arc<Budget>) -> ImportedMessages {
        ImportedMessages { budget: Arc::clone(budget), known: HashMap::default() }
    }

    /// Takes the messages of some parts. One that is there already is not made again. A message may
    /// contain others of any of these parts, or of those that were taken before.
    ///
    /// Errors: a field that this program does not understand, or a message that is missing.
    pub fn take(
        &mut self,
        parts: impl IntoIterator<Item = Vec<v1::Message>>,
    ) -> Result<(), NotUnderstood> {
        let mut batches = Vec::new();
        for message in parts.into_iter().flatten() {
            match message.singles.is_empty() {
                true => self.make(message)?,
                false => batches.push(message),
            }
        }
        batches.into_iter().try_for_each(|message| self.make(message))
    }

    fn make(&mut self, message: v1::Message) -> Result<(), NotUnderstood> {
        if self.known.contains_key(&message.number) {
            return Ok(());
        }
        let export = MessageExport::decode(message)?;
        let singles = export.singles.iter().map(|number| self.get(*number));
        let singles = singles.collect::<Result<_, _>>()?;
        let (number, budget) = (export.number, &self.budget);
        self.known.insert(number, Message::import(budget, export, singles));
        Ok(())
    }

    /// The message with this number.
    ///
    /// Errors: there is none.
    pub fn get(&self, number: u64) -> Result<Arc<Message>, NotUnderstood> {
        let missing = NotUnderstood { field: "the number of a message", value: number };
        self.known.get(&number).cloned().ok_or(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::TopicMessage;
    use crate::time::Nanos;

    fn message(budget: &Arc<Budget>, offset: u64, singles: &[&Arc<Message>]) -> Arc<Message> {
        let singles = singles.iter().map(|single| Arc::clone(single)).collect();
        let topic = TopicMessage { offset, singles, ..TopicMessage::default() };
        Message::of_tick(budget, vec![7; 100], Nanos(offset), None, topic)
    }

    #[test]
    fn each_message_is_sent_once_and_shared_again() {
        let budget = Budget::new(1 << 20);
        let (first, second) = (message(&budget, 1, &[]), message(&budget, 2, &[]));
        let batch = message(&budget, 2, &[&first, &second]);
        let mut messages = Messages::default();
        let early = messages.number(&first);
        let mut parts = vec![messages.take_exports()];
        let numbers = [&batch, &batch, &first].map(|message| messages.number(message));
        assert_eq!((numbers[0], numbers[2]), (numbers[1], early));
        parts.push(messages.take_exports());
        assert_eq!([parts[0].len(), parts[1].len()], [1, 2]);
        let other = Budget::new(1 << 20);
        let mut imported = ImportedMessages::new(&other);
        // Within a part in any order, and once more.
        let reversed: Vec<_> = parts[1].iter().rev().cloned().collect();
        imported.take([parts[0].clone(), reversed]).unwrap();
        imported.take(parts.clone()).unwrap();
        assert_eq!(other.used(), budget.used());
        let made = imported.get(numbers[0]).unwrap();
        assert!(Arc::ptr_eq(&made.singles()[0], &imported.get(early).unwrap()));
        assert_eq!(made.frame(), batch.frame());
        assert!(imported.get(1).is_err());
        let mut lacking = ImportedMessages::new(&other);
        assert!(lacking.take([parts[1].clone()]).is_err());
    }
}
