//! jemalloc's profile of the heap. jemalloc samples allocations from its start or never, and reads
//! its options before `main`. So the program executes itself once more, with them in its
//! environment.

use std::env;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use rustix::fs::{MemfdFlags, memfd_create};
use tikv_jemalloc_ctl::profiling::prof;
use weir::ProfileError;

use super::encode::{Profile, Stack, ValueKind};
use crate::sys;

/// Makes sure that jemalloc samples allocations: if it does not, executes the program once more.
/// Arguments, environment, process id and inherited descriptors stay the same.
///
/// If jemalloc does not sample even then, it returns: `take` says so to the operator.
pub(crate) fn enable() -> anyhow::Result<()> {
    let given = env::var_os(VARIABLE).unwrap_or_default();
    if is_on() || given.as_bytes().starts_with(OPTIONS.as_bytes()) {
        return Ok(());
    }
    let mut arguments = env::args_os();
    let program = env::current_exe().context("cannot find the program's own file")?;
    let mut command = Command::new(&program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let error = command.args(arguments).env(VARIABLE, options(given)).exec();
    Err(error).with_context(|| format!("admin.heap_profile: cannot execute {}", program.display()))
}

/// Our options, then those of the operator, which win.
fn options(given: OsString) -> OsString {
    let mut options = OsString::from(OPTIONS);
    if !given.is_empty() {
        options.push(",");
        options.push(given);
    }
    options
}

fn is_on() -> bool {
    prof::read().unwrap_or(false)
}

/// Takes a profile of the memory that is in use.
///
/// Cost: jemalloc holds back threads whose allocation is just sampled while it gathers the stacks.
pub(super) fn take() -> Result<Profile, ProfileError> {
    if !is_on() {
        let variable = env::var_os(VARIABLE).unwrap_or_default();
        let detail = match variable.as_bytes().starts_with(OPTIONS.as_bytes()) {
            true => format!("the heap profile is off: {VARIABLE} is {variable:?}"),
            false => {
                "the heap profile is off: set admin.heap_profile = true, and start again".to_owned()
            }
        };
        return Err(ProfileError::Off(detail));
    }
    dump().map_err(|error| ProfileError::Failed(format!("{error:#}")))
}

/// jemalloc writes profiles only into files, so this is one in memory.
fn dump() -> anyhow::Result<Profile> {
    let file = memfd_create("heap-profile", MemfdFlags::CLOEXEC).context("memfd_create")?;
    let file = File::from(file);
    let path = CString::new(format!("/proc/thread-self/fd/{}", file.as_raw_fd()))?;
    sys::dump_heap(&path).map_err(|error| anyhow!("jemalloc's prof.dump: {error}"))?;
    parse(BufReader::new(file)).context("jemalloc's profile")
}

/// Reads jemalloc's text: a head with the mean number of bytes between two samples, then stacks,
/// each followed by a line with what all threads (`t*`) have in use, and one for each thread.
fn parse(text: impl BufRead) -> anyhow::Result<Profile> {
    let mut lines = text.lines();
    let head = lines.next().context("it is empty")??;
    let interval = head.strip_prefix("heap_v2/").context("it does not begin with heap_v2")?;
    let interval: i64 = interval.parse().context("the interval")?;
    let mut stacks = Vec::new();
    let mut frames: Option<Vec<usize>> = None;
    for line in lines {
        let line = line?;
        let line = line.trim();
        if line.starts_with("MAPPED_LIBRARIES") {
            break;
        }
        if let Some(addresses) = line.strip_prefix('@') {
            let addresses = addresses.split_ascii_whitespace();
            let numbers = addresses
                .map(|address| usize::from_str_radix(address.trim_start_matches("0x"), 16));
            frames = Some(numbers.collect::<Result<_, _>>().context("an address")?);
        } else if let (Some(in_use), Some(frames)) = (line.strip_prefix("t*:"), frames.take()) {
            let values = in_use_of(in_use, interval)?;
            stacks.push(Stack { thread: None, frames: called(frames), values });
        }
    }
    Ok(Profile {
        kinds: [
            ValueKind { name: "inuse_objects", unit: "count" },
            ValueKind { name: "inuse_space", unit: "bytes" },
        ],
        period: interval,
        began_ms: weir::unix_millis(),
        duration: Duration::ZERO,
        stacks,
        hidden: &ALLOCATOR,
    })
}

/// The objects and bytes of `1: 16384 [0: 0]`, extrapolated from the samples. An object of `size`
/// bytes is sampled with the probability 1 - exp(-size / interval).
fn in_use_of(text: &str, interval: i64) -> anyhow::Result<[i64; 2]> {
    let mut words = text.split_ascii_whitespace();
    let mut number =
        || words.next().and_then(|word| word.trim_end_matches(':').parse::<u64>().ok());
    let (objects, bytes) = (number().context("objects")?, number().context("bytes")?);
    ensure!(interval > 0, "the interval is {interval}");
    if objects == 0 || bytes == 0 {
        return Ok([0, 0]);
    }
    #[expect(clippy::cast_precision_loss, reason = "they are below 2^52")]
    let (objects, bytes) = (objects as f64, bytes as f64);
    #[expect(clippy::cast_precision_loss, reason = "it is below 2^52")]
    let missed = (-(bytes / objects) / interval as f64).exp();
    let scale = 1.0 / (1.0 - missed);
    #[expect(clippy::cast_possible_truncation, reason = "memory is below 2^52")]
    let scaled = |value: f64| (value * scale).round() as i64;
    Ok([scaled(objects), scaled(bytes)])
}

/// The first address is one to which a call returns, too. A stack of a profile begins with an
/// instruction.
fn called(mut frames: Vec<usize>) -> Vec<usize> {
    if let Some(first) = frames.first_mut() {
        *first = first.saturating_sub(1);
    }
    frames
}

/// Functions of the allocator.
const ALLOCATOR: [&str; 9] = [
    "_rjem_",
    "prof_",
    "malloc",
    "calloc",
    "realloc",
    "posix_memalign",
    "aligned_alloc",
    "__rustc::",
    "<tikv_jemallocator::",
];
const VARIABLE: &str = "MALLOC_CONF";
const OPTIONS: &str = "prof:true,lg_prof_sample:19";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_stand_for_what_was_not_sampled() {
        let text = "heap_v2/524288\n  t*: 3: 9 [0: 0]\n@ 0x10 0x20\n  t*: 1: 524288 [0: 0]\n  \
                    t3: 1: 524288 [0: 0]\n@ 0x30\n  t*: 0: 0 [0: 0]\n@ 0x40\n  t*: 2: 20000000000 [0: 0]\n\
                    \nMAPPED_LIBRARIES:\n@ 0x1\n  t*: 1: 1 [0: 0]\n";
        let profile = parse(text.as_bytes()).unwrap();
        let stacks = profile.stacks.into_iter().map(|stack| (stack.frames, stack.values));
        // An object as large as the interval is sampled with the probability 1 - 1/e.
        let expected = [
            (vec![0xf, 0x20], [2, 829_411]),
            (vec![0x2f], [0, 0]),
            (vec![0x3f], [2, 20_000_000_000]),
        ];
        assert_eq!(stacks.collect::<Vec<_>>(), expected);
        for text in
            ["", "heap_v1/5\n", "heap_v2/x\n", "heap_v2/5\n@ zz\n", "heap_v2/5\n@ 0x1\n t*: x\n"]
        {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn options_of_the_operator_come_last() {
        assert_eq!(options(OsString::new()), OPTIONS);
        assert_eq!(options("narenas:2".into()), "prof:true,lg_prof_sample:19,narenas:2");
    }
}
