//! Patterns of topic names.

/// A pattern of topic names, parsed.
///
/// Shape: `*` stands for any characters, or none; `{device}` for a device id of at least one
/// character. Everything else stands for itself.
/// Cost: a look runs through the name once, except for literals that occur several times after a
/// `*`. No allocation.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    text: Box<str>,
    /// The segments with `{device}` as a gap, for any device.
    anybody: Box<[Segment]>,
    /// The segments with `{device}` as a literal, for a given device.
    somebody: Box<[Segment]>,
    /// The characters between `{device}` and a part with `*`. An id that contains one of them could
    /// match another device's names.
    separators: Box<[char]>,
}

/// Neighbouring literals, with or without a gap in front.
#[derive(Debug, Clone, Default)]
struct Segment {
    /// The least number of bytes in the gap; `None`: no gap.
    gap: Option<usize>,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone)]
enum Piece {
    Literal(Box<[u8]>),
    Device,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl std::hash::Hash for Pattern {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Pattern {
    pub(crate) fn new(text: &str) -> Self {
        let compile = |is_gap: bool| {
            let mut segments = vec![Segment::default()];
            let mut rest = text;
            while let Some(at) = rest.find(['*', '{']) {
                push_literal(&mut segments, &rest[..at]);
                rest = &rest[at..];
                if let Some(behind) = rest.strip_prefix('*') {
                    open_gap(&mut segments, 0);
                    rest = behind;
                } else if let Some(behind) = rest.strip_prefix(DEVICE) {
                    if is_gap {
                        open_gap(&mut segments, 1);
                    } else {
                        last(&mut segments).pieces.push(Piece::Device);
                    }
                    rest = behind;
                } else {
                    push_literal(&mut segments, &rest[..1]);
                    rest = &rest[1..];
                }
            }
            push_literal(&mut segments, rest);
            segments.into_boxed_slice()
        };
        let (before, behind) = text.split_once(DEVICE).unwrap_or_default();
        let before = before.contains('*').then(|| before.chars().next_back()).flatten();
        let behind = behind.contains('*').then(|| behind.chars().next()).flatten();
        Self {
            text: text.into(),
            anybody: compile(true),
            somebody: compile(false),
            separators: before.into_iter().chain(behind).collect(),
        }
    }

    /// Whether the name matches, for any device.
    pub(crate) fn matches(&self, name: &str) -> bool {
        fits(&self.anybody, name.as_bytes(), b"")
    }

    /// Whether the name matches when `{device}` stands for this device, and for no other.
    pub(crate) fn matches_for(&self, name: &str, device: &str) -> bool {
        !device.contains(&*self.separators)
            && fits(&self.somebody, name.as_bytes(), device.as_bytes())
    }

    /// Whether the pattern contains `{device}`.
    pub(crate) fn has_device(&self) -> bool {
        self.text.contains(DEVICE)
    }

    /// The pattern as it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl Segment {
    fn bytes(&self, device: &[u8]) -> usize {
        self.pieces.iter().map(|piece| piece.bytes(device).len()).sum()
    }

    /// Whether `name` begins with this segment.
    fn begins(&self, name: &[u8], device: &[u8]) -> bool {
        let mut rest = name;
        self.pieces.iter().all(|piece| match rest.strip_prefix(piece.bytes(device)) {
            Some(behind) => {
                rest = behind;
                true
            }
            None => false,
        })
    }
}

impl Piece {
    fn bytes<'a>(&'a self, device: &'a [u8]) -> &'a [u8] {
        match self {
            Piece::Literal(literal) => literal,
            Piece::Device => device,
        }
    }
}

/// Each segment takes the first place where it matches; the last one takes the end of the name.
/// Comparing bytes is enough: no literal matches in the middle of a character.
fn fits(segments: &[Segment], name: &[u8], device: &[u8]) -> bool {
    let mut rest = name;
    for (index, segment) in segments.iter().enumerate() {
        let bytes = segment.bytes(device);
        let least = segment.gap.unwrap_or(0);
        let Some(most) = rest.len().checked_sub(bytes) else { return false };
        let is_last = index + 1 == segments.len();
        let places = match segment.gap {
            None if is_last && most > 0 => return false,
            None => 0..=0,
            Some(_) if is_last => most.max(least)..=most,
            Some(_) => least..=most,
        };
        let mut places = places.filter(|at| segment.begins(&rest[*at..], device));
        let Some(at) = places.next() else { return false };
        rest = &rest[at + bytes..];
    }
    true
}

fn push_literal(segments: &mut [Segment], literal: &str) {
    if !literal.is_empty() {
        last(segments).pieces.push(Piece::Literal(literal.as_bytes().into()));
    }
}

/// Begins a gap, or widens the last one if no literal has followed it.
fn open_gap(segments: &mut Vec<Segment>, bytes: usize) {
    let before = last(segments);
    match before.gap {
        Some(gap) if before.pieces.is_empty() => before.gap = Some(gap + bytes),
        Some(_) | None => segments.push(Segment { gap: Some(bytes), pieces: Vec::new() }),
    }
}

fn last(segments: &mut [Segment]) -> &mut Segment {
    segments.last_mut().expect("a pattern has at least one segment")
}

const DEVICE: &str = "{device}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        let check = |pattern: &str, name: &str, expected: bool| {
            assert_eq!(Pattern::new(pattern).matches(name), expected, "{pattern:?} on {name:?}");
        };
        check("*", "", true);
        check("*", "a/b", true);
        check("", "", true);
        check("", "a", false);
        check("a/b", "a/b", true);
        check("a/b", "a/bc", false);
        check("a/*", "a/", true);
        check("a/*", "a", false);
        check("*b", "abab", true);
        check("*b", "aba", false);
        check("a*a", "a", false);
        check("a*a", "aa", true);
        check("a*bc*d", "abbcxbcd", true);
        check("a*bc*d", "abbcx", false);
        check("*ab*ab", "ab", false);
        check("**", "x", true);
        check("größe/*", "größe/1", true);
        check("{a}*", "{a}b", true);
        check("{", "{", true);
    }

    #[test]
    fn a_device_is_somebody_or_one_of_them() {
        let check = |pattern: &str, name: &str, anybody: bool, d1: bool| {
            let fits = Pattern::new(pattern);
            assert_eq!(fits.matches(name), anybody, "{pattern:?} on {name:?}");
            assert_eq!(fits.matches_for(name, "d1"), d1, "{pattern:?} on {name:?} for d1");
        };
        check("to/{device}", "to/d1", true, true);
        check("to/{device}", "to/d2", true, false);
        check("to/{device}", "to/", false, false);
        check("to/{device}", "to/d11", true, false);
        check("{device}/*", "d1/x", true, true);
        check("{device}/*", "/x", false, false);
        check("*/{device}/in", "a/d1/d1/in", true, true);
        check("*/{device}/in", "a/d1/d2/in", true, false);
        check("*{device}", "d", true, false);
        check("*{device}", "", false, false);
        check("*{device}{device}", "d1", true, false);
        check("*x{device}", "xxd1", true, true);
        check("news", "news", true, true);
    }

    #[test]
    fn a_name_is_one_device_s_alone() {
        let check = |pattern: &str, name: &str, devices: &[&str]| {
            let fits = Pattern::new(pattern);
            let ids = ["van-7", "van-7/cmd", "cmd", "x"];
            let whose = ids.into_iter().filter(|id| fits.matches_for(name, id));
            assert_eq!(whose.collect::<Vec<_>>(), devices, "{pattern:?} on {name:?}");
        };
        check("{device}/*", "van-7/cmd/x", &["van-7"]);
        check("a/{device}/*", "a/van-7/cmd/x", &["van-7"]);
        check("*/{device}", "a/van-7/cmd", &["cmd"]);
        check("*/{device}-x", "van-7/cmd-x", &["cmd"]);
        // Without a `*` the match is unambiguous.
        check("{device}/in", "van-7/cmd/in", &["van-7/cmd"]);
        check("*", "van-7/cmd", &["van-7", "van-7/cmd", "cmd", "x"]);
    }
}
