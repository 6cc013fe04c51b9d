//! `GET /v1/audit`, and what the audit log says of a request.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use http::request::Parts;
use serde::Serialize;
use utoipa::ToSchema;

use crate::backends::notices::Author;
use crate::core::publishing::Publishing;
use crate::http::web::problem::{MessagePlace, Problem};
use crate::http::web::publish::PublishOne;
use crate::http::web::query::{self, Query};
use crate::http::web::reply::{self, Reply};
use crate::observe::audit::{Act, ActOutcome, Entry};
use crate::{Handle, Publication, Target};

/// The last entries of the audit log.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditLog)]
pub(super) struct AuditView {
    /// The newest first.
    entries: Vec<EntryView>,
}

/// Who did what, when, from where, and how it ended.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditEntry)]
struct EntryView {
    /// The time, in milliseconds since 1970.
    at_ms: u64,
    /// The name of the token or service; `admin`: `admin.token`; `anyone`: no token is needed;
    /// `nobody`: it came without a valid token.
    who: Box<str>,
    /// The address of the peer.
    from: String,
    /// `sign_in`, `sign_out`, `publish`, `call`, `close`, `revoke`, `import`, `export`, `drain`,
    /// `cancel_drain`, `profile`; or `read` or `other`, which are here only if they are refused.
    act: &'static str,
    /// The target, or how many further acts this entry stands for.
    what: Box<str>,
    /// `done`, `failed`, `broken_off`; or why it was refused: `invalid`, `no_token`, `wrong_token`,
    /// `wrong_scope`, `foreign_origin`, `unknown_host`, `limited`.
    outcome: &'static str,
}

/// The messages that a request has published.
#[derive(Default)]
pub(super) struct Published {
    first: OnceLock<String>,
    count: AtomicUsize,
}

/// The admin API as a publisher.
pub(super) struct Operator<'a> {
    pub(super) handle: &'a Handle,
    pub(super) published: &'a Published,
}

impl PublishOne for Operator<'_> {
    async fn publish(
        &self,
        publication: &Publication<'_>,
        place: MessagePlace<'_>,
    ) -> Result<Option<Publishing>, Problem> {
        self.published.note(publication);
        let publishing = self.handle.shared().publish(publication, Author::AdminApi, None);
        publishing.map(Some).map_err(|error| Problem::publish(error, place))
    }
}

/// `GET /v1/audit`.
pub(super) fn look(handle: &Handle, query: Option<&str>) -> Result<Reply, Problem> {
    let query = Query::parse(query, &["limit"])?;
    let entries = handle.shared().audit.last(query.limit()?);
    let view = |Entry { at_ms, who, from, act, what, outcome }: Entry| EntryView {
        at_ms,
        who,
        from: from.to_string(),
        act: act.name(),
        what,
        outcome: outcome.name(),
    };
    let entries = entries.into_iter().map(view).collect();
    Ok(reply::json(StatusCode::OK, &AuditView { entries }))
}

impl Published {
    pub(super) fn note(&self, publication: &Publication<'_>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.first.get_or_init(|| match publication.target {
            Target::Topic(topic) => format!("topic {topic}"),
            Target::Device(device) => format!("device {device}"),
            Target::All => "all".to_owned(),
        });
    }

    fn text(&self) -> Option<Cow<'static, str>> {
        let first = self.first.get()?;
        Some(match self.count.load(Ordering::Relaxed) {
            ..2 => first.clone().into(),
            count => format!("{first}, and {} more messages", count - 1).into(),
        })
    }
}

/// Whether the audit log tells of it also where it is permitted.
pub(super) fn is_change(act: Act) -> bool {
    !matches!(act, Act::Read | Act::Other)
}

/// How an admitted request has ended; `None`: the audit log says nothing of it. `is_nowhere`: there
/// is no such path.
pub(super) fn outcome(act: Act, is_nowhere: bool, status: StatusCode) -> Option<ActOutcome> {
    if is_nowhere || MALFORMED.contains(&status) {
        return Some(ActOutcome::Invalid);
    }
    let is_done = status.as_u16() < 400;
    is_change(act).then_some(if is_done { ActOutcome::Done } else { ActOutcome::Failed })
}

/// The target of an act; of anything else, and of what is refused, the method and the path. A query
/// may hold what is nobody's business.
pub(super) fn target(
    (act, outcome): (Act, ActOutcome),
    id: &str,
    head: &Parts,
    published: &Published,
) -> Cow<'static, str> {
    let named = match outcome.is_refusal() {
        true => None,
        false if act == Act::Publish => published.text(),
        false if act == Act::Close => Some(format!("connection {id}").into()),
        false if matches!(act, Act::Revoke | Act::Call) => {
            query::segment(id, "id").ok().map(|device| format!("device {device}").into())
        }
        false => None,
    };
    named.unwrap_or_else(|| format!("{} {}", head.method, head.uri.path()).into())
}

/// Answers to requests that are not as documented.
const MALFORMED: [StatusCode; 8] = [
    StatusCode::BAD_REQUEST,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::LENGTH_REQUIRED,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::NOT_IMPLEMENTED,
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
];
