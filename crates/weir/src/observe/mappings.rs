//! The memory of the process as the kernel counts it, by the kind of its mappings.

use std::fs;

use weir_engine::Footprint;

/// Anonymous memory that is resident: what the process alone has written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mappings {
    /// All of it, as `RssAnon` of `/proc/self/status`.
    pub(crate) rss_anon: usize,
    /// Stacks of threads, and of the first one.
    pub(crate) stacks: Footprint,
    /// Data of the program and its libraries.
    pub(crate) data: Footprint,
    /// Everything else: what the allocator has mapped.
    pub(crate) allocator: Footprint,
}

impl Mappings {
    /// Asks the kernel. `None` where it does not tell.
    ///
    /// Cost: the kernel looks at each resident page: some milliseconds for a gigabyte. It locks one
    /// mapping at a time.
    pub(crate) fn read() -> Option<Mappings> {
        Some(Mappings::of(&fs::read_to_string("/proc/self/smaps").ok()?))
    }

    fn of(smaps: &str) -> Mappings {
        let mut sum = Mappings::default();
        let (mut kind, mut before) = (Kind::Data, None);
        for line in smaps.lines() {
            if let Some(mapping) = Mapping::parse(line) {
                let adjacent = before.filter(|before: &Mapping<'_>| before.end == mapping.start);
                kind = mapping.kind(adjacent.as_ref());
                before = Some(mapping);
            } else if let Some(bytes) = kib_of(line, "Anonymous:").filter(|bytes| *bytes > 0) {
                sum.rss_anon += bytes;
                match kind {
                    Kind::Stack => sum.stacks.add(bytes),
                    Kind::Data => sum.data.add(bytes),
                    Kind::Allocator => sum.allocator.add(bytes),
                }
            }
        }
        sum
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stack,
    Data,
    Allocator,
}

/// The first line of a mapping.
#[derive(Clone, Copy)]
struct Mapping<'a> {
    start: usize,
    end: usize,
    is_guard: bool,
    path: &'a str,
}

impl Mapping<'_> {
    fn parse(line: &str) -> Option<Mapping<'_>> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let address = |digits| usize::from_str_radix(digits, 16).ok();
        let mut words = rest.split_whitespace();
        let is_guard = words.next()?.starts_with("---");
        let path = words.nth(3).unwrap_or_default();
        Some(Mapping { start: address(start)?, end: address(end)?, is_guard, path })
    }

    /// `before` is the mapping that ends where this one begins.
    ///
    /// A thread's stack stands behind a guard page, and a file's data without content behind those
    /// with content. The allocator maps half a megabyte at least; smaller mappings are data that a
    /// library has asked for.
    fn kind(&self, before: Option<&Mapping<'_>>) -> Kind {
        let is_long = self.end - self.start >= ALLOCATOR_BYTES_MIN;
        match (self.path, before) {
            ("[stack]", _) => Kind::Stack,
            ("", Some(before)) if before.is_guard => Kind::Stack,
            ("", Some(before)) if !before.path.is_empty() => Kind::Data,
            ("", _) if is_long => Kind::Allocator,
            _ => Kind::Data,
        }
    }
}

fn kib_of(line: &str, name: &str) -> Option<usize> {
    let kib = line.strip_prefix(name)?.trim().strip_suffix("kB")?;
    kib.trim_end().parse::<usize>().ok()?.checked_mul(1024)
}

const ALLOCATOR_BYTES_MIN: usize = 512 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mapping_counts_for_its_kind() {
        let smaps = "\
55710d25f000-55710d268000 rw-p 01988000 fe:00 5472956    /usr/bin/weir
Rss:                  36 kB
Anonymous:            36 kB
55710d268000-55710d478000 rw-p 00000000 00:00 0
Anonymous:            28 kB
7f1afc576000-7f1afc577000 ---p 00000000 00:00 0
Anonymous:             0 kB
7f1afc577000-7f1afc777000 rw-p 00000000 00:00 0
Anonymous:            16 kB
7f1afd37a000-7f1afd5fa000 rw-p 00000000 00:00 0
Anonymous:           880 kB
7f1b01b16000-7f1b01b1b000 rw-p 00000000 00:00 0
Anonymous:            12 kB
7ffcc48ad000-7ffcc48ce000 rw-p 00000000 00:00 0          [stack]
Anonymous:            84 kB
VmFlags: rd wr mr mw me gd ac
";
        let kib = |count, kib: usize| Footprint::new(count, kib * 1024);
        let expected = Mappings {
            rss_anon: 1056 * 1024,
            stacks: kib(2, 100),
            data: kib(3, 76),
            allocator: kib(1, 880),
        };
        assert_eq!(Mappings::of(smaps), expected);
    }

    #[test]
    fn this_process_has_all_kinds() {
        let thread = std::thread::spawn(Mappings::read);
        let Mappings { rss_anon, stacks, data, allocator } =
            thread.join().unwrap().expect("Linux tells");
        assert!(stacks.count >= 2 && data.count > 0, "{stacks:?} {data:?}");
        assert_eq!(stacks.bytes + data.bytes + allocator.bytes, rss_anon);
    }
}
