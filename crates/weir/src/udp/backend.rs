//! The requests of UDP threads to the front: check a token, activate, publish.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use weir_wire::{ErrorCode, v1};

use crate::auth::{NoBearer, Requester, TokenOrigin};
use crate::base::clock::unix_millis;
use crate::base::model::{Accepted, Payload, Publication, Target};
use crate::core::handle::{Handle, Refusal};
use crate::core::publishing::Publishing;
use crate::core::rights::{Caller, CallerDevice, CameBy};
use crate::limits::rates::Sender;
use crate::observe::traces::{Span, note_failure, note_topic};
use crate::provisioning::activation::{Activated, ActivationError, RequestOrigin};

/// What the front answers.
pub(crate) type Answer<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, DatagramRefusal>> + Send + 'a>>;

/// The part of the front that datagrams need.
///
/// Limits: each answer must come within some seconds; a thread has at most `udp.queue_max` requests
/// outstanding.
pub(crate) trait Backend: Send + Sync {
    /// The version of the credentials in use: see [`Validity::configured`].
    fn version(&self) -> u64 {
        0
    }

    /// Checks a token; `None` if it is not valid. `source` sent it first.
    fn check<'a>(&'a self, token: &'a str, source: IpAddr) -> Answer<'a, Option<Validity>>;

    /// Gives a device a token.
    fn activate<'a>(
        &'a self,
        serial: &'a str,
        key: &'a str,
        source: IpAddr,
    ) -> Answer<'a, Activated>;

    /// Publishes on behalf of the token's device or service.
    fn publish<'a>(
        &'a self,
        token: &'a str,
        publish: &'a v1::Publish,
        source: IpAddr,
    ) -> Answer<'a, Option<Accepted>>;
}

/// A valid token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    /// The time until the token ends, if it does.
    pub(crate) ends_in: Option<Duration>,
    /// The version of the credentials in which a token of the configuration was found.
    pub(crate) configured: Option<u64>,
}

/// Why a request by datagram was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DatagramRefusal {
    /// The word for programs; docs/udp.md lists them.
    pub(crate) code: &'static str,
    /// The field at fault, or an empty text.
    pub(crate) field: &'static str,
    /// The sentence for people.
    pub(crate) message: String,
    /// When the same request may succeed. Such an answer is not remembered.
    pub(crate) retry_after: Option<Duration>,
}

impl DatagramRefusal {
    /// The word for wrong credentials.
    pub(crate) const UNAUTHORIZED: &str = "unauthorized";

    /// The token is nobody's.
    pub(crate) fn unauthorized() -> DatagramRefusal {
        DatagramRefusal {
            code: DatagramRefusal::UNAUTHORIZED,
            field: "pt",
            message: "no valid token".to_owned(),
            retry_after: None,
        }
    }

    /// What keeps devices and tokens does not answer.
    fn store_unavailable(after: Duration) -> DatagramRefusal {
        DatagramRefusal {
            code: "store_unavailable",
            field: "",
            message: "the store of devices and tokens does not answer".to_owned(),
            retry_after: Some(after),
        }
    }

    /// More wait than may.
    pub(crate) fn busy(message: &str) -> DatagramRefusal {
        DatagramRefusal {
            code: ErrorCode::Busy.name(),
            field: "",
            message: message.to_owned(),
            retry_after: Some(RETRY_AFTER),
        }
    }
}

/// The backend of a running gateway.
pub(crate) struct Front {
    handle: Handle,
}

impl Front {
    pub(crate) fn new(handle: Handle) -> Front {
        Front { handle }
    }

    /// The owner of a token. A datagram without a token is refused: its source proves nothing, not
    /// even on loopback.
    async fn requester(&self, token: &str, source: IpAddr) -> Result<Requester, DatagramRefusal> {
        if token.is_empty() {
            return Err(DatagramRefusal::unauthorized());
        }
        let shared = self.handle.shared();
        let origin = TokenOrigin::Datagram(source);
        let identified = match shared.auth.find(token, origin, shared.devices.mark()).await {
            Ok(bearer) => shared.auth.identify(None, &bearer).await,
            Err(no_bearer) => Err(no_bearer),
        };
        identified.map_err(|no_bearer| match no_bearer {
            NoBearer::Unknown => DatagramRefusal::unauthorized(),
            NoBearer::Unavailable => DatagramRefusal::store_unavailable(RETRY_AFTER),
            NoBearer::Limited(after) => DatagramRefusal {
                code: ErrorCode::RateLimited.name(),
                field: "pt",
                message: "too many invalid signed tokens (auth.failures_per_source_per_second, \
                          auth.jwt.datagram_failures_per_second)"
                    .to_owned(),
                retry_after: Some(after),
            },
        })
    }

    async fn publish_and_wait(
        &self,
        token: &str,
        publish: &v1::Publish,
        source: IpAddr,
    ) -> Result<Option<Accepted>, DatagramRefusal> {
        let requester = self.requester(token, source).await?;
        let Some(publishing) = self.publish_for(&requester, publish, source).await? else {
            return Ok(None);
        };
        publishing.await.map(Some).map_err(|error| {
            let after = error.retry_after();
            refused(Refusal::from(error), after)
        })
    }

    async fn publish_for(
        &self,
        requester: &Requester,
        publish: &v1::Publish,
        source: IpAddr,
    ) -> Result<Option<Publishing>, DatagramRefusal> {
        let publication = Publication {
            target: Target::Topic(&publish.topic),
            payload: match &publish.payload {
                Some(v1::publish::Payload::Text(text)) => Payload::Text(text),
                Some(v1::publish::Payload::Data(data)) => Payload::Data(data),
                None => Payload::Text(""),
            },
            content_type: &publish.content_type,
            key: &publish.key,
            ttl: None,
            sender: None,
            idempotency_key: None,
        };
        let device = requester.device.as_deref();
        let sender = (!requester.is_service).then(|| Sender::new(device, Some(source)));
        let grant = &*requester.grant;
        let came_by = CameBy::Datagram(source);
        let caller = Caller { grant, device: CallerDevice::Named(device), came_by };
        let publishing = self.handle.publish_asking(&caller, sender, &publication);
        Box::pin(publishing).await.map_err(|error| {
            let after = error.retry_after();
            refused(error.into(), after)
        })
    }
}

impl Backend for Front {
    fn version(&self) -> u64 {
        self.handle.shared().auth.version()
    }

    fn check<'a>(&'a self, token: &'a str, source: IpAddr) -> Answer<'a, Option<Validity>> {
        Box::pin(async move {
            let version = self.version();
            match self.requester(token, source).await {
                Ok(Requester { ends, is_configured, .. }) => {
                    let ends_in =
                        ends.map(|ends| Duration::from_millis(ends.saturating_sub(unix_millis())));
                    let configured = is_configured.then_some(version);
                    Ok(Some(Validity { ends_in, configured }))
                }
                Err(refused) if refused.code == DatagramRefusal::UNAUTHORIZED => Ok(None),
                Err(refused) => Err(refused),
            }
        })
    }

    fn activate<'a>(
        &'a self,
        serial: &'a str,
        key: &'a str,
        source: IpAddr,
    ) -> Answer<'a, Activated> {
        Box::pin(async move {
            let Some(activator) = &self.handle.shared().activator else {
                return Err(DatagramRefusal {
                    code: ErrorCode::NotSupported.name(),
                    field: "",
                    message: "this gateway activates no devices (store.kind, activation.enabled)"
                        .to_owned(),
                    retry_after: None,
                });
            };
            let span = self.handle.shared().tracer.begin("activate", None);
            let activated = activator.activate(RequestOrigin::Datagram(source), serial, key).await;
            ended(span, activated.map_err(DatagramRefusal::from))
        })
    }

    fn publish<'a>(
        &'a self,
        token: &'a str,
        publish: &'a v1::Publish,
        source: IpAddr,
    ) -> Answer<'a, Option<Accepted>> {
        Box::pin(async move {
            let mut span = self.handle.shared().tracer.begin("publish", None);
            note_topic(&mut span, &publish.topic);
            ended(span, self.publish_and_wait(token, publish, source).await)
        })
    }
}

/// Ends the span with the result of its request.
fn ended<T>(
    mut span: Option<Span>,
    result: Result<T, DatagramRefusal>,
) -> Result<T, DatagramRefusal> {
    note_failure(&mut span, result.as_ref().err().map(|refusal| refusal.code));
    result
}

impl From<ActivationError> for DatagramRefusal {
    fn from(error: ActivationError) -> Self {
        match error {
            ActivationError::Field { field, detail } => Self {
                code: ErrorCode::InvalidField.name(),
                field,
                message: detail,
                retry_after: None,
            },
            ActivationError::Unauthorized => Self {
                code: DatagramRefusal::UNAUTHORIZED,
                field: "",
                message: "the serial number and the key do not belong together".to_owned(),
                retry_after: None,
            },
            ActivationError::Limited(after) => Self {
                code: ErrorCode::RateLimited.name(),
                field: "",
                message: "too many failed attempts from this address \
                          (activation.failures_per_source_per_minute)"
                    .to_owned(),
                retry_after: Some(after),
            },
            ActivationError::Unavailable(after) => Self::store_unavailable(after),
        }
    }
}

fn refused(refusal: Refusal, retry_after: Option<Duration>) -> DatagramRefusal {
    let field = match refusal.code {
        ErrorCode::TopicName | ErrorCode::TooManyTopics => "publish.topic",
        ErrorCode::TooLarge | ErrorCode::InvalidField | ErrorCode::NotPermitted => "publish",
        ErrorCode::UnknownKind
        | ErrorCode::NotSupported
        | ErrorCode::AlreadyGreeted
        | ErrorCode::Busy
        | ErrorCode::RateLimited => "",
    };
    DatagramRefusal { code: refusal.code.name(), field, message: refusal.message, retry_after }
}

/// A full queue usually has room again a moment later.
const RETRY_AFTER: Duration = Duration::from_secs(1);
