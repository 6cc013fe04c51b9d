//! What a broker sends to publish, without a broker: for programs that measure Redis alone.

use std::time::Duration;

use super::keys::{Interest, Keys};
use super::options::TOPIC_KEPT;
use super::scripts::PUBLISH;
use super::topics::publish_command;
use crate::records::{Batch, Name};

/// The script that publishes, as a broker calls it. A bare client that sends these bytes to Redis has it do the same work
/// as a broker for the same batches.
///
/// # Shape
/// Commands in Redis' protocol (RESP2), of a single Redis.
pub struct PublishScript {
    keys: Keys,
    publisher: String,
    topic_kept: Duration,
}

impl PublishScript {
    /// The script for keys that begin with this prefix, called by one publisher, with the defaults of
    /// [`RedisOptions`](super::RedisOptions).
    pub fn new(prefix: &str, publisher: &str) -> PublishScript {
        let (keys, publisher) = (Keys::new(prefix), publisher.to_owned());
        PublishScript { keys, publisher, topic_kept: TOPIC_KEPT }
    }

    /// Makes the script known to Redis: answered with a string.
    pub fn load(&self) -> Vec<u8> {
        PUBLISH.load().get_packed_command()
    }

    /// Publishes a batch: answered with a string, or an error. The ids of one publisher's batches for a topic must rise.
    pub fn call(&self, batch: &Batch) -> Vec<u8> {
        let place = self.keys.place(&batch.topic);
        publish_command(&place, &self.publisher, self.topic_kept, batch).get_packed_command()
    }

    /// Subscribes to the channel of a topic: answered with an array, like each of its messages.
    pub fn subscribe(&self, topic: &Name) -> Vec<u8> {
        let (_, channel) = self.keys.channel(&Interest::Topic(topic.clone()));
        let mut command = redis::cmd("SSUBSCRIBE");
        command.arg(channel);
        command.get_packed_command()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{BatchId, Entry};

    #[test]
    fn commands_name_the_script_and_the_keys_of_the_topic() {
        let script = PublishScript::new("bare", "me");
        let entry = Entry { payload: b"hello".to_vec(), idempotency_key: None };
        let topic = Name::from("news");
        let batch =
            Batch { topic: topic.clone(), id: BatchId(7), retention: None, entries: vec![entry] };
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let call = text(script.call(&batch));
        assert!(call.contains("EVALSHA") && call.contains("t:news") && call.ends_with("hello\r\n"));
        assert!(text(script.load()).contains("SPUBLISH"));
        let channel = text(script.subscribe(&topic));
        let channel = channel.lines().last().expect("the channel");
        assert!(call.contains(channel), "{call:?} {channel:?}");
    }
}
