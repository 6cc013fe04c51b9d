//! Lists of the admin API, page by page.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use http::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::http::{Api, NO_GATEWAY, percent_encoded};
use crate::output::{complain, say};

/// Items of a list, and whether there are more.
pub(super) struct Listed {
    pub(super) items: Vec<Value>,
    pub(super) is_more: bool,
}

/// The shown parts of a page, except its items.
#[derive(Debug, Deserialize)]
struct Page {
    next_cursor: Option<String>,
    #[serde(default)]
    missing_nodes: Vec<u16>,
}

/// The parameters of a request; those without a value are left out.
pub(super) type Parameters<'a> = [(&'a str, Option<String>)];

/// Reads at most `limit` items of the list at `path`, which its answers have as `member`.
pub(super) async fn list(
    api: &Api,
    (path, member): (&str, &str),
    parameters: &Parameters<'_>,
    limit: usize,
) -> Result<Listed> {
    let (mut items, mut cursor) = (Vec::new(), None);
    while items.len() < limit {
        let wanted = (limit - items.len()).min(PAGE_MAX).to_string();
        let page = [("limit", Some(wanted)), ("cursor", cursor.take())];
        let asked = with_parameters(path, parameters.iter().chain(&page));
        let answer = api.ask(Method::GET, &asked, None).await?;
        let mut answer: Value = serde_json::from_slice(&answer).context(NO_GATEWAY)?;
        let Value::Array(found) = answer[member].take() else { bail!(NO_GATEWAY) };
        items.extend(found);
        let Page { next_cursor, missing_nodes } =
            serde_json::from_value(answer).context(NO_GATEWAY)?;
        if let Some(node) = missing_nodes.first() {
            bail!("node {node} does not answer: GET /v1/nodes lists the nodes that live");
        }
        match next_cursor {
            Some(next) => cursor = Some(next),
            None => return Ok(Listed { items, is_more: false }),
        }
    }
    Ok(Listed { items, is_more: true })
}

impl Listed {
    /// Each item on one line.
    pub(super) fn say_lines(&self) -> Result<()> {
        self.items.iter().try_for_each(say)
    }

    /// The items as rows of a table.
    pub(super) fn rows<T: DeserializeOwned>(&self) -> Result<Vec<T>> {
        let rows = self.items.iter().map(|item| T::deserialize(item).context(NO_GATEWAY));
        rows.collect()
    }

    /// Tells that there are more.
    pub(super) fn tell_more(&self) {
        if self.is_more {
            let count = self.items.len();
            complain(format_args!("there are more than these {count}: set --limit"));
        }
    }
}

/// The path with these parameters.
pub(super) fn with_parameters<'a>(
    path: &str,
    parameters: impl IntoIterator<Item = &'a (&'a str, Option<String>)>,
) -> String {
    let mut whole = path.to_owned();
    let given = parameters.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    for (place, (name, value)) in given.enumerate() {
        let mark = if place == 0 { '?' } else { '&' };
        // Writing to a String cannot fail.
        let _ = write!(whole, "{mark}{name}={}", percent_encoded(value));
    }
    whole
}

/// The most items of a page.
const PAGE_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_without_a_value_are_left_out() {
        let given = [("a", None), ("b", Some("x/ y".to_owned())), ("c", Some("1".to_owned()))];
        assert_eq!(with_parameters("/v1", &given), "/v1?b=x%2F%20y&c=1");
        assert_eq!(with_parameters("/v1", &given[..1]), "/v1");
    }
}
