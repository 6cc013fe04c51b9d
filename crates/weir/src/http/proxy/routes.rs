//! The routes in use, and the route of a request.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use http::Request;
use ipnet::IpNet;

use crate::base::config::{Config, RouteAuth, RouteConfig};
use crate::base::host::Host;
use crate::limits::bucket::Rate;
use crate::observe::counters::Counters;
use crate::observe::counters::routes::RouteCount;

/// The routes of the configuration in use. They are made anew after a reload.
pub(super) struct Routes {
    made: ArcSwap<Made>,
    counters: Arc<Counters>,
}

/// The routes of one configuration.
struct Made {
    of: Arc<Config>,
    /// Those with a host first, then those with longer prefixes.
    routes: Vec<Arc<Route>>,
    has_hosts: bool,
}

/// One route.
pub(in crate::http) struct Route {
    /// The name of its host, in the form of [`Host`]; empty: any host.
    host: Box<str>,
    /// Without a slash at its end.
    prefix: Box<str>,
    pub(super) upstream: Box<str>,
    pub(super) auth: RouteAuth,
    pub(super) pass_host: bool,
    /// `u64::MAX`: no limit.
    pub(super) body_bytes_max: u64,
    pub(super) idle_timeout: Duration,
    pub(super) rate_of_source: Option<Rate>,
    pub(super) rate_of_identity: Option<Rate>,
    /// Whose `X-Forwarded-` headers services may believe.
    pub(super) forwarding_networks: Vec<IpNet>,
    pub(in crate::http) count: Arc<RouteCount>,
}

/// What the routes say about a request.
pub(in crate::http) enum Found {
    /// No route covers it.
    Nothing,
    Route(Arc<Route>),
    /// Its path has segments `.` or `..`, so services may read it as another path.
    Ambiguous,
}

impl Routes {
    pub(super) fn new(config: &Arc<Config>, counters: &Arc<Counters>) -> Routes {
        let counters = Arc::clone(counters);
        Routes { made: ArcSwap::from_pointee(Made::new(config, &counters)), counters }
    }

    /// The route of a request.
    pub(super) fn find<B>(&self, config: &Arc<Config>, request: &Request<B>) -> Found {
        // `*`, or a host alone, as only CONNECT may have it.
        if !request.uri().path().starts_with('/') {
            return Found::Nothing;
        }
        let made = self.of(config);
        let Some(path) = plain(request.uri().path().as_bytes()) else { return Found::Ambiguous };
        let host = match made.has_hosts {
            true => Host::of_request(request.headers(), request.uri()),
            false => None,
        };
        let found = made.routes.iter().find(|route| route.covers(host.as_ref(), &path));
        found.map_or(Found::Nothing, |route| Found::Route(Arc::clone(route)))
    }

    fn of(&self, config: &Arc<Config>) -> Guard<Arc<Made>> {
        let made = self.made.load();
        if Arc::ptr_eq(&made.of, config) {
            return made;
        }
        self.made.store(Arc::new(Made::new(config, &self.counters)));
        self.made.load()
    }
}

impl Made {
    fn new(config: &Arc<Config>, counters: &Counters) -> Made {
        let networks = &config.http.forwarding_networks;
        let of = &config.http.routes;
        let counts = counters.routes.keep(of.iter().map(|of| format!("{}{}", of.host, of.prefix)));
        let mut routes: Vec<_> = of
            .iter()
            .zip(counts)
            .map(|(of, count)| Arc::new(Route::new(of, networks, count)))
            .collect();
        routes.sort_by_key(|route| std::cmp::Reverse((!route.host.is_empty(), route.prefix.len())));
        let has_hosts = routes.iter().any(|route| !route.host.is_empty());
        Made { of: Arc::clone(config), routes, has_hosts }
    }
}

impl Route {
    fn new(of: &RouteConfig, networks: &[IpNet], count: Arc<RouteCount>) -> Route {
        let rate = |per_second, burst| (per_second > 0).then_some(Rate { per_second, burst });
        Route {
            host: of.host.as_str().into(),
            prefix: of.prefix.trim_end_matches('/').into(),
            upstream: of.upstream.as_str().into(),
            auth: of.auth,
            pass_host: of.pass_host,
            body_bytes_max: match of.body_bytes_max {
                0 => u64::MAX,
                max => max as u64,
            },
            idle_timeout: of.idle_timeout,
            rate_of_source: rate(of.requests_per_source_per_second, of.requests_per_source_burst),
            rate_of_identity: rate(
                of.requests_per_identity_per_second,
                of.requests_per_identity_burst,
            ),
            forwarding_networks: networks.to_vec(),
            count,
        }
    }

    fn covers(&self, host: Option<&Host<'_>>, path: &[u8]) -> bool {
        let is_below = path
            .strip_prefix(self.prefix.as_bytes())
            .is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        is_below && (self.host.is_empty() || self.is_of(host))
    }

    fn is_of(&self, host: Option<&Host<'_>>) -> bool {
        let (Some(own), Some(host)) = (Host::parse(&self.host), host) else { return false };
        own.has_name_of(host) && (own.port().is_none() || own.port() == host.port())
    }
}

/// The path as services may read it, for the choice of a route: decoded once, without parameters of
/// segments, and without empty segments. `None`: it has a segment `.` or `..`.
///
/// Many services read `/%61dmin`, `//admin`, `/\admin` and `/admin;x` as `/admin`. So these must
/// meet the route of `/admin`, or a request could evade the route's rules.
/// Cost: one pass without an allocation, for most paths.
fn plain(path: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut before = 0;
    let is_plain = path.iter().all(|&byte| {
        let after_slash = std::mem::replace(&mut before, byte) == b'/';
        match byte {
            b'%' | b';' | b'\\' => false,
            b'/' | b'.' => !after_slash,
            _ => true,
        }
    });
    if is_plain {
        return Some(Cow::Borrowed(path));
    }
    let decoded = decoded(path);
    let mut plain = Vec::with_capacity(decoded.len());
    for segment in decoded.split(|byte| matches!(byte, b'/' | b'\\')) {
        match segment.split(|&byte| byte == b';').next().unwrap_or_default() {
            b"" => {}
            b"." | b".." => return None,
            name => {
                plain.push(b'/');
                plain.extend_from_slice(name);
            }
        }
    }
    if plain.is_empty() {
        plain.push(b'/');
    }
    Some(Cow::Owned(plain))
}

/// The path without percent-encoding. What is no encoding stays as it is.
fn decoded(path: &[u8]) -> Vec<u8> {
    let value = |digit: u8| char::from(digit).to_digit(16);
    let (mut decoded, mut rest) = (Vec::with_capacity(path.len()), path);
    while let Some((&first, behind)) = rest.split_first() {
        let byte = match (first, behind) {
            (b'%', &[high, low, ..]) => value(high).zip(value(low)),
            _ => None,
        };
        match byte.and_then(|(high, low)| u8::try_from(high << 4 | low).ok()) {
            Some(byte) => {
                decoded.push(byte);
                rest = &behind[2..];
            }
            None => {
                decoded.push(first);
                rest = behind;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The prefix of the route that a path takes, among some routes.
    fn check(target: &str, host: &str, expected: Option<&str>) {
        let routes = [
            ("", "/"),
            ("", "/shop"),
            ("", "/shop/cart/"),
            ("a.example", "/"),
            ("a.example", "/shop"),
            ("b.example:81", "/only"),
        ];
        let mut config = Config::default();
        config.http.routes = routes
            .map(|(host, prefix)| RouteConfig {
                host: host.to_owned(),
                prefix: prefix.to_owned(),
                upstream: "api".to_owned(),
                ..RouteConfig::default()
            })
            .to_vec();
        let config = Arc::new(config);
        let routes = Routes::new(&config, &Arc::default());
        let request = Request::builder().uri(target).header("host", host).body(()).unwrap();
        let found = match routes.find(&config, &request) {
            Found::Nothing => panic!("{target}: one covers everything"),
            Found::Route(route) => Some(route.count.name().to_owned()),
            Found::Ambiguous => None,
        };
        assert_eq!(found.as_deref(), expected, "{target} at {host}");
    }

    #[test]
    fn the_host_counts_first_and_then_the_longest_prefix() {
        for (target, host, route) in [
            ("/", "x", "/"),
            ("/shopping", "x", "/"),
            ("/shop", "x", "/shop"),
            ("/shop?x=/shop/cart", "x", "/shop"),
            ("/shop/", "x", "/shop"),
            ("/shop/cart", "x", "/shop/cart/"),
            ("/shop/cart/1", "x", "/shop/cart/"),
            ("/shop/cart/1", "A.Example.:8080", "a.example/shop"),
            ("/other", "a.example", "a.example/"),
            ("http://a.example/other", "x", "a.example/"),
            ("/only/1", "b.example:81", "b.example:81/only"),
            ("/only/1", "b.example", "/"),
            ("/else", "b.example:81", "/"),
        ] {
            check(target, host, Some(route));
        }
    }

    #[test]
    fn other_spellings_of_a_path_take_its_route() {
        for target in
            ["/%73hop", "//shop", "/;x/shop", "/shop;v=1/x", "/x\\..", "/shop%2fcart", "/%5Cshop"]
        {
            let expected = match target {
                "/x\\.." => None,
                "/shop%2fcart" => Some("/shop/cart/"),
                _ => Some("/shop"),
            };
            if target.contains('\\') {
                assert_eq!(plain(target.as_bytes()), None);
                continue;
            }
            check(target, "x", expected);
        }
        for target in
            ["/a/../shop", "/./shop", "/a/%2e%2E/shop", "/a/..;x/shop", "/a/..%2fshop", "/.."]
        {
            check(target, "x", None);
        }
        for target in ["/.well-known", "/...", "/a.b/..c", "/%", "/%4", "/%zz", "/%252e%252e/shop"]
        {
            check(target, "x", Some("/"));
        }
    }
}
