//! The services that the gateway calls.

pub(crate) mod calls;
pub(crate) mod notices;
pub(crate) mod questions;
pub(crate) mod signature;

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use weir_upstream::{Status, Upstream};

use crate::base::config::{Config, ConfigError};

/// The upstreams by their names. A reload replaces those whose settings change.
#[derive(Default)]
pub(crate) struct Backends {
    upstreams: ArcSwap<HashMap<String, Upstream>>,
}

/// The upstreams of a configuration that has been checked.
pub(crate) struct NextBackends(HashMap<String, Upstream>);

impl Backends {
    /// Errors: an upstream that cannot be made, such as one with a certificate that cannot be read.
    pub(crate) fn new(config: &Config) -> Result<Backends, ConfigError> {
        let backends = Backends::default();
        backends.replace(backends.prepare(config)?);
        Ok(backends)
    }

    /// The upstream of this name, if there is one. A caller that keeps it keeps its settings.
    pub(crate) fn get(&self, name: &str) -> Option<Upstream> {
        self.upstreams.load().get(name).cloned()
    }

    /// Each upstream as it is now, by name.
    pub(crate) fn statuses(&self) -> Vec<(String, Status)> {
        let upstreams = self.upstreams.load();
        let statuses = upstreams.iter().map(|(name, upstream)| (name.clone(), upstream.status()));
        let mut statuses: Vec<_> = statuses.collect();
        statuses.sort_by(|(one, _), (other, _)| one.cmp(other));
        statuses
    }

    /// Makes the upstreams of another configuration. Those that do not change stay as they are, with
    /// their connections.
    pub(crate) fn prepare(&self, config: &Config) -> Result<NextBackends, ConfigError> {
        let now = self.upstreams.load();
        let upstreams = config.upstreams.iter().enumerate().map(|(index, upstream)| {
            let settings = upstream.settings();
            let kept = now.get(&upstream.name).filter(|now| *now.settings() == settings);
            let made = match kept {
                Some(kept) => kept.clone(),
                None => Upstream::new(settings).map_err(|wrong| ConfigError {
                    key: format!("upstreams[{index}].{}", wrong.key),
                    value: wrong.value,
                    allowed: wrong.allowed,
                    depends_on: &[],
                })?,
            };
            Ok((upstream.name.clone(), made))
        });
        Ok(NextBackends(upstreams.collect::<Result<_, _>>()?))
    }

    /// Uses the upstreams that [`prepare`](Self::prepare) has made.
    pub(crate) fn replace(&self, NextBackends(next): NextBackends) {
        self.upstreams.store(Arc::new(next));
    }
}
