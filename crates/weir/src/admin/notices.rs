//! `GET /v1/hooks/{name}/notices`: what a receiver was told and is to be told, to read it again.

use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::device_list::unanswered;
use crate::Handle;
use crate::backends::notices::{cursor, list_of, parse_cursor};
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::query::Query;
use crate::http::web::reply::{self, Reply};

/// Notices of a receiver, in order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Notices)]
pub(super) struct NoticesView {
    receiver: String,
    /// Names the queue. Another file has another one, and its numbers begin anew.
    #[schema(pattern = "^[0-9a-f]{8}$")]
    stream: String,
    /// In the form in which the receiver gets them.
    #[schema(value_type = Vec<Object>)]
    notices: Box<RawValue>,
    /// `after` of the next page. If there is no further notice, it waits there.
    next_after: String,
}

/// Answers with the notices that the query asks for.
pub(super) async fn list(
    handle: &Handle,
    name: &str,
    query: Option<&str>,
) -> Result<Reply, Problem> {
    let query = Query::parse(query, &["limit", "after"])?;
    let (limit, after) = (query.limit()?, query.value("after"));
    let wrong = |detail: &str| Problem::field("after", detail.to_owned());
    let after = match after {
        Some(text) => Some(parse_cursor(text).ok_or_else(|| wrong("it is no cursor of a notice"))?),
        None => None,
    };
    let notices = &handle.shared().notices;
    let page = notices.read(name, after.map(|(_, sequence)| sequence), limit).await;
    let missing = || Problem::new(Kind::NotFound, format!("there is no receiver {name:?}"));
    let page = page.ok_or_else(missing)?.map_err(|error| unanswered(&error))?;
    if let Some((stream, _)) = after
        && stream != page.stream
    {
        return Err(wrong("it is a cursor of another queue; begin anew, without one"));
    }
    let (text, last) = list_of(notices, &page).unwrap_or(("[]".to_owned(), page.after));
    let notices = RawValue::from_string(text).map_err(|error| {
        Problem::new(Kind::StoreUnavailable, format!("the file of notices has no JSON: {error}"))
    })?;
    let view = NoticesView {
        receiver: name.to_owned(),
        stream: format!("{:08x}", page.stream),
        notices,
        next_after: cursor(page.stream, last),
    };
    Ok(reply::json(StatusCode::OK, &view))
}
