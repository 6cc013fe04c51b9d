//! Rules of topic classes.

use std::collections::HashSet;

use weir_engine::{Message, SlowPolicy};

use super::auth::ONCE;
use super::{error, within_time};
use crate::base::config::classes::{MESSAGE_BYTES_MIN, TICK_BYTES_MAX, TICK_MAX, TICK_MIN};
use crate::base::config::keys::ConfigError;
use crate::base::config::{Actor, Config, Scope, TopicClass};

impl Config {
    /// `retention_bytes` is the limit of all topics together.
    pub(super) fn check_classes(&self, retention_bytes: usize) -> Result<(), ConfigError> {
        let count = self.topic_classes.len();
        // A program that issues tokens, answers hooks or imports devices may use other labels.
        let is_closed = !self.auth.jwt.has_keys() && self.hooks.connect.upstream.is_empty();
        let labels = is_closed.then(|| self.labels());
        let labels = labels.as_ref();
        let mut patterns: Vec<Vec<Part>> = Vec::with_capacity(count);
        for (index, class) in self.topic_classes.iter().enumerate() {
            let path = format!("topic_classes[{index}]");
            patterns.push(self.check_pattern(&path, &class.pattern)?);
            self.check_overlap(index, &patterns)?;
            self.check_scope(&path, class)?;
            self.check_tick(&path, class)?;
            self.check_retention(&path, class, retention_bytes)?;
            check_actors(&format!("{path}.publish"), &class.publish, labels)?;
            check_actors(&format!("{path}.subscribe"), &class.subscribe, labels)?;
            self.check_class_hooks(&path, class)?;
            check_actors(&format!("{path}.presence_for"), &class.presence_for, labels)?;
        }
        Ok(())
    }

    fn check_pattern(&self, path: &str, pattern: &str) -> Result<Vec<Part>, ConfigError> {
        parts_of(pattern, self.limits.topic_bytes_max).map_err(|allowed| {
            let error = error(&format!("{path}.pattern"), format_args!("{pattern:?}"), allowed);
            ConfigError { depends_on: &["limits.topic_bytes_max"], ..error }
        })
    }

    /// The first matching pattern counts, so each class needs names that no earlier class takes.
    fn check_overlap(&self, index: usize, patterns: &[Vec<Part>]) -> Result<(), ConfigError> {
        let (Some(class), Some(pattern)) = (self.topic_classes.get(index), patterns.get(index))
        else {
            return Ok(());
        };
        let id_bytes_max = self.limits.device_id_bytes_max;
        for (other, earlier) in patterns.iter().take(index).enumerate() {
            if !covers(earlier, pattern, id_bytes_max) {
                continue;
            }
            let allowed = if earlier == pattern {
                format!(
                    "a pattern that no earlier class has, and topic_classes[{other}] has this one"
                )
            } else {
                let earlier = &self.topic_classes[other].pattern;
                format!(
                    "a pattern that can still match: topic_classes[{other}].pattern = {earlier:?} matches \
                     all its names, and the first matching class counts; put this class before it"
                )
            };
            let key = format!("topic_classes[{index}].pattern");
            return Err(error(&key, format_args!("{:?}", class.pattern), allowed));
        }
        Ok(())
    }

    fn check_scope(&self, path: &str, class: &TopicClass) -> Result<(), ConfigError> {
        if class.scope == Some(Scope::Cluster) && !self.cluster.is_set() {
            let allowed = "\"node\", or absent, while cluster.redis is empty: this node belongs to no cluster";
            let error = error(&format!("{path}.scope"), "\"cluster\"", allowed);
            return Err(ConfigError { depends_on: &["cluster.redis"], ..error });
        }
        Ok(())
    }

    fn check_tick(&self, path: &str, class: &TopicClass) -> Result<(), ConfigError> {
        let ticks = !class.tick.is_zero();
        if ticks {
            let why = ", or 0s for none";
            within_time(&format!("{path}.tick"), class.tick, TICK_MIN, TICK_MAX, why)?;
        }
        let frame = self.limits.frame_bytes_max;
        let message = class.message_bytes_max;
        if message != 0 && !(MESSAGE_BYTES_MIN..=frame).contains(&message) {
            let allowed = format!("0 or {MESSAGE_BYTES_MIN} to {frame} (limits.frame_bytes_max)");
            let error = error(&format!("{path}.message_bytes_max"), message, allowed);
            return Err(ConfigError { depends_on: &["limits.frame_bytes_max"], ..error });
        }
        let message = if message == 0 { frame } else { message };
        // A class without a tick does not use it, so its default need not hold a frame.
        let (min, why) =
            if ticks { (message, " (a message of the largest size)") } else { (1, "") };
        if !(min..=TICK_BYTES_MAX).contains(&class.tick_bytes_max) {
            let allowed =
                format!("{min}{why} to {TICK_BYTES_MAX}: one tick is held and copied in one piece");
            return Err(large_frame(
                &format!("{path}.tick_bytes_max"),
                class.tick_bytes_max,
                allowed,
            ));
        }
        if class.conflation && !ticks && class.slow != SlowPolicy::Conflate {
            let allowed = "true only with a tick or with slow = \"conflate\": without both, no message \
                           waits that a newer one could replace";
            return Err(error(&format!("{path}.conflation"), "true", allowed));
        }
        Ok(())
    }

    fn check_retention(
        &self,
        path: &str,
        class: &TopicClass,
        retention_bytes: usize,
    ) -> Result<(), ConfigError> {
        if class.retention_messages > 0 {
            let frame = self.limits.frame_bytes_max;
            let message =
                if class.message_bytes_max == 0 { frame } else { class.message_bytes_max };
            let message = Message::occupied_by(message);
            if !(message..=retention_bytes).contains(&class.retention_bytes) {
                let allowed = format!(
                    "{message} (a message of the largest size, with the bytes that it occupies in addition \
                     to its frame) to \
                     {retention_bytes} (memory.retention_bytes, the limit of all topics together)"
                );
                let key = format!("{path}.retention_bytes");
                return Err(large_frame(&key, class.retention_bytes, allowed));
            }
        } else if class.history {
            let allowed = "true only with retention_messages: without them no message is retained";
            return Err(error(&format!("{path}.history"), "true", allowed));
        } else if class.resume_from_oldest == Some(true) {
            let allowed =
                "true only with retention_messages: without them nothing is kept to begin at";
            return Err(error(&format!("{path}.resume_from_oldest"), "true", allowed));
        }
        Ok(())
    }
}

/// An error that a larger frame, or less memory, may have caused.
fn large_frame(key: &str, value: usize, allowed: String) -> ConfigError {
    let depends_on = &["limits.frame_bytes_max", "memory.retention_bytes", "memory.budget_bytes"];
    ConfigError { depends_on, ..error(key, value, allowed) }
}

/// `labels` are all possible labels except those of imported devices, which are written
/// `COLUMN=VALUE`.
pub(super) fn check_actors(
    key: &str,
    actors: &[Actor],
    labels: Option<&HashSet<&str>>,
) -> Result<(), ConfigError> {
    for (index, actor) in actors.iter().enumerate() {
        let key = format!("{key}[{index}]");
        let value = format!("\"{actor}\"");
        if actors[..index].contains(actor) {
            return Err(error(&key, value, ONCE));
        }
        match actor {
            Actor::Label(label) if !label.contains('=') => {
                if let Some(labels) = labels.filter(|labels| !labels.contains(label.as_str())) {
                    return Err(error(&key, value, known(labels)));
                }
            }
            Actor::Label(_) | Actor::Devices | Actor::Services => {}
        }
    }
    Ok(())
}

fn known(labels: &HashSet<&str>) -> String {
    if labels.is_empty() {
        return "a label of a token, but no token in auth.tokens has labels".to_owned();
    }
    let mut labels: Vec<&str> = labels.iter().copied().collect();
    labels.sort_unstable();
    let more = if labels.len() > LABELS_SHOWN_MAX { ", …" } else { "" };
    labels.truncate(LABELS_SHOWN_MAX);
    format!("a label of a token in auth.tokens: {}{more}", labels.join(", "))
}

/// Whether this is a valid pattern, of a class or of a token's topics.
pub(crate) fn is_pattern(pattern: &str, bytes_max: usize) -> bool {
    parts_of(pattern, bytes_max).is_ok()
}

/// The parts of a pattern, or the allowed form instead.
fn parts_of(pattern: &str, bytes_max: usize) -> Result<Vec<Part>, String> {
    let refuse = |allowed: &str| Err(allowed.to_owned());
    if pattern.is_empty() || pattern.len() > bytes_max {
        return Err(format!("1 to {bytes_max} bytes (limits.topic_bytes_max)"));
    }
    if pattern.contains(char::is_control) {
        return refuse("a pattern without control characters");
    }
    if pattern.contains(['+', '#']) {
        return refuse(
            "a pattern without + and #, which no topic name may contain; * stands for any characters",
        );
    }
    let parts = parts(pattern);
    if parts.iter().any(|part| matches!(part, Part::Literal('{' | '}'))) {
        return refuse("a pattern with braces in {device} only");
    }
    if parts.iter().filter(|part| **part == Part::Device).count() > 1 {
        return refuse("{device} at most once");
    }
    let is_any = |part: &Part| *part == Part::Any;
    let mut sides = parts.split(|part| *part == Part::Device);
    if let (Some(before), Some(behind)) = (sides.next(), sides.next())
        && before.iter().any(is_any)
        && behind.iter().any(is_any)
    {
        return refuse(
            "{device} with * on one side only; otherwise the device id would be ambiguous",
        );
    }
    for pair in parts.windows(2) {
        match pair {
            [Part::Any, Part::Any] => return refuse("one * instead of two in a row"),
            [Part::Any, Part::Device] | [Part::Device, Part::Any] => {
                return refuse(
                    "{device} with a character between it and *; otherwise the device id would be ambiguous",
                );
            }
            _ => {}
        }
    }
    Ok(parts)
}

/// A piece of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Literal(char),
    /// `*`.
    Any,
    /// `{device}`.
    Device,
}

fn parts(pattern: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = pattern;
    while let Some(next) = rest.chars().next() {
        let (part, bytes) = match next {
            '*' => (Part::Any, 1),
            '{' if rest.starts_with(DEVICE) => (Part::Device, DEVICE.len()),
            other => (Part::Literal(other), other.len_utf8()),
        };
        parts.push(part);
        rest = rest.get(bytes..).unwrap_or_default();
    }
    parts
}

/// Whether every name that matches `narrow` also matches `wide`. A `false` may be wrong if the
/// parts of the two patterns correspond only piecemeal.
///
/// Cost: O(wide × narrow); mostly it ends at the first character that differs.
fn covers(wide: &[Part], narrow: &[Part], id_bytes_max: usize) -> bool {
    // The places in `narrow` that the parts of `wide` so far can reach.
    let mut reached = vec![false; narrow.len() + 1];
    reached[0] = true;
    for part in wide {
        let mut next = vec![false; narrow.len() + 1];
        for from in (0..reached.len()).filter(|from| reached[*from]) {
            match part {
                Part::Literal(_) => {
                    if narrow.get(from) == Some(part) {
                        next[from + 1] = true;
                    }
                }
                Part::Any => {
                    next[from..].fill(true);
                    break;
                }
                Part::Device => {
                    if narrow.get(from) == Some(part) {
                        next[from + 1] = true;
                    }
                    let mut id_bytes = 0;
                    for (offset, part) in narrow[from..].iter().enumerate() {
                        let Part::Literal(character) = part else { break };
                        id_bytes += character.len_utf8();
                        if id_bytes > id_bytes_max {
                            break;
                        }
                        next[from + offset + 1] = true;
                    }
                }
            }
        }
        if !next.contains(&true) {
            return false;
        }
        reached = next;
    }
    reached[narrow.len()]
}

const DEVICE: &str = "{device}";
/// Enough to recognise a typing error.
const LABELS_SHOWN_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_what_it_takes_all_names_of() {
        for (wide, narrow, expected) in [
            ("*", "a", true),
            ("*", "{device}/*", true),
            ("room/*", "room/1/*", true),
            ("room/*", "room/", true),
            ("room/*", "rooms", false),
            ("room/1/*", "room/*", false),
            ("*/state", "fleet/{device}/state", true),
            ("fleet/{device}/state", "fleet/*/state", false),
            ("fleet/{device}", "fleet/seven", true),
            ("fleet/{device}", "fleet/a-very-long-id", false),
            ("fleet/{device}", "fleet/", false),
            ("fleet/{device}/x", "fleet/{device}/x", true),
            ("fleet/{device}/x", "fleet/{device}/y", false),
            ("*a*b", "xaxb", true),
            ("*a*b", "xbxa", false),
            ("a", "a*", false),
            ("ä*", "äö", true),
        ] {
            assert_eq!(covers(&parts(wide), &parts(narrow), 8), expected, "{wide} over {narrow}");
        }
    }
}
