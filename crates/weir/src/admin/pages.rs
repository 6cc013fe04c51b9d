//! The pages of the dashboard: static files, which need no token. The data that they show needs
//! one.

use std::collections::HashMap;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH,
    REFERRER_POLICY,
};
use http::request::Parts;
use http::{Method, StatusCode};

use crate::http::web::problem::Problem;
use crate::http::web::query::Query;
use crate::http::web::reply::{self, Reply};

/// The static files, by path.
pub(super) struct Pages {
    pages: HashMap<&'static str, Page>,
}

/// A static file.
pub(super) struct Page {
    content_type: &'static str,
    content: &'static [u8],
    /// A digest of the content: a browser that has it already gets 304.
    tag: HeaderValue,
}

impl Pages {
    pub(super) fn new() -> Self {
        let page = |(path, content_type, content): (_, _, &'static [u8])| {
            (path, Page { content_type, content, tag: tag(content) })
        };
        Self { pages: FILES.into_iter().map(page).collect() }
    }

    /// The file at this path.
    pub(super) fn find(&self, path: &str) -> Option<&Page> {
        self.pages.get(path)
    }
}

impl Page {
    /// Answers a request for this file.
    pub(super) fn answer(&self, head: &Parts) -> Result<Reply, Problem> {
        if head.method != Method::GET && head.method != Method::HEAD {
            return Err(Problem::method("GET, HEAD"));
        }
        Query::parse(head.uri.query(), &[])?;
        let mut known = head.headers.get_all(IF_NONE_MATCH).iter();
        let is_known = known.any(|tags| {
            let tags = tags.to_str().unwrap_or_default();
            tags.split(',').any(|tag| self.tag == tag.trim().trim_start_matches("W/"))
        });
        let mut reply = match is_known {
            true => reply::empty(StatusCode::NOT_MODIFIED),
            false => {
                let content = Bytes::from_static(self.content);
                reply::bytes(StatusCode::OK, self.content_type, content)
            }
        };
        let headers = reply.headers_mut();
        headers.insert(ETAG, self.tag.clone());
        for (name, value) in HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        Ok(reply)
    }
}

fn tag(content: &[u8]) -> HeaderValue {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, content);
    let digits: String =
        digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::try_from(format!("\"{digits}\"")).expect("digits and quotes are visible ASCII")
}

/// The browser keeps a file, and asks each time whether it is still the same. Nothing but the files
/// of this server may run or be loaded, and no other page may embed one of them.
const HEADERS: [(HeaderName, &str); 4] = [
    (CACHE_CONTROL, "no-cache"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files: path, media type, content.
const FILES: [(&str, &str, &[u8]); 21] = [
    ("/", HTML, include_bytes!("ui/index.html")),
    ("/ui/dashboard.css", CSS, include_bytes!("ui/dashboard.css")),
    ("/ui/icon.svg", IMAGE, include_bytes!("ui/icon.svg")),
    ("/ui/theme.js", SCRIPT, include_bytes!("ui/theme.js")),
    ("/ui/api.js", SCRIPT, include_bytes!("ui/api.js")),
    ("/ui/charts.js", SCRIPT, include_bytes!("ui/charts.js")),
    ("/ui/details.js", SCRIPT, include_bytes!("ui/details.js")),
    ("/ui/dom.js", SCRIPT, include_bytes!("ui/dom.js")),
    ("/ui/ends.js", SCRIPT, include_bytes!("ui/ends.js")),
    ("/ui/feed.js", SCRIPT, include_bytes!("ui/feed.js")),
    ("/ui/figures.js", SCRIPT, include_bytes!("ui/figures.js")),
    ("/ui/format.js", SCRIPT, include_bytes!("ui/format.js")),
    ("/ui/judge.js", SCRIPT, include_bytes!("ui/judge.js")),
    ("/ui/look-up.js", SCRIPT, include_bytes!("ui/look-up.js")),
    ("/ui/main.js", SCRIPT, include_bytes!("ui/main.js")),
    ("/ui/overview.js", SCRIPT, include_bytes!("ui/overview.js")),
    ("/ui/own-node.js", SCRIPT, include_bytes!("ui/own-node.js")),
    ("/ui/push.js", SCRIPT, include_bytes!("ui/push.js")),
    ("/ui/uplot/LICENSE", TEXT, include_bytes!("ui/uplot/LICENSE")),
    ("/ui/uplot/uPlot.iife.min.js", SCRIPT, include_bytes!("ui/uplot/uPlot.iife.min.js")),
    ("/ui/uplot/uPlot.min.css", CSS, include_bytes!("ui/uplot/uPlot.min.css")),
];
