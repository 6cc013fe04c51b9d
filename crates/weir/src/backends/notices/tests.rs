//! Cursors, and the lists that receivers get.

use super::body::{cursor, list, parse_cursor};
use super::*;

#[test]
fn cursors_are_read_as_they_are_written() {
    for (stream, sequence) in [(0, 0), (0xdead_beef, 1), (7, u64::MAX)] {
        assert_eq!(parse_cursor(&cursor(stream, sequence)), Some((stream, sequence)));
    }
    for wrong in ["", "-", "1-1", "0000000x-1", "00000001-", "00000001-+1", "00000001-1x"] {
        assert_eq!(parse_cursor(wrong), None, "{wrong}");
    }
}

#[test]
fn a_gap_is_told_before_what_follows_it() {
    let page = |after, first, numbers: &[u64]| NoticePage {
        stream: 1,
        after,
        first,
        next: first + numbers.len() as u64,
        notices: numbers.iter().map(|number| (*number, format!("{{\"n\":{number}}}"))).collect(),
    };
    let lost = |count| format!("{{\"lost\":{count}}}").into();
    let check = |page: &NoticePage, expected: Option<(&[u64], u64)>| {
        let found = list(page, lost);
        let Some((numbers, last)) = expected else {
            assert_eq!(found, None);
            return;
        };
        let (text, found) = found.unwrap();
        let values: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        let sequences = values.iter().map(|value| value["sequence"].as_u64().unwrap());
        assert_eq!((sequences.collect::<Vec<_>>(), found), (numbers.to_vec(), last), "{text}");
        assert_eq!(values.last().unwrap()["cursor"], cursor(1, last));
    };
    check(&page(0, 1, &[1, 2]), Some((&[1, 2], 2)));
    check(&page(4, 1, &[]), None);
    check(&page(4, 8, &[8, 9]), Some((&[7, 8, 9], 9)));
    check(&page(4, 8, &[]), Some((&[7], 7)));
    let (text, _) = list(&page(4, 8, &[]), lost).unwrap();
    assert_eq!(text, r#"[{"sequence":7,"cursor":"00000001-7","lost":3}]"#);
}
