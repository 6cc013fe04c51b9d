//! `GET /v1/topics/{topic}/presence`: who is in a topic, for callers that its class lets see it.

use std::sync::Arc;

use http::StatusCode;

use super::{Api, RETRY_AFTER, caller_as};
use crate::auth::Requester;
use crate::core::rights::Denied;
use crate::http::Caller;
use crate::http::web::presence::{PageAsked, PresenceView};
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::reply::{self, Reply};

impl Api {
    pub(super) async fn presence(
        &self,
        caller: &Caller,
        requester: &Requester,
        topic: String,
        asked: PageAsked,
    ) -> Result<Reply, Problem> {
        self.check_presence(caller, requester, &topic).await?;
        let view = PresenceView::look(self.handle.shared(), topic, asked).await?;
        let mut charge = caller.ledger.charge(view.bytes())?;
        let bytes = serde_json::to_vec(&view).unwrap_or_default();
        charge.fit(bytes.len())?;
        let mut reply = reply::bytes(StatusCode::OK, "application/json", bytes.into());
        reply.extensions_mut().insert(Arc::new(charge));
        Ok(reply)
    }

    async fn check_presence(
        &self,
        caller: &Caller,
        requester: &Requester,
        topic: &str,
    ) -> Result<(), Problem> {
        let shared = self.handle.shared();
        let caller = caller_as(requester, caller);
        let problem = |denied| match denied {
            Denied::Name(error) => Problem::field("topic", error.to_string()),
            Denied::NotPermitted(detail) | Denied::Hook(detail) => {
                Problem::forbidden(detail).at("topic")
            }
            Denied::NoPresence(detail) => Problem::new(Kind::NotFound, detail),
            Denied::HookUnavailable(detail) => Problem::retry(Kind::Busy, RETRY_AFTER, detail),
        };
        shared.permit_presence(&caller, topic).map(|_| ()).map_err(problem)?;
        shared.check_asking(&caller, topic).await.map_err(problem)
    }
}
