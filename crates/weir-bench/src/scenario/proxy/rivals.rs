//! The other reverse proxies, and Weir's configuration for the same work.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::cli::PeerProxies;
use crate::process::Cpus;
use crate::spawn::{self, Content, Nginx, Rival, RivalKind, Service};

/// The other reverse proxies that can be started. They end when this is dropped.
pub(in crate::scenario) struct Rivals {
    nginx: Option<Nginx>,
    pingora: Option<Rival>,
    /// The reasons why some are missing.
    pub(in crate::scenario) skipped: Vec<String>,
}

/// The work of a reverse proxy.
#[derive(Debug, Clone, Copy)]
pub(in crate::scenario) struct Site<'a> {
    /// The addresses of the backends.
    pub(in crate::scenario) backends: &'a [SocketAddr],
    /// Further directives of nginx.
    pub(in crate::scenario) directives: &'a str,
    /// Whether clients speak HTTP/2.
    pub(in crate::scenario) h2: bool,
}

/// Names of a rival's fields in the report.
pub(super) struct Names {
    pub(super) cpu_us: &'static str,
    pub(super) ratio: &'static str,
}

const NGINX: &str = "nginx";
const PINGORA: &str = "pingora";
/// Clients that ask the backend without a proxy.
pub(super) const DIRECT: &str = "direct";

impl Rivals {
    /// Starts them.
    pub(in crate::scenario) fn start(
        peers: &PeerProxies,
        site: Site<'_>,
        cpus: Option<&Cpus>,
    ) -> Result<Rivals> {
        let mut skipped = Vec::new();
        let Site { backends, directives, h2 } = site;
        let content = Content::Proxied { backends, directives };
        let nginx = spawn::Site { credentials: None, h2, content };
        let nginx = Nginx::start(&peers.nginx, nginx, cpus).context(NGINX)?;
        if nginx.is_none() {
            skipped.push(format!("nginx: there is no program {}", peers.nginx.display()));
        }
        let pingora = match RivalKind::Pingora.describe(&peers.scripts) {
            Err(error) => {
                skipped.push(format!("pingora: {error:#}"));
                None
            }
            Ok(_) => {
                let service = Service::Proxy(backends);
                let rival = Rival::start(RivalKind::Pingora, &peers.scripts, service, cpus);
                Some(rival.context(PINGORA)?)
            }
        };
        Ok(Rivals { nginx, pingora, skipped })
    }

    /// Each with its address and its process.
    pub(in crate::scenario) fn all(&self) -> Vec<(&'static str, SocketAddr, u32)> {
        let nginx = self.nginx.iter().map(|nginx| (NGINX, nginx.addr, nginx.pid()));
        let pingora = self.pingora.iter().map(|rival| (PINGORA, rival.addr, rival.pid()));
        nginx.chain(pingora).collect()
    }

    /// Versions and settings.
    pub(in crate::scenario) fn descriptions(&self) -> Vec<(&'static str, Vec<String>)> {
        let nginx = self.nginx.iter().map(|nginx| (NGINX, nginx.description.clone()));
        let pingora = self.pingora.iter().map(|rival| (PINGORA, rival.description.clone()));
        nginx.chain(pingora).collect()
    }
}

/// Weir's configuration: one route to one upstream with these endpoints, and further keys of the upstream.
pub(in crate::scenario) fn settings(
    backends: &[SocketAddr],
    further: Option<Table>,
) -> Result<Table> {
    let addresses = backends.iter().map(|addr| Value::from(addr.to_string()));
    let mut upstream = further.unwrap_or_default();
    upstream.insert("name".to_owned(), "b".into());
    upstream.insert("addresses".to_owned(), Value::Array(addresses.collect()));
    let mut settings: Table =
        "[[http.routes]]\nprefix = \"/\"\nupstream = \"b\"".parse().context("the routes")?;
    settings.insert("upstreams".to_owned(), Value::Array(vec![upstream.into()]));
    Ok(settings)
}

/// Fields of a proxy; none for those without one.
pub(super) fn names(rival: &str) -> Option<Names> {
    match rival {
        NGINX => Some(Names { cpu_us: "nginx_us_per_request", ratio: "ratio_to_nginx" }),
        PINGORA => Some(Names { cpu_us: "pingora_us_per_request", ratio: "ratio_to_pingora" }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_name_each_backend() {
        let backends = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let further: Table = "protocol = \"http1\"".parse().unwrap();
        let shown = settings(&backends, Some(further)).unwrap().to_string();
        for line in [
            "[[upstreams]]",
            "addresses = [\"127.0.0.1:1\", \"127.0.0.1:2\"]",
            "protocol = \"http1\"",
            "[[http.routes]]",
            "upstream = \"b\"",
        ] {
            assert!(shown.contains(line), "{line}: {shown}");
        }
    }
}
