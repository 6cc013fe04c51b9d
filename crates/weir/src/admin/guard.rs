//! The checks of a caller: the `Host` of its request, the page that sent it, and its token.
//!
//! A web page can make its reader's browser send requests to loopback. It cannot choose `Host`
//! freely: a name that is rebound to 127.0.0.1 still stands there. It also cannot omit `Origin` in
//! a request with effects.

use std::net::IpAddr;

use http::header::{HOST, HeaderMap, ORIGIN};
use http::request::Parts;

use crate::auth::Secrets;
use crate::base::host::{Host, Hosts, Known};
use crate::base::origin::Origin;
use crate::http::web::head::{NoToken, bearer_token, check_site};
use crate::http::web::problem::{Kind, Problem};
use crate::{AdminConfig, Right, ServiceConfig};

/// The rules of one admin listener.
pub(super) struct Guard {
    /// The callers by token; `None`: no token is needed.
    callers: Option<Secrets<Caller>>,
    hosts: Hosts,
}

/// The owner of a token.
enum Caller {
    /// The owner of `admin.token`, who may do everything.
    Admin,
    Service {
        name: Box<str>,
        may: Box<[Right]>,
    },
}

impl Guard {
    /// An empty `admin.token` means that no token is needed. `admin.hosts` are names beside
    /// loopback and the address that accepted a connection.
    pub(super) fn new(admin: &AdminConfig, services: &[ServiceConfig]) -> Self {
        let callers = (!admin.token.is_empty()).then(|| callers(&admin.token, services));
        Self { callers, hosts: Hosts::new(&admin.hosts) }
    }

    /// Refuses a request for another host, or from a page of another origin. `local`: the address
    /// that accepted the connection.
    pub(super) fn check_host(&self, request: &Parts, local: IpAddr) -> Result<(), Problem> {
        let host = asked(request)?;
        let Some(known) = self.hosts.find(&host, local) else {
            let detail = format!("host \"{host}\" does not name this server; see admin.hosts");
            return Err(Problem::new(Kind::UnknownHost, detail).at_header("Host"));
        };
        check_site(request, false)?;
        check_origin(&request.headers, &host, known)
    }

    /// Refuses a request whose token does not permit it, if tokens are needed. The admin token
    /// permits everything. `needed`: the right that a service must have; `None`: no service may
    /// ask.
    ///
    /// The service that the token belongs to; `None`: the operator's, or none is needed.
    ///
    /// Cost: constant time: it does not depend on how much of the token is right.
    pub(super) fn check_token(
        &self,
        headers: &HeaderMap,
        needed: Option<Right>,
    ) -> Result<Option<&str>, Problem> {
        let Some(callers) = &self.callers else { return Ok(None) };
        let token = match bearer_token(headers) {
            Ok(Some(token)) => Some(token),
            Ok(None) | Err(NoToken::Several) => {
                return Err(Problem::unauthorized(
                    "Bearer realm=\"weir\"",
                    "send one header \"Authorization: Bearer TOKEN\" with admin.token or the token of a service",
                ));
            }
            Err(NoToken::Malformed) => None,
        };
        match token.and_then(|token| callers.find(token.as_bytes())) {
            Some(Caller::Admin) => Ok(None),
            Some(Caller::Service { name, may }) => match needed {
                Some(right) if may.contains(&right) => Ok(Some(name)),
                Some(right) => Err(Problem::forbidden(format!(
                    "the token of service {name:?} lacks the right {:?} (auth.services, may)",
                    right.name()
                ))),
                None => Err(Problem::forbidden(format!(
                    "this needs admin.token; the token of service {name:?} permits at most POST /v1/publish and GET /v1/events"
                ))),
            },
            None => Err(Problem::unauthorized(
                "Bearer realm=\"weir\", error=\"invalid_token\"",
                "the token is not the one of admin.token, nor that of a service",
            )),
        }
    }
}

/// The host that a request names. There must be exactly one.
fn asked(request: &Parts) -> Result<Host<'_>, Problem> {
    let mut hosts = request.headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err(Problem::field("Host", "send exactly one Host header"));
    };
    let Some(host) = host.to_str().ok().and_then(Host::parse) else {
        return Err(Problem::field("Host", "Host is not a host name with an optional port"));
    };
    let target = request.uri.authority().map(|target| Host::parse(target.as_str()));
    let is_same = target.is_none_or(|target| {
        target.is_some_and(|target| target.has_name_of(&host) && target.port() == host.port())
    });
    match is_same {
        true => Ok(host),
        false => Err(Problem::field("Host", "Host and the request's target name different hosts")),
    }
}

/// Refuses a page of another origin.
///
/// The listener speaks plain HTTP. But a name in `admin.hosts` may be that of a proxy with TLS.
fn check_origin(headers: &HeaderMap, host: &Host<'_>, known: Known) -> Result<(), Problem> {
    let schemes: &[&str] = match known {
        Known::Fixed => &["http"],
        Known::Listed => &["http", "https"],
    };
    for origin in headers.get_all(ORIGIN) {
        let parsed = origin.to_str().ok().and_then(Origin::parse);
        if !parsed.is_some_and(|origin| origin.is_of(schemes, host)) {
            let detail = format!("origin {origin:?} is not this server");
            return Err(Problem::new(Kind::ForeignOrigin, detail).at_header("Origin"));
        }
    }
    Ok(())
}

/// The admin token is entered first, so the token of a service cannot replace it.
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
    use http::header::AUTHORIZATION;

    fn check(listener: &str, headers: &[(&str, &str)]) -> Result<(), u16> {
        let hosts = vec!["gate.example".to_owned(), "api.example:8443".to_owned()];
        let guard = Guard::new(&AdminConfig { hosts, ..AdminConfig::default() }, &[]);
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
            "https://localhost:7090",
        ] {
            assert_eq!(from(origin), Err(403), "{origin}");
        }
        // Another program's page, at the port that goes without saying.
        let other = [("host", "localhost"), ("origin", "https://localhost")];
        assert_eq!(check("127.0.0.1", &other), Err(403));
        let behind_tls = [("host", "gate.example"), ("origin", "https://gate.example")];
        assert_eq!(check("127.0.0.1", &behind_tls), Ok(()));
    }

    #[test]
    fn a_page_that_is_not_named_is_another_one() {
        let from = |site, mode, dest| {
            let site =
                [("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
            check("127.0.0.1", &[&[("host", "localhost:7090")][..], &site].concat())
        };
        for site in ["same-origin", "none"] {
            assert_eq!(from(site, "no-cors", "image"), Ok(()), "{site}");
        }
        for site in ["same-site", "cross-site", "", "new"] {
            assert_eq!(from(site, "no-cors", "image"), Err(403), "{site}");
            assert_eq!(from(site, "navigate", "iframe"), Err(403), "{site}");
            // Somebody has followed a link.
            assert_eq!(from(site, "navigate", "document"), Ok(()), "{site}");
        }
    }

    fn status(token: &str, header: Option<&str>, needed: Option<Right>) -> Result<(), u16> {
        let service = |name: &str, may: &[Right]| ServiceConfig {
            token: format!("{name}-token"),
            name: name.to_owned(),
            may: may.to_vec(),
        };
        let services = [service("mouth", &[Right::Publish]), service("ears", &[Right::Events])];
        let admin = AdminConfig { token: token.to_owned(), ..AdminConfig::default() };
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(AUTHORIZATION, header.parse().unwrap());
        }
        let guard = Guard::new(&admin, &services);
        let checked = guard.check_token(&headers, needed);
        let checked = checked.map(|_| ());
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
