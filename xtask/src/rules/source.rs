//! Reduces Rust source to code: comments blanked, literals filled, lines kept.

/// The code in `source`: comments become spaces, the insides of literals become `_`. Each line stays on its line, so a
/// line is code exactly if it is not blank.
///
/// Cost: one pass.
pub(super) fn code(source: &str) -> String {
    let mut scanner =
        Scanner { rest: source, code: String::with_capacity(source.len()), previous: ' ' };
    while scanner.step() {}
    scanner.code
}

/// Code without unit tests: blanks each item, field or statement after `#[cfg(test)]`.
pub(super) fn product(code: &str) -> String {
    let mut product = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(TEST_ONLY) {
        let (before, item) = rest.split_at(at);
        let (item, after) = item.split_at(TEST_ONLY.len() + item_bytes(&item[TEST_ONLY.len()..]));
        product.push_str(before);
        product.extend(item.chars().map(|c| if c == '\n' { c } else { ' ' }));
        rest = after;
    }
    product + rest
}

const TEST_ONLY: &str = "#[cfg(test)]";

/// Length of an item: up to its semicolon or comma, or its closing brace.
fn item_bytes(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            ')' | ']' | '}' if depth == 0 => return at,
            ')' | ']' | '}' => depth -= 1,
            ';' | ',' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// Lines of code, without blank ones and comments.
pub(super) fn code_lines(code: &str) -> usize {
    code.lines().filter(|line| !line.trim().is_empty()).count()
}

/// Numbers, from 1, of the lines that contain `word` as a whole word.
pub(super) fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let holds = |line: &str| line.split(|c: char| !is_word(c)).any(|found| found == word);
    code.lines().zip(1..).filter(|(line, _)| holds(line)).map(|(_, number)| number).collect()
}

/// Words, `::`, and single characters, each with its line.
pub(super) fn tokens(code: &str) -> Vec<(&str, usize)> {
    let mut tokens = Vec::new();
    for (line, number) in code.lines().zip(1..) {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let bytes = match first {
                _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                _ if rest.starts_with("::") => 2,
                _ => first.len_utf8(),
            };
            tokens.push((&rest[..bytes], number));
            rest = rest[bytes..].trim_start();
        }
    }
    tokens
}

struct Scanner<'a> {
    rest: &'a str,
    code: String,
    /// The last character of code, to tell `r"` from `for"`.
    previous: char,
}

impl Scanner<'_> {
    /// Reads the next comment, literal or character; false at the end.
    fn step(&mut self) -> bool {
        let Some(first) = self.rest.chars().next() else {
            return false;
        };
        let starts_word = !is_word(self.previous);
        if self.rest.starts_with("//") {
            let bytes = self.rest.find('\n').unwrap_or(self.rest.len());
            self.replace(bytes, ' ');
        } else if self.rest.starts_with("/*") {
            let bytes = block_comment_bytes(self.rest);
            self.replace(bytes, ' ');
        } else if let Some(bytes) = raw_string_bytes(self.rest).filter(|_| starts_word) {
            self.replace(bytes, '_');
        } else if first == '"' {
            let bytes = quoted_bytes(self.rest, '"');
            self.replace(bytes, '_');
        } else if let Some(bytes) = char_literal_bytes(self.rest) {
            self.replace(bytes, '_');
        } else {
            self.code.push(first);
            self.previous = first;
            self.rest = &self.rest[first.len_utf8()..];
        }
        true
    }

    fn replace(&mut self, bytes: usize, filler: char) {
        let (taken, rest) = self.rest.split_at(bytes);
        self.code.extend(taken.chars().map(|c| if c == '\n' { c } else { filler }));
        // A filled literal ends: the next character does not continue it as a word.
        self.previous = ' ';
        self.rest = rest;
    }
}

fn block_comment_bytes(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    loop {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            match rest.chars().next() {
                Some(c) => at += c.len_utf8(),
                None => return at,
            }
        }
        if depth == 0 {
            return at;
        }
    }
}

/// Length of a literal from its opening quote to its closing one, escapes respected.
fn quoted_bytes(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if !escaped && c == quote {
            return at + c.len_utf8();
        }
        escaped = !escaped && c == '\\';
    }
    text.len()
}

/// Length of `r"…"`, `br#"…"#` and the like, if the text begins with one.
fn raw_string_bytes(text: &str) -> Option<usize> {
    let after_r = ["br", "cr", "r"].iter().find_map(|prefix| text.strip_prefix(prefix))?;
    let after_hashes = after_r.trim_start_matches('#');
    let hashes = after_r.len() - after_hashes.len();
    let inside = after_hashes.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let inside_start = text.len() - inside.len();
    Some(inside.find(&end).map_or(text.len(), |at| inside_start + at + end.len()))
}

/// Length of `'x'` or `'\n'`, if the text begins with such a literal. A lifetime is not one.
fn char_literal_bytes(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    if first == '\\' {
        return Some(quoted_bytes(text, '\''));
    }
    inside[first.len_utf8()..].starts_with('\'').then_some(first.len_utf8() + 2)
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &str) {
        assert_eq!(code(source), expected, "{source}");
    }

    #[test]
    fn comments_are_blanked() {
        check("a // b\nc", "a     \nc");
        check("a /* b /* c */ d\n*/ e", "a               \n   e");
        check("/// doc\nfn f() {}", "       \nfn f() {}");
    }

    #[test]
    fn literals_are_filled() {
        check(r#"f("a // b")"#, "f(________)");
        check(r#"f("\"unsafe")"#, "f(__________)");
        check(r##"f(r#"a" unsafe"#)"##, "f(______________)");
        check(r#"f(b"x", c)"#, "f(b___, c)");
        check(r#"f(br"\")"#, "f(_____)");
    }

    #[test]
    fn characters_are_told_from_lifetimes() {
        check("f('\"', x)", "f(___, x)");
        check("f('\\'', x)", "f(____, x)");
        check("f('é')", "f(___)");
        check("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}");
    }

    #[test]
    fn a_word_that_ends_in_r_begins_no_raw_string() {
        check(r#"for"a""#, "for___");
    }

    #[test]
    fn what_is_never_closed_ends_with_the_file() {
        for open in ["/* a", "\"a", "r#\"a\"", "'\\"] {
            assert_eq!(code(open).len(), open.len());
        }
    }

    #[test]
    fn what_is_for_tests_alone_is_no_product() {
        let check = |code: &str, expected: &str| {
            let product = product(code);
            assert_eq!(
                product.split_whitespace().collect::<Vec<_>>().join(" "),
                expected,
                "{code}"
            );
            assert_eq!(product.lines().count(), code.lines().count(), "{code}");
        };
        check("#[cfg(test)]\nmod tests;\na();", "a();");
        check("a();\n#[cfg(test)]\nmod tests {\n fn f() { b(); }\n}\nc();", "a(); c();");
        check("#[cfg(test)]\n#[derive(Debug)]\nstruct A(u8);\nb();", "b();");
        check("struct A { #[cfg(test)] a: B, c: D }", "struct A { c: D }");
        check("struct A { c: D, #[cfg(test)] a: B }", "struct A { c: D, }");
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(lines_with_word("unsafe_code\nunsafe {\n(unsafe)", "unsafe"), [2, 3]);
    }

    #[test]
    fn blank_lines_do_not_count() {
        assert_eq!(code_lines(&code("a\n\n// b\n/* c */\nd\n")), 2);
    }
}
