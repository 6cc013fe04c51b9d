//! The embedded store after `kill -9`: what was answered is there, once, and the file opens again by itself.
//!
//! The test runs itself as the process that is killed, ten times on one file.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use weir_store::{
    Device, DeviceEntry, Embedded, EmbeddedOptions, Hash, Issue, Page, Proof, Serial, State, Store,
};

/// Where the process that is to be killed finds the file, and with which number it begins.
const PATH: &str = "WEIR_STORE_CRASH_PATH";
const FIRST: &str = "WEIR_STORE_CRASH_FIRST";
const ROUNDS: u64 = 10;
/// More numbers than one process comes to.
const ROUND: u64 = 10_000_000;
const IN_FLIGHT: u64 = 32;
const NOW: u64 = 1_790_000_000_000;

#[tokio::test]
async fn what_was_answered_survives_being_killed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("devices.db");
    let mut answered = Vec::new();
    for round in 0..ROUNDS {
        let before = answered.len();
        let mut child = start(&path, round * ROUND);
        // At another moment each time: after so many answers.
        let lines = read_answers(&mut child, 40 + 61 * round);
        child.kill().unwrap();
        child.wait().unwrap();
        answered.extend(lines);
        answered.extend(read_answers(&mut child, u64::MAX));
        assert!(answered.len() > before, "round {round} got something done");
        let store = open(&path);
        check_answered(&store, &answered).await;
        check_all(&store).await;
    }
}

/// Imports and activates one device after another, and says so of each once it has been answered.
#[tokio::test]
async fn victim() {
    let (Ok(path), Ok(first)) = (std::env::var(PATH), std::env::var(FIRST)) else {
        return;
    };
    let store = Arc::new(open(Path::new(&path)));
    let next = Arc::new(AtomicU64::new(first.parse().unwrap()));
    let mut tasks = JoinSet::new();
    for _ in 0..IN_FLIGHT {
        let (store, next) = (Arc::clone(&store), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                store.put(vec![entry(number)], NOW).await.unwrap();
                store.issue(vec![activation(number)]).await.unwrap().remove(0).unwrap();
                let mut out = std::io::stdout().lock();
                writeln!(out, "answered {number}").unwrap();
                out.flush().unwrap();
            }
        });
    }
    // It goes on until it is killed: a task that ends has failed.
    let ended = tasks.join_next().await;
    panic!("{ended:?}");
}

fn start(path: &Path, first: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture"])
        .env(PATH, path)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The numbers that a process says are answered: so many, or all until it ends.
fn read_answers(child: &mut Child, count: u64) -> Vec<u64> {
    let out = child.stdout.as_mut().unwrap();
    let mut numbers = Vec::new();
    // A small buffer: what is read ahead of the last line that is wanted is lost, and need not be checked.
    let mut reader = BufReader::with_capacity(64, out);
    let mut line = String::new();
    while (numbers.len() as u64) < count && reader.read_line(&mut line).unwrap() > 0 {
        let whole = line.strip_suffix('\n').and_then(|line| line.strip_prefix("answered "));
        numbers.extend(whole.and_then(|number| number.parse::<u64>().ok()));
        line.clear();
    }
    numbers
}

fn open(path: &Path) -> Embedded {
    let (timeout, queue_max) = (Duration::from_secs(60), 100_000);
    let fingerprint = Hash([0; 32]);
    Embedded::open(EmbeddedOptions {
        path: path.into(),
        create: true,
        timeout,
        queue_max,
        fingerprint,
    })
    .unwrap()
}

/// Each device that was activated is, once, and its token is valid.
async fn check_answered(store: &Embedded, answered: &[u64]) {
    for chunk in answered.chunks(1_000) {
        let serials = chunk.iter().map(|number| entry(*number).serial).collect();
        let devices = store.find(serials).await.unwrap();
        let tokens = chunk.iter().map(|number| token(*number)).collect();
        let holders = store.check(tokens, NOW).await.unwrap();
        for ((number, device), holder) in chunk.iter().zip(devices).zip(holders) {
            let device = device.unwrap_or_else(|| panic!("{number} was answered and is lost"));
            assert_eq!((device.state, device.generation), (State::Active, 1), "{device:?}");
            assert_eq!(holder.map(|holder| holder.serial), Some(device.serial));
        }
    }
}

/// Nothing is half done, answered or not.
async fn check_all(store: &Embedded) {
    let mut page = Page { after: None, limit: 1_000 };
    let mut count = 0;
    loop {
        let devices = store.list(page.clone()).await.unwrap();
        let Some(last) = devices.last() else {
            break;
        };
        page.after = Some(last.serial.clone());
        count += devices.len() as u64;
        for device in devices {
            check_device(store, &device).await;
        }
    }
    assert_eq!(store.count().await, Ok(count));
}

async fn check_device(store: &Embedded, device: &Device) {
    let number = device.serial.as_str().strip_prefix('d').unwrap().parse().unwrap();
    let holder = store.check(vec![token(number)], NOW).await.unwrap().remove(0);
    let expected = match device.state {
        State::New => (0, None),
        State::Active => (1, Some(device.serial.clone())),
        State::Revoked => panic!("nobody revoked {device:?}"),
    };
    assert_eq!((device.generation, holder.map(|holder| holder.serial)), expected);
    assert_eq!(device.token.is_some(), device.state == State::Active, "{device:?}");
}

fn entry(number: u64) -> DeviceEntry {
    let serial = Serial::new(&format!("d{number}")).unwrap();
    DeviceEntry { serial, key: hash(number, 1), labels: [("n".into(), "1".into())].into() }
}

fn activation(number: u64) -> Issue {
    let DeviceEntry { serial, key, .. } = entry(number);
    Issue {
        proof: Proof::Key { serial, key },
        token: token(number),
        now: NOW,
        expires: NOW + 86_400_000,
        grace_until: NOW + 60_000,
    }
}

fn token(number: u64) -> Hash {
    hash(number, 2)
}

fn hash(number: u64, kind: u8) -> Hash {
    let mut bytes = [kind; 32];
    bytes[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    Hash(bytes)
}
