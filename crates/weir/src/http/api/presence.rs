//! `GET /v1/topics/{topic}/presence`: who is in a topic, for callers that its class lets see it.

use std::sync::Arc;

use http::StatusCode;

use super::Api;
use crate::auth::Requester;
use crate::core::rights::{self, CallerDevice, Denied};
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
        self.check_presence(requester, &topic)?;
        let view = PresenceView::look(self.handle.shared(), topic, asked).await?;
        let mut charge = caller.ledger.charge(view.bytes())?;
        let bytes = serde_json::to_vec(&view).unwrap_or_default();
        charge.fit(bytes.len())?;
        let mut reply = reply::bytes(StatusCode::OK, "application/json", bytes.into());
        reply.extensions_mut().insert(Arc::new(charge));
        Ok(reply)
    }

    fn check_presence(&self, requester: &Requester, topic: &str) -> Result<(), Problem> {
        let shared = self.handle.shared();
        let device = CallerDevice::Named(requester.device.as_deref());
        let caller = rights::Caller { grant: &requester.grant, device };
        shared.permit_presence(&caller, topic).map(|_| ()).map_err(|denied| match denied {
            Denied::Name(error) => Problem::field("topic", error.to_string()),
            Denied::NotPermitted(detail) => Problem::forbidden(detail).at("topic"),
            Denied::NoPresence(detail) => Problem::new(Kind::NotFound, detail),
        })
    }
}
