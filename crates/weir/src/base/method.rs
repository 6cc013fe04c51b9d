//! Names of methods of calls.

use crate::base::config::METHOD_BYTES_MAX;

/// Whether it can be a method: segments of letters, digits, `.`, `_` and `-`, joined by `/`.
///
/// No segment is `.` or `..`, so a method can stand in a path as it is.
pub(crate) fn is_method(method: &str) -> bool {
    method.len() <= METHOD_BYTES_MAX && method.split('/').all(is_segment)
}

/// Whether it can be the method of a route: a method, or the beginning of one and `*`.
pub(crate) fn is_method_pattern(pattern: &str) -> bool {
    let Some(beginning) = pattern.strip_suffix('*') else { return is_method(pattern) };
    let (whole, last) = beginning.rsplit_once('/').unwrap_or(("", beginning));
    let is_whole = beginning.len() == last.len() || whole.split('/').all(is_segment);
    pattern.len() <= METHOD_BYTES_MAX && is_whole && last.bytes().all(is_char)
}

/// Whether it can be the path before methods.
pub(crate) fn is_base_path(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    let segments = rest.strip_suffix('/').unwrap_or(rest);
    path.len() <= METHOD_BYTES_MAX && (path == "/" || segments.split('/').all(is_segment))
}

fn is_segment(segment: &str) -> bool {
    !matches!(segment, "" | "." | "..") && segment.bytes().all(is_char)
}

fn is_char(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_stands_in_a_path_as_it_is() {
        let long = "m".repeat(METHOD_BYTES_MAX + 1);
        for (method, expected) in [
            ("orders/price", true),
            ("shop.Orders/Price_2-x", true),
            ("a", true),
            ("", false),
            ("/a", false),
            ("a/", false),
            ("a//b", false),
            ("a/../b", false),
            ("..", false),
            ("a?b", false),
            ("a%2e", false),
            ("a b", false),
            ("a\r\nb", false),
            ("größe", false),
            (&long, false),
        ] {
            assert_eq!(is_method(method), expected, "{method:?}");
        }
        for (pattern, expected) in [
            ("*", true),
            ("orders/*", true),
            ("orders/pri*", true),
            ("orders", true),
            ("/*", false),
            ("../*", false),
            ("a*b", false),
            ("a**", false),
            ("a//*", false),
            ("", false),
        ] {
            assert_eq!(is_method_pattern(pattern), expected, "{pattern:?}");
        }
        for (path, expected) in [
            ("/", true),
            ("/rpc", true),
            ("/rpc/v1/", true),
            ("", false),
            ("rpc", false),
            ("/a/../b", false),
            ("/a?b", false),
            ("//", false),
        ] {
            assert_eq!(is_base_path(path), expected, "{path:?}");
        }
    }
}
