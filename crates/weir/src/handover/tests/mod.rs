//! Tests with real processes: this test program runs itself as the new process, and as the old one.

mod deaths;
mod descriptors;

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use weir_engine::Nanos;

use super::link::Link;

/// Runs this test program as a child that only does [`child`].
fn own_program(role: &str, words: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "handover::tests::child", "--nocapture", "--test-threads=1"])
        .env(ROLE_VARIABLE, role)
        .env(WORDS_VARIABLE, words.join(","))
        .stdout(Stdio::null());
    command
}

/// Does nothing in an ordinary run.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE_VARIABLE) else { return };
    let words = std::env::var(WORDS_VARIABLE).unwrap();
    let words: Vec<&str> = words.split(',').collect();
    match role.as_str() {
        "new" => deaths::new_process(&words),
        "old" => deaths::old_process(&words),
        "takes" => descriptors::takes(&words),
        "sends" => descriptors::sends(&words),
        _ => panic!("{role}: no such role"),
    }
    // No other test of this program runs.
    std::process::exit(0);
}

/// The end of a pair that is standard input.
fn stdin_link() -> Link {
    Link::new(rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).unwrap())
}

/// A file in which each process writes down what it owns, in the order in which it happens.
struct Witness {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Witness {
    fn new() -> Witness {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("witness");
        File::create(&path).unwrap();
        Witness { _directory: directory, path }
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.path).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until a line is there.
    fn wait_for(&self, line: &str) {
        let until = Nanos::now().after(PATIENCE);
        while !self.lines().iter().any(|there| there == line) {
            assert!(Nanos::now() < until, "no {line:?} in {:?}", self.lines());
            rest();
        }
    }
}

fn write_down(path: &Path, line: &str) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn rest() {
    let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 2_000_000 }));
}

/// Does nothing for ever. The test, or the old process, kills this one.
fn hang() {
    loop {
        rest();
    }
}

fn signal_itself(signal: Signal) {
    kill_process(getpid(), signal).unwrap();
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

const ROLE_VARIABLE: &str = "WEIR_TEST_ROLE";
const WORDS_VARIABLE: &str = "WEIR_TEST_WORDS";
/// For what must happen.
const PATIENCE: Duration = Duration::from_secs(60);
