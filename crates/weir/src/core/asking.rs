//! Questions to hooks about subscriptions and messages. Nothing here waits, but what it returns
//! may.

use std::borrow::Cow;

use crate::auth::Act;
use crate::backends::questions::{
    About, Answer, Asked, Content, Origin, Outcome, Question, Replacement, Unanswered,
};
use crate::base::mailboxes::Publisher;
use crate::base::model::{Payload, Publication, RETRY_AFTER, Target};
use crate::core::handle::Handle;
use crate::core::publish::{NotPublished, UNAVAILABLE, check_fields};
use crate::core::publishing::Publishing;
use crate::core::rights::{Caller, CallerDevice, CameBy, Denied};
use crate::core::state::SharedState;
use crate::limits::rates::Sender;
use crate::observe::counters::hooks::Hook;
use crate::topics::validate_name;

impl Handle {
    /// Asks whether a device may publish, if its topic's class has a hook and permits the message.
    /// `None`: nobody is to be asked.
    ///
    /// Services are not asked about: they are backends themselves. If the embedding program decides
    /// about topics, it alone does.
    /// Cost: without hooks one relaxed load.
    pub(crate) fn ask_publish(
        &self,
        caller: &Caller<'_>,
        publication: &Publication<'_>,
    ) -> Option<Asked> {
        let shared = self.shared();
        let Target::Topic(topic) = publication.target else { return None };
        if !shared.questions.asks_acts()
            || self.on_publish.is_some()
            || check_fields(publication).is_err()
        {
            return None;
        }
        let with_payload = shared.questions.with_payload();
        let about = About::Message(topic, Some(publication).filter(|_| with_payload));
        shared.ask_act(caller, Act::Publish, topic, about)
    }

    /// Publishes for a caller that waits for answers. Otherwise as [`Handle::publish_as`].
    pub(crate) async fn publish_asking(
        &self,
        caller: &Caller<'_>,
        sender: Option<Sender<'_>>,
        publication: &Publication<'_>,
    ) -> Result<Option<Publishing>, NotPublished> {
        if !self.shared().questions.asks_acts() || self.on_publish.is_some() {
            return self.publish_as(caller, sender, publication);
        }
        // Only what asks pays for the larger future.
        Box::pin(self.ask_then_publish(caller, sender, publication)).await
    }

    async fn ask_then_publish(
        &self,
        caller: &Caller<'_>,
        sender: Option<Sender<'_>>,
        publication: &Publication<'_>,
    ) -> Result<Option<Publishing>, NotPublished> {
        // Before the question, which costs a backend more than us.
        self.note(self.shared().check_sender(sender))?;
        match self.ask_publish(caller, publication) {
            None => self.publish_as(caller, None, publication),
            Some(asked) => {
                let outcome = asked.outcome().await;
                self.publish_answered(caller, publication, outcome)
            }
        }
    }

    /// Publishes as the answer says. The rights are checked again: they may have changed meanwhile.
    pub(crate) fn publish_answered(
        &self,
        caller: &Caller<'_>,
        publication: &Publication<'_>,
        outcome: Outcome,
    ) -> Result<Option<Publishing>, NotPublished> {
        match outcome {
            // A token's owner is no answer to this question.
            Err(Unanswered) | Ok(Answer::Identity(_)) => {
                self.note(Err(NotPublished::HookUnavailable(RETRY_AFTER)))
            }
            Ok(Answer::Refused(reason)) => self.note(Err(NotPublished::HookRefused(refusal(
                Act::Publish,
                publication.target,
                &reason,
            )))),
            Ok(Answer::Allowed) => self.publish_as(caller, None, publication),
            Ok(Answer::Changed(replacement)) => {
                self.publish_as(caller, None, &changed(publication, &replacement))
            }
        }
    }

    /// Counts a refusal.
    fn note<T>(&self, published: Result<T, NotPublished>) -> Result<T, NotPublished> {
        published.inspect_err(|error| self.shared().count_not_published(error))
    }
}

impl SharedState {
    /// Asks whether a device may subscribe, if the topic's class has a hook and permits it.
    /// `None`: nobody is to be asked.
    ///
    /// Cost: without hooks one relaxed load.
    pub(crate) fn ask_subscribe(&self, caller: &Caller<'_>, topic: &str) -> Option<Asked> {
        if !self.questions.asks_acts() {
            return None;
        }
        self.ask_act(caller, Act::Subscribe, topic, About::Subscription(topic))
    }

    /// The same for a request that reads from a topic, with the wait.
    ///
    /// Errors: as an answer that forbids it.
    pub(crate) async fn check_asking(
        &self,
        caller: &Caller<'_>,
        topic: &str,
    ) -> Result<(), Denied> {
        match self.ask_subscribe(caller, topic) {
            None => Ok(()),
            Some(asked) => subscribe_answered(topic, asked.outcome().await),
        }
    }

    fn ask_act(
        &self,
        caller: &Caller<'_>,
        act: Act,
        topic: &str,
        about: About<'_>,
    ) -> Option<Asked> {
        if caller.grant.publisher() == Publisher::Backend
            || validate_name(topic, self.router.name_bytes_max()).is_err()
        {
            return None;
        }
        let destination = self.router.destination(topic);
        let class = destination.class();
        let (hook, upstream) = match act {
            Act::Subscribe => (Hook::Subscribe, class.subscribe_hook.as_deref()?),
            Act::Publish => (Hook::Publish, class.publish_hook.as_deref()?),
        };
        self.permit_class(caller, act, topic, &class).ok()?;
        let device: Option<Cow<'_, str>> = match caller.device {
            CallerDevice::Named(device) => device.map(Cow::Borrowed),
            // A connection that has gone asks nothing.
            CallerDevice::Connected(device, conn) => {
                Some(Cow::Owned(self.devices.id_of(device, conn)?))
            }
        };
        let (source, transport) = match caller.came_by {
            CameBy::Connection(origin) => {
                (self.admission.source(origin).map(|source| source.to_string()), "connection")
            }
            CameBy::Request(source) => (source.map(|source| source.to_string()), "http"),
            CameBy::Datagram(source) => (Some(source.to_string()), "udp"),
        };
        let conn = match caller.device {
            CallerDevice::Named(_) => None,
            CallerDevice::Connected(_, conn) => Some(conn),
        };
        let (device, source) = (device.as_deref(), source.as_deref());
        let from = Origin { conn, device, source, transport };
        Some(self.questions.ask(&Question { hook, upstream, from, about }))
    }
}

/// Whether the caller may subscribe, by the answer.
pub(crate) fn subscribe_answered(topic: &str, outcome: Outcome) -> Result<(), Denied> {
    match outcome {
        Ok(Answer::Allowed) => Ok(()),
        Ok(Answer::Refused(reason)) => {
            Err(Denied::Hook(refusal(Act::Subscribe, Target::Topic(topic), &reason)))
        }
        // The others are no answers to this question.
        Err(Unanswered) | Ok(Answer::Identity(_) | Answer::Changed(_)) => {
            Err(Denied::HookUnavailable(UNAVAILABLE.to_owned()))
        }
    }
}

/// The sentence of a refusal, with the backend's reason.
fn refusal(act: Act, target: Target<'_>, reason: &str) -> String {
    let verb = act.verb();
    let topic = match target {
        Target::Topic(topic) => topic,
        Target::Device(_) | Target::All => "",
    };
    match reason {
        "" => format!("{verb} to {topic:?} is not permitted: the backend refuses it"),
        reason => format!("{verb} to {topic:?} is not permitted: {reason}"),
    }
}

/// The message with the parts that the answer replaces.
fn changed<'a>(publication: &Publication<'a>, by: &'a Replacement) -> Publication<'a> {
    let payload = by.payload.as_ref().map(|payload| match payload {
        Content::Text(text) => Payload::Text(text),
        Content::Data(data) => Payload::Data(data),
    });
    Publication {
        payload: payload.unwrap_or(publication.payload),
        content_type: by.content_type.as_deref().unwrap_or(publication.content_type),
        key: by.key.as_deref().unwrap_or(publication.key),
        ttl: by.ttl.or(publication.ttl),
        ..*publication
    }
}
