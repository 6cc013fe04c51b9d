//! The checks of a caller: the `Host` of its request, the page that sent it, and its token or cookie.
//!
//! A web page can make its reader's browser send requests to loopback. It cannot choose `Host`
//! freely: a name that is rebound to 127.0.0.1 still stands there. It also cannot omit `Origin` in
//! a request with effects. The browser adds the cookie of a session by itself, so a cookie counts
//! only if the request shows that it comes from this server's own page.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{COOKIE, HOST, HeaderMap, HeaderValue, ORIGIN};
use http::request::Parts;
use http::{Method, Version};

use crate::auth::admin::{AdminAccess, Caller, Lease, Session};
use crate::base::host::{Host, Known};
use crate::base::origin::Origin;
use crate::http::web::head::{NoToken, bearer_token, check_site};
use crate::http::web::problem::{Kind, Problem};
use crate::observe::audit::ActOutcome;
use crate::{AdminScope, Right};

/// The rules of the admin API's listener.
#[derive(Clone, Copy)]
pub(super) struct Guard<'a>(pub(super) &'a AdminAccess);

/// The sender of an admitted request.
pub(super) enum Sender {
    /// Anybody may do everything, because no token is needed.
    Anyone,
    /// The owner of a token.
    Token(Arc<Caller>),
    /// A browser in which the owner of a token has signed in.
    Session(Arc<Session>),
    /// Nobody known, at a path that needs no token.
    Nobody,
}

/// What a request needs of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    /// The scope of a token of the admin API; `None`: each such token will do.
    pub(super) scope: Option<AdminScope>,
    /// The right of a service; `None`: no service may ask.
    pub(super) right: Option<Right>,
}

/// A request that is not admitted.
pub(super) struct Refused {
    pub(super) outcome: ActOutcome,
    /// The owner of the token, if that is valid.
    pub(super) who: Option<Arc<Caller>>,
    pub(super) problem: Box<Problem>,
}

impl Guard<'_> {
    /// Refuses a request for another host, or from a page of another origin. `local`: the address
    /// that accepted the connection.
    ///
    /// Health checks may name any host, or none over HTTP/1.0: a probe knows an address. Unless a
    /// browser shows that a page asks. False: the host is a name that is not this server's, which
    /// a stranger may have made point here.
    pub(super) fn check_host(
        self,
        request: &Parts,
        local: IpAddr,
        is_health: bool,
    ) -> Result<bool, Refused> {
        let has_none = request.version == Version::HTTP_10 && !request.headers.contains_key(HOST);
        if is_health && has_none && !is_of_page(&request.headers) {
            return Ok(false);
        }
        let host = asked(request).map_err(Refused::invalid)?;
        let Some(known) = self.0.hosts().find(&host, local) else {
            if is_health && !is_of_page(&request.headers) {
                return Ok(host.is_fixed());
            }
            let detail = format!("host \"{host}\" does not name this server; see admin.hosts");
            let problem = Problem::new(Kind::UnknownHost, detail).at_header("Host");
            return Err(Refused::new(ActOutcome::UnknownHost, problem));
        };
        check_site(request, false)
            .and_then(|()| check_origin(&request.headers, &host, known))
            .map_err(|problem| Refused::new(ActOutcome::ForeignOrigin, problem))?;
        Ok(true)
    }

    /// Whether the page that sent a checked request came over HTTPS, from a proxy in front.
    pub(super) fn is_https(self, request: &Parts, local: IpAddr) -> bool {
        let host = asked(request).ok();
        let known = host.and_then(|host| self.0.hosts().find(&host, local));
        let origin = request.headers.get(ORIGIN).map(HeaderValue::as_bytes);
        known == Some(Known::Listed) && origin.is_some_and(|origin| origin.starts_with(b"https://"))
    }

    /// The sender of a checked request, by its token, or else by its cookie.
    ///
    /// Cost: constant time: it does not depend on how much of the token is right.
    pub(super) fn identify(self, request: &Parts) -> Result<Sender, Refused> {
        if !self.0.needs_token() {
            return Ok(Sender::Anyone);
        }
        match bearer_token(&request.headers) {
            Ok(Some(token)) => {
                self.0.caller(token).map(Sender::Token).ok_or_else(|| wrong_token(NOT_A_TOKEN))
            }
            Err(NoToken::Malformed) => Err(wrong_token(NOT_A_TOKEN)),
            Err(NoToken::Several) => Err(no_token()),
            Ok(None) => self.by_cookie(request),
        }
    }

    fn by_cookie(self, request: &Parts) -> Result<Sender, Refused> {
        let mut ids = session_ids(&request.headers);
        let id = match (ids.next(), ids.next()) {
            (None, _) => return Err(no_token()),
            (Some(id), None) => id,
            // One of them may be planted by another server of the same host.
            (Some(_), Some(_)) => return Err(wrong_token("send one cookie weir_session")),
        };
        check_page(request).map_err(|problem| Refused::new(ActOutcome::ForeignOrigin, problem))?;
        let ended = || wrong_token("the session has ended, or there was none; sign in again");
        self.0.session(id).map(Sender::Session).ok_or_else(ended)
    }

    /// Refuses a request that the sender's token does not permit. The admin token permits
    /// everything.
    pub(super) fn permit(self, sender: &Sender, need: Need) -> Result<(), Refused> {
        let Some(caller) = sender.caller() else { return Ok(()) };
        let name = caller.name();
        let detail = match (caller.is_service(), need.scope, need.right) {
            (false, None, _) => return Ok(()),
            (false, Some(scope), _) if caller.scopes().contains(&scope) => return Ok(()),
            (false, Some(scope), _) => {
                format!("the token {name:?} lacks the scope {:?} (admin.tokens, may)", scope.name())
            }
            (true, _, Some(right)) if caller.has_right(right) => return Ok(()),
            (true, _, Some(right)) => format!(
                "the token of service {name:?} lacks the right {:?} (auth.services, may)",
                right.name()
            ),
            (true, _, None) => format!(
                "this needs admin.token or one of admin.tokens; the token of service {name:?} permits at most \
                 POST /v1/publish and GET /v1/events"
            ),
        };
        Err(Refused {
            who: Some(Arc::clone(caller)),
            ..Refused::new(ActOutcome::WrongScope, Problem::forbidden(detail))
        })
    }
}

impl Sender {
    /// The owner of the token, if one is needed.
    pub(super) fn caller(&self) -> Option<&Arc<Caller>> {
        match self {
            Sender::Anyone | Sender::Nobody => None,
            Sender::Token(caller) => Some(caller),
            Sender::Session(session) => Some(session.caller()),
        }
    }

    /// The name in the audit log.
    pub(super) fn name(&self) -> &str {
        match self {
            Sender::Anyone => ANYONE,
            Sender::Nobody => NOBODY,
            Sender::Token(caller) => caller.name(),
            Sender::Session(session) => session.caller().name(),
        }
    }

    /// What it may do.
    pub(super) fn scopes(&self) -> &[AdminScope] {
        match self {
            Sender::Anyone => &AdminScope::ALL,
            Sender::Nobody => &[],
            Sender::Token(_) | Sender::Session(_) => {
                self.caller().map_or(&[], |caller| caller.scopes())
            }
        }
    }

    /// The permission for a stream.
    pub(super) fn lease(&self, access: &AdminAccess) -> Lease {
        match self {
            Sender::Anyone | Sender::Nobody => access.lease_of_anyone(),
            Sender::Token(caller) => caller.lease(),
            Sender::Session(session) => session.lease(),
        }
    }
}

impl Refused {
    pub(super) fn new(outcome: ActOutcome, problem: Problem) -> Refused {
        Refused { outcome, who: None, problem: Box::new(problem) }
    }

    pub(super) fn invalid(problem: Problem) -> Refused {
        Refused::new(ActOutcome::Invalid, problem)
    }
}

/// The values of the cookie of sessions.
pub(super) fn session_ids(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let cookies = lines.flat_map(|line| line.split(';'));
    cookies.filter_map(|cookie| cookie.trim().strip_prefix(SESSION_COOKIE)?.strip_prefix('='))
}

fn no_token() -> Refused {
    let detail = "send one header \"Authorization: Bearer TOKEN\" with admin.token or the token of a service or of \
                  admin.tokens, or sign in (POST /v1/session)";
    let problem = Problem::unauthorized("Bearer realm=\"weir\"", detail);
    Refused::new(ActOutcome::NoToken, problem)
}

pub(super) fn wrong_token(detail: &'static str) -> Refused {
    let challenge = "Bearer realm=\"weir\", error=\"invalid_token\"";
    Refused::new(ActOutcome::WrongToken, Problem::unauthorized(challenge, detail))
}

/// Refuses a cookie in a request for which a page of another origin may be the cause. The request
/// has been checked, so an `Origin` is this server's own.
///
/// A request with effects must show that it comes from the own page. Others may come from a program
/// without a page, but not from a link elsewhere.
fn check_page(request: &Parts) -> Result<(), Problem> {
    if request.headers.contains_key(ORIGIN) {
        return Ok(());
    }
    let mut sites = request.headers.get_all(SEC_FETCH_SITE).iter().map(HeaderValue::as_bytes);
    let is_own = match (sites.next(), sites.next()) {
        (Some(b"same-origin"), None) => true,
        (Some(b"none") | None, None) => matches!(request.method, Method::GET | Method::HEAD),
        (Some(_) | None, _) => false,
    };
    if is_own {
        return Ok(());
    }
    let detail = "a session is good for this server's own pages: send Origin, or Sec-Fetch-Site: same-origin";
    Err(Problem::new(Kind::ForeignOrigin, detail).at_header("Origin"))
}

/// Whether a browser has sent the request for a page, as far as its head shows.
fn is_of_page(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN) || headers.contains_key(SEC_FETCH_SITE)
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

/// The cookie of a session.
pub(super) const SESSION_COOKIE: &str = "weir_session";
/// The name of all callers where no token is needed.
pub(super) const ANYONE: &str = "anyone";
/// The name of callers without a valid token.
pub(super) const NOBODY: &str = "nobody";
const NOT_A_TOKEN: &str =
    "the token is not the one of admin.token, nor one of admin.tokens, nor that of a service";
const SEC_FETCH_SITE: &str = "sec-fetch-site";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::token_hash::token_hash;
    use crate::{AdminConfig, AdminTokenConfig, ServiceConfig};
    use http::Request;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri("/healthz");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn status(refused: Refused) -> u16 {
        refused.problem.into_response().status().as_u16()
    }

    fn check(listener: &str, headers: &[(&str, &str)]) -> Result<(), u16> {
        let hosts = vec!["gate.example".to_owned(), "api.example:8443".to_owned()];
        let access = AdminAccess::new(&AdminConfig { hosts, ..AdminConfig::default() }, &[]);
        let local = listener.parse().unwrap();
        let checked = Guard(&access).check_host(&parts(headers), local, false);
        checked.map(|is_own| assert!(is_own)).map_err(status)
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

    #[test]
    fn a_probe_may_name_any_host_and_a_page_may_not() {
        let access = AdminAccess::new(&AdminConfig::default(), &[]);
        let check = |headers: &[(&str, &str)], version| {
            let mut parts = parts(headers);
            parts.version = version;
            Guard(&access).check_host(&parts, "10.1.2.3".parse().unwrap(), true).map_err(status)
        };
        let (old, new) = (Version::HTTP_10, Version::HTTP_11);
        for (host, is_own) in [
            ("10.1.2.3", true),
            ("10.9.9.9:7090", true),
            ("pod.example", false),
            ("localhost", true),
        ] {
            assert_eq!(check(&[("host", host)], new), Ok(is_own), "{host}");
        }
        assert_eq!(check(&[], old), Ok(false));
        assert_eq!(check(&[], new), Err(400));
        assert_eq!(check(&[("host", "a"), ("host", "a")], new), Err(400));
        for (name, value) in [
            ("origin", "http://evil.example"),
            ("origin", "http://localhost"),
            ("sec-fetch-site", "same-origin"),
        ] {
            let page = [("host", "evil.example"), (name, value)];
            assert_eq!(check(&page, new), Err(421), "{name}");
            assert!(check(&page[1..], old).is_err(), "{name}");
        }
        let foreign = [("host", "localhost"), ("origin", "http://evil.example")];
        assert_eq!(check(&foreign, new), Err(403));
    }

    /// The name of the sender of a request with these headers, or the status of its refusal.
    fn sender(
        access: &AdminAccess,
        method: &Method,
        headers: &[(&str, &str)],
    ) -> Result<String, u16> {
        let mut parts = parts(headers);
        parts.method = method.clone();
        let sender = Guard(access).identify(&parts).map_err(status)?;
        Ok(sender.name().to_owned())
    }

    fn access(token: &str) -> AdminAccess {
        let service = |name: &str, may: &[Right]| ServiceConfig {
            token: format!("{name}-token"),
            name: name.to_owned(),
            may: may.to_vec(),
        };
        let services = [service("mouth", &[Right::Publish]), service("ears", &[Right::Events])];
        let ci = AdminTokenConfig {
            name: "ci".to_owned(),
            hash: token_hash("ci-token"),
            may: vec![AdminScope::Read, AdminScope::Publish],
        };
        let tokens = if token.is_empty() { vec![] } else { vec![ci] };
        let admin = AdminConfig { token: token.to_owned(), tokens, ..AdminConfig::default() };
        AdminAccess::new(&admin, &services)
    }

    #[test]
    fn only_the_whole_token_opens() {
        let access = access("s3cret");
        let hash = format!("Bearer {}", token_hash("ci-token"));
        for header in ["Bearer s3cret", "bearer  s3cret"] {
            let sent = sender(&access, &Method::GET, &[("authorization", header)]);
            assert_eq!(sent.as_deref(), Ok("admin"), "{header}");
        }
        for wrong in [
            "Bearer",
            "Bearer ",
            "Bearer s3cre",
            "Bearer s3crets3cret",
            "Bearer S3cret",
            "s3cret",
            &hash,
            &hash.replace("sha256:", ""),
        ] {
            let sent = sender(&access, &Method::GET, &[("authorization", wrong)]);
            assert_eq!(sent, Err(401), "{wrong}");
        }
        let twice = [("authorization", "Bearer s3cret"), ("authorization", "Bearer s3cret")];
        assert_eq!(sender(&access, &Method::GET, &twice), Err(401));
        assert_eq!(sender(&access, &Method::GET, &[]), Err(401));
        let open = self::access("");
        assert_eq!(sender(&open, &Method::GET, &[]).as_deref(), Ok("anyone"));
    }

    #[test]
    fn a_token_opens_what_it_may() {
        use AdminScope::{Operate, Publish, Read};
        let access = access("s3cret");
        let need = |scope, right| Need { scope, right };
        for (token, need, expected) in [
            ("mouth-token", need(Some(Publish), Some(Right::Publish)), Ok(())),
            ("mouth-token", need(Some(Read), Some(Right::Events)), Err(403)),
            ("mouth-token", need(Some(Read), None), Err(403)),
            ("mouth-token", need(None, None), Err(403)),
            ("ears-token", need(Some(Publish), Some(Right::Publish)), Err(403)),
            ("ears-token", need(Some(Read), Some(Right::Events)), Ok(())),
            ("ci-token", need(Some(Publish), Some(Right::Publish)), Ok(())),
            ("ci-token", need(Some(Read), None), Ok(())),
            ("ci-token", need(Some(Operate), None), Err(403)),
            ("ci-token", need(None, None), Ok(())),
            ("nose-token", need(None, None), Err(401)),
            ("s3cret", need(Some(Operate), None), Ok(())),
        ] {
            let parts = parts(&[("authorization", &format!("Bearer {token}"))]);
            let sender = Guard(&access).identify(&parts);
            let permitted = sender.and_then(|sender| Guard(&access).permit(&sender, need));
            assert_eq!(permitted.map_err(status), expected, "{token} {need:?}");
        }
    }

    #[test]
    fn a_cookie_stands_for_the_token_on_own_pages_alone() {
        let access = access("s3cret");
        let Ok(crate::auth::admin::SignIn::Session { id, .. }) = access.sign_in("ci-token") else {
            panic!("no session");
        };
        let cookie = format!("weir_session={id}");
        let among = format!("a=b; {cookie}; xweir_session=1; weir_session_x=2");
        let own = ("sec-fetch-site", "same-origin");
        for (method, headers, expected) in [
            (Method::GET, &[("cookie", &*cookie)][..], Ok("ci")),
            (Method::GET, &[("cookie", &among)], Ok("ci")),
            (Method::GET, &[("cookie", "a=b"), ("cookie", &cookie)], Ok("ci")),
            (Method::HEAD, &[("cookie", &cookie), ("sec-fetch-site", "none")], Ok("ci")),
            (Method::POST, &[("cookie", &cookie), own], Ok("ci")),
            (Method::POST, &[("cookie", &cookie), ("origin", "http://localhost")], Ok("ci")),
            (Method::POST, &[("cookie", &cookie)], Err(403)),
            (Method::DELETE, &[("cookie", &cookie)], Err(403)),
            (Method::POST, &[("cookie", &cookie), ("sec-fetch-site", "none")], Err(403)),
            (Method::POST, &[("cookie", &cookie), own, own], Err(403)),
            (Method::POST, &[("cookie", &cookie), own, ("sec-fetch-site", "cross-site")], Err(403)),
            (Method::GET, &[("cookie", &cookie), ("sec-fetch-site", "same-site")], Err(403)),
            (Method::GET, &[("cookie", &cookie), ("sec-fetch-site", "cross-site")], Err(403)),
            (Method::GET, &[("cookie", &cookie), ("cookie", &cookie)], Err(401)),
            (Method::GET, &[("cookie", &format!("{cookie}; weir_session=x"))], Err(401)),
            (Method::GET, &[("cookie", "weir_session=")], Err(401)),
            (Method::GET, &[("cookie", &format!("weir_session=\"{id}\""))], Err(401)),
            (Method::GET, &[("cookie", &format!("WEIR_SESSION={id}"))], Err(401)),
            (Method::GET, &[("cookie", &cookie), ("authorization", "Bearer wrong")], Err(401)),
            (
                Method::GET,
                &[("cookie", "weir_session=x"), ("authorization", "Bearer s3cret")],
                Ok("admin"),
            ),
        ] {
            let sent = sender(&access, &method, headers);
            assert_eq!(sent, expected.map(str::to_owned), "{method} {headers:?}");
        }
    }
}
