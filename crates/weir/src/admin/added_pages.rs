//! Pages that the embedding program adds to the admin listener.

use std::collections::HashMap;

use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY};
use http::{Method, StatusCode};

use crate::ConfigError;
use crate::http::web::problem::Problem;
use crate::http::web::reply::{self, Reply};

/// A file for browsers that the admin listener serves beside its API.
///
/// Everybody who reaches the listener can read it, without a token. The `Host` is checked as for
/// every other request.
#[derive(Debug, Clone, Default)]
pub struct AdminPage {
    /// The exact path: a slash, then letters, digits and `-_./`. No path of the admin API.
    pub path: String,
    /// The media type.
    pub content_type: String,
    /// The bytes.
    pub body: Vec<u8>,
    /// The sources that its scripts may connect to, beside the admin listener itself: each as
    /// `connect-src` of a content security policy has it, such as `ws://127.0.0.1:8080`.
    pub connects_to: Vec<String>,
}

/// The pages by path, with their headers.
#[derive(Debug, Default)]
pub(crate) struct AddedPages(HashMap<String, Served>);

#[derive(Debug)]
struct Served {
    content_type: HeaderValue,
    policy: HeaderValue,
    body: Bytes,
}

impl AddedPages {
    /// Checks the pages. `taken` are the paths of the admin API, as patterns.
    pub(super) fn new<'a>(
        pages: Vec<AdminPage>,
        taken: impl IntoIterator<Item = &'a str>,
    ) -> Result<AddedPages, ConfigError> {
        let mut known = matchit::Router::new();
        for path in taken {
            known.insert(path, ()).expect("the paths differ");
        }
        let mut served = HashMap::with_capacity(pages.len());
        for page in pages {
            let path = page.path.clone();
            if !path.starts_with('/') || !path.bytes().all(is_of_path) {
                return Err(wrong("path", &path, "a slash, then letters, digits and -_./"));
            }
            if known.at(&path).is_ok() || served.contains_key(&path) {
                return Err(wrong("path", &path, "a path that is not taken"));
            }
            served.insert(path, Served::new(page)?);
        }
        Ok(AddedPages(served))
    }

    /// Answers a request for a page; `None`: there is no page at this path.
    pub(super) fn answer(&self, method: &Method, path: &str) -> Option<Result<Reply, Problem>> {
        let page = self.0.get(path)?;
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Some(Err(Problem::method("GET, HEAD")));
        }
        Some(Ok(page.reply()))
    }
}

impl Served {
    fn new(page: AdminPage) -> Result<Served, ConfigError> {
        let AdminPage { content_type, body, connects_to, .. } = page;
        if let Some(source) = connects_to.iter().find(|source| !is_source(source)) {
            let allowed = "printable ASCII without spaces, commas and semicolons";
            return Err(wrong("connects_to", source, allowed));
        }
        let sources: String = connects_to.iter().map(|source| format!(" {source}")).collect();
        let policy = format!("{POLICY}; connect-src 'self'{sources}");
        let header = |value: &str| {
            let refuse = |_| wrong("content_type", value, "a media type in printable ASCII");
            HeaderValue::from_str(value).map_err(refuse)
        };
        let (content_type, policy) = (header(&content_type)?, header(&policy)?);
        Ok(Served { content_type, policy, body: body.into() })
    }

    fn reply(&self) -> Reply {
        let mut reply = reply::bytes(StatusCode::OK, "", self.body.clone());
        let headers = reply.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, self.content_type.clone());
        headers.insert(CONTENT_SECURITY_POLICY, self.policy.clone());
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
        headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
        reply
    }
}

fn wrong(member: &str, value: &str, allowed: &str) -> ConfigError {
    let (value, allowed) = (format!("{value:?}"), allowed.to_owned());
    ConfigError { key: format!("AdminPage.{member}"), value, allowed, depends_on: &[] }
}

fn is_of_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_./".contains(&byte)
}

fn is_source(source: &str) -> bool {
    !source.is_empty()
        && source.bytes().all(|byte| byte.is_ascii_graphic() && !b",;".contains(&byte))
}

/// A page loads scripts, styles and images of its own origin only, sends no forms, and stands in no
/// frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

#[cfg(test)]
mod tests {
    use super::*;

    const TAKEN: [&str; 2] = ["/metrics", "/v1/devices/{id}"];

    fn check(path: &str, content_type: &str, source: &str) -> Result<(), String> {
        let page = AdminPage {
            path: path.to_owned(),
            content_type: content_type.to_owned(),
            body: Vec::new(),
            connects_to: vec![source.to_owned()],
        };
        AddedPages::new(vec![page], TAKEN).map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_page_that_cannot_be_served_is_refused() {
        let ws = "ws://127.0.0.1:8080";
        assert_eq!(check("/demo/a-b_c.js", "text/javascript", ws), Ok(()));
        for (path, content_type, source, says) in [
            ("demo", "text/html", ws, "a slash"),
            ("/{demo}", "text/html", ws, "a slash"),
            ("/a b", "text/html", ws, "a slash"),
            ("/metrics", "text/html", ws, "not taken"),
            ("/v1/devices/page", "text/html", ws, "not taken"),
            ("/demo", "text/html\n", ws, "a media type"),
            ("/demo", "text/html", "ws://a; script-src *", "without spaces"),
            ("/demo", "text/html", "", "without spaces"),
        ] {
            let refused = check(path, content_type, source).unwrap_err();
            assert!(refused.contains(says), "{path} {content_type} {source}: {refused}");
        }
        let page = AdminPage {
            path: "/demo".to_owned(),
            content_type: "text/html".to_owned(),
            ..AdminPage::default()
        };
        let refused = AddedPages::new(vec![page.clone(), page], TAKEN).unwrap_err();
        assert_eq!((refused.key.as_str(), refused.value.as_str()), ("AdminPage.path", "\"/demo\""));
    }
}
