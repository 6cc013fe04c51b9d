//! What happens while Redis or the database are away, and after: nothing that was answered is lost, nobody waits without
//! end, and all comes back by itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_store::{
    BatchLimits, Batches, BreakerLimits, CacheOptions, Cached, Circuit, DeviceEntry, Error,
    Guarded, Hash, Issue, Millis, Mongo, MongoOptions, Proof, Put, Revoked, Serial, Store,
};
use weir_tests::{Database, Proxy, Redis};

const NOW: Millis = 1_790_000_000_000;
const DAY: Millis = 86_400_000;
/// Longer than any limit below: who waits longer waits without end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the database may take where it is there all the time, on a slow machine too.
const ALWAYS_THERE: Duration = Duration::from_secs(20);
/// The same where it goes away: whoever asks waits for the end of this, or for half of it.
const GOES_AWAY: Duration = Duration::from_millis(1_500);
/// How long Redis may take: where it is away it refuses at once.
const REDIS: Duration = Duration::from_secs(10);
/// How long an item may take: the database, and Redis before and after it.
const ITEM: Duration = Duration::from_secs(40);
/// A token that no device is given.
const NOBODYS: u64 = u64::MAX;

const BREAKER: BreakerLimits = BreakerLimits {
    failures_max: 3,
    pause_min: Duration::from_millis(20),
    pause_max: Duration::from_millis(200),
};

/// A gateway's way to its devices.
struct Way {
    batches: Batches,
    cached: Arc<Cached>,
    guarded: Arc<Guarded>,
    /// The same database for what is no part of the outage, with all the time of a slow machine.
    patient: Mongo,
}

impl Way {
    async fn new(uri: String, redis: String, timeout: Duration) -> Way {
        let create = true;
        let options = MongoOptions { uri, timeout: PATIENCE, create, ..MongoOptions::default() };
        let patient = Mongo::new(&options).await.expect("good options");
        let options = MongoOptions { timeout, ..options };
        let mongo: Arc<dyn Store> = Arc::new(Mongo::new(&options).await.expect("good options"));
        let guarded = Arc::new(Guarded::new(mongo, &BREAKER));
        let options =
            CacheOptions { redis, timeout: REDIS, breaker: BREAKER, ..CacheOptions::default() };
        let cached = Cached::new(Arc::clone(&guarded) as Arc<dyn Store>, &options);
        let cached = cached.expect("good options");
        let cached = Arc::new(cached);
        let limits = BatchLimits {
            batch_max: 16,
            in_flight_max: 4,
            timeout: ITEM,
            ..BatchLimits::default()
        };
        let batches = Batches::new(Arc::clone(&cached) as Arc<dyn Store>, &limits);
        Way { batches, cached, guarded, patient }
    }

    async fn import(&self, devices: u64) {
        let entries = (0..devices).map(|number| DeviceEntry {
            serial: serial(number),
            key: hash(number, 0),
            labels: BTreeMap::new(),
        });
        let puts = self.patient.put(entries.collect(), NOW).await.expect("it is up");
        assert!(puts.iter().all(|put| *put == Put::Added));
    }

    /// Activates a device; whether that was answered.
    async fn activate(&self, device: u64, token: u64) -> bool {
        let proof = Proof::Key { serial: serial(device), key: hash(device, 0) };
        let token = hash(device, token);
        let issue = Issue { proof, token, now: NOW, expires: NOW + DAY, grace_until: NOW };
        match within(self.batches.issue(issue)).await {
            Ok(issued) => {
                issued.expect("the key is right");
                true
            }
            Err(Error::Unavailable(_) | Error::TimedOut(_)) => false,
            Err(
                error @ (Error::Overloaded(_)
                | Error::Lost(_)
                | Error::Damaged(_)
                | Error::OtherSecrets),
            ) => {
                panic!("{error}")
            }
        }
    }

    async fn check(&self, device: u64, token: u64) -> Result<bool, Error> {
        let holder = within(self.batches.check(hash(device, token), NOW)).await?;
        Ok(holder.inspect(|holder| assert_eq!(holder.serial, serial(device))).is_some())
    }

    /// Activates a device until that is answered; with which token it was.
    async fn activate_until(&self, device: u64, mut token: u64) -> u64 {
        // Each attempt has a token of its own.
        while !self.activate(device, token).await {
            token += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        token
    }

    /// Checks until that is answered.
    async fn check_until(&self, device: u64, token: u64) -> bool {
        loop {
            if let Ok(is_valid) = self.check(device, token).await {
                return is_valid;
            }
        }
    }

    /// Activates each device until that is answered, and all again until `event` is over, which happens when a third
    /// has been; the last token of each.
    async fn activate_all(
        self: &Arc<Self>,
        devices: u64,
        event: impl Future<Output = ()>,
    ) -> BTreeMap<u64, u64> {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut tasks = tokio::task::JoinSet::new();
        for worker in 0..WORKERS {
            let (way, is_over) = (Arc::clone(self), Arc::clone(&is_over));
            tasks.spawn(async move {
                let own = (0..devices).filter(|device| device % WORKERS == worker);
                let mut tokens: BTreeMap<u64, u64> = own.map(|device| (device, 0)).collect();
                loop {
                    for (device, token) in &mut tokens {
                        *token = way.activate_until(*device, *token + 1).await;
                    }
                    if is_over.load(Ordering::Relaxed) {
                        return tokens;
                    }
                }
            });
        }
        until(|| self.batches.counts().issues.items > devices / 3).await;
        event.await;
        is_over.store(true, Ordering::Relaxed);
        tasks.join_all().await.into_iter().flatten().collect()
    }

    /// All that were answered are stored.
    async fn are_there(&self, tokens: &BTreeMap<u64, u64>) {
        let hashes = tokens.iter().map(|(device, token)| hash(*device, *token)).collect();
        let holders = self.patient.check(hashes, NOW).await.expect("it is up");
        let there: Vec<_> = holders.into_iter().flatten().map(|holder| holder.serial).collect();
        let expected: Vec<_> = (0..DEVICES).map(serial).collect();
        assert_eq!(there, expected);
    }
}

const WORKERS: u64 = 32;
const DEVICES: u64 = 2_000;

fn serial(number: u64) -> Serial {
    Serial::new(&format!("d{number:05}")).expect("a serial")
}

/// The hash of a device's key, which is number 0, or of one of its tokens.
fn hash(device: u64, number: u64) -> Hash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&device.to_be_bytes());
    hash[8..16].copy_from_slice(&number.to_be_bytes());
    Hash(hash)
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("nobody waits without end")
}

async fn until(mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(wait).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_killed_and_started_again_costs_no_activation() {
    let (database, mut redis) = (Database::start().unwrap(), Redis::start().unwrap());
    let way = Arc::new(Way::new(database.uri(), redis.url(), ALWAYS_THERE).await);
    way.import(DEVICES).await;
    let event = async {
        // Something that goes through Redis while it dies.
        assert_eq!(way.check(0, NOBODYS).await, Ok(false));
        redis.kill().unwrap();
        for _ in 0..5 {
            assert_eq!(way.check(0, NOBODYS).await, Ok(false), "the database answers");
        }
        until(|| way.cached.counts().breaker.circuit == Circuit::Open).await;
        redis.restart().unwrap();
    };
    let tokens = way.activate_all(DEVICES, event).await;
    way.are_there(&tokens).await;
    // It comes back by itself.
    let hits = way.cached.counts().hits;
    let back = async {
        while way.cached.counts().hits == hits {
            assert_eq!(way.check(0, tokens[&0]).await, Ok(true));
        }
    };
    within(back).await;
    let counts = way.batches.counts();
    assert_eq!((counts.issues.failed, counts.checks.failed), (0, 0), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_stopped_and_started_again_has_all_that_was_answered() {
    let (mut database, redis) = (Database::start_with_file().unwrap(), Redis::start().unwrap());
    let way = Arc::new(Way::new(database.uri(), redis.url(), GOES_AWAY).await);
    way.import(DEVICES).await;
    let event = async {
        database.stop().unwrap();
        until(|| way.guarded.breaker().counts().circuit != Circuit::Closed).await;
        database.restart().unwrap();
    };
    let tokens = way.activate_all(DEVICES, event).await;
    assert!(way.batches.counts().issues.failed > 0, "the outage was noticed");
    way.are_there(&tokens).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_is_cut_off_cached_tokens_are_valid() {
    for freezes in [false, true] {
        let (database, redis) = (Database::start().unwrap(), Redis::start().unwrap());
        let proxy = Proxy::start(database.addr).unwrap();
        let uri = format!("mongodb://{}", proxy.addr);
        let way = Arc::new(Way::new(uri, redis.url(), GOES_AWAY).await);
        way.import(20).await;
        let mut tokens = BTreeMap::new();
        for device in 0..20 {
            tokens.insert(device, way.activate_until(device, 1).await);
        }
        for device in 0..10 {
            assert!(within(way.check_until(device, tokens[&device])).await);
        }
        if freezes {
            proxy.freeze();
        } else {
            proxy.cut();
        }
        // Known and unknown ones in one batch: the unknown ones do not take the known ones with them.
        let checks = (0..20).map(|device| way.check(device, tokens[&device]));
        for (device, result) in (0..).zip(join_all(checks).await) {
            match result {
                Ok(is_valid) => assert!(is_valid && device < 10, "{device}"),
                Err(Error::Unavailable(_) | Error::TimedOut(_)) => {
                    assert!(device >= 10, "{device}")
                }
                Err(
                    error @ (Error::Overloaded(_)
                    | Error::Lost(_)
                    | Error::Damaged(_)
                    | Error::OtherSecrets),
                ) => {
                    panic!("{error}")
                }
            }
        }
        assert!(!way.activate(0, tokens[&0] + 1).await);
        until_circuit_is(&way, Circuit::Open).await;
        proxy.heal();
        let token = tokens[&0] + 2;
        let back = async { while !way.activate(0, token).await {} };
        within(back).await;
        assert!(within(way.check_until(0, token)).await);
        let is_valid = within(way.check_until(0, tokens[&0])).await;
        assert!(!is_valid, "it was replaced without a time of grace");
        assert!(within(way.check_until(15, tokens[&15])).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_that_redis_was_not_told_holds_nevertheless() {
    let (database, redis) = (Database::start().unwrap(), Redis::start().unwrap());
    let proxy = Proxy::start(redis.addr).unwrap();
    let way = Way::new(database.uri(), format!("redis://{}", proxy.addr), ALWAYS_THERE).await;
    let other = Way::new(database.uri(), redis.url(), ALWAYS_THERE).await;
    way.import(2).await;
    for device in 0..2 {
        assert!(way.activate(device, 1).await);
        for _ in 0..2 {
            assert_eq!(way.check(device, 1).await, Ok(true));
            assert_eq!(other.check(device, 1).await, Ok(true));
        }
    }
    // What one gateway revokes, the other one knows at once.
    assert_eq!(way.cached.revoke(vec![serial(1)]).await, Ok(vec![Revoked::Now]));
    assert_eq!(other.check(1, 1).await, Ok(false));

    proxy.cut();
    assert_eq!(way.cached.revoke(vec![serial(0)]).await, Ok(vec![Revoked::Now]));
    assert_eq!(way.cached.counts().owed, 1);
    assert_eq!(way.check(0, 1).await, Ok(false), "the database answers");
    proxy.heal();
    let told = async {
        while way.cached.counts().owed > 0 {
            assert_eq!(way.check(0, 1).await, Ok(false));
        }
    };
    within(told).await;
    assert_eq!(way.check(0, 1).await, Ok(false));
    assert_eq!(other.check(0, 1).await, Ok(false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_is_owed_is_paid_in_parts() {
    let (database, mut redis) = (Database::start().unwrap(), Redis::start().unwrap());
    let way = Way::new(database.uri(), redis.url(), ALWAYS_THERE).await;
    way.import(DEVICES).await;
    redis.kill().unwrap();
    let all: Vec<Serial> = (0..DEVICES).map(serial).collect();
    // The database is not what is tested here.
    let cached = Cached::new(
        Arc::new(way.patient),
        &CacheOptions { redis: redis.url(), ..CacheOptions::default() },
    );
    let cached = cached.expect("good options");
    assert_eq!(cached.revoke(all).await.map(|revoked| revoked.len() as u64), Ok(DEVICES));
    assert_eq!(cached.counts().owed as u64, DEVICES);
    redis.restart().unwrap();
    let paid = async {
        while cached.counts().owed > 0 {
            assert_eq!(cached.check(vec![hash(0, 1)], NOW).await, Ok(vec![None]));
        }
    };
    within(paid).await;
    let stats = redis.command("INFO commandstats").unwrap();
    let calls = stats.split_once("cmdstat_eval:calls=").expect("it was told").1;
    let calls: u64 = calls.split(',').next().unwrap().parse().unwrap();
    assert!(
        calls >= DEVICES / 512,
        "one command would hold up Redis, and take longer than it may: {stats}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_checks_is_few_trips_to_the_database() {
    let (database, redis) = (Database::start().unwrap(), Redis::start().unwrap());
    let way = Arc::new(Way::new(database.uri(), redis.url(), ALWAYS_THERE).await);
    way.import(DEVICES).await;
    let tokens = way.activate_all(DEVICES, async {}).await;
    let limits = BatchLimits { timeout: PATIENCE, ..BatchLimits::default() };
    let batches = Batches::new(Arc::clone(&way.cached) as Arc<dyn Store>, &limits);
    let hashes = (0..DEVICES * 5).map(|number| number % DEVICES);
    let hashes = hashes.map(|device| hash(device, tokens[&device]));
    let checks = hashes.map(|hash| batches.check(hash, NOW));
    for (number, holder) in (0..).zip(join_all(checks).await) {
        assert_eq!(holder.unwrap().unwrap().serial, serial(number % DEVICES));
    }
    let counts = batches.counts().checks;
    assert_eq!(counts.items, DEVICES * 5);
    assert!(counts.batches < 100, "{counts:?}");
}

async fn until_circuit_is(way: &Way, circuit: Circuit) {
    let wait = async {
        while way.guarded.breaker().counts().circuit != circuit {
            let _ = way.activate(1, 2).await;
        }
    };
    within(wait).await;
}

/// Runs all at once, in one task; their results in their order.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut is_ready = true;
        for (future, result) in &mut waiting {
            if result.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *result = Some(value),
                    std::task::Poll::Pending => is_ready = false,
                }
            }
        }
        if is_ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    waiting.into_iter().filter_map(|(_, result)| result).collect()
}
