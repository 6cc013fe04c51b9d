//! Measures SQLite and redb as embedded stores: what decision 0005 rests on.
//!
//! `embedded_stores STORE FILE COMMAND…` with the store `sqlite`, `redb` or `redb-quick` (quick repair, which commits
//! in two phases) and one of the commands
//! - `import N`: N devices into a new file, 10,000 a transaction;
//! - `issue BATCH SECONDS`: one token each for devices by chance, so many a durable commit, no longer than so long;
//! - `activate N BATCH`: the same N times;
//! - `open`: how long opening takes until the first device has been read;
//! - `crash BATCH MS`: a child issues for so long and is killed; how long opening takes then, and what is lost.
//!
//! `embedded_stores product FILE N IN_FLIGHT` makes a new store of the product's, imports a million devices into it, and
//! activates N of them, each by itself, with so many in flight.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "it measures, for people")]

mod product;
mod redb_file;
mod sqlite_file;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What both are asked for.
trait File {
    /// Adds devices, in one durable commit.
    fn put(&mut self, devices: &[u64]);
    /// Gives each of these devices this token, in one durable commit.
    fn issue(&mut self, issues: &[(u64, [u8; 32])]);
    /// The device that a token leads to.
    fn check(&mut self, token: &[u8; 32]) -> Option<u64>;
    /// Whether a device is there.
    fn find(&mut self, device: u64) -> bool;
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["product", path, count, in_flight] => {
            product::measure(path, number(count), number(in_flight));
        }
        [store, path, "import", count] => import(store, path, number(count)),
        [store, path, "issue", batch, seconds] => {
            issue(store, path, number(batch), number(seconds))
        }
        [store, path, "activate", count, batch] => {
            activate(store, path, number(count), number(batch));
        }
        [store, path, "open"] => measure_open(store, path),
        [store, path, "crash", batch, ms] => crash(store, path, batch, number(ms)),
        [store, path, "victim", batch] => victim(store, path, number(batch)),
        _ => panic!("see the head of this example for its arguments"),
    }
}

fn open(store: &str, path: &str) -> Box<dyn File> {
    match store {
        "sqlite" => Box::new(sqlite_file::Sqlite::open(path)),
        "redb" => Box::new(redb_file::Redb::open(path, false)),
        "redb-quick" => Box::new(redb_file::Redb::open(path, true)),
        _ => panic!("no store {store}"),
    }
}

fn import(store: &str, path: &str, count: u64) {
    let mut file = open(store, path);
    let start = Measured::start();
    let devices: Vec<u64> = (0..count).collect();
    for chunk in devices.chunks(10_000) {
        file.put(chunk);
    }
    start.report(&format!("{store}: import"), count);
    drop(file);
    println!("  {} MB", megabytes(path));
}

fn issue(store: &str, path: &str, batch: u64, seconds: u64) {
    let mut file = open(store, path);
    let mut chance = Chance::new();
    let mut done = 0;
    let start = Measured::start();
    while start.wall.elapsed() < Duration::from_secs(seconds) {
        file.issue(&chance.issues(batch));
        done += batch;
    }
    start.report(&format!("{store}: batches of {batch}"), done);
}

fn activate(store: &str, path: &str, count: u64, batch: u64) {
    let mut file = open(store, path);
    let mut chance = Chance::new();
    println!("  before: {} MB", megabytes(path));
    let start = Measured::start();
    for _ in 0..count / batch {
        file.issue(&chance.issues(batch));
    }
    start.report(&format!("{store}: {count} activations"), count);
    println!("  while open: {} MB", megabytes(path));
    drop(file);
    println!("  closed: {} MB", megabytes(path));
}

fn measure_open(store: &str, path: &str) {
    let start = Measured::start();
    let mut file = open(store, path);
    assert!(file.find(1), "the device is there");
    start.report(&format!("{store}: open"), 1);
}

/// Prints the number of each batch that has been committed.
fn victim(store: &str, path: &str, batch: u64) {
    let mut file = open(store, path);
    for number in 0.. {
        file.issue(&victims_batch(number, batch));
        println!("{number}");
    }
}

fn crash(store: &str, path: &str, batch: &str, ms: u64) {
    let program = std::env::current_exe().expect("this program has a path");
    let mut child = Command::new(program)
        .args([store, path, "victim", batch])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let first = lines.next().expect("a first line").expect("a line");
    assert_eq!(first, "0");
    std::thread::sleep(Duration::from_millis(ms));
    child.kill().expect("the child can be killed");
    child.wait().expect("the child ends");
    let answered = lines.map_while(Result::ok).filter_map(|line| line.parse().ok()).last();
    let answered: u64 = answered.unwrap_or(0);
    println!("  {store}: {} MB after the kill", megabytes(path));
    measure_open(store, path);
    let mut file = open(store, path);
    let mut lost = 0;
    for number in 0..=answered {
        for (device, token) in victims_batch(number, self::number(batch)) {
            lost += u64::from(file.check(&token) != Some(device));
        }
    }
    println!("  {store}: {} batches of {batch} answered, {lost} tokens lost", answered + 1);
}

fn victims_batch(number: u64, batch: u64) -> Vec<(u64, [u8; 32])> {
    (0..batch)
        .map(|index| {
            let token = number * batch + index;
            (mix(token) % DEVICES, bytes(mix(token.wrapping_add(1 << 40))))
        })
        .collect()
}

/// Devices and tokens in no order.
struct Chance(u64);

impl Chance {
    fn new() -> Chance {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).expect("random bytes");
        Chance(u64::from_ne_bytes(seed))
    }

    fn issues(&mut self, count: u64) -> Vec<(u64, [u8; 32])> {
        (0..count)
            .map(|_| {
                self.0 = self.0.wrapping_add(1);
                (mix(self.0) % DEVICES, bytes(mix(!self.0)))
            })
            .collect()
    }
}

struct Measured {
    wall: Instant,
    cpu: Duration,
}

impl Measured {
    fn start() -> Measured {
        Measured { wall: Instant::now(), cpu: cpu() }
    }

    fn report(&self, what: &str, count: u64) {
        let (wall, cpu) = (self.wall.elapsed(), cpu() - self.cpu);
        let each = 1e6 / count as f64;
        println!(
            "{what}: {:.3} s, {:.0}/s, {:.1} us CPU each",
            wall.as_secs_f64(),
            count as f64 / wall.as_secs_f64(),
            cpu.as_secs_f64() * each
        );
    }
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("CPU time is not negative")
}

fn megabytes(path: &str) -> String {
    let bytes = |suffix: &str| std::fs::metadata(format!("{path}{suffix}")).map_or(0, |m| m.len());
    let mb = |bytes: u64| bytes as f64 / 1e6;
    format!("{:.0} + {:.0}", mb(bytes("")), mb(bytes("-wal")))
}

fn serial(device: u64) -> String {
    format!("SN-2026-{device:010}")
}

fn bytes(number: u64) -> [u8; 32] {
    let mut bytes = [0x5a; 32];
    for (chunk, salt) in bytes.chunks_mut(8).zip(0..) {
        chunk.copy_from_slice(&mix(number.wrapping_add(salt)).to_be_bytes());
    }
    bytes
}

/// SplitMix64.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

const LABELS: &str = r#"{"model":"M-7","site":"building 12"}"#;
/// As many as are to be imported first.
const DEVICES: u64 = 1_000_000;
/// Bytes that either may keep in memory.
const CACHE_BYTES: usize = 64 << 20;
