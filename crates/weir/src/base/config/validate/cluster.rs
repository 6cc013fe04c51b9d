//! Rules of `[cluster]`. Whether Redis can be reached is found at the start.

use std::time::Duration;

use super::{error, within_time};
use crate::base::config::cluster::{
    NAME_BYTES_MAX, NODE_TTL_MAX, PREFIX_BYTES_MAX, PUBLISH_TIMEOUT_MAX, URL_BYTES_MAX, URLS_MAX,
    WAITING_BYTES_MAX,
};
use crate::base::config::keys::ConfigError;
use crate::base::config::{ClusterConfig, Config};

impl Config {
    pub(super) fn check_cluster(&self) -> Result<(), ConfigError> {
        let cluster = &self.cluster;
        check_urls(cluster)?;
        check_credentials(cluster)?;
        check_names(cluster)?;
        check_times(cluster)?;
        let frame = self.limits.frame_bytes_max;
        if !(frame..=WAITING_BYTES_MAX).contains(&cluster.waiting_bytes_max) {
            let allowed = format!("{frame} (limits.frame_bytes_max) to {WAITING_BYTES_MAX}");
            let error = error("cluster.waiting_bytes_max", cluster.waiting_bytes_max, allowed);
            return Err(ConfigError { depends_on: &["limits.frame_bytes_max"], ..error });
        }
        Ok(())
    }
}

/// The parts of a URL that rules look at.
struct Url<'a> {
    is_tls: bool,
    user: &'a str,
    password: &'a str,
    database: &'a str,
}

impl<'a> Url<'a> {
    /// `None` if it cannot be one.
    fn parse(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let is_tls = match scheme {
            "redis" => false,
            "rediss" => true,
            _ => return None,
        };
        let rest = rest.split(['?', '#']).next()?;
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (userinfo, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        let is_right = url.bytes().all(|byte| byte.is_ascii_graphic())
            && url.len() <= URL_BYTES_MAX
            && !host.is_empty()
            && !host.starts_with(':')
            && database.bytes().all(|byte| byte.is_ascii_digit());
        is_right.then_some(Self { is_tls, user, password, database })
    }
}

/// No message shows a URL, as it may hold a password.
fn check_urls(cluster: &ClusterConfig) -> Result<(), ConfigError> {
    let urls = &cluster.redis.0;
    if urls.len() > URLS_MAX {
        return Err(error("cluster.redis", shown(cluster), format!("at most {URLS_MAX}")));
    }
    let mut schemes = [false; 2];
    for (index, url) in urls.iter().enumerate() {
        let Some(parsed) = Url::parse(url) else {
            let key = format!("cluster.redis[{index}]");
            let allowed =
                "redis://[[user]:password@]host[:port][/database], or rediss://… over TLS";
            return Err(error(&key, format_args!("({} bytes)", url.len()), allowed));
        };
        schemes[usize::from(parsed.is_tls)] = true;
        if urls.len() > 1 && !matches!(parsed.database, "" | "0") {
            let (key, allowed) = (
                format!("cluster.redis[{index}]"),
                "a URL without a database, or with 0: a Redis Cluster has no other",
            );
            return Err(error(&key, format_args!("(database {})", parsed.database), allowed));
        }
    }
    if schemes == [true; 2] {
        let allowed = "all over TLS (rediss://) or none: passwords and messages go to each of them";
        return Err(error("cluster.redis", shown(cluster), allowed));
    }
    if !schemes[1] && !cluster.ca.as_os_str().is_empty() {
        let allowed =
            "\"\" while no URL of cluster.redis is rediss://: nothing would be checked with it";
        let error =
            error("cluster.ca", format_args!("{:?}", cluster.ca.display().to_string()), allowed);
        return Err(ConfigError { depends_on: &["cluster.redis"], ..error });
    }
    Ok(())
}

fn check_credentials(cluster: &ClusterConfig) -> Result<(), ConfigError> {
    let urls: Vec<Url<'_>> = cluster.redis.0.iter().filter_map(|url| Url::parse(url)).collect();
    let twice = "\"\" while a URL of cluster.redis has one: it would not be clear which counts";
    let depends_on: &[_] = &["cluster.redis"];
    if !cluster.user.is_empty() && urls.iter().any(|url| !url.user.is_empty()) {
        let error = error("cluster.user", format_args!("{:?}", cluster.user), twice);
        return Err(ConfigError { depends_on, ..error });
    }
    let of_url = urls.iter().any(|url| !url.password.is_empty());
    if !cluster.password.is_empty() && of_url {
        let bytes = cluster.password.len();
        let error = error("cluster.password", format_args!("({bytes} bytes)"), twice);
        return Err(ConfigError { depends_on, ..error });
    }
    if !cluster.user.is_empty() && cluster.password.is_empty() && !of_url {
        let allowed = "\"\" without a password: Redis lets nobody in by a name alone";
        let error = error("cluster.user", format_args!("{:?}", cluster.user), allowed);
        return Err(ConfigError { depends_on: &["cluster.password", "cluster.redis"], ..error });
    }
    Ok(())
}

fn check_names(cluster: &ClusterConfig) -> Result<(), ConfigError> {
    let is_visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    let prefix = &cluster.prefix;
    // Braces would decide on the slot of a key, and * would make a pattern of it.
    let fits = (1..=PREFIX_BYTES_MAX).contains(&prefix.len()) && !prefix.contains(['{', '}', '*']);
    if !fits || !is_visible(prefix) {
        let allowed =
            format!("1 to {PREFIX_BYTES_MAX} visible ASCII characters without braces and *");
        return Err(error("cluster.prefix", format_args!("{prefix:?}"), allowed));
    }
    for (key, name) in [("cluster.id", &cluster.id), ("cluster.node", &cluster.node)] {
        if name.len() > NAME_BYTES_MAX || !is_visible(name) {
            let allowed = format!("at most {NAME_BYTES_MAX} visible ASCII characters");
            return Err(error(key, format_args!("{name:?}"), allowed));
        }
    }
    Ok(())
}

fn check_times(cluster: &ClusterConfig) -> Result<(), ConfigError> {
    let timeout = cluster.timeout;
    let depends_on: &[_] = &["cluster.timeout"];
    let check = |key: &str, time: Duration, min: Duration, max: Duration, why: &str| {
        within_time(key, time, min, max, why).map_err(|error| ConfigError { depends_on, ..error })
    };
    let why = ", and not below cluster.timeout: a publish is one call at the least";
    let publish = cluster.publish_timeout;
    check("cluster.publish_timeout", publish, timeout, PUBLISH_TIMEOUT_MAX, why)?;
    let why = ", four times cluster.timeout or longer: one late answer is no dead node";
    let least = (timeout * 4).max(NODE_TTL_MIN);
    check("cluster.node_ttl", cluster.node_ttl, least, NODE_TTL_MAX, why)
}

fn shown(cluster: &ClusterConfig) -> String {
    format!("({} URLs)", cluster.redis.0.len())
}

/// Nodes announce themselves several times in it.
const NODE_TTL_MIN: Duration = Duration::from_secs(1);
