//! Rule: every word of a public type's name has one row in `docs/lexicon.md`, or is common English.
//!
//! A row covers the words of its first cell, and the words of a name in `code` there. Other text in
//! parentheses only explains the meaning, and covers nothing. A plural in -s and a participle in
//! -ed count as the same word.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{code, product, tokens};
use super::{File, Finding, at_most};

/// The words of our subject.
const LEXICON: &str = "docs/lexicon.md";

/// The words of common English: one per line, sorted, and only those that a name needs.
const COMMON: &str = "xtask/common_words.txt";

/// Permitted words that are in neither list.
const UNKNOWN_MAX: usize = 0;

/// Applies the rules.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let text = |path: &str| files.iter().find(|file| file.path == path);
    let (Some(lexicon), Some(common)) = (text(LEXICON), text(COMMON)) else {
        let text = "missing".to_owned();
        return vec![Finding { place: format!("{LEXICON} or {COMMON}"), line: None, text }];
    };
    let (unknown, needless) = compare(&words_of_types(files), &listed(lexicon), common);
    let mut findings = twice(lexicon);
    findings.extend(at_most(UNKNOWN_MAX, "words not known", unknown));
    findings.extend(needless);
    findings
}

/// The words in names of public types, each with its first place and that name.
fn words_of_types(files: &[File]) -> BTreeMap<String, (&File, usize, String)> {
    let mut words = BTreeMap::new();
    let is_source = |path: &str| path.starts_with("crates/") && path.contains("/src/");
    for file in files.iter().filter(|file| is_source(&file.path) && file.path.ends_with(".rs")) {
        let code = product(&code(&file.text));
        let tokens = tokens(&code);
        for three in tokens.windows(3) {
            let [(first, line), (kind, _), (name, _)] = three else { continue };
            if *first == "pub" && KINDS.contains(kind) {
                for word in words_of(name) {
                    words.entry(word).or_insert_with(|| (file, *line, (*name).to_owned()));
                }
            }
        }
    }
    words
}

/// The words of the first cells of the lexicon's rows.
fn listed(lexicon: &File) -> BTreeSet<String> {
    terms(lexicon).flat_map(|(_, term)| words_of(&term)).collect()
}

/// The entries of the lexicon with their lines; several may share a row. Of text in parentheses,
/// only names in `code` are kept.
fn terms(lexicon: &File) -> impl Iterator<Item = (usize, String)> {
    let cell = |line: &str| Some(line.strip_prefix("| ")?.split_once(" |")?.0.to_owned());
    let rows =
        lexicon.text.lines().zip(1..).filter_map(move |(line, number)| Some((number, cell(line)?)));
    let terms = rows.flat_map(|(number, cell)| {
        let terms: Vec<String> = cell.split(", ").map(str::to_owned).collect();
        terms.into_iter().map(move |term| (number, term))
    });
    terms.filter(|(_, term)| term != "word").map(|(number, term)| {
        let meant = term.split_once(" (").filter(|(_, rest)| !rest.starts_with('`'));
        let kept = meant.map_or(term.as_str(), |(word, _)| word).to_owned();
        (number, kept)
    })
}

fn twice(lexicon: &File) -> Vec<Finding> {
    let mut seen = BTreeMap::new();
    let mut findings = Vec::new();
    for (line, term) in terms(lexicon) {
        if let Some(first) = seen.insert(term.clone(), line) {
            let text = format!("{term} has a row already, in line {first}");
            findings.push(lexicon.finding(line, text));
        }
    }
    findings
}

/// Unknown words, and common words that no name has, that the lexicon has too, or that are out of
/// order.
fn compare(
    used: &BTreeMap<String, (&File, usize, String)>,
    listed: &BTreeSet<String>,
    common: &File,
) -> (Vec<Finding>, Vec<Finding>) {
    let words: BTreeSet<&str> = common.text.lines().collect();
    let mut needed = BTreeSet::new();
    let mut unknown = Vec::new();
    for (word, (file, line, name)) in used {
        let forms = forms(word);
        if forms.iter().any(|form| listed.contains(*form)) {
            continue;
        }
        if let Some(form) = forms.iter().find(|form| words.contains(**form)) {
            needed.insert(*form);
        } else {
            let text = format!("`{word}` of {name} is neither in {LEXICON} nor in {COMMON}");
            unknown.push(file.finding(*line, text));
        }
    }
    let mut needless = Vec::new();
    let mut before = "";
    for (word, line) in common.text.lines().zip(1..) {
        if !needed.contains(word) {
            needless.push(common.finding(line, format!("no name needs `{word}` here")));
        } else if word <= before {
            needless.push(common.finding(line, format!("`{word}` stands out of order")));
        }
        before = word;
    }
    (unknown, needless)
}

/// The forms of a word that a list may contain, the shortest first.
fn forms(word: &str) -> Vec<&str> {
    let endings = ["ed", "es", "d", "s", ""];
    endings.iter().filter_map(|ending| word.strip_suffix(ending)).collect()
}

/// The words of a name or a text, in lower case.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut previous = ' ';
    for letter in name.chars() {
        if letter.is_uppercase() && !previous.is_uppercase() || !letter.is_alphabetic() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| letter.is_alphabetic()) {
            word.extend(letter.to_lowercase());
        }
        previous = letter;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Keywords that begin the definition of a type.
const KINDS: [&str; 5] = ["enum", "struct", "trait", "type", "union"];

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "# Lexicon\n\n| word | meaning |\n|---|---|\n";

    fn lexicon(rows: &str) -> File {
        File::new(LEXICON, &format!("{ROWS}{rows}"))
    }

    fn check_words(code: &str, rows: &str, common: &str) -> (Vec<String>, Vec<String>) {
        let files = [File::new("crates/a/src/lib.rs", code)];
        let used = words_of_types(&files);
        let common = File::new(COMMON, common);
        let (unknown, needless) = compare(&used, &listed(&lexicon(rows)), &common);
        let texts = |findings: Vec<Finding>| findings.iter().map(Finding::to_string).collect();
        (texts(unknown), texts(needless))
    }

    #[test]
    fn words_of_public_types_are_known() {
        let code = "pub struct TopicRules;\nstruct Hidden;\npub(crate) enum Inner {}\npub type JwtKey = u8;";
        let rows = "| topic | A name. |\n| rule | What holds. |\n| JWT | A token. |\n";
        let (unknown, _) = check_words(code, rows, "");
        let expected = "crates/a/src/lib.rs:4: `key` of JwtKey is neither in docs/lexicon.md nor in xtask/common_words.txt";
        assert_eq!(unknown, [expected]);
        assert_eq!(check_words(code, rows, "key\n"), (vec![], vec![]));
        assert_eq!(check_words("#[cfg(test)]\npub struct Key;", rows, ""), (vec![], vec![]));
    }

    #[test]
    fn common_words_are_needed_and_sorted() {
        let code = "pub struct Topic;\npub trait Bad;\npub enum Kind {}";
        let (unknown, needless) =
            check_words(code, "| topic | A name. |\n", "kind\nbad\ngood\ntopic\n");
        assert_eq!(unknown, [""; 0]);
        let expected = [
            "xtask/common_words.txt:2: `bad` stands out of order",
            "xtask/common_words.txt:3: no name needs `good` here",
            "xtask/common_words.txt:4: no name needs `topic` here",
        ];
        assert_eq!(needless, expected);
    }

    #[test]
    fn a_row_covers_the_words_of_its_first_cell() {
        let listed = listed(&lexicon(
            "| circuit breaker, head | Stops `Other`. |\n| shared state (`SharedState`) | … |\n| batch (store) | … |\n",
        ));
        let listed: Vec<&str> = listed.iter().map(String::as_str).collect();
        assert_eq!(listed, ["batch", "breaker", "circuit", "head", "shared", "state"]);
    }

    #[test]
    fn a_word_has_one_row() {
        let twice = twice(&lexicon(
            "| tick (topic) | … |\n| batch, tick | … |\n| record session | … |\n| session | … |\n",
        ));
        let lines: Vec<_> = twice.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [Some(6)], "{twice:?}");
    }

    #[test]
    fn plurals_and_participles_are_the_same_word() {
        let check = |word: &str, form: &str| assert!(forms(word).contains(&form), "{word}");
        check("keys", "key");
        check("batches", "batch");
        check("opened", "open");
        check("cached", "cache");
        check("tls", "tls");
    }

    #[test]
    fn names_are_split_into_words() {
        let check = |name: &str, expected: &[&str]| assert_eq!(words_of(name), expected, "{name}");
        check("TlsKeys12", &["tls", "keys"]);
        check("low, high watermark", &["low", "high", "watermark"]);
        check("MongoDB", &["mongo", "db"]);
        check("JWT", &["jwt"]);
    }
}
