//! Reads the server's metrics in text format.

use std::collections::BTreeMap;

/// The samples of one scrape.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Vec<Sample>);

#[derive(Debug)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Metrics {
    /// Reads a scrape. Lines that are no samples are ignored.
    pub(crate) fn parse(text: &str) -> Metrics {
        Metrics(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    /// Sum of the samples of this name that carry all these labels; `None` if there are none.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found =
            self.0.iter().filter(|sample| sample.name == name && sample.has(labels)).peekable();
        found.peek()?;
        Some(found.map(|sample| sample.value).sum())
    }

    /// The samples of this name by the value of one label.
    pub(crate) fn by_label(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.0.iter().filter(|sample| sample.name == name) {
            if let Some((_, value)) = sample.labels.iter().find(|(key, _)| key == label) {
                *sums.entry(value.clone()).or_insert(0.0) += sample.value;
            }
        }
        sums
    }
}

impl Sample {
    fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(key, value)| self.labels.iter().any(|(k, v)| k == key && v == value))
    }
}

fn sample(line: &str) -> Option<Sample> {
    let name_bytes = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(name_bytes);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => label_list(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Labels up to the closing brace, and what follows it.
fn label_list(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (key, value) = rest.split_once("=\"")?;
        let (value, after) = quoted(value)?;
        labels.push((key.to_owned(), value));
        rest = after;
    }
}

/// The text before the next quote that is not escaped, and what follows the quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP weir_connections open\n# TYPE weir_connections gauge\n\
        weir_connections{transport=\"tcp\",state=\"settled\"} 7\n\
        weir_connections{transport=\"tls\",state=\"settled\"} 5\n\
        weir_connections{transport=\"tcp\",state=\"lingering\"} 3\n\
        weir_queued_bytes 1.5e3 1700000000\n\
        odd{a=\"x\\\"}\\\\\",} 7\nnonsense\nbroken{a=\"\n\n# EOF\n";

    #[test]
    fn samples_are_summed_by_name_and_labels() {
        let metrics = Metrics::parse(TEXT);
        assert_eq!(metrics.sum("weir_connections", &[]), Some(15.0));
        assert_eq!(metrics.sum("weir_connections", &[("state", "settled")]), Some(12.0));
        assert_eq!(metrics.sum("weir_connections", &[("state", "none")]), None);
        assert_eq!(metrics.sum("weir_queued_bytes", &[]), Some(1500.0));
        assert_eq!(metrics.sum("odd", &[("a", "x\"}\\")]), Some(7.0));
        assert_eq!(metrics.sum("nonsense", &[]), None);
    }

    #[test]
    fn samples_are_told_apart_by_a_label() {
        let by = Metrics::parse(TEXT).by_label("weir_connections", "state");
        assert_eq!(
            by.into_iter().collect::<Vec<_>>(),
            [("lingering".to_owned(), 3.0), ("settled".to_owned(), 12.0)]
        );
    }
}
