//! Tests of the embedded store: the contract, valid and invalid files, and limits.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::conformance::Memory;

mod files;

/// An empty store. Its files are removed with it.
async fn make() -> Arc<dyn Store> {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Embedded::open(options(&directory)).unwrap();
    store.directory = Some(directory);
    Arc::new(store)
}

crate::conformance!(make);

const FINGERPRINT: Hash = Hash([9; 32]);

fn options(directory: &TempDir) -> EmbeddedOptions {
    EmbeddedOptions {
        path: directory.path().join("devices.db"),
        create: true,
        timeout: Duration::from_secs(60),
        queue_max: 100_000,
        fingerprint: FINGERPRINT,
    }
}

fn entry(number: u8) -> DeviceEntry {
    let serial = Serial::new(&format!("d{number}")).unwrap();
    DeviceEntry { serial, key: Hash([number; 32]), labels: [("a".into(), "b".into())].into() }
}

fn activation(number: u8, token: u8) -> Issue {
    Issue {
        proof: crate::Proof::Key { serial: entry(number).serial, key: entry(number).key },
        token: Hash([token; 32]),
        now: 1_000,
        expires: 9_000,
        grace_until: 2_000,
    }
}

fn open_error(path: &Path) -> String {
    let options = EmbeddedOptions {
        path: path.into(),
        create: true,
        timeout: Duration::ZERO,
        queue_max: 1,
        fingerprint: FINGERPRINT,
    };
    Embedded::open(options).err().expect("an error").to_string()
}

#[tokio::test]
async fn what_was_answered_is_there_when_it_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(options(&directory)).unwrap();
    store.put(vec![entry(1), entry(2)], 5).await.unwrap();
    store.issue(vec![activation(1, 10), activation(1, 11)]).await.unwrap();
    store.seen(vec![(entry(2).serial, 77)]).await.unwrap();
    let page = Page { after: None, limit: 10 };
    let (devices, count) = (store.list(page.clone()).await.unwrap(), store.count().await.unwrap());
    drop(store);
    assert!(!directory.path().join("devices.db-wal").exists(), "the log is in the file");
    let mode = fs::metadata(directory.path().join("devices.db")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let store = Embedded::open(options(&directory)).unwrap();
    assert_eq!(store.list(page).await.unwrap(), devices);
    assert_eq!((store.count().await, count), (Ok(2), 2));
    let holders = store.check(vec![Hash([10; 32]), Hash([11; 32])], 1_500).await.unwrap();
    assert!(holders.iter().all(Option::is_some));
}

/// Sends the same requests to this store and to the reference model in memory, and compares all
/// answers.
#[tokio::test]
async fn it_does_what_its_twin_does() {
    let (store, twin) = (make().await, Memory::new());
    let mut state = 1_u64;
    let mut chance = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u8::try_from((state >> 33) % below).unwrap()
    };
    for step in 0..600 {
        let now = 1_000 + step * 10;
        match chance(8) {
            0 => {
                let mut entry = entry(chance(12));
                entry.key = Hash([chance(2); 32]);
                entry.labels = [("n".into(), chance(2).to_string())].into();
                let entries = vec![entry.clone(), entry];
                assert_eq!(store.put(entries.clone(), now).await, twin.put(entries, now).await);
            }
            1 => {
                let serials = vec![entry(chance(12)).serial];
                assert_eq!(store.revoke(serials.clone()).await, twin.revoke(serials).await);
            }
            2 => {
                let (sweep, limit) = (store.sweep(now, 1_000).await, twin.sweep(now, 1_000).await);
                assert!(sweep.unwrap() <= limit.unwrap(), "only the model keeps ended tokens");
            }
            3..=7 => {
                let wishes: Vec<Issue> = (0..4)
                    .map(|_| {
                        let mut wish = activation(chance(12), chance(250));
                        match &mut wish.proof {
                            crate::Proof::Key { key, .. } => *key = Hash([chance(2); 32]),
                            crate::Proof::Token(_) => {}
                        }
                        if chance(2) == 0 {
                            wish.proof = crate::Proof::Token(Hash([chance(250); 32]));
                        }
                        // A token that was never used before.
                        wish.token.0[1..9].copy_from_slice(&state_of(step, chance(250)));
                        let expires = now + u64::from(chance(200));
                        Issue { now, expires, grace_until: now + u64::from(chance(60)), ..wish }
                    })
                    .collect();
                let answers = store.issue(wishes.clone()).await;
                assert_eq!(answers, twin.issue(wishes).await);
            }
            _ => unreachable!("eight kinds"),
        }
        let page = Page { after: None, limit: 100 };
        let devices = store.list(page.clone()).await.unwrap();
        assert_eq!(devices, twin.list(page).await.unwrap());
        let tokens: Vec<Hash> = devices.iter().flat_map(known_tokens).collect();
        let check = store.check(tokens.clone(), now).await;
        assert_eq!(check, twin.check(tokens, now).await, "step {step}");
    }
}

fn state_of(step: u64, salt: u8) -> [u8; 8] {
    (step * 256 + u64::from(salt)).to_be_bytes()
}

fn known_tokens(device: &Device) -> Vec<Hash> {
    let current = device.token.map(|(token, _)| token);
    current.into_iter().chain(device.previous.map(|previous| previous.token)).collect()
}

#[tokio::test]
async fn one_device_alone_does_not_fill_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(options(&directory)).unwrap();
    store.put(vec![entry(1)], 5).await.unwrap();
    let file = rusqlite::Connection::open(directory.path().join("devices.db")).unwrap();
    for token in 0..250 {
        store.issue(vec![activation(1, token)]).await.unwrap();
        let rows: i64 =
            file.query_row("SELECT count(*) FROM changes", [], |row| row.get(0)).unwrap();
        assert!(rows <= 66, "{rows}");
    }
}

/// Opens a file with moved changes, unmoved changes, and keys that changed in between.
#[tokio::test]
async fn a_changed_key_is_not_undone_by_what_is_moved_later() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Embedded::open(options(&directory)).unwrap();
    let devices: Vec<u8> = (0..40).collect();
    store.put(devices.iter().map(|device| entry(*device)).collect(), 5).await.unwrap();
    for round in 0..4 {
        let wish = |device: &u8| activation(*device, 40 * round + device);
        // More devices than remain unmoved.
        for some in devices.chunks(7) {
            for issued in store.issue(some.iter().map(wish).collect()).await.unwrap() {
                issued.unwrap();
            }
        }
        let rekeyed = |device: &u8| DeviceEntry { key: Hash([99; 32]), ..entry(*device) };
        let puts = store.put(devices.iter().map(rekeyed).collect(), 6).await.unwrap();
        assert!(puts.iter().all(|put| *put == Put::Rekeyed));
        for _ in 0..2 {
            for some in 0..30 {
                // Gives the moves time.
                store.seen(vec![(entry(some).serial, 7)]).await.unwrap();
            }
            let found = store.list(Page { after: None, limit: 100 }).await.unwrap();
            for device in found {
                let is_new = (device.state, device.token) == (crate::State::New, None);
                assert!(is_new && device.key == Hash([99; 32]), "{device:?}");
            }
            assert_eq!(store.recent.index.len(), 0);
            drop(store);
            store = Embedded::open(options(&directory)).unwrap();
        }
        let puts = store.put(devices.iter().map(|device| entry(*device)).collect(), 8).await;
        assert!(puts.unwrap().iter().all(|put| *put == Put::Rekeyed));
    }
}

#[tokio::test]
async fn forgotten_tokens_lead_nowhere_and_take_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(options(&directory)).unwrap();
    store.put(vec![entry(1)], 5).await.unwrap();
    for token in 0..100 {
        store.issue(vec![activation(1, token)]).await.unwrap();
    }
    let tokens = || -> usize {
        let file = rusqlite::Connection::open(directory.path().join("devices.db")).unwrap();
        tables::recent(&file).unwrap().index.len()
    };
    assert_eq!((store.recent.index.len(), tokens()), (2, 2), "the tokens that the device knows");
    // The same in one batch.
    let wishes = (100..200).map(|token| activation(1, token)).collect();
    store.issue(wishes).await.unwrap();
    assert_eq!((store.recent.index.len(), tokens()), (2, 2));
    let alike = |token: u8| Hash([&[7; 8][..], &[token; 24]].concat().try_into().unwrap());
    let wish = |device, token| Issue { token: alike(token), ..activation(device, 0) };
    store.put(vec![entry(2)], 5).await.unwrap();
    store.issue(vec![wish(1, 1), wish(2, 2)]).await.unwrap();
    let holders = store.check(vec![alike(1), alike(2), alike(3)], 10).await.unwrap();
    let serials = holders.into_iter().map(|holder| Some(holder?.serial));
    let expected = [Some(entry(1).serial), Some(entry(2).serial), None];
    assert_eq!(serials.collect::<Vec<_>>(), expected, "hashes that begin alike");
    store.revoke(vec![entry(1).serial, entry(2).serial]).await.unwrap();
    assert_eq!((store.recent.index.len(), tokens()), (0, 0));
}

/// Tries every position of the unknown device: between two devices, before and after all of them,
/// and with another device's key.
#[tokio::test]
async fn an_unknown_serial_is_refused_by_the_record_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(options(&directory)).unwrap();
    let issue = |serial: &str, key: Hash| Issue {
        proof: crate::Proof::Key { serial: Serial::new(serial).unwrap(), key },
        ..activation(1, 100)
    };
    let unknown = Ok(vec![Err(Refusal::UnknownDevice)]);
    assert_eq!(store.issue(vec![issue("any", Hash([1; 32]))]).await, unknown, "nothing is there");
    let known = [entry(1), entry(3)];
    store.put(known.to_vec(), 1).await.unwrap();
    for serial in ["!", "d2", "~"] {
        for key in [known[0].key, known[1].key, Hash([0; 32])] {
            assert_eq!(store.issue(vec![issue(serial, key)]).await, unknown, "{serial}");
        }
    }
    let devices = store.list(Page { after: None, limit: 10 }).await.unwrap();
    assert!(devices.iter().all(|device| device.generation == 0 && device.token.is_none()));
}

#[test]
fn a_second_process_is_told_who_holds_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(options(&directory)).unwrap();
    let path = options(&directory).path;
    let error = open_error(&path);
    let expected = format!("devices.db: is held by process {}", std::process::id());
    assert!(error.ends_with(&expected), "{error}");
    fs::write(directory.path().join("devices.db.lock"), "nonsense").unwrap();
    assert!(open_error(&path).ends_with("is held by another process"));
    drop(store);
    Embedded::open(options(&directory)).expect("it has been let go");
}

#[test]
fn files_that_are_no_stores_of_this_version_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("devices.db");
    let check = |expected: &str| {
        let error = open_error(&path);
        assert!(error.contains("devices.db: ") && error.contains(expected), "{error}");
    };
    fs::write(&path, "devSn,devKey\nadd,abc\n").unwrap();
    check("is no store of devices");
    fs::remove_file(&path).unwrap();

    let conn = Connection::open(&path).unwrap();
    conn.execute_batch("CREATE TABLE other (a)").unwrap();
    check("is no store of devices");
    conn.execute_batch("DROP TABLE other").unwrap();
    drop(conn);
    fs::remove_file(&path).unwrap();

    drop(Embedded::open(options(&directory)).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 2).unwrap();
    check("has format 2; this version knows format 1");
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    check("is no store of devices");
    let error = open_error(&directory.path().join("gone/devices.db"));
    assert!(error.contains("cannot be opened for writing"), "{error}");
}

#[test]
fn a_store_is_not_opened_with_other_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let open = |fingerprint| Embedded::open(EmbeddedOptions { fingerprint, ..options(&directory) });
    let path = options(&directory).path;
    drop(open(Hash([1; 32])).unwrap());
    let error = open(Hash([2; 32])).err().expect("an error").to_string();
    assert!(error.contains("devices.db: was hashed with another key file"), "{error}");
    drop(open(Hash([1; 32])).expect("the same secrets"));
    // A file from before fingerprints takes the secrets that it is opened with.
    Connection::open(&path).unwrap().execute_batch("DROP TABLE secrets").unwrap();
    drop(open(Hash([2; 32])).unwrap());
    assert!(open(Hash([1; 32])).is_err());
}

#[tokio::test]
async fn damage_is_said_to_be_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("devices.db");
    let store = Embedded::open(options(&directory)).unwrap();
    store.put(vec![entry(1), entry(2)], 5).await.unwrap();
    drop(store);
    // One damaged record affects no other device, even if one batch asks for both.
    let conn = Connection::open(&path).unwrap();
    conn.execute("UPDATE devices SET state = 7 WHERE serial = 'd1'", []).unwrap();
    drop(conn);
    let store = Embedded::open(options(&directory)).unwrap();
    let (bad, good) =
        tokio::join!(store.find(vec![entry(1).serial]), store.find(vec![entry(2).serial]));
    assert!(matches!(&bad, Err(Error::Damaged(text)) if text.contains("d1")), "{bad:?}");
    assert!(matches!(good.as_deref(), Ok([Some(_)])), "{good:?}");
    drop(store);

    let mut bytes = fs::read(&path).unwrap();
    bytes.truncate(bytes.len() / 2);
    bytes[100..].fill(0x55);
    fs::write(&path, &bytes).unwrap();
    let error = open_error(&path);
    assert!(error.contains("is damaged"), "{error}");
}

#[tokio::test]
async fn a_full_queue_refuses_and_a_late_answer_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = options(&directory).path;
    let limits = EmbeddedOptions {
        timeout: Duration::from_millis(1),
        queue_max: 3,
        create: true,
        path,
        fingerprint: FINGERPRINT,
    };
    let store = Embedded::open(limits).unwrap();
    // A foreign transaction keeps the writer from beginning one.
    let conn = Connection::open(directory.path().join("devices.db")).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = store.put(vec![entry(0)], 5);
    while store.writes.queue.len() > 0 {
        tokio::task::yield_now().await;
    }
    let waiting = store.put(vec![entry(1), entry(2)], 5);
    let small = store.put(vec![entry(3)], 5);
    let refused = store.put(vec![entry(4)], 5);
    assert_eq!(refused.await, Err(Error::Overloaded(3)));
    assert_eq!(begun.await, Err(Error::TimedOut(1)));
    assert_eq!(waiting.await, Err(Error::TimedOut(1)));
    drop(small);
    conn.execute_batch("ROLLBACK").unwrap();
    drop(conn);
    drop(store);
    let store = Embedded::open(options(&directory)).unwrap();
    let page = Page { after: None, limit: 10 };
    assert!(store.list(page).await.unwrap().len() <= 1, "a request without a caller is not begun");
}

#[tokio::test]
async fn batches_have_a_largest_size() {
    let store = make().await;
    let tokens = vec![Hash([1; 32]); BATCH_MAX + 1];
    assert_eq!(store.check(tokens, 5).await, Err(Error::Overloaded(BATCH_MAX + 1)));
    assert_eq!(store.list(Page { after: None, limit: usize::MAX }).await, Ok(Vec::new()));
}
