//! Reading the configuration again. Only the program knows where that is.

use std::future::Future;
use std::pin::Pin;

use super::config::keys::Change;

/// Reads the configuration of the program that embeds the gateway, and applies it.
pub trait Reloader: Send + Sync {
    /// Reads and checks the whole configuration, and then calls
    /// [`Handle::reload`](crate::Handle::reload) with it.
    ///
    /// Errors: the configuration is refused, and nothing has changed.
    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<Reloaded, NotReloaded>> + Send + '_>>;
}

/// What a reload has changed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reloaded {
    /// The keys whose new values are in use now.
    pub changed: Vec<Change>,
    /// The keys whose new values need a restart. They have their old values until then, and every
    /// further reload names them again.
    pub restart: Vec<Change>,
    /// The connections that were closed, because their credentials admit them no more.
    pub closed: u64,
    /// The subscriptions that were ended, because classes or tokens permit them no more.
    pub unsubscribed: u64,
}

/// The reasons why a configuration is refused. There is at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReloaded(pub Vec<String>);
