//! `POST /auth/gw/active`, `POST /v1/devices/activate`, `POST /v1/devices/token/refresh`: devices
//! get their tokens.

use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;
use crate::http::Caller;
use crate::http::web::head::bearer_token;
use crate::http::web::json::{Text, parse};
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::reply::{self, Reply};
use crate::provisioning::activation::{Activated, ActivationError, Activator, RequestOrigin};

/// The credentials that a device shows.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct Activation<'a> {
    /// Its serial number.
    #[serde(borrow, rename = "devSn")]
    #[schema(value_type = String, required, min_length = 1, max_length = 128)]
    serial: Option<Text<'a>>,
    /// Its key.
    #[serde(borrow, rename = "devKey")]
    #[schema(value_type = String, required, min_length = 1, max_length = 256)]
    key: Option<Text<'a>>,
}

/// A token.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Activated)]
pub(super) struct ActivatedView<'a> {
    /// The token that the device connects with from now on.
    #[schema(pattern = "^[A-Za-z0-9_-]{22}$")]
    pt: &'a str,
    /// When the token ends, in milliseconds since 1970.
    #[serde(rename = "expiresAt")]
    expires_at: u64,
    /// The addresses to connect to (`activation.gateways`).
    gateways: &'a [String],
}

impl Api {
    pub(super) async fn activate(&self, caller: &Caller, body: &[u8]) -> Result<Reply, Problem> {
        let activator = self.activator()?;
        let wanted = parse::<Activation<'_>>(body)?;
        let missing = |field: &str| Problem::field(field, format!("{field} is missing"));
        let serial = wanted.serial.as_ref().ok_or_else(|| missing("devSn"))?;
        let key = wanted.key.as_ref().ok_or_else(|| missing("devKey"))?;
        let activated =
            activator.activate(RequestOrigin::Connection(caller.peer), &serial.0, &key.0).await;
        activated.map(|activated| self.activated(&activated)).map_err(|error| {
            problem(error, || Problem::unauthorized(BY_KEY, "serial number and key do not fit"))
        })
    }

    pub(super) async fn refresh(
        &self,
        caller: &Caller,
        token: Option<&str>,
    ) -> Result<Reply, Problem> {
        let activator = self.activator()?;
        if token == Some("") {
            let detail =
                "send one header \"Authorization: Bearer TOKEN\" with the token to exchange";
            return Err(Problem::unauthorized("Bearer realm=\"weir\"", detail));
        }
        // A malformed bearer token belongs to nobody.
        let activated = activator
            .refresh(RequestOrigin::Connection(caller.peer), token.unwrap_or_default())
            .await;
        activated.map(|activated| self.activated(&activated)).map_err(|error| {
            problem(error, || {
                let challenge = "Bearer realm=\"weir\", error=\"invalid_token\"";
                Problem::unauthorized(challenge, "the token does not belong to an activated device")
            })
        })
    }

    fn activated(&self, activated: &Activated) -> Reply {
        let view = ActivatedView {
            pt: activated.token.as_str(),
            expires_at: activated.expires_at,
            gateways: &activated.gateways,
        };
        let mut reply = reply::json(StatusCode::OK, &view);
        self.note_asker(&mut reply, activated.serial.as_str());
        reply
    }

    fn activator(&self) -> Result<&Activator, Problem> {
        let detail = "this gateway activates no devices (store.kind, activation.enabled)";
        let activator = self.handle.shared().activator.as_ref();
        activator.ok_or_else(|| Problem::new(Kind::NotFound, detail))
    }
}

/// The token that a request wants to exchange; empty without one. `None`: it is no bearer token, or
/// it is too long for a token of an activated device.
pub(super) fn refreshed(headers: &HeaderMap) -> Option<String> {
    let token = bearer_token(headers).ok()?.unwrap_or_default();
    (token.len() <= TOKEN_BYTES_MAX).then(|| token.to_owned())
}

fn problem(error: ActivationError, unauthorized: impl FnOnce() -> Problem) -> Problem {
    match error {
        ActivationError::Field { field, detail } => Problem::field(field, detail),
        ActivationError::Unauthorized => unauthorized(),
        ActivationError::Limited(after) => {
            let detail = format!(
                "too many attempts from this address have failed (activation.failures_per_source_per_minute); try again \
                 in {} s",
                after.as_secs() + 1
            );
            Problem::retry(Kind::TooManyFailures, after, detail)
        }
        ActivationError::Unavailable(after) => {
            let detail = "the store of devices and tokens does not answer; try again";
            Problem::retry(Kind::StoreUnavailable, after, detail)
        }
    }
}

/// The challenge for a serial number and a device key. There is no registered scheme for them.
const BY_KEY: &str = "DeviceKey realm=\"weir\"";
/// Tokens of activated devices have 22 characters.
const TOKEN_BYTES_MAX: usize = 64;
/// The two fields, and any other member that a device sends with them.
pub(super) const BODY_BYTES_MAX: usize = 16 * 1024;
