//! `POST /v1/publish`: devices publish to topics, services to any target.

use std::sync::Arc;

use hyper::body::Body as _;
use weir_wire::ErrorCode;

use super::{Api, RETRY_AFTER, caller_as};
use crate::auth::Requester;
use crate::core::handle::{Handle, Refusal};
use crate::core::publish::NotPublished;
use crate::core::publishing::Publishing;
use crate::core::rights;
use crate::http::Caller;
use crate::http::web::idempotency::{KeyOwner, RequestKey};
use crate::http::web::problem::{Kind, MessagePlace, Problem};
use crate::http::web::publish::{self, PublishOne};
use crate::http::web::reply::Reply;
use crate::limits::rates::Sender;
use crate::{Publication, Target};

impl Api {
    pub(super) async fn publish(
        &self,
        caller: &Caller,
        requester: &Requester,
        (key, body): (Option<&str>, &[u8]),
    ) -> Result<Reply, Problem> {
        let mut charge = None;
        let reserve = |bytes| {
            charge = Some(caller.ledger.charge(bytes)?);
            Ok(())
        };
        let caller_device = requester.device.as_deref();
        let owner = match caller_device {
            Some(name) if requester.is_service => KeyOwner::Service(name),
            Some(id) => KeyOwner::Device(id),
            None => KeyOwner::Source(caller.peer),
        };
        let key = key.map(|key| RequestKey::new(owner, key));
        let sender = (!requester.is_service).then(|| Sender::new(caller_device, caller.peer));
        let publisher =
            Device { handle: &self.handle, caller: caller_as(requester, caller), sender };
        let mut reply = publish::publish(body, key.as_ref(), reserve, &publisher).await?;
        if let Some(mut charge) = charge {
            let length = reply.body().size_hint().exact().unwrap_or(0);
            charge.overdraw(usize::try_from(length).unwrap_or(usize::MAX));
            reply.extensions_mut().insert(Arc::new(charge));
        }
        Ok(reply)
    }
}

/// The caller of a request, as a publisher.
struct Device<'a> {
    handle: &'a Handle,
    caller: rights::Caller<'a>,
    sender: Option<Sender<'a>>,
}

impl PublishOne for Device<'_> {
    async fn publish(
        &self,
        publication: &Publication<'_>,
        place: MessagePlace<'_>,
    ) -> Result<Option<Publishing>, Problem> {
        let publishing = self.handle.publish_asking(&self.caller, self.sender, publication);
        publishing.await.map_err(|error| refused(error, publication.target, place))
    }
}

/// The problem for a refused message.
fn refused(error: NotPublished, target: Target<'_>, place: MessagePlace<'_>) -> Problem {
    match error {
        NotPublished::SenderRate { after, .. } => {
            let Refusal { message, .. } = Refusal::from(error);
            Problem::retry(Kind::RateLimited, after, format!("{message}; try again in {after:?}"))
        }
        NotPublished::Field { field, message } => {
            Problem::field(format!("{}{field}", place.object), message)
        }
        NotPublished::HookUnavailable(after) => {
            let Refusal { message, .. } = Refusal::from(error);
            Problem::retry(Kind::Busy, after, message)
        }
        NotPublished::NotPermitted(detail) | NotPublished::HookRefused(detail) => {
            let field = match target {
                Target::Topic(_) => "topic",
                Target::Device(_) => "device",
                Target::All => "all",
            };
            Problem::forbidden(detail).at(format!("{}{field}", place.object))
        }
        NotPublished::Error(error) => Problem::publish(error, place),
        NotPublished::Refused(refusal) => refused_by_program(refusal, place),
    }
}

/// The problem for a message that the embedding program has refused.
fn refused_by_program(refusal: Refusal, place: MessagePlace<'_>) -> Problem {
    let Refusal { code, message } = refusal;
    match code {
        ErrorCode::TopicName => Problem::field(format!("{}topic", place.object), message),
        ErrorCode::TooLarge => {
            Problem::new(Kind::TooLarge, message).at(format!("{}{}", place.object, place.content))
        }
        ErrorCode::NotPermitted => Problem::forbidden(message),
        ErrorCode::RateLimited => Problem::retry(Kind::RateLimited, RETRY_AFTER, message),
        ErrorCode::TooManyTopics => Problem::retry(Kind::TooManyTopics, RETRY_AFTER, message),
        ErrorCode::Busy => Problem::retry(Kind::Busy, RETRY_AFTER, message),
        ErrorCode::InvalidField
        | ErrorCode::UnknownKind
        | ErrorCode::NotSupported
        | ErrorCode::AlreadyGreeted => Problem::new(Kind::InvalidRequest, message),
    }
}
