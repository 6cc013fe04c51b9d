//! The store of the product, by its own methods.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_store::{DeviceEntry, Embedded, EmbeddedOptions, Hash, Issue, Page, Proof, Serial, Store};

use crate::{DEVICES, Measured, bytes, megabytes, mix, serial};

pub(crate) fn measure(path: &str, count: u64, in_flight: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(run(path, count, in_flight));
}

async fn run(path: &str, count: u64, in_flight: u64) {
    let store = Arc::new(open(path));
    let start = Measured::start();
    for first in (0..DEVICES).step_by(10_000) {
        let entries = (first..first + 10_000).map(entry).collect();
        store.put(entries, NOW).await.expect("it answers");
    }
    start.report("product: import", DEVICES);
    println!("  {} MB", megabytes(path));

    let next = Arc::new(AtomicU64::new(0));
    let start = Measured::start();
    let tasks: Vec<_> = (0..in_flight)
        .map(|_| tokio::spawn(activate(Arc::clone(&store), Arc::clone(&next), count)))
        .collect();
    for task in tasks {
        task.await.expect("no task panics");
    }
    start.report(&format!("product: activations, {in_flight} in flight"), count);
    println!("  {} MB", megabytes(path));
    let start = Measured::start();
    let tokens = (0..10_000).map(|number| Hash(bytes(mix(!number)))).collect();
    let holders = store.check(tokens, NOW).await.expect("it answers");
    start.report("product: checks in one batch", 10_000);
    assert!(holders.iter().all(Option::is_some), "all are valid");
    drop(store);
    println!("  closed: {} MB", megabytes(path));
    let start = Measured::start();
    let store = open(path);
    store.list(Page { after: None, limit: 1 }).await.expect("it answers");
    start.report("product: open", 1);
}

async fn activate(store: Arc<Embedded>, next: Arc<AtomicU64>, count: u64) {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return;
        }
        // An odd factor: each device once, and in no order.
        let DeviceEntry { serial, key, .. } = entry(number.wrapping_mul(611_953) % DEVICES);
        let issue = Issue {
            proof: Proof::Key { serial, key },
            token: Hash(bytes(mix(!number))),
            now: NOW,
            expires: NOW + 2_592_000_000,
            grace_until: NOW + 60_000,
        };
        let answers = store.issue(vec![issue]).await.expect("it answers");
        assert!(answers[0].is_ok(), "{answers:?}");
    }
}

fn open(path: &str) -> Embedded {
    let (timeout, queue_max) = (Duration::from_secs(60), 16_384);
    let fingerprint = Hash([0; 32]);
    let options =
        EmbeddedOptions { path: path.into(), create: true, timeout, queue_max, fingerprint };
    Embedded::open(options).expect("it opens")
}

fn entry(device: u64) -> DeviceEntry {
    DeviceEntry {
        serial: Serial::new(&serial(device)).expect("a serial"),
        key: Hash(bytes(device)),
        labels: [("model", "M-7"), ("site", "building 12")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
    }
}

const NOW: u64 = 1_790_000_000_000;
