//! Activation against a store in memory, and one that fails.

use std::sync::atomic::AtomicBool;

use weir_store::conformance::Memory;
use weir_store::{
    Answer, BatchLimits, Device, DeviceEntry, Hash, Holder, Issued, Page, Put, Revoked, Secrets,
    Store,
};

use super::*;

/// A store that can fail.
#[derive(Default)]
struct Flaky {
    memory: Memory,
    is_gone: AtomicBool,
}

impl Flaky {
    fn or_gone<'a, T: Send + 'a>(&self, answer: Answer<'a, T>) -> Answer<'a, T> {
        if self.is_gone.load(Ordering::Relaxed) {
            return Box::pin(async { Err(Error::Unavailable("gone".to_owned())) });
        }
        answer
    }
}

impl Store for Flaky {
    fn name(&self) -> &'static str {
        "flaky"
    }

    fn put(&self, entries: Vec<DeviceEntry>, now: Millis) -> Answer<'_, Vec<Put>> {
        self.or_gone(self.memory.put(entries, now))
    }

    fn issue(&self, issues: Vec<Issue>) -> Answer<'_, Vec<Result<Issued, Refusal>>> {
        self.or_gone(self.memory.issue(issues))
    }

    fn check(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        self.or_gone(self.memory.check(tokens, now))
    }

    fn revoke(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Revoked>> {
        self.or_gone(self.memory.revoke(serials))
    }

    fn find(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Option<Device>>> {
        self.or_gone(self.memory.find(serials))
    }

    fn list(&self, page: Page) -> Answer<'_, Vec<Device>> {
        self.or_gone(self.memory.list(page))
    }

    fn seen(&self, seen: Vec<(Serial, Millis)>) -> Answer<'_, ()> {
        self.or_gone(self.memory.seen(seen))
    }

    fn sweep(&self, now: Millis, limit: usize) -> Answer<'_, usize> {
        self.or_gone(self.memory.sweep(now, limit))
    }

    fn count(&self) -> Answer<'_, u64> {
        self.or_gone(self.memory.count())
    }

    fn probe(&self) -> Answer<'_, ()> {
        self.or_gone(self.memory.probe())
    }
}

struct Stage {
    store: Arc<Flaky>,
    devices: Arc<DeviceStore>,
    counters: Arc<Counters>,
    activator: Activator,
}

impl Stage {
    /// Devices `add` with key `abc`, and `gone` with key `abc` that is revoked.
    async fn new(config: &ActivationConfig) -> Stage {
        let store = Arc::<Flaky>::default();
        let shared: Arc<dyn Store> = store.clone();
        let secrets = Secrets::new(&[7; 32]);
        let limits = BatchLimits { batch_wait: Duration::ZERO, ..BatchLimits::default() };
        let devices = Arc::new(DeviceStore::new(shared, &limits, secrets));
        let entry = |serial: &str| {
            let serial = Serial::new(serial).unwrap();
            let key = devices.secrets().key_hash(&serial, "abc");
            DeviceEntry { serial, key, labels: Default::default() }
        };
        store.put(vec![entry("add"), entry("gone")], 1).await.unwrap();
        store.revoke(vec![Serial::new("gone").unwrap()]).await.unwrap();
        let counters = Arc::<Counters>::default();
        let activator = Activator::new(config, Arc::clone(&devices), Arc::clone(&counters));
        Stage { store, devices, counters, activator }
    }

    async fn activate(
        &self,
        source: u8,
        serial: &str,
        key: &str,
    ) -> Result<Activated, ActivationError> {
        let source = IpAddr::from([192, 0, 2, source]);
        self.activator.activate(RequestOrigin::Connection(Some(source)), serial, key).await
    }

    async fn holder(&self, token: &Token) -> Option<String> {
        let hash = self.devices.secrets().token_hash(token.as_str()).unwrap();
        let now = unix_millis();
        let holder = self.devices.batches().check(hash, now).await.unwrap();
        holder.map(|holder| holder.serial.to_string())
    }

    fn counted(&self, outcome: ActivationOutcome) -> u64 {
        self.counters.activation.of(outcome)
    }
}

#[tokio::test]
async fn a_key_gives_a_token_and_a_token_the_next_one() {
    let gateways = vec!["gate.example:7443".to_owned()];
    let config = ActivationConfig { gateways, grace: Duration::ZERO, ..Default::default() };
    let stage = Stage::new(&config).await;
    let first = stage.activate(1, "add", "abc").await.unwrap();
    assert_eq!(stage.holder(&first.token).await.as_deref(), Some("add"));
    assert_eq!(&*first.gateways, ["gate.example:7443"]);
    let ends_in = first.expires_at - unix_millis();
    assert!(ends_in <= millis(config.token_ttl) && ends_in > millis(config.token_ttl) - 60_000);
    let again = stage.activate(1, "add", "abc").await.unwrap();
    assert_eq!(stage.holder(&first.token).await, None, "without grace it has ended");
    let refreshed = stage
        .activator
        .refresh(RequestOrigin::Connection(None), again.token.as_str())
        .await
        .unwrap();
    assert_eq!(refreshed.serial.as_str(), "add");
    assert_eq!(stage.holder(&refreshed.token).await.as_deref(), Some("add"));
    let refused =
        stage.activator.refresh(RequestOrigin::Connection(None), again.token.as_str()).await;
    assert_eq!(refused.unwrap_err(), ActivationError::Unauthorized);
    use ActivationOutcome::{Again, First, InvalidToken, Refreshed};
    let counted = [First, Again, Refreshed, InvalidToken].map(|outcome| stage.counted(outcome));
    assert_eq!(counted, [1, 1, 1, 1]);
}

#[tokio::test]
async fn what_is_wrong_shows_in_the_counters_alone() {
    let stage = Stage::new(&ActivationConfig::default()).await;
    for (serial, key) in [("nobody", "abc"), ("add", "abd"), ("gone", "abc"), ("gone", "x")] {
        let refused = stage.activate(1, serial, key).await.unwrap_err();
        assert_eq!(refused, ActivationError::Unauthorized, "{serial}/{key}");
    }
    use ActivationOutcome::{Revoked, UnknownDevice, WrongKey};
    let counted = [UnknownDevice, WrongKey, Revoked].map(|outcome| stage.counted(outcome));
    assert_eq!(counted, [1, 1, 2]);
}

#[tokio::test]
async fn who_guesses_is_held_up_and_nobody_else() {
    let config = ActivationConfig {
        failures_per_source_per_minute: 1,
        failures_per_source_burst: 3,
        ..Default::default()
    };
    let stage = Stage::new(&config).await;
    for _ in 0..3 {
        assert_eq!(
            stage.activate(1, "add", "no").await.unwrap_err(),
            ActivationError::Unauthorized
        );
    }
    for key in ["no", "abc"] {
        let refused = stage.activate(1, "add", key).await.unwrap_err();
        assert!(
            matches!(refused, ActivationError::Limited(after) if after > Duration::ZERO),
            "{refused:?}"
        );
    }
    let token = stage.activate(2, "add", "abc").await.unwrap().token;
    let source = RequestOrigin::Connection(Some(IpAddr::from([192, 0, 2, 1])));
    let refused = stage.activator.refresh(source, token.as_str()).await.unwrap_err();
    assert!(matches!(refused, ActivationError::Limited(_)), "{refused:?}");
    assert_eq!(stage.counted(ActivationOutcome::Limited), 3);
    assert_eq!(stage.counted(ActivationOutcome::WrongKey), 3);
    // Successful attempts are never too many.
    for _ in 0..100 {
        stage.activate(2, "add", "abc").await.unwrap();
    }
}

#[tokio::test]
async fn without_the_limit_everybody_may_fail() {
    let config = ActivationConfig { failures_per_source_per_minute: 0, ..Default::default() };
    let stage = Stage::new(&config).await;
    for _ in 0..100 {
        assert_eq!(
            stage.activate(1, "add", "no").await.unwrap_err(),
            ActivationError::Unauthorized
        );
    }
}

#[tokio::test]
async fn what_cannot_be_is_named_and_not_asked_for() {
    let stage = Stage::new(&ActivationConfig::default()).await;
    stage.store.is_gone.store(true, Ordering::Relaxed);
    let long = "x".repeat(257);
    for (serial, key, at, says) in [
        ("", "k", "devSn", "devSn is empty"),
        (&long[..129], "k", "devSn", "devSn has 129 bytes; at most 128 are allowed"),
        ("a\0b", "k", "devSn", "devSn has the control character '\\0'"),
        ("a", "", "devKey", "devKey is empty"),
        ("a", &long, "devKey", "devKey has 257 bytes; at most 256 are allowed"),
        ("a", "\n", "devKey", "devKey has the control character '\\n'"),
    ] {
        let refused = stage.activate(1, serial, key).await.unwrap_err();
        assert_eq!(refused, ActivationError::Field { field: at, detail: says.to_owned() });
    }
    let refused = stage
        .activator
        .refresh(RequestOrigin::Connection(None), "no token at all")
        .await
        .unwrap_err();
    assert_eq!(refused, ActivationError::Unauthorized);
    assert_eq!(stage.counted(ActivationOutcome::Invalid), 6);
}

#[tokio::test]
async fn a_store_that_is_gone_is_no_failure_of_the_device() {
    let stage = Stage::new(&ActivationConfig::default()).await;
    stage.store.is_gone.store(true, Ordering::Relaxed);
    for _ in 0..100 {
        let refused = stage.activate(1, "add", "abc").await.unwrap_err();
        assert!(matches!(refused, ActivationError::Unavailable(_)), "{refused:?}");
    }
    stage.store.is_gone.store(false, Ordering::Relaxed);
    stage.activate(1, "add", "abc").await.unwrap();
    assert_eq!(stage.counted(ActivationOutcome::Unavailable), 100);
}

/// A source that sends all its guesses at once learns no more than with one after the other.
#[tokio::test]
async fn a_crowd_of_guesses_learns_no_more_than_the_burst() {
    let config = ActivationConfig {
        failures_per_source_per_minute: 1,
        failures_per_source_burst: 3,
        ..Default::default()
    };
    let stage = Stage::new(&config).await;
    let (activator, counters) = (Arc::new(stage.activator), stage.counters);
    let mut guesses = tokio::task::JoinSet::new();
    for number in 0..100 {
        let activator = Arc::clone(&activator);
        guesses.spawn(async move {
            let key = if number == 50 { "abc".to_owned() } else { format!("guess-{number}") };
            let origin = RequestOrigin::Datagram(IpAddr::from([192, 0, 2, 1]));
            activator.activate(origin, "add", &key).await
        });
    }
    let answers = guesses.join_all().await;
    let count = |wanted: fn(&ActivationError) -> bool| {
        answers.iter().filter(|answer| answer.as_ref().is_err_and(wanted)).count()
    };
    assert_eq!(count(|refused| *refused == ActivationError::Unauthorized), 3);
    assert_eq!(
        count(|refused| matches!(refused, ActivationError::Limited(_))),
        97,
        "the right one too"
    );
    assert_eq!(counters.activation.of(ActivationOutcome::Limited), 97);
}

/// Addresses of datagrams can be forged. Such datagrams must not keep the connections of an address
/// from activating.
#[tokio::test]
async fn failures_of_datagrams_are_counted_apart() {
    let config = ActivationConfig { failures_per_source_burst: 3, ..Default::default() };
    let stage = Stage::new(&config).await;
    let datagram = RequestOrigin::Datagram(IpAddr::from([192, 0, 2, 1]));
    for _ in 0..10 {
        assert!(stage.activator.activate(datagram, "add", "no").await.is_err());
    }
    let refused = stage.activator.activate(datagram, "add", "abc").await.unwrap_err();
    assert!(matches!(refused, ActivationError::Limited(_)), "{refused:?}");
    stage.activate(1, "add", "abc").await.unwrap();
}
