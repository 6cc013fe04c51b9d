//! Tokens that a backend knows.

use std::net::IpAddr;
use std::sync::Arc;

use weir_engine::ConnId;

use super::{Authenticator, Bearer, ExpiringCredential, NoBearer, TokenOrigin};
use crate::backends::questions::{About, Answer, Identity, Origin, Question, Questions};
use crate::base::model::AuthKind;
use crate::base::pattern::Pattern;
use crate::observe::counters::hooks::Hook;

/// A settled connection that shows a new token.
#[derive(Debug, Clone)]
pub(crate) struct Refreshing {
    pub(crate) conn: ConnId,
    pub(crate) device: String,
    /// Its source, if it is known.
    pub(crate) source: Option<String>,
}

impl Authenticator {
    /// Asks a backend about tokens that are not known here, if a hook is configured.
    pub(crate) fn asking(self, hooks: Arc<Questions>) -> Self {
        Self { hooks: Some(hooks), ..self }
    }

    /// [`Authenticator::find`] for the token of a `Refresh`. A token that a hook knows is asked
    /// about again.
    pub(crate) async fn find_again(
        &self,
        token: &str,
        refreshing: &Refreshing,
        mark: u64,
    ) -> Result<Bearer, NoBearer> {
        match self.look(token, mark) {
            Some(found) => found,
            None => {
                let asking = self.ask_for(token, TokenOrigin::Settled, Some(refreshing), mark);
                Box::pin(asking).await
            }
        }
    }

    /// The hook, if one is asked about tokens.
    pub(super) fn hook(&self) -> Option<&Arc<Questions>> {
        self.hooks.as_ref().filter(|hooks| hooks.asks_tokens())
    }

    /// The properties of a token, if the backend knows it. The outer `None`: it does not answer.
    pub(super) async fn ask_hook(
        &self,
        questions: &Arc<Questions>,
        token: &str,
        origin: TokenOrigin,
        refreshing: Option<&Refreshing>,
    ) -> Option<Option<Arc<ExpiringCredential>>> {
        let hook = if refreshing.is_some() { Hook::Refresh } else { Hook::Connect };
        // A reload may have removed the hook just now.
        let Some(upstream) = questions.upstream_for(hook) else { return Some(None) };
        let address = origin.address().map(|addr| addr.to_string());
        let from = match refreshing {
            Some(Refreshing { conn, device, source }) => Origin {
                conn: Some(*conn),
                device: Some(device),
                source: source.as_deref(),
                transport: "connection",
            },
            None => Origin {
                source: address.as_deref(),
                transport: origin.transport(),
                ..Origin::default()
            },
        };
        let about = About::Token(token);
        let asked = questions.ask(&Question { hook, upstream: &upstream, from, about });
        match asked.outcome().await {
            Ok(Answer::Identity(identity)) => {
                let device = refreshing.map(|refreshing| refreshing.device.as_str());
                Some(self.owner(&identity, device))
            }
            Ok(Answer::Refused(reason)) => {
                tracing::debug!(hook = hook.name(), reason = &*reason, "a hook refuses a token");
                Some(None)
            }
            // These answer other questions.
            Ok(Answer::Allowed | Answer::Changed(_)) | Err(_) => None,
        }
    }

    /// `device`: the one in the question.
    fn owner(&self, identity: &Identity, device: Option<&str>) -> Option<Arc<ExpiringCredential>> {
        let labels = self.labels();
        let mut grant = labels.grant(identity.labels.iter().cloned());
        if let Some(topics) = &identity.topics {
            grant = grant.within(topics.iter().map(|topic| Pattern::new(topic)).collect());
        }
        Some(Arc::new(ExpiringCredential {
            kind: AuthKind::Hook,
            device: identity.device.as_deref().or(device)?.into(),
            priority: identity.priority,
            grant: labels.share(grant),
            ends: identity.ends,
        }))
    }
}

impl TokenOrigin {
    fn address(self) -> Option<IpAddr> {
        match self {
            TokenOrigin::Connection(source) | TokenOrigin::Request(source) => source,
            TokenOrigin::Datagram(source) => Some(source),
            TokenOrigin::Settled => None,
        }
    }

    fn transport(self) -> &'static str {
        match self {
            TokenOrigin::Connection(_) | TokenOrigin::Settled => "connection",
            TokenOrigin::Request(_) => "http",
            TokenOrigin::Datagram(_) => "udp",
        }
    }
}
