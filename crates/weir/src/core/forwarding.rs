//! Messages that the old process of an upgrade takes after the decision, over connections that have
//! stayed. The new process publishes them, and says what has become of them.

use std::time::Duration;

use weir_wire::handover::v1;
use weir_wire::handover::v1::link_publish::{Payload as Content, Target as To};

use crate::backends::notices::{self, Author};
use crate::base::mailboxes::Publisher;
use crate::base::model::{IdempotencyKey, Payload, Publication, PublishError, RETRY_AFTER, Target};
use crate::core::forwards::NotAsked;
use crate::core::idempotency::accepted_message;
use crate::core::publishing::Publishing;
use crate::core::state::SharedState;
use crate::observe::upgrades::UpgradeLimit;

impl SharedState {
    /// Has the new process publish a message. The caller's rights were checked here.
    pub(in crate::core) fn forward(
        &self,
        publication: &Publication<'_>,
        author: Author,
        sender: Option<&str>,
    ) -> Result<Publishing, PublishError> {
        let (caller, key) = match publication.idempotency_key {
            Some(IdempotencyKey { caller, key }) => (caller, key),
            None => ("", ""),
        };
        let asked = self.forwards.ask(v1::LinkPublish {
            number: 0,
            target: match publication.target {
                Target::Topic(topic) => Some(To::Topic(topic.to_owned())),
                Target::Device(device) => Some(To::Device(device.to_owned())),
                Target::All => None,
            },
            payload: Some(match publication.payload {
                Payload::Text(text) => Content::Text(text.to_owned()),
                Payload::Data(data) => Content::Data(data.to_vec()),
            }),
            content_type: publication.content_type.to_owned(),
            key: publication.key.to_owned(),
            ttl: publication.ttl.map(|ttl| u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX)),
            idempotency_caller: caller.to_owned(),
            idempotency_key: key.to_owned(),
            author: author as u32,
            sender: sender.map(str::to_owned),
        });
        asked.map_err(|why| {
            if why == NotAsked::Full {
                self.upgrades.reach(UpgradeLimit::Publishes, 1);
            }
            PublishError::Busy(RETRY_AFTER)
        })
    }

    /// Publishes a message for the old process, before it returns. The future is the answer.
    pub(crate) fn publish_forwarded(
        &self,
        publish: &v1::LinkPublish,
    ) -> impl Future<Output = v1::LinkPublished> + Send + use<> {
        let (number, publishing) = (publish.number, self.publish_now(publish));
        async move {
            let published = match publishing {
                Ok(publishing) => publishing.await,
                Err(error) => Err(error),
            };
            let is_uncertain =
                matches!(published, Err(PublishError::Uncertain(_) | PublishError::InProgress(_)));
            let accepted = published.ok().map(accepted_message);
            v1::LinkPublished { number, accepted, is_uncertain }
        }
    }

    fn publish_now(&self, publish: &v1::LinkPublish) -> Result<Publishing, PublishError> {
        let (caller, key) = (publish.idempotency_caller.as_str(), publish.idempotency_key.as_str());
        let publication = Publication {
            target: match &publish.target {
                Some(To::Topic(topic)) => Target::Topic(topic),
                Some(To::Device(device)) => Target::Device(device),
                None => Target::All,
            },
            payload: match &publish.payload {
                Some(Content::Text(text)) => Payload::Text(text),
                Some(Content::Data(data)) => Payload::Data(data),
                None => Payload::Data(&[]),
            },
            content_type: &publish.content_type,
            key: &publish.key,
            ttl: publish.ttl.map(Duration::from_nanos),
            sender: None,
            idempotency_key: (!key.is_empty()).then_some(IdempotencyKey { caller, key }),
        };
        let author = Author::ALL.get(publish.author as usize).copied().unwrap_or(Author::Program);
        let publisher = match author {
            Author::Device => Publisher::Device,
            Author::Service | Author::AdminApi | Author::Program => Publisher::Backend,
        };
        let publishing = self.route(&publication, publisher, |_, _| Ok::<(), PublishError>(()))?;
        if let Target::Topic(topic) = publication.target
            && self.notices.hears_of_messages(topic)
        {
            let sender = (notices::Sender::Request(publish.sender.as_deref()), author);
            self.notices.published(sender, (topic, &publication), publishing.accepted());
        }
        Ok(publishing)
    }
}
