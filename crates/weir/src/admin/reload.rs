//! `POST /v1/reload`: the program reads its configuration again and applies it.

use std::sync::Arc;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::base::door::Door;
use crate::base::reloader::{NotReloaded, Reloaded, Reloader};
use crate::http::web::json::parse;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::reply::{self, Reply};
use crate::keys::Change;

/// A reload takes no options.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ReloadRequest)]
#[serde(deny_unknown_fields)]
pub(super) struct ReloadRequest {}

/// What a reload has changed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Reload)]
pub(super) struct ReloadView {
    /// The keys whose new values are in use now.
    changed: Vec<ChangeView>,
    /// The keys whose new values need a restart; they have their old values until then.
    restart: Vec<ChangeView>,
    /// Connections that were closed, because their credentials admit them no more.
    closed: u64,
    /// Subscriptions that were ended, because classes or tokens permit them no more.
    unsubscribed: u64,
}

/// A key with two different values.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Change)]
struct ChangeView {
    /// The path of the key, such as `limits.topics_max` or `topic_classes["room/*"].tick`.
    key: String,
    /// The value before; `null` if it was absent, or is a secret.
    #[schema(nullable)]
    from: Value,
    /// The value in the configuration; `null` if it is absent, and `changed` for a secret.
    #[schema(nullable)]
    to: Value,
}

impl From<Change> for ChangeView {
    fn from(Change { key, from, to }: Change) -> ChangeView {
        ChangeView { key, from, to }
    }
}

impl From<Reloaded> for ReloadView {
    fn from(reloaded: Reloaded) -> ReloadView {
        let views = |changes: Vec<Change>| changes.into_iter().map(ChangeView::from).collect();
        let Reloaded { changed, restart, closed, unsubscribed } = reloaded;
        let (changed, restart) = (views(changed), views(restart));
        ReloadView { changed, restart, closed, unsubscribed }
    }
}

/// `POST /v1/reload`; the body may be missing.
pub(super) async fn reload(
    reloader: Option<&Arc<dyn Reloader>>,
    door: &Door,
    body: &[u8],
) -> Result<Reply, Problem> {
    if !body.trim_ascii().is_empty() {
        let ReloadRequest {} = parse::<ReloadRequest>(body)?;
    }
    let Some(reloader) = reloader else {
        let detail = "this program cannot read its configuration again";
        return Err(Problem::new(Kind::NotFound, detail));
    };
    let reloaded = reloader.reload().await;
    // It has waited for the end of an upgrade, and counts for nobody.
    if door.has_moved() {
        return Err(Problem::handing_over());
    }
    match reloaded {
        Ok(reloaded) => Ok(reply::json(StatusCode::OK, &ReloadView::from(reloaded))),
        Err(NotReloaded(reasons)) => {
            Err(Problem::new(Kind::ConfigurationRefused, reasons.join("; ")))
        }
    }
}
