//! Writes profiles: finds the names of functions, and encodes them for pprof or for flame graphs.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::ptr;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use weir::ProfileFormat;

/// A profile whose functions have no names yet.
#[derive(Debug)]
pub(super) struct Profile {
    /// What the two values of a stack are. The second one is the weight in a flame graph.
    pub(super) kinds: [ValueKind; 2],
    /// In the unit of the second kind.
    pub(super) period: i64,
    /// Since 1970.
    pub(super) began_ms: u64,
    pub(super) duration: Duration,
    pub(super) stacks: Vec<Stack>,
    /// How the names of innermost functions begin that do not count as part of a stack.
    pub(super) hidden: &'static [&'static str],
}

/// The name of a value, and its unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueKind {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
}

/// A stack with its values.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) thread: Option<String>,
    /// From the innermost call. All but the first are the addresses to which calls return.
    pub(super) frames: Vec<usize>,
    pub(super) values: [i64; 2],
}

impl Profile {
    pub(super) fn write(self, format: ProfileFormat) -> io::Result<Vec<u8>> {
        let mut symbols = Symbols::default();
        let written = match format {
            ProfileFormat::Pprof => self.pprof(&mut symbols),
            ProfileFormat::Folded => Ok(self.folded(&mut symbols)),
        };
        // Otherwise the parsed debug information would stay in memory.
        backtrace::clear_symbol_cache();
        written
    }

    fn pprof(self, symbols: &mut Symbols) -> io::Result<Vec<u8>> {
        let mut tables = Tables::default();
        // The first text is empty by definition.
        tables.text("");
        let thread_key = tables.text("thread");
        let kinds = self.kinds.map(|kind| proto::ValueType {
            kind: tables.text(kind.name),
            unit: tables.text(kind.unit),
        });
        let samples = self.stacks.iter().map(|stack| {
            let location_id = self.shown(symbols, stack);
            let location_id =
                location_id.map(|address| tables.location(symbols, address)).collect();
            let label = stack
                .thread
                .iter()
                .map(|thread| proto::Label { key: thread_key, text: tables.text(thread) });
            let label = label.collect();
            proto::Sample { location_id, value: stack.values.to_vec(), label }
        });
        let sample = samples.collect();
        let profile = proto::Profile {
            sample,
            time_nanos: i64::try_from(self.began_ms).unwrap_or_default().saturating_mul(1_000_000),
            duration_nanos: i64::try_from(self.duration.as_nanos()).unwrap_or_default(),
            period_type: Some(kinds[1]),
            period: self.period,
            sample_type: kinds.to_vec(),
            location: tables.locations,
            function: tables.functions,
            string_table: tables.texts,
        };
        let mut compressed = GzEncoder::new(Vec::new(), Compression::default());
        compressed.write_all(&profile.encode_to_vec())?;
        compressed.finish()
    }

    /// The addresses of a stack, from the innermost function that is not hidden.
    fn shown(&self, symbols: &mut Symbols, stack: &Stack) -> impl Iterator<Item = usize> + use<> {
        let mut is_hidden = |address: usize| {
            let function = symbols.lines(address).last().map_or("", |line| &line.function);
            self.hidden.iter().any(|start| function.starts_with(start))
        };
        let hidden = stack.addresses().take_while(|address| is_hidden(*address)).count();
        stack.addresses().skip(hidden).collect::<Vec<_>>().into_iter()
    }

    /// A line for each stack, from the outermost call. Writing to a `String` cannot fail.
    fn folded(self, symbols: &mut Symbols) -> Vec<u8> {
        let mut weights = HashMap::<String, i64>::new();
        for stack in &self.stacks {
            let mut names: Vec<String> = Vec::new();
            for address in self.shown(symbols, stack) {
                names.extend(symbols.lines(address).iter().map(|line| line.function.clone()));
            }
            names.extend(stack.thread.clone());
            // A semicolon separates functions.
            let names: Vec<String> =
                names.into_iter().rev().map(|name| name.replace(';', ",")).collect();
            *weights.entry(names.join(";")).or_default() += stack.values[1];
        }
        let mut lines: Vec<_> = weights.into_iter().collect();
        lines.sort();
        let mut text = String::new();
        for (names, weight) in lines {
            let _ = writeln!(text, "{names} {weight}");
        }
        text.into_bytes()
    }
}

impl Stack {
    /// An address within the instruction of each frame. The call is before the address to which it
    /// returns.
    fn addresses(&self) -> impl Iterator<Item = usize> {
        let first = self.frames.first().copied();
        first.into_iter().chain(self.frames.iter().skip(1).map(|address| address.saturating_sub(1)))
    }
}

/// The functions at addresses, each looked up once.
#[derive(Debug, Default)]
struct Symbols(HashMap<usize, Vec<SourceLine>>);

/// A line of a function.
#[derive(Debug, Clone)]
struct SourceLine {
    function: String,
    symbol: String,
    file: String,
    line: u32,
}

impl Symbols {
    /// The functions at an address: the innermost inlined one first.
    fn lines(&mut self, address: usize) -> &[SourceLine] {
        self.0.entry(address).or_insert_with(|| {
            let mut lines = Vec::new();
            backtrace::resolve(ptr::without_provenance_mut(address), |symbol| {
                let Some(name) = symbol.name() else { return };
                lines.push(SourceLine {
                    // Without the hash at its end.
                    function: format!("{name:#}"),
                    symbol: String::from_utf8_lossy(name.as_bytes()).into_owned(),
                    file: symbol
                        .filename()
                        .map(|file| file.display().to_string())
                        .unwrap_or_default(),
                    line: symbol.lineno().unwrap_or(0),
                });
            });
            // The debug information names inlined functions without their module.
            let inlined = lines.len().saturating_sub(1);
            for line in lines.iter_mut().take(inlined) {
                if let Some(place) = ending(&line.file).filter(|_| !line.function.contains("::")) {
                    line.function = format!("{} ({place})", line.function);
                }
            }
            if lines.is_empty() {
                lines.push(SourceLine {
                    function: "[unknown]".to_owned(),
                    symbol: String::new(),
                    file: String::new(),
                    line: 0,
                });
            }
            lines
        })
    }
}

/// The last two parts of a path.
fn ending(path: &str) -> Option<&str> {
    let (folders, _) = path.rsplit_once('/')?;
    Some(&path[folders.rfind('/').map_or(0, |slash| slash + 1)..])
}

/// The tables of a profile of pprof. The ids of locations and functions begin with 1.
#[derive(Debug, Default)]
struct Tables {
    texts: Vec<String>,
    text_ids: HashMap<String, i64>,
    functions: Vec<proto::Function>,
    function_ids: HashMap<(i64, i64), u64>,
    locations: Vec<proto::Location>,
    location_ids: HashMap<usize, u64>,
}

impl Tables {
    fn text(&mut self, text: &str) -> i64 {
        if let Some(id) = self.text_ids.get(text) {
            return *id;
        }
        let id = i64::try_from(self.texts.len()).unwrap_or(0);
        self.texts.push(text.to_owned());
        self.text_ids.insert(text.to_owned(), id);
        id
    }

    fn function(&mut self, line: &SourceLine) -> u64 {
        let (name, filename) = (self.text(&line.function), self.text(&line.file));
        let system_name = self.text(&line.symbol);
        let functions = &mut self.functions;
        *self.function_ids.entry((name, filename)).or_insert_with(|| {
            let id = functions.len() as u64 + 1;
            functions.push(proto::Function { id, name, system_name, filename });
            id
        })
    }

    fn location(&mut self, symbols: &mut Symbols, address: usize) -> u64 {
        if let Some(id) = self.location_ids.get(&address) {
            return *id;
        }
        let lines = symbols.lines(address).iter().map(|line| proto::Line {
            function_id: self.function(line),
            line: i64::from(line.line),
        });
        let line = lines.collect();
        let id = self.locations.len() as u64 + 1;
        self.locations.push(proto::Location { id, line });
        self.location_ids.insert(address, id);
        id
    }
}

/// The messages of pprof that a profile needs.
///
/// Source: `profile.proto` of <https://github.com/google/pprof>.
mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub(super) sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub(super) sample: Vec<Sample>,
        #[prost(message, repeated, tag = "4")]
        pub(super) location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub(super) function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub(super) string_table: Vec<String>,
        #[prost(int64, tag = "9")]
        pub(super) time_nanos: i64,
        #[prost(int64, tag = "10")]
        pub(super) duration_nanos: i64,
        #[prost(message, optional, tag = "11")]
        pub(super) period_type: Option<ValueType>,
        #[prost(int64, tag = "12")]
        pub(super) period: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct ValueType {
        #[prost(int64, tag = "1")]
        pub(super) kind: i64,
        #[prost(int64, tag = "2")]
        pub(super) unit: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub(super) location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub(super) value: Vec<i64>,
        #[prost(message, repeated, tag = "3")]
        pub(super) label: Vec<Label>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Label {
        #[prost(int64, tag = "1")]
        pub(super) key: i64,
        #[prost(int64, tag = "2")]
        pub(super) text: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Location {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(message, repeated, tag = "4")]
        pub(super) line: Vec<Line>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Line {
        #[prost(uint64, tag = "1")]
        pub(super) function_id: u64,
        #[prost(int64, tag = "2")]
        pub(super) line: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Function {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(int64, tag = "2")]
        pub(super) name: i64,
        #[prost(int64, tag = "3")]
        pub(super) system_name: i64,
        #[prost(int64, tag = "4")]
        pub(super) filename: i64,
    }
}
