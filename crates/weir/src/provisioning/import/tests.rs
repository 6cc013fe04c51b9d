//! Rows as they are written, and what is read.

use std::io::Cursor;

use super::*;

/// Each row as `line serial/key label=value…`, each bad row as `line field: detail`, and the error
/// that ended the import.
fn read(text: &[u8], format: RowFormat) -> Vec<String> {
    let mut rows = match Rows::new(Cursor::new(text), format) {
        Ok(rows) => rows,
        Err(error) => return vec![error.to_string()],
    };
    let mut said = Vec::new();
    loop {
        said.push(match rows.next_row() {
            Ok(Some(Ok(row))) => {
                let labels = row.labels.iter().map(|(name, value)| format!(" {name}={value}"));
                format!("{} {}/{}{}", row.line, row.serial, row.key, labels.collect::<String>())
            }
            Ok(Some(Err(bad))) => format!("{} {}: {}", bad.line, bad.field, bad.detail),
            Ok(None) => return said,
            Err(error) => {
                said.push(error.to_string());
                return said;
            }
        });
    }
}

fn csv(text: &str) -> Vec<String> {
    read(text.as_bytes(), RowFormat::Csv)
}

fn json(text: &str) -> Vec<String> {
    read(text.as_bytes(), RowFormat::JsonLines)
}

#[test]
fn csv_is_read_by_its_header() {
    assert_eq!(csv("devSn,devKey\nadd,abc\n"), ["2 add/abc"]);
    assert_eq!(csv("\u{feff}devSn,devKey\r\nadd,abc"), ["2 add/abc"]);
    let blank = "devSn,devKey\r\n\r\na,k\r\n\r\nb,\"k\"\r\n,k\r\nc,k";
    assert_eq!(csv(blank), ["3 a/k", "5 b/k", "6 devSn: devSn is empty", "7 c/k"]);
    assert_eq!(csv("devSn,devKey\n\n\na,k\n\nb,k\n"), ["4 a/k", "6 b/k"]);
    assert_eq!(
        csv("site,devKey,devSn,hw\nüb,k1,a,\n\"x,\ny\"\"\",k2,b,2\nz,k3,c,3\n"),
        [
            "2 a/k1 site=üb",
            "3 site: label \"site\" has the control character '\\n'",
            "5 c/k3 hw=3 site=z"
        ]
    );
    for (text, says) in [
        ("", "line 1: the header devSn,devKey is missing"),
        ("add,abc\n", "line 1: the header has no column \"devSn\": devSn,devKey is needed"),
        ("devSn\n", "line 1: the header has no column \"devKey\": devSn,devKey is needed"),
        ("devSn,devKey,a,a\n", "line 1: the header has the column \"a\" twice"),
        ("devSn,devKey,\n", "line 1: column 3: a label has no name"),
    ] {
        assert_eq!(csv(text), [says], "{text}");
    }
}

#[test]
fn a_bad_row_is_told_and_those_behind_it_are_read() {
    let long = "x".repeat(257);
    let text = format!(
        "devSn,devKey,a\n,k,\ns,,\ns,k\ns,k,1,2\n{long},k,\ns,{long},\ns,k,{long}\ns\0t,k,\nlast,k,1\n"
    );
    assert_eq!(
        csv(&text),
        [
            "2 devSn: devSn is empty",
            "3 devKey: devKey is empty",
            "4 : 2 fields; the header has 3",
            "5 : 4 fields; the header has 3",
            "6 devSn: devSn has 257 bytes; at most 128 are allowed",
            "7 devKey: devKey has 257 bytes; at most 256 are allowed",
            "8 a: label \"a\" has 257 bytes; at most 256 are allowed",
            "9 devSn: devSn has the control character '\\0'",
            "10 last/k a=1",
        ]
    );
    let latin = b"devSn,devKey,a\ncaf\xe9,k,\nok,k,\xff\nok,k,1\n";
    assert_eq!(
        read(latin, RowFormat::Csv),
        ["2 devSn: devSn is not UTF-8", "3 a: a is not UTF-8", "4 ok/k a=1"]
    );
}

#[test]
fn a_quotation_mark_that_is_not_closed_does_not_take_all_memory() {
    let rest = "s,k\n".repeat(ROW_BYTES_MAX);
    let said = csv(&format!("devSn,devKey\ns,k\n\"s,k\n{rest}"));
    let says = "line 3: the row has more than 65536 bytes; is a quotation mark missing?";
    assert_eq!(said, ["2 s/k", says]);
}

#[test]
fn json_lines_are_read_one_by_one() {
    let long = "x".repeat(3 * ROW_BYTES_MAX);
    let text = format!(
        "{{\"devSn\":\"add\",\"devKey\":\"abc\",\"site\":\"a\",\"hw\":2,\"spare\":null}}\n\n  \n\
         {{\"devSn\":5,\"devKey\":\"k\"}}\n{{\"devSn\":\"s\"}}\n{{\"devKey\":\"k\"}}\n[]\n{{\n\
         {{\"devSn\":\"s\",\"devSn\":\"t\",\"devKey\":\"k\"}}\n{{\"devSn\":\"s\",\"devKey\":\"k\",\"a\":[1]}}\n\
         {{\"devSn\":\"{long}\"}}\n{{\"devSn\":\"last\",\"devKey\":\"k\"}}"
    );
    assert_eq!(
        json(&text),
        [
            "1 add/abc hw=2 site=a",
            "4 devSn: devSn is not a text",
            "5 devKey: devKey is missing",
            "6 devSn: devSn is missing",
            "7 : invalid type: sequence, expected a JSON object at column 0",
            "8 : EOF while parsing an object at column 1",
            "9 devSn: devSn appears twice",
            "10 a: a is not a text",
            "11 : the line has more than 65536 bytes",
            "12 last/k",
        ]
    );
}

#[test]
fn a_row_becomes_a_line_of_json_and_comes_back() {
    let mut rows =
        Rows::new(Cursor::new("devSn,devKey,a\n\"ü\"\"\",k,1\n"), RowFormat::Csv).unwrap();
    let row = rows.next_row().unwrap().unwrap().unwrap();
    assert!(row.has_short_key());
    assert!(!format!("{row:?}").contains("key"), "{row:?}");
    assert_eq!(json(&row.to_json_line()), ["1 ü\"/k a=1"]);
}

#[test]
fn more_labels_than_allowed_are_refused() {
    let labels: String = (0..33).map(|number| format!(",\"l{number}\":\"v\"")).collect();
    let said = json(&format!("{{\"devSn\":\"s\",\"devKey\":\"k\"{labels}}}"));
    assert_eq!(said, ["1 : 33 labels; at most 32 are allowed"]);
}
