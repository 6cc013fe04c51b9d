//! Query strings, path segments and the cursors of pages.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::problem::Problem;
use crate::ConnectionCursor;

/// The parameters of a query string. Each is known, and is given once.
#[derive(Debug)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Errors: a parameter that is not in `known`, a repeated one, or text that is not UTF-8.
    pub(crate) fn parse(raw: Option<&str>, known: &[&str]) -> Result<Query, Problem> {
        let (query, []) = Query::parse_with_lists(raw, known, [])?;
        Ok(query)
    }

    /// The same, with the values of further parameters, which may be given several times.
    pub(crate) fn parse_with_lists<const LISTS: usize>(
        raw: Option<&str>,
        known: &[&str],
        lists: [&str; LISTS],
    ) -> Result<(Query, [Vec<String>; LISTS]), Problem> {
        let mut values = [const { Vec::new() }; LISTS];
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in raw.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name, true, "query")?;
            if let Some(list) = lists.iter().position(|list| *list == name) {
                values[list].push(decode(value, true, &name)?);
                continue;
            }
            if !known.contains(&name.as_str()) {
                let known: Vec<&str> = known.iter().chain(&lists).copied().collect();
                let detail = match known.as_slice() {
                    [] => format!("unknown parameter {name:?}; this path takes none"),
                    known => format!("unknown parameter {name:?}; known are {}", known.join(", ")),
                };
                return Err(Problem::field(name, detail));
            }
            if pairs.iter().any(|(given, _)| *given == name) {
                return Err(Problem::field(name, "give the parameter only once"));
            }
            let value = decode(value, true, &name)?;
            pairs.push((name, value));
        }
        Ok((Query { pairs }, values))
    }

    /// The value of a parameter.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// The greatest number of items to list.
    pub(crate) fn limit(&self) -> Result<usize, Problem> {
        let Some(value) = self.value("limit") else { return Ok(LIMIT_DEFAULT) };
        match value.parse::<usize>() {
            Ok(limit) if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
            Ok(_) | Err(_) => {
                let detail = format!("limit is {value:?}; it is a number from 1 to {LIMIT_MAX}");
                Err(Problem::field("limit", detail))
            }
        }
    }

    /// The cursor of a list of connections.
    pub(crate) fn connection_cursor(&self) -> Result<Option<ConnectionCursor>, Problem> {
        let Some(bytes) = self.cursor(CURSOR_OF_CONNECTIONS)? else { return Ok(None) };
        let Ok(bytes) = <[u8; 8]>::try_from(bytes.as_slice()) else { return Err(bad_cursor()) };
        let number = u64::from_be_bytes(bytes);
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        let cursor = number as u32;
        Ok(Some(ConnectionCursor { shard: (number >> 32) as u32, cursor }))
    }

    /// The name after which the list of topics continues.
    pub(crate) fn topic_cursor(&self) -> Result<Option<String>, Problem> {
        let Some(bytes) = self.cursor(CURSOR_OF_TOPICS)? else { return Ok(None) };
        String::from_utf8(bytes).map(Some).map_err(|_| bad_cursor())
    }

    fn cursor(&self, kind: u8) -> Result<Option<Vec<u8>>, Problem> {
        let Some(text) = self.value("cursor") else { return Ok(None) };
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| bad_cursor())?;
        match bytes.split_first() {
            Some((first, rest)) if *first == kind => Ok(Some(rest.to_vec())),
            Some(_) | None => Err(bad_cursor()),
        }
    }
}

/// The cursor of a list of connections, as text.
pub(crate) fn connection_cursor(cursor: ConnectionCursor) -> String {
    let number = u64::from(cursor.shard) << 32 | u64::from(cursor.cursor);
    cursor_text(CURSOR_OF_CONNECTIONS, &number.to_be_bytes())
}

/// The cursor behind a topic, as text.
pub(crate) fn topic_cursor(topic: &str) -> String {
    cursor_text(CURSOR_OF_TOPICS, topic.as_bytes())
}

/// A decoded path segment; `name` is its name in an error.
pub(crate) fn segment(raw: &str, name: &str) -> Result<String, Problem> {
    decode(raw, false, name)
}

fn cursor_text(kind: u8, bytes: &[u8]) -> String {
    let mut whole = vec![kind];
    whole.extend_from_slice(bytes);
    URL_SAFE_NO_PAD.encode(whole)
}

fn bad_cursor() -> Problem {
    Problem::field("cursor", "cursor is not the next_cursor of a page of this list")
}

/// Decodes percent-encoding. With `plus`, `+` is a space.
fn decode(raw: &str, plus: bool, name: &str) -> Result<String, Problem> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |digit: Option<u8>| char::from(digit?).to_digit(16);
                let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) else {
                    return Err(Problem::field(
                        name,
                        "% is not followed by two hexadecimal digits",
                    ));
                };
                #[expect(clippy::cast_possible_truncation, reason = "two digits make one byte")]
                let byte = (high << 4 | low) as u8;
                byte
            }
            b'+' if plus => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| Problem::field(name, "the text is not UTF-8"))
}

pub(crate) const LIMIT_DEFAULT: usize = 100;
/// A page of so many connections is some 300 KB of JSON.
pub(crate) const LIMIT_MAX: usize = 1000;
const CURSOR_OF_CONNECTIONS: u8 = 1;
const CURSOR_OF_TOPICS: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn query(raw: &str) -> Result<Query, String> {
        Query::parse(Some(raw), &["limit", "cursor", "topic"])
            .map_err(|problem| serde_json::to_string(&problem.document()).unwrap())
    }

    #[test]
    fn parameters_are_decoded_and_checked() {
        assert_eq!(query("topic=a%2Fb+c%C3%A9").unwrap().value("topic"), Some("a/b cé"));
        assert_eq!(query("limit=").unwrap().value("limit"), Some(""));
        assert_eq!(query("&&").unwrap().value("limit"), None);
        for (raw, says) in [
            ("colour=red", "unknown parameter \\\"colour\\\""),
            ("topic=a&topic=b", "only once"),
            ("topic=%", "two hexadecimal digits"),
            ("topic=%f", "two hexadecimal digits"),
            ("topic=%+1", "two hexadecimal digits"),
            ("topic=%ff", "not UTF-8"),
        ] {
            let error = query(raw).unwrap_err();
            assert!(error.contains(says), "{raw}: {error}");
        }
    }

    #[test]
    fn a_limit_is_a_number_from_1_to_1000() {
        assert_eq!(query("").unwrap().limit().unwrap(), 100);
        assert_eq!(query("limit=1000").unwrap().limit().unwrap(), 1000);
        for wrong in ["0", "1001", "-1", "", "ten", "99999999999999999999999"] {
            assert!(query(&format!("limit={wrong}")).unwrap().limit().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_cursor_comes_back(shard: u32, cursor: u32, topic: String) {
            let place = ConnectionCursor { shard, cursor };
            let text = connection_cursor(place);
            let back = query(&format!("cursor={text}")).unwrap();
            prop_assert_eq!(back.connection_cursor().unwrap(), Some(place));
            prop_assert!(back.topic_cursor().is_err());
            let back = query(&format!("cursor={}", topic_cursor(&topic))).unwrap();
            prop_assert_eq!(back.topic_cursor().unwrap(), Some(topic));
            prop_assert!(back.connection_cursor().is_err());
        }

        #[test]
        fn no_query_string_panics(raw in "\\PC*") {
            if let Ok(query) = query(&raw) {
                let _ = (query.limit(), query.connection_cursor(), query.topic_cursor());
            }
        }
    }
}
