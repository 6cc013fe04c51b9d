//! Who may ask: the `Host` it asks for, the page it asks from, the token it shows.
//!
//! A web page can make its reader's browser send requests to loopback. It cannot choose `Host` freely (a name that
//! is rebound to 127.0.0.1 still stands there), nor leave `Origin` away where a request has effects.

use std::net::IpAddr;

use http::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use http::request::Parts;
use http::uri::Authority;

use crate::auth::Secrets;
use crate::web::head::{Origin, bearer, is_host_and_port, name_of};
use crate::web::problem::{Kind, Problem};
use crate::{AdminConfig, Right, ServiceConfig};

/// The rules of one admin listener.
pub(super) struct Guard {
    /// By token; `None`: nobody has to show one.
    callers: Option<Secrets<Caller>>,
    hosts: Vec<HostRule>,
}

/// Whose token it is.
enum Caller {
    /// That of `admin.token`, which may all.
    Admin,
    Service {
        name: Box<str>,
        may: Box<[Right]>,
    },
}

/// A name that the server goes by, at one port or at any.
struct HostRule {
    host: String,
    port: Option<u16>,
}

impl Guard {
    /// `admin.token` empty: none is asked for. `admin.hosts` are names beside loopback and the address that a connection
    /// came in on, and have been checked with [`is_host`].
    pub(super) fn new(admin: &AdminConfig, services: &[ServiceConfig]) -> Self {
        let callers = (!admin.token.is_empty()).then(|| callers(&admin.token, services));
        let mut rules = vec![HostRule { host: "localhost".to_owned(), port: None }];
        for host in &admin.hosts {
            if let Ok(authority) = host.parse::<Authority>() {
                rules.push(HostRule { host: name_of(&authority), port: authority.port_u16() });
            }
        }
        Self { callers, hosts: rules }
    }

    /// Refuses a request for another host, or from a page of another origin. `local` is where the connection came in.
    pub(super) fn check_host(&self, request: &Parts, local: IpAddr) -> Result<(), Problem> {
        let host = authority(request)?;
        if !self.knows(&host, local) {
            let detail = format!("host {host:?} is not one of this server's; see admin.hosts");
            return Err(Problem::new(Kind::UnknownHost, detail).at_header("Host"));
        }
        check_origin(&request.headers, &host)
    }

    /// Refuses a request without a token that permits it, where tokens are asked for: that of the admin, or that of a
    /// service with the right that is needed; `None`: no service's will do.
    ///
    /// Cost: the time does not tell what is shown has in common with a token.
    pub(super) fn check_token(
        &self,
        headers: &HeaderMap,
        needed: Option<Right>,
    ) -> Result<(), Problem> {
        let Some(callers) = &self.callers else { return Ok(()) };
        let mut shown = headers.get_all(AUTHORIZATION).iter();
        let (Some(shown), None) = (shown.next(), shown.next()) else {
            return Err(Problem::unauthorized(
                "Bearer realm=\"weir\"",
                "send one header \"Authorization: Bearer TOKEN\" with the token of admin.token, or a service's",
            ));
        };
        match bearer(shown.as_bytes()).and_then(|token| callers.find(token)) {
            Some(Caller::Admin) => Ok(()),
            Some(Caller::Service { name, may }) => match needed {
                Some(right) if may.contains(&right) => Ok(()),
                Some(right) => Err(Problem::forbidden(format!(
                    "the token of service {name:?} lacks the right {:?} (auth.services, may)",
                    right.name()
                ))),
                None => Err(Problem::forbidden(format!(
                    "this takes the token of admin.token; that of service {name:?} is for POST /v1/publish and GET /v1/events at the most"
                ))),
            },
            None => Err(Problem::unauthorized(
                "Bearer realm=\"weir\", error=\"invalid_token\"",
                "the token is not the one of admin.token, nor a service's",
            )),
        }
    }

    fn knows(&self, authority: &Authority, local: IpAddr) -> bool {
        let name = name_of(authority);
        let literal = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if let Ok(ip) = literal {
            let ip = ip.to_canonical();
            if ip.is_loopback() || ip == local.to_canonical() {
                return true;
            }
        }
        let at = |rule: &HostRule| rule.port.is_none() || rule.port == authority.port_u16();
        self.hosts.iter().any(|rule| rule.host == name && at(rule))
    }
}

/// Whether a request could ask for this: a name, and a port if need be.
pub(crate) fn is_host(host: &str) -> bool {
    host.parse::<Authority>().is_ok_and(|authority| is_host_and_port(&authority))
}

/// The one authority that a request is for.
fn authority(request: &Parts) -> Result<Authority, Problem> {
    let mut hosts = request.headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err(Problem::field("Host", "a request has exactly one Host header"));
    };
    let parsed = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    let Some(host) = parsed.filter(is_host_and_port) else {
        return Err(Problem::field("Host", "Host is no host name with an optional port"));
    };
    match request.uri.authority() {
        Some(asked) if *asked != host => {
            Err(Problem::field("Host", "Host and the request's target name different hosts"))
        }
        Some(_) | None => Ok(host),
    }
}

/// Refuses the page of another origin; a request without `Origin` is no page's, or without effect.
fn check_origin(headers: &HeaderMap, host: &Authority) -> Result<(), Problem> {
    for origin in headers.get_all(ORIGIN) {
        let same =
            origin.to_str().ok().and_then(Origin::parse).is_some_and(|origin| origin.is_of(host));
        if !same {
            let detail = format!("origin {origin:?} is not this server");
            return Err(Problem::new(Kind::ForeignOrigin, detail).at_header("Origin"));
        }
    }
    Ok(())
}

/// The admin's token comes first: a service cannot take its place.
fn callers(admin: &str, services: &[ServiceConfig]) -> Secrets<Caller> {
    let mut callers = Secrets::new();
    callers.insert(admin.as_bytes(), Caller::Admin);
    for ServiceConfig { token, name, may } in services {
        let caller = Caller::Service { name: name.as_str().into(), may: may.as_slice().into() };
        callers.insert(token.as_bytes(), caller);
    }
    callers
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn check(listener: &str, headers: &[(&str, &str)]) -> Result<(), u16> {
        let hosts = vec!["gate.example".to_owned(), "api.example:8443".to_owned()];
        let guard = Guard::new(&AdminConfig { token: String::new(), hosts }, &[]);
        let mut request = Request::builder().uri("/healthz");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let local = listener.parse().unwrap();
        guard.check_host(&parts, local).map_err(|problem| problem.into_response().status().as_u16())
    }

    #[test]
    fn only_the_server_s_own_names_are_answered() {
        for host in ["localhost", "LocalHost:7090", "127.0.0.1:7090", "[::1]:7090", "localhost.:1"]
        {
            assert_eq!(check("127.0.0.1", &[("host", host)]), Ok(()), "{host}");
        }
        for host in ["gate.example", "GATE.example:81", "api.example:8443", "10.1.2.3:7090"] {
            assert_eq!(check("::ffff:10.1.2.3", &[("host", host)]), Ok(()), "{host}");
        }
        for host in ["evil.example", "api.example", "10.1.2.4", "localhost.evil.example"] {
            assert_eq!(check("10.1.2.3", &[("host", host)]), Err(421), "{host}");
        }
        for host in ["", "user@localhost", "local host", "localhost:x"] {
            assert_eq!(check("127.0.0.1", &[("host", host)]), Err(400), "{host:?}");
        }
        assert_eq!(check("127.0.0.1", &[]), Err(400));
        assert_eq!(check("127.0.0.1", &[("host", "localhost"), ("host", "localhost")]), Err(400));
    }

    #[test]
    fn a_page_of_another_origin_is_refused() {
        let from = |origin| check("127.0.0.1", &[("host", "localhost:7090"), ("origin", origin)]);
        assert_eq!(from("http://localhost:7090"), Ok(()));
        for origin in [
            "null",
            "http://evil.example",
            "http://localhost",
            "http://localhost:3000",
            "http://127.0.0.1:7090",
            "ftp://localhost:7090",
            "localhost:7090",
        ] {
            assert_eq!(from(origin), Err(403), "{origin}");
        }
        let behind_tls = [("host", "gate.example"), ("origin", "https://gate.example")];
        assert_eq!(check("127.0.0.1", &behind_tls), Ok(()));
    }

    fn status(token: &str, header: Option<&str>, needed: Option<Right>) -> Result<(), u16> {
        let service = |name: &str, may: &[Right]| ServiceConfig {
            token: format!("{name}-token"),
            name: name.to_owned(),
            may: may.to_vec(),
        };
        let services = [service("mouth", &[Right::Publish]), service("ears", &[Right::Events])];
        let admin = AdminConfig { token: token.to_owned(), hosts: Vec::new() };
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(AUTHORIZATION, header.parse().unwrap());
        }
        let checked = Guard::new(&admin, &services).check_token(&headers, needed);
        checked.map_err(|problem| problem.into_response().status().as_u16())
    }

    #[test]
    fn only_the_whole_token_opens() {
        for header in ["Bearer s3cret", "bearer  s3cret"] {
            assert_eq!(status("s3cret", Some(header), None), Ok(()), "{header}");
        }
        for wrong in
            ["Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crets3cret", "Bearer S3cret", "s3cret"]
        {
            assert_eq!(status("s3cret", Some(wrong), None), Err(401), "{wrong}");
        }
        assert_eq!(status("s3cret", None, None), Err(401));
        assert_eq!(status("", None, None), Ok(()));
    }

    #[test]
    fn a_service_s_token_opens_what_it_may() {
        use Right::{Events, Publish};
        for (token, needed, expected) in [
            ("mouth-token", Some(Publish), Ok(())),
            ("mouth-token", Some(Events), Err(403)),
            ("mouth-token", None, Err(403)),
            ("ears-token", Some(Publish), Err(403)),
            ("ears-token", Some(Events), Ok(())),
            ("nose-token", Some(Events), Err(401)),
            ("s3cret", Some(Publish), Ok(())),
        ] {
            let header = format!("Bearer {token}");
            assert_eq!(status("s3cret", Some(&header), needed), expected, "{token} {needed:?}");
            // Without a token of the admin's everything is open, whatever is shown.
            assert_eq!(status("", Some(&header), needed), Ok(()), "{token} {needed:?}");
        }
    }
}
