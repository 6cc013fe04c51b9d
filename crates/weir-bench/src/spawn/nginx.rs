//! Starts nginx, configured for the same task: one process, no log; a fixed answer, or those of backends.

use std::fmt::Write;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::server::{START_TIMEOUT, Server, free_port, scratch_directory};
use crate::clock;
use crate::process::Cpus;
use crate::tls::credentials::Credentials;

/// An nginx that the bench has started. It is killed and its directory removed when this is
/// dropped.
pub(crate) struct Nginx {
    server: Server,
    /// The address of the listener.
    pub(crate) addr: SocketAddr,
    /// The version that nginx reports.
    pub(crate) version: String,
    /// Version and settings.
    pub(crate) description: Vec<String>,
}

/// The service that nginx is started for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site<'a> {
    /// The certificate; `None`: no TLS.
    pub(crate) credentials: Option<&'a Credentials>,
    /// Whether it speaks HTTP/2.
    pub(crate) h2: bool,
    /// What it answers.
    pub(crate) content: Content<'a>,
}

/// What nginx answers with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content<'a> {
    /// `Hello World`.
    Hello,
    /// The answers of backends, which it asks over HTTP/1.1 on kept connections.
    Proxied {
        /// Their addresses.
        backends: &'a [SocketAddr],
        /// Further directives of the location.
        directives: &'a str,
    },
}

impl Nginx {
    /// Starts nginx; `None` if the program does not exist.
    pub(crate) fn start(
        program: &Path,
        site: Site<'_>,
        cpus: Option<&Cpus>,
    ) -> Result<Option<Nginx>> {
        let Some(version) = version(program)? else { return Ok(None) };
        let directory = scratch_directory()?;
        if let Some(credentials) = site.credentials {
            credentials.write(&directory)?;
        }
        let addr = free_port()?;
        let config = config(&directory, addr, site, &version);
        let file = directory.join("nginx.conf");
        fs::write(&file, &config).with_context(|| format!("cannot write {}", file.display()))?;
        let directory_text = directory.to_string_lossy().into_owned();
        let mut command = Command::new(program);
        command.arg("-p").arg(&directory).arg("-c").arg(&file);
        command.arg("-e").arg(directory.join("log"));
        let server = Server::launch(command, program.to_owned(), directory, cpus)?;
        let version_line = format!("nginx {version}");
        let lines = config.lines().filter(|line| !line.contains("_temp_path"));
        let settings = lines.map(|line| line.replace(&*directory_text, "…").trim().to_owned());
        let description = std::iter::once(version_line).chain(settings).collect();
        let mut nginx = Nginx { server, addr, version, description };
        nginx.wait_until_ready()?;
        Ok(Some(nginx))
    }

    /// The process that answers.
    pub(crate) fn pid(&self) -> u32 {
        self.server.child.id()
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = clock::monotonic() + START_TIMEOUT;
        while TcpStream::connect(self.addr).is_err() {
            if let Some(status) = self.server.child.try_wait()? {
                bail!("nginx ended at once: {status}{}", self.server.log_tail());
            }
            if clock::monotonic() > deadline {
                bail!("nginx is not ready after {START_TIMEOUT:?}{}", self.server.log_tail());
            }
            clock::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// The version of nginx, such as `1.22.1`; `None` if the program does not exist.
fn version(program: &Path) -> Result<Option<String>> {
    let output = match Command::new(program).arg("-v").stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("cannot start nginx"),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let version = said.rsplit_once("nginx/").map(|(_, rest)| rest);
    let version = version.and_then(|rest| rest.split_whitespace().next());
    Ok(Some(version.context("nginx does not tell its version")?.to_owned()))
}

/// One process instead of a master and a worker: it runs the same loop, and ends with the bench.
fn config(directory: &Path, addr: SocketAddr, site: Site<'_>, version: &str) -> String {
    let tls = site.credentials.is_some();
    // A separate directive since 1.25.1, before that a word of `listen`.
    let modern = site.h2 && numbers(version) >= vec![1, 25, 1];
    let mut listen = format!("listen {addr} backlog=4096");
    listen += if tls { " ssl" } else { "" };
    listen += if site.h2 && !modern { " http2;" } else { ";" };
    listen += if modern { " http2 on;" } else { "" };
    let mut paths = String::new();
    for name in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let wrote = write!(paths, "{name}_temp_path \"{}/{name}\"; ", directory.display());
        debug_assert!(wrote.is_ok(), "writing to a string does not fail");
    }
    let certificate = if tls {
        let (chain, key) = Credentials::files();
        format!("ssl_certificate {chain}; ssl_certificate_key {key}; {TLS}")
    } else {
        String::new()
    };
    let (upstream, location) = match site.content {
        Content::Hello => (String::new(), "return 200 \"Hello World\";".to_owned()),
        Content::Proxied { backends, directives } => {
            let servers = backends.iter().map(|addr| format!("server {addr}; "));
            let servers: String = servers.collect();
            let balance = if backends.len() > 1 { "least_conn; " } else { "" };
            (
                format!("upstream b {{ {balance}{servers}{KEPT} }}\n  "),
                format!("proxy_pass http://b; {PROXY} {directives}"),
            )
        }
    };
    format!(
        "daemon off; master_process off; worker_processes 1; pid \"{}/pid\";\n\
         events {{ worker_connections 18000; }}\n\
         http {{\n  access_log off; default_type text/plain;\n  {paths}\n  \
         keepalive_requests 2000000000; keepalive_timeout 1h;\n  {upstream}\
         server {{ {listen} {certificate} location / {{ {location} }} }}\n}}\n",
        directory.display()
    )
}

/// Connections to backends are kept without end.
const KEPT: &str = "keepalive 1024; keepalive_requests 2000000000; keepalive_timeout 1h;";
/// The headers that Weir and pingora send, too; and no answer goes to a file.
const PROXY: &str = "proxy_http_version 1.1; proxy_set_header Connection \"\"; \
    proxy_set_header Host $http_host; \
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; \
    proxy_set_header X-Forwarded-Host $http_host; \
    proxy_set_header X-Forwarded-Proto $scheme; \
    proxy_buffer_size 16k; proxy_buffers 16 16k; proxy_max_temp_file_size 0;";
/// Sessions resume by id and by ticket.
const TLS: &str = "ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache shared:bench:64m;";

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::TlsArgs;

    #[test]
    fn http2_is_asked_for_as_the_version_understands() {
        let shown = |credentials, h2, version| {
            shown(Site { credentials, h2, content: Content::Hello }, version)
        };
        let args = TlsArgs::none();
        let old = shown(Some(args.credentials().unwrap()), true, "1.22.1");
        assert!(old.contains("listen 127.0.0.1:1 backlog=4096 ssl http2;"), "{old}");
        let new = shown(None, true, "1.26.0");
        assert!(new.contains("listen 127.0.0.1:1 backlog=4096; http2 on;"), "{new}");
        assert!(!shown(None, false, "1.26.0").contains("http2"));
    }

    #[test]
    fn several_backends_are_balanced() {
        let backends = [2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let content = |count| Content::Proxied { backends: &backends[..count], directives: "" };
        let of =
            |count| shown(Site { credentials: None, h2: false, content: content(count) }, "1.22.1");
        assert!(of(1).contains("upstream b { server 127.0.0.1:2; keepalive"), "{}", of(1));
        let both = "upstream b { least_conn; server 127.0.0.1:2; server 127.0.0.1:3; keepalive";
        assert!(of(2).contains(both), "{}", of(2));
    }

    fn shown(site: Site<'_>, version: &str) -> String {
        config(Path::new("/x"), SocketAddr::from(([127, 0, 0, 1], 1)), site, version)
    }
}
