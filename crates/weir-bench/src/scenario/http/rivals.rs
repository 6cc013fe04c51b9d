//! The servers for comparison: bare responders and nginx.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::baseline::http::HttpServer;
use crate::cli::HttpArgs;
use crate::process::Cpus;
use crate::protocol::to_hex;
use crate::spawn::{self, Content, Nginx, RivalKind, Scratch, Service, Site};
use crate::tls::credentials::Credentials;

/// All rivals. They end when this is dropped.
pub(super) struct Rivals {
    baselines: Vec<(&'static str, HttpServer)>,
    nginx: Option<Nginx>,
    netty: Option<spawn::Rival>,
    /// The reasons why some are missing.
    pub(super) skipped: Vec<String>,
    /// The certificates of the baselines.
    _scratch: Option<Scratch>,
}

/// A rival.
pub(super) struct Rival {
    pub(super) name: &'static str,
    pub(super) addr: SocketAddr,
    pub(super) pid: u32,
}

/// Names of a rival's fields in the report.
pub(super) struct Names {
    pub(super) cpu_us: &'static str,
    pub(super) ratio: &'static str,
}

const EPOLL: &str = "epoll";
const HYPER: &str = "hyper";
const NGINX: &str = "nginx";
pub(super) const NETTY: &str = "netty";

impl Rivals {
    /// Starts the rivals that support the options. The bare responder sends the server's own
    /// `answer`.
    pub(super) fn start(args: &HttpArgs, answer: &[u8], cpus: Option<&Cpus>) -> Result<Rivals> {
        let credentials = if args.tls.tls { Some(args.tls.credentials()?) } else { None };
        let scratch = credentials.map(Scratch::with).transpose()?;
        let files = scratch.as_ref().map(|scratch| identity(scratch.path()));
        let mut arguments: Vec<&str> = Vec::new();
        if let Some([certificate, key]) = &files {
            arguments.extend(["--certificate", certificate, "--key", key]);
        }
        let (mut baselines, mut skipped) = (Vec::new(), Vec::new());
        if args.h2 {
            arguments.push("--h2");
            skipped.push("epoll: the bare responder speaks HTTP/1.1 only".to_owned());
        } else {
            let answer = to_hex(answer);
            let arguments = [&arguments[..], &["--answer", &answer]].concat();
            let baseline = HttpServer::start("http-epoll", &arguments, cpus)?;
            baselines.push((EPOLL, baseline));
        }
        baselines.push((HYPER, HttpServer::start("http-hyper", &arguments, cpus)?));
        let site = Site { credentials, h2: args.h2, content: Content::Hello };
        let nginx = Nginx::start(&args.nginx, site, cpus).context(NGINX)?;
        if nginx.is_none() {
            skipped.push(format!("nginx: there is no program {}", args.nginx.display()));
        }
        let service = credentials.map_or(Service::Http, Service::Https);
        let start = |scripts: &PathBuf| {
            spawn::Rival::start(RivalKind::Netty, scripts, service, cpus).context(NETTY)
        };
        let netty = args.scripts.as_ref().map(start).transpose()?;
        Ok(Rivals { baselines, nginx, netty, skipped, _scratch: scratch })
    }

    /// Version of nginx, if there is one.
    pub(super) fn nginx_version(&self) -> Option<&str> {
        self.nginx.as_ref().map(|nginx| nginx.version.as_str())
    }

    /// Versions and settings of the other servers.
    pub(super) fn descriptions(&self) -> Vec<(&'static str, Vec<String>)> {
        let nginx = self.nginx.iter().map(|nginx| (NGINX, nginx.description.clone()));
        let netty = self.netty.iter().map(|netty| (NETTY, netty.description.clone()));
        nginx.chain(netty).collect()
    }

    /// All rivals with their addresses.
    pub(super) fn all(&self) -> Vec<Rival> {
        let baselines = self.baselines.iter().map(|(name, baseline)| Rival {
            name,
            addr: baseline.addr,
            pid: baseline.pid(),
        });
        let nginx = self.nginx.iter().map(|nginx| Rival {
            name: NGINX,
            addr: nginx.addr,
            pid: nginx.pid(),
        });
        let netty = self.netty.iter().map(|netty| Rival {
            name: NETTY,
            addr: netty.addr,
            pid: netty.pid(),
        });
        baselines.chain(nginx).chain(netty).collect()
    }
}

fn identity(directory: &Path) -> [String; 2] {
    let (chain, key) = Credentials::files();
    [chain, key].map(|name| directory.join(name).to_string_lossy().into_owned())
}

/// Fields of the rival of that name.
pub(super) fn names(rival: &str) -> Names {
    match rival {
        EPOLL => Names { cpu_us: "epoll_us_per_request", ratio: "ratio_to_epoll" },
        NETTY => Names { cpu_us: "netty_us_per_request", ratio: "ratio_to_netty" },
        HYPER => Names { cpu_us: "hyper_us_per_request", ratio: "ratio_to_hyper" },
        _ => Names { cpu_us: "nginx_us_per_request", ratio: "ratio_to_nginx" },
    }
}
