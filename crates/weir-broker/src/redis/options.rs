//! What a Redis broker is opened with.

use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use url::Url;

use crate::contract::Error;
use crate::records::{Member, NodeState};

/// What a Redis broker is opened with.
#[derive(Clone)]
pub struct RedisOptions {
    /// Where Redis is: `redis://[user:password@]host:port`, or `rediss://` for TLS. Several for a primary with replicas,
    /// or some nodes of a Redis Cluster; all with the same scheme. User and password are those of the first.
    pub urls: Vec<String>,
    /// The user, if no URL names one.
    pub user: Option<String>,
    /// The password, if no URL has one.
    pub password: Option<String>,
    /// Certificates (PEM) of the authorities that Redis' certificate may come from; `None`: those that browsers know.
    pub authorities: Option<Vec<u8>>,
    /// What all keys and channels begin with. It separates clusters that share a Redis.
    pub prefix: String,
    /// The id of the cluster: two clusters with the same prefix and different ids are told apart.
    pub cluster: String,
    /// The name of this node.
    pub node: String,
    /// Connections that a device may have in the whole cluster.
    pub connections_per_device_max: usize,
    /// How long a connection to Redis may take to be made.
    pub connect_timeout: Duration,
    /// How long a request may take, retries included.
    pub timeout: Duration,
    /// Requests that may wait, those on their way included.
    pub waiting_max: usize,
    /// Replicas that must have a batch before it counts as published; 0: none.
    pub wait_replicas: usize,
    /// Pipelines on their way to one Redis node at a time. What is asked meanwhile leaves in the next one, so that
    /// under load Redis and this process handle many requests a system call.
    pub pipelines_max: usize,
    /// How often a connection for subscriptions is tried. One that does not hear itself twice is made anew.
    pub probe_every: Duration,
    /// How long a topic without messages is remembered, beyond what its retention asks for.
    pub topic_kept: Duration,
    /// How long this node counts as living after its last sign of life.
    pub node_kept: Duration,
    /// How long members outlive their node after that, while another node can reach Redis. Nodes look for dead ones six
    /// times in it.
    pub presence_kept: Duration,
    /// Another process of this machine, as which this one goes on; `None`: this node begins.
    pub goes_on: Option<NodeState>,
}

impl RedisOptions {
    /// The defaults, for one Redis.
    pub fn new(url: &str, cluster: &str, node: &str) -> RedisOptions {
        RedisOptions {
            urls: vec![url.to_owned()],
            user: None,
            password: None,
            authorities: None,
            prefix: "weir".to_owned(),
            cluster: cluster.to_owned(),
            node: node.to_owned(),
            connections_per_device_max: 1,
            connect_timeout: Duration::from_secs(2),
            timeout: Duration::from_secs(2),
            waiting_max: 20_000,
            wait_replicas: 0,
            pipelines_max: 2,
            probe_every: Duration::from_secs(2),
            topic_kept: TOPIC_KEPT,
            node_kept: Duration::from_secs(10),
            presence_kept: Member::KEPT,
            goes_on: None,
        }
    }
}

/// The default of [`RedisOptions::topic_kept`].
pub(super) const TOPIC_KEPT: Duration = Duration::from_secs(3600);

/// Where a Redis node listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// Where Redis is, and who we are there.
pub(super) struct Endpoint {
    pub(super) seeds: Vec<Address>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) is_tls: bool,
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(out, "[{}]:{}", self.host, self.port)
        } else {
            write!(out, "{}:{}", self.host, self.port)
        }
    }
}

impl Endpoint {
    pub(super) fn new(options: &RedisOptions) -> Result<Endpoint, Error> {
        let mut parsed = Vec::new();
        for text in &options.urls {
            // Not the URL itself: it may hold a password.
            let url = Url::parse(text).map_err(|error| refused(format!("a Redis URL: {error}")))?;
            let Some(host) = url.host_str() else {
                return Err(refused("a Redis URL names no host".to_owned()));
            };
            if !matches!(url.scheme(), "redis" | "rediss") {
                let scheme = url.scheme();
                return Err(refused(format!("redis:// or rediss:// is known, not {scheme}://")));
            }
            if !matches!(url.path(), "" | "/" | "/0") {
                return Err(refused(format!("database 0 is used, not {:?}", url.path())));
            }
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let address = Address { host, port: url.port().unwrap_or(6379) };
            parsed.push((address, url));
        }
        let Some((_, first)) = parsed.first() else {
            return Err(refused("no Redis URL is given".to_owned()));
        };
        let is_tls = first.scheme() == "rediss";
        if parsed.iter().any(|(_, url)| url.scheme() != first.scheme()) {
            return Err(refused("some Redis URLs ask for TLS, and some do not".to_owned()));
        }
        let user = decoded(first.username())?.or_else(|| options.user.clone());
        let password = first.password().map(decoded).transpose()?.flatten();
        let password = password.or_else(|| options.password.clone());
        let seeds = parsed.into_iter().map(|(address, _)| address).collect();
        Ok(Endpoint { seeds, user, password, is_tls })
    }
}

fn decoded(text: &str) -> Result<Option<String>, Error> {
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| refused("user or password is no UTF-8".to_owned()))?;
    Ok((!text.is_empty()).then(|| text.into_owned()))
}

fn refused(why: String) -> Error {
    Error::Refused(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(urls: &[&str]) -> Result<Endpoint, Error> {
        let urls = urls.iter().map(|&url| url.to_owned()).collect();
        Endpoint::new(&RedisOptions { urls, ..RedisOptions::new("", "cluster", "node") })
    }

    #[test]
    fn urls_name_places_and_who_we_are() {
        let endpoint = parse(&["rediss://us%40er:p%3Ass@[::1]:7000/0", "rediss://b"]).expect("two");
        let places = endpoint.seeds.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(places, ["[::1]:7000", "b:6379"]);
        assert!(endpoint.is_tls);
        assert_eq!(endpoint.user.as_deref(), Some("us@er"));
        assert_eq!(endpoint.password.as_deref(), Some("p:ss"));
        let endpoint = parse(&["redis://:secret@a"]).expect("one");
        assert_eq!((endpoint.user, endpoint.password.as_deref()), (None, Some("secret")));
    }

    #[test]
    fn a_url_may_leave_user_and_password_to_options_of_their_own() {
        let check = |url: &str, user: &str, password: &str| {
            let mut options = RedisOptions::new(url, "cluster", "node");
            (options.user, options.password) = (Some("u".to_owned()), Some("p".to_owned()));
            let endpoint = Endpoint::new(&options).expect("one");
            let found = (endpoint.user.as_deref(), endpoint.password.as_deref());
            assert_eq!(found, (Some(user), Some(password)));
        };
        check("redis://a", "u", "p");
        check("redis://b:q@a", "b", "q");
        check("redis://b@a", "b", "p");
    }

    #[test]
    fn what_cannot_be_is_refused_without_naming_the_password() {
        let urls: [&[&str]; 5] = [
            &[],
            &["http://u:secret@a"],
            &["redis://:secret@a/3"],
            &["redis://a", "rediss://b"],
            &["redis://:secret@a:port"],
        ];
        for urls in urls {
            let Err(Error::Refused(why)) = parse(urls) else { panic!("{urls:?}") };
            assert!(!why.contains("secret"), "{why}");
        }
    }
}
