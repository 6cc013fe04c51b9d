//! The reverse proxy: requests of `[[http.routes]]` go on to upstreams.
//!
//! ```text
//!  request ─routes─▶ pass: rates, token, headers ─▶ upstream ─▶ answer ─▶ PassedBody
//!                      └─ upload: the body              └─ 101 ─▶ Tunnel
//! ```
//!
//! `routes` finds the route of a request. `headers` has the rules for heads. `pass` sends a request
//! on and makes its answer. `upload` is the body of a request, and `answer` that of an answer, while
//! they pass. `tunnel` carries the bytes of a WebSocket. `charge` accounts for the memory of all
//! that, and `idle` bounds the time for which one side may be silent.

pub(super) mod answer;
mod charge;
mod headers;
mod idle;
mod pass;
mod routes;
pub(super) mod tunnel;
mod upload;

use std::sync::Arc;

use http::Request;

use crate::base::config::Config;
use crate::limits::rates::Rates;
use crate::observe::counters::Counters;
pub(super) use pass::{Passed, Reached, pass};
use routes::Routes;
pub(super) use routes::{Found, Route};

/// The values that all requests to upstreams share.
pub(super) struct Proxy {
    routes: Routes,
    /// The rates of all routes.
    rates: Rates,
}

impl Proxy {
    pub(super) fn new(config: &Arc<Config>, counters: &Arc<Counters>) -> Proxy {
        Proxy { routes: Routes::new(config, counters), rates: Rates::new(0, 0) }
    }

    /// The route of a request that is none of Weir's own.
    pub(super) fn find<B>(&self, config: &Arc<Config>, request: &Request<B>) -> Found {
        self.routes.find(config, request)
    }
}
