//! The behaviour of a store whose files are removed, replaced, cut or damaged.

use super::*;

/// Opens the existing file.
fn reopen(directory: &TempDir) -> Result<Embedded, OpenError> {
    Embedded::open(EmbeddedOptions { create: false, ..options(directory) })
}

fn error(opened: Result<Embedded, OpenError>) -> String {
    opened.err().expect("an error").to_string()
}

/// A store with an activated device.
async fn stocked(directory: &TempDir) -> Embedded {
    let store = Embedded::open(options(directory)).unwrap();
    store.put(vec![entry(1), entry(2)], 5).await.unwrap();
    store.issue(vec![activation(1, 10)]).await.unwrap();
    store
}

/// Damages the files of a running store. The store must refuse writes, say why, and still know its
/// devices.
async fn check(expected: &str, harm: impl FnOnce(&Path)) {
    let parent = tempfile::tempdir().unwrap();
    let directory = tempfile::tempdir_in(&parent).unwrap();
    let store = stocked(&directory).await;
    assert_eq!(store.probe().await, Ok(()));
    harm(directory.path());
    for outcome in [
        store.put(vec![entry(3)], 6).await.map(drop),
        store.issue(vec![activation(2, 20)]).await.map(drop),
        store.revoke(vec![entry(1).serial]).await.map(drop),
        store.probe().await,
    ] {
        let Err(Error::Lost(cause)) = outcome else { panic!("{expected}: {outcome:?}") };
        assert!(cause.contains(expected), "{cause}");
    }
    // A cut file may have nothing left to read. Then the answer is an error, and never that the
    // device is unknown.
    match store.check(vec![Hash([10; 32])], 1_500).await {
        Ok(holders) => assert!(holders[0].is_some(), "{expected}"),
        Err(error) => assert!(expected.contains("cut"), "{expected}: {error}"),
    }
}

#[tokio::test]
async fn a_file_that_is_taken_away_takes_no_more() {
    check("devices.db is gone", |at| fs::remove_file(at.join("devices.db")).unwrap()).await;
    check("devices.db is gone", |at| {
        fs::rename(at.join("devices.db"), at.join("other.db")).unwrap();
    })
    .await;
    check("devices.db is gone", |at| fs::remove_dir_all(at).unwrap()).await;
    check("devices.db is gone", |at| fs::rename(at, at.with_extension("away")).unwrap()).await;
    check("devices.db-wal is gone", |at| fs::remove_file(at.join("devices.db-wal")).unwrap()).await;
    check("devices.db.lock is gone", |at| fs::remove_file(at.join("devices.db.lock")).unwrap())
        .await;
}

#[tokio::test]
async fn a_file_that_is_replaced_or_cut_takes_no_more() {
    let replace = |at: &Path, name: &str| {
        fs::copy(at.join(name), at.join("copy")).unwrap();
        fs::rename(at.join("copy"), at.join(name)).unwrap();
    };
    check("devices.db was replaced", |at| replace(at, "devices.db")).await;
    check("devices.db-wal was replaced", |at| replace(at, "devices.db-wal")).await;
    let cut = |at: &Path, name: &str| fs::write(at.join(name), "").unwrap();
    check("devices.db-wal was cut", |at| cut(at, "devices.db-wal")).await;
    check("devices.db was cut", |at| cut(at, "devices.db")).await;
}

#[tokio::test]
async fn a_file_that_is_brought_back_takes_writes_again() {
    let directory = tempfile::tempdir().unwrap();
    let (path, away) = (directory.path().join("devices.db"), directory.path().join("away"));
    let store = stocked(&directory).await;
    fs::rename(&path, &away).unwrap();
    assert!(store.probe().await.is_err());
    fs::rename(&away, &path).unwrap();
    store.issue(vec![activation(2, 20)]).await.unwrap().remove(0).unwrap();
    drop(store);
    let store = reopen(&directory).unwrap();
    assert!(store.check(vec![Hash([20; 32])], 1_500).await.unwrap()[0].is_some());
}

/// Moving changes into their rows, and a log that begins anew, are no loss.
#[tokio::test]
async fn its_own_work_is_not_taken_for_a_loss() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(options(&directory)).unwrap();
    let file = Connection::open(directory.path().join("devices.db")).unwrap();
    for round in 0..6 {
        store.put((0..200).map(entry).collect(), round).await.unwrap();
        for device in 0..40 {
            store.issue(vec![activation(device, device)]).await.unwrap().remove(0).unwrap();
        }
        // The next write from the log's beginning cuts the log to nothing.
        file.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
        assert_eq!(store.probe().await, Ok(()));
    }
}

#[tokio::test]
async fn a_store_that_is_missing_is_made_only_if_that_is_permitted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("devices.db");
    let missing = "devices.db: does not exist, or is empty";
    assert!(error(reopen(&directory)).ends_with(missing));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "nothing is made by looking");
    fs::write(&path, "").unwrap();
    assert!(error(reopen(&directory)).ends_with(missing));
    // A file that was made and never filled.
    let conn = Connection::open(&path).unwrap();
    conn.query_row("PRAGMA journal_mode = wal", [], |_| Ok(())).unwrap();
    drop(conn);
    assert_ne!(fs::metadata(&path).unwrap().len(), 0);
    assert!(error(reopen(&directory)).ends_with(missing));

    let store = Embedded::open(options(&directory)).unwrap();
    assert!(store.opened().is_new && store.opened().is_checked);
    store.put(vec![entry(1)], 5).await.unwrap();
    drop(store);
    let opened = reopen(&directory).unwrap().opened();
    assert_eq!((opened.devices, opened.is_new, opened.is_log_lost), (1, false, false));
}

#[tokio::test]
async fn a_log_that_is_missing_after_a_crash_is_told() {
    let directory = tempfile::tempdir().unwrap();
    drop(stocked(&directory).await);
    // The lock file as a killed process leaves it.
    fs::write(directory.path().join("devices.db.lock"), "1\n").unwrap();
    let store = reopen(&directory).unwrap();
    assert!(store.opened().is_log_lost);
    drop(store);
    assert!(!reopen(&directory).unwrap().opened().is_log_lost, "it was closed in order");
}

#[tokio::test]
async fn a_file_that_is_damaged_in_part_is_not_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("devices.db");
    let store = Embedded::open(options(&directory)).unwrap();
    for hundred in 0..20 {
        let named = |number: u32| DeviceEntry {
            serial: Serial::new(&format!("device-{hundred}-{number}")).unwrap(),
            ..entry(1)
        };
        store.put((0..100).map(named).collect(), 5).await.unwrap();
    }
    drop(store);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2 / 4_096 * 4_096;
    bytes[middle..middle + 4_096].fill(0x55);
    fs::write(&path, &bytes).unwrap();
    let error = error(reopen(&directory));
    assert!(error.contains("devices.db: is damaged: ") && error.contains("copy"), "{error}");
}

/// Both threads end, one after the other. The last connection that closes moves the log into the
/// file.
#[tokio::test]
async fn a_store_that_is_closed_is_one_whole_file() {
    for _ in 0..40 {
        let directory = tempfile::tempdir().unwrap();
        let store = stocked(&directory).await;
        assert_eq!(store.close().await, Ok(()));
        assert!(!directory.path().join("devices.db-wal").exists());
        assert!(matches!(store.count().await, Err(Error::Unavailable(_))), "it is closed");
        assert_eq!(store.close().await, Ok(()));
        assert_eq!(reopen(&directory).unwrap().opened().devices, 2, "another may have it");
    }
}
