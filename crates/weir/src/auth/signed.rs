//! Verifying signed tokens, on threads of their own.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use weir_engine::Nanos;

use super::jwt::issuers::NoNews;
use super::jwt::{Jwt, NoToken};
use super::{Authenticator, ExpiringCredential};
use crate::base::clock::unix_time;

impl Authenticator {
    /// The properties of a signed token, if it is valid. If its issuer's keys lack its key, they are
    /// fetched first.
    ///
    /// Errors: it was not verified in time, or its issuer's keys cannot be fetched now.
    pub(super) async fn verify(
        &self,
        jwt: &Arc<Jwt>,
        token: &str,
        source: Option<IpAddr>,
    ) -> Result<Option<Arc<ExpiringCredential>>, NoNews> {
        self.counters.count_verification();
        let until = Instant::now() + self.deadline();
        let first = self.verify_once(jwt, token, source, until).await?;
        let news = async {
            match &first {
                Ok(_) | Err(NoToken::Refused) => Ok(()),
                Err(NoToken::NoKeys(issuer)) => issuer.first_keys().await,
                Err(NoToken::UnknownKey(issuer)) => issuer.newer_keys(Nanos::now()).await,
            }
        };
        let again = match &first {
            Ok(expiring) => return Ok(Some(Arc::clone(expiring))),
            Err(NoToken::Refused) => return Ok(None),
            Err(NoToken::NoKeys(_) | NoToken::UnknownKey(_)) => {
                timeout_at(until, news).await.unwrap_or(Err(NoNews::Unavailable))?;
                self.verify_once(jwt, token, source, until).await?
            }
        };
        match again {
            Ok(expiring) => Ok(Some(expiring)),
            Err(NoToken::Refused) => Ok(None),
            Err(NoToken::NoKeys(_)) => Err(NoNews::Unavailable),
            Err(NoToken::UnknownKey(_)) => {
                jwt.refuse(token, "its issuer does not have its key", unix_time(), source);
                Ok(None)
            }
        }
    }

    /// Verifies a signed token with the keys that are there.
    ///
    /// Errors: it was not verified in time.
    async fn verify_once(
        &self,
        jwt: &Arc<Jwt>,
        token: &str,
        source: Option<IpAddr>,
        until: Instant,
    ) -> Result<Result<Arc<ExpiringCredential>, NoToken>, NoNews> {
        let Some(verifier) = self.verifier.handle() else {
            return Ok(jwt.verify(token, unix_time(), &self.labels(), source));
        };
        let (jwt, labels, token) = (Arc::clone(jwt), self.labels(), token.to_owned());
        // Dropping the set cancels a verification that has not begun.
        let mut verifying = JoinSet::new();
        verifying
            .spawn_on(async move { jwt.verify(&token, unix_time(), &labels, source) }, verifier);
        let verified = timeout_at(until, verifying.join_next()).await.ok().flatten();
        verified.and_then(Result::ok).ok_or(NoNews::Unavailable)
    }
}
