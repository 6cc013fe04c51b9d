//! `POST /v1/publish`: devices to topics, services to whom they like.

use std::sync::Arc;

use hyper::body::Body as _;
use weir_engine::Nanos;
use weir_wire::ErrorCode;

use super::{Api, RETRY_AFTER};
use crate::auth::{Act, Grant, Requester};
use crate::core::events::{FromDevice, OnPublish, Refusal};
use crate::core::rights::Denied;
use crate::http::Caller;
use crate::http::web::problem::{Kind, Place, Problem};
use crate::http::web::publish;
use crate::http::web::reply::Reply;
use crate::limits::rates::Sender;
use crate::observe::counters::RefuseCause;
use crate::{Accepted, Publication, PublishError, Right, Target};

impl Api {
    pub(super) async fn publish(
        &self,
        caller: &Caller,
        requester: &Requester,
        body: &[u8],
    ) -> Result<Reply, Problem> {
        let mut charge = None;
        let reserve = |bytes| {
            charge = Some(caller.ledger.charge(bytes)?);
            Ok(())
        };
        let mut reply = publish::publish(body, reserve, |publication, place| {
            if !requester.is_service {
                self.check_rate(Sender::new(requester.device.as_deref(), caller.peer))?;
            }
            match publication.target {
                Target::Topic(topic) => self.to_topic(requester, topic, publication, place),
                Target::Device(_) => self.to_devices(requester, publication, "device", place),
                Target::All => self.to_devices(requester, publication, "all", place),
            }
        })
        .await?;
        if let Some(mut charge) = charge {
            let length = reply.body().size_hint().exact().unwrap_or(0);
            charge.overdraw(usize::try_from(length).unwrap_or(usize::MAX));
            reply.extensions_mut().insert(Arc::new(charge));
        }
        Ok(reply)
    }

    fn check_rate(&self, sender: Sender<'_>) -> Result<(), Problem> {
        self.rates.take(sender, Nanos::now()).map_err(|after| {
            self.handle.counters().count_refused(RefuseCause::SenderRate);
            let limit = self.handle.config().limits.publishes_per_second;
            let detail = format!(
                "a device may publish {limit} messages a second (limits.publishes_per_second); try again in {after:?}"
            );
            Problem::retry(Kind::RateLimited, after, detail)
        })
    }

    /// As on a connection: the embedding program decides, if there is one that wants to, or else the topic's class.
    fn to_topic(
        &self,
        requester: &Requester,
        topic: &str,
        publication: &Publication<'_>,
        place: Place<'_>,
    ) -> Result<Option<Accepted>, Problem> {
        let shared = self.handle.shared();
        if let Some(on_publish) = &shared.on_publish {
            return self.pass_on(on_publish, requester, topic, publication, place);
        }
        let device = requester.device.as_deref();
        let grant = shared.auth.grant(&requester.grant);
        let permitted = shared.permit(grant, Act::Publish, topic, |pattern| {
            device.is_some_and(|device| pattern.matches_for(topic, device))
        });
        if let Err(denied) = permitted {
            let (cause, problem) = match denied {
                Denied::Name(error) => {
                    (RefuseCause::TopicName, Problem::publish(PublishError::from(error), place))
                }
                Denied::NotPermitted(detail) => (
                    RefuseCause::NotPermitted,
                    Problem::forbidden(detail).at(format!("{}topic", place.object)),
                ),
            };
            shared.counters().count_refused(cause);
            return Err(problem);
        }
        self.accept(grant, publication, place)
    }

    fn pass_on(
        &self,
        on_publish: &OnPublish,
        requester: &Requester,
        topic: &str,
        publication: &Publication<'_>,
        place: Place<'_>,
    ) -> Result<Option<Accepted>, Problem> {
        let limit = self.handle.config().limits.topic_bytes_max;
        crate::topics::validate_name(topic, limit)
            .map_err(|error| Problem::publish(PublishError::from(error), place))?;
        let event = FromDevice {
            conn: None,
            device: requester.device.as_deref().unwrap_or_default(),
            topic,
            payload: publication.payload,
            content_type: publication.content_type,
            key: publication.key,
            ttl: publication.ttl,
            handle: &self.handle,
        };
        event.ask(on_publish).map_err(|refusal| refused(refusal, place))
    }

    /// To a device, or to all: a service's to do, as on the admin API.
    fn to_devices(
        &self,
        requester: &Requester,
        publication: &Publication<'_>,
        field: &str,
        place: Place<'_>,
    ) -> Result<Option<Accepted>, Problem> {
        let grant = self.handle.shared().auth.grant(&requester.grant);
        if grant.has(Right::Publish) {
            return self.accept(grant, publication, place);
        }
        self.handle.counters().count_refused(RefuseCause::NotPermitted);
        let detail = "devices publish to topics; to a device or to all publishes a service with the right \"publish\" \
                      (auth.services, may)";
        Err(Problem::forbidden(detail.to_owned()).at(format!("{}{field}", place.object)))
    }

    fn accept(
        &self,
        grant: &Grant,
        publication: &Publication<'_>,
        place: Place<'_>,
    ) -> Result<Option<Accepted>, Problem> {
        let accepted = self.handle.shared().publish(publication, grant.publisher());
        accepted.map(Some).map_err(|error| Problem::publish(error, place))
    }
}

/// The embedding program's refusal, as a request is told.
fn refused(refusal: Refusal, place: Place<'_>) -> Problem {
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
