//! Rules about Rust files: documentation at the head, places of unsafe code, no silenced lints, and
//! words that a crate must not contain.

use super::source::{code, lines_with_word};
use super::{File, Finding};

/// Places of unsafe code: syscalls of the engine and of the bench, the allocator and the profiler of
/// the program, and the question to SQLite for its memory. Everywhere else the word must not occur.
const UNSAFE_HOMES: [&str; 5] = [
    "crates/weir-engine/src/sys/",
    "crates/weir-bench/src/sys/",
    "crates/weir-server/src/sys/",
    "crates/weir-store/src/sys.rs",
    "crates/weir/tests/sys/",
];

/// Words that must be absent: the place, the words, and the reason.
const ABSENCES: [(&str, &[&str], &str); 1] = [(
    "crates/weir-wire/src/",
    &["Instant", "SystemTime", "TcpStream", "UdpSocket", "tokio", "thread"],
    "the wire format does no I/O, reads no clock and starts nothing",
)];

/// Applies the rules to every `.rs` file.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let rust = files.iter().filter(|file| file.path.ends_with(".rs"));
    rust.flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Finding> {
    let code = code(&file.text);
    let mut findings = Vec::new();
    if !file.text.trim_start().starts_with("//!") {
        findings.push(file.finding(1, "begin with a //! line that says what this file is for"));
    }
    if !UNSAFE_HOMES.iter().any(|home| file.path.starts_with(home)) {
        for line in lines_with_word(&code, "unsafe") {
            let text = format!("unsafe code lives in {} only", UNSAFE_HOMES.join(", "));
            findings.push(file.finding(line, text));
        }
    }
    for line in allows(&code) {
        let text = "an exception is #[expect(lint, reason = \"…\")], never allow";
        findings.push(file.finding(line, text));
    }
    for (place, words, promise) in ABSENCES {
        if file.path.starts_with(place) {
            for word in words {
                for line in lines_with_word(&code, word) {
                    findings.push(file.finding(line, format!("`{word}` here: {promise}")));
                }
            }
        }
    }
    findings
}

/// Lines with an attribute that silences a lint, also through `cfg_attr`.
fn allows(code: &str) -> Vec<usize> {
    let is_allow = |line: &str| {
        let line: String = line.chars().filter(|c| !c.is_whitespace()).collect();
        let attribute = line.contains("#[") || line.contains("#![");
        attribute && ["[allow(", ",allow("].iter().any(|allow| line.contains(allow))
    };
    code.lines().zip(1..).filter(|(line, _)| is_allow(line)).map(|(_, number)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(path: &str, text: &str, expected: &[Option<usize>]) {
        let lines: Vec<_> = check(&[File::new(path, text)]).into_iter().map(|f| f.line).collect();
        assert_eq!(lines, expected, "{path}: {text}");
    }

    #[test]
    fn a_file_begins_with_what_it_is_for() {
        check_one("crates/a/src/lib.rs", "//! A.\nfn f() {}\n", &[]);
        check_one("crates/a/src/lib.rs", "fn f() {}\n//! A.\n", &[Some(1)]);
        check_one("crates/a/src/lib.rs", "", &[Some(1)]);
        check_one("README.md", "# A", &[]);
    }

    #[test]
    fn unsafe_code_stays_at_home() {
        let text = "//! A.\n// unsafe\nlet a = \"unsafe\";\nunsafe { b() };\n";
        check_one("crates/weir-engine/src/sys/epoll.rs", text, &[]);
        check_one("crates/weir-engine/src/shard.rs", text, &[Some(4)]);
        check_one("crates/weir/src/sys/socket.rs", text, &[Some(4)]);
    }

    #[test]
    fn lints_are_not_silenced() {
        check_one("a.rs", "//! A.\n#[allow(dead_code)]\n", &[Some(2)]);
        check_one("a.rs", "//! A.\n# ! [ allow(dead_code)]\n", &[Some(2)]);
        check_one("a.rs", "//! A.\n#[cfg_attr(test, allow(dead_code))]\n", &[Some(2)]);
        check_one("a.rs", "//! A.\n#[expect(dead_code)]\nlimiter.allow(1);\n", &[]);
    }

    #[test]
    fn the_wire_format_reads_no_clock() {
        let text = "//! A.\nuse std::time::Instant;\n";
        check_one("crates/weir-wire/src/frame.rs", text, &[Some(2)]);
        check_one("crates/weir/src/lib.rs", text, &[]);
    }
}
