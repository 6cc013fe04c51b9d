//! The two text forms of metrics, and the choice between them by a request.

use http::header::{ACCEPT, HeaderMap};

/// A text form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The text format of Prometheus, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Form {
    /// The form that a request asks for: OpenMetrics if the request names it and prefers no other,
    /// as in other exporters.
    pub(crate) fn of(headers: &HeaderMap) -> Form {
        let (mut open, mut plain) = (0, 0);
        let lists = headers.get_all(ACCEPT).iter().filter_map(|list| list.to_str().ok());
        for range in lists.flat_map(|list| list.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let (mut weight, mut version) = (WEIGHT_MAX, None);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim_end() {
                    "q" | "Q" => weight = weight_of(value.trim_start()),
                    "version" => version = Some(value.trim_start()),
                    _ => {}
                }
            }
            if kind.eq_ignore_ascii_case("application/openmetrics-text")
                && version.is_none_or(|version| version == "1.0.0")
            {
                open = open.max(weight);
            } else if kind.eq_ignore_ascii_case("text/plain")
                && version.is_none_or(|version| version == "0.0.4")
            {
                plain = plain.max(weight);
            }
        }
        if open > 0 && open >= plain { Form::OpenMetrics } else { Form::Prometheus }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Form::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A weight (RFC 9110 section 12.4.2) in thousandths; 0 if it is malformed.
fn weight_of(text: &str) -> u32 {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = part.len() <= 3 && part.bytes().all(|byte| byte.is_ascii_digit());
    match (whole, is_number) {
        ("0", true) => format!("{part:0<3}").parse().unwrap_or(0),
        ("1", true) => WEIGHT_MAX,
        _ => 0,
    }
}

/// Converts OpenMetrics into the text format of Prometheus.
///
/// There a family has the name of its samples (with `_total` or `_info`), an info is a gauge, and
/// there is neither a unit nor an end mark.
pub(super) fn to_prometheus(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (ending, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            if let Some((_, help)) = help.take().filter(|(named, _)| *named == name) {
                // OpenMetrics escapes a quotation mark. Prometheus does not.
                let help = help.replace("\\\"", "\"");
                text.extend(["# HELP ", name, ending, " ", &help, "\n"]);
            }
            text.extend(["# TYPE ", name, ending, " ", kind, "\n"]);
        } else if !line.starts_with("# ") {
            text.extend([line, "\n"]);
        }
    }
    text
}

const WEIGHT_MAX: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(accept: &str, expected: Form) {
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(ACCEPT, accept.parse().unwrap());
        }
        assert_eq!(Form::of(&headers), expected, "{accept:?}");
    }

    #[test]
    fn openmetrics_is_for_those_who_name_it() {
        for accept in [
            "application/openmetrics-text",
            "application/openmetrics-text; version=1.0.0",
            "APPLICATION/openmetrics-text;version=1.0.0;charset=utf-8;q=0.5, text/plain;q=0.4",
            "text/plain;version=0.0.4;q=0.5,application/openmetrics-text;q=0.5",
            // Prometheus 2 and 3.
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        ] {
            check(accept, Form::OpenMetrics);
        }
        for accept in [
            "",
            "*/*",
            "text/plain",
            "text/html,*/*;q=0.8",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.000",
            "application/openmetrics-text;q=x",
            "application/openmetrics-text;q=0.3, text/plain;q=0.301",
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;q=0.6,text/plain;q=0.5",
        ] {
            check(accept, Form::Prometheus);
        }
    }

    #[test]
    fn families_are_named_as_their_samples() {
        let open = "# HELP a_seconds How \"long\".\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
                    a_seconds_total{x=\"# TYPE y info\"} 1\n# HELP b What.\n# TYPE b info\nb_info{v=\"1\"} 1\n\
                    # HELP c_seconds C.\n# TYPE c_seconds histogram\n# UNIT c_seconds seconds\n\
                    c_seconds_sum 0.0\nc_seconds_count 0\nc_seconds_bucket{le=\"+Inf\"} 0\n\
                    # HELP d Say \\\"d\\\".\n# TYPE d gauge\nd 4\n# EOF\n";
        let expected = "# HELP a_seconds_total How \"long\".\n# TYPE a_seconds_total counter\n\
                        a_seconds_total{x=\"# TYPE y info\"} 1\n# HELP b_info What.\n# TYPE b_info gauge\n\
                        b_info{v=\"1\"} 1\n# HELP c_seconds C.\n# TYPE c_seconds histogram\nc_seconds_sum 0.0\n\
                        c_seconds_count 0\nc_seconds_bucket{le=\"+Inf\"} 0\n# HELP d Say \"d\".\n# TYPE d gauge\nd 4\n";
        assert_eq!(to_prometheus(open), expected);
    }
}
