//! Redis in front of a store. A check that hits costs no request to the store, and works while the
//! store is down.
//!
//! There are two kinds of short-lived entries, and one that stays:
//! - `PREFIXt:HASH`: the holder of a token, as the store answered, with the generation of its
//!   device then;
//! - `PREFIXg:SERIAL`: the newest known generation of a device. It only rises, and lives twice as
//!   long;
//! - `PREFIXe`: the epoch, a random text that a gateway draws if it is missing. A Redis that was
//!   emptied gets another epoch.
//!
//! An entry of the first kind counts only if no entry of the second kind is newer. A change that
//! ends tokens raises the second kind after the store has answered and before the caller gets its
//! answer. So a check that begins then finds no ended token. A check that read the store before and
//! writes its entry afterwards writes an entry that does not count. If Redis was emptied in
//! between, it has forgotten the raised generation. Therefore the entry is written only in the
//! epoch of the look-up.
//!
//! A generation that Redis could not be told is owed to it. Until then this gateway believes no
//! entry in Redis. If the gateway that ended a token cannot reach Redis, other gateways may use an
//! entry until its short life ends.
//!
//! Limits: Redis must not evict entries of the second kind before those of the first
//! (`maxmemory-policy noeviction` or `volatile-ttl`). A person who can write to Redis can get
//! access with a token of their own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

use crate::breaker::{BreakerCounts, BreakerLimits};
use crate::contract::{Answer, Error, Store, StoreMemory};
use crate::records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Page, Put, Refusal, Revoked, Serial,
};

mod entry;
mod link;

use link::Link;

/// The address of Redis, and how the gateway uses it.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// The address: `redis://[[user]:password@]host[:port][/database]`.
    pub redis: String,
    /// The prefix of all entries' names.
    pub prefix: String,
    /// The life of an entry. For this time labels may be out of date, and tokens may be accepted
    /// from Redis alone while the store is down.
    pub ttl: Duration,
    /// The time that Redis has for a check, connecting included. After it the gateway asks the
    /// store instead. Writing the store's answer to Redis may take as long again.
    pub timeout: Duration,
    /// The largest number of commands on their way.
    pub in_flight_max: usize,
    /// When the gateway stops asking a failing Redis.
    pub breaker: BreakerLimits,
}

impl Default for CacheOptions {
    fn default() -> Self {
        CacheOptions {
            redis: "redis://127.0.0.1:6379".into(),
            prefix: "weir:".into(),
            ttl: Duration::from_secs(30),
            timeout: Duration::from_millis(200),
            in_flight_max: 1024,
            breaker: BreakerLimits::default(),
        }
    }
}

/// What is wrong with [`CacheOptions`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CacheOptionsError(String);

/// The counts of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Tokens found in the cache.
    pub hits: u64,
    /// Tokens for which the gateway asked the store instead, for any reason.
    pub misses: u64,
    /// Misses whose entry was there, but older than the last change of its device.
    pub stale: u64,
    /// Requests to Redis that failed.
    pub errors: u64,
    /// Devices whose generation Redis must still be told.
    pub owed: usize,
    /// Its circuit breaker.
    pub breaker: BreakerCounts,
}

/// A store with Redis in front of it.
pub struct Cached {
    store: Arc<dyn Store>,
    link: Link,
    prefix: Vec<u8>,
    ttl: Duration,
    debt: Mutex<Debt>,
    /// Held by the request that pays, so that not all requests pay at once.
    paying: tokio::sync::Mutex<()>,
    hits: AtomicU64,
    misses: AtomicU64,
    stale: AtomicU64,
    errors: AtomicU64,
}

/// The generations that Redis must still be told.
#[derive(Default)]
struct Debt {
    owed: HashMap<Serial, u64>,
    /// Set when the debt was too large to remember. Until this time no entry is believed;
    /// afterwards all of them have expired.
    waits_until: Option<Instant>,
}

impl Debt {
    /// A part of the debt.
    fn part(&self) -> HashMap<Serial, u64> {
        let some = self.owed.iter().take(PART_MAX);
        some.map(|(serial, generation)| (serial.clone(), *generation)).collect()
    }

    /// Removes what was paid, unless more is owed meanwhile.
    fn settle(&mut self, part: &HashMap<Serial, u64>) {
        for (serial, paid) in part {
            if self.owed.get(serial) == Some(paid) {
                self.owed.remove(serial);
            }
        }
    }
}

/// The answer of Redis about some tokens.
struct Found {
    holders: Vec<Option<Holder>>,
    /// The connection of that answer, and its epoch.
    said: Option<(MultiplexedConnection, Vec<u8>)>,
}

impl Cached {
    /// Puts Redis in front of a store. It connects only when needed, so a gateway can start while
    /// Redis is down.
    ///
    /// # Errors
    /// The options make no sense.
    pub fn new(store: Arc<dyn Store>, options: &CacheOptions) -> Result<Cached, CacheOptionsError> {
        let link = Link::new(options).map_err(|error| CacheOptionsError(error.to_string()))?;
        Ok(Cached {
            store,
            link,
            prefix: options.prefix.clone().into_bytes(),
            ttl: options.ttl,
            debt: Mutex::default(),
            paying: tokio::sync::Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        })
    }

    /// Its counts so far.
    pub fn counts(&self) -> CacheCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CacheCounts {
            hits: read(&self.hits),
            misses: read(&self.misses),
            stale: read(&self.stale),
            errors: read(&self.errors),
            owed: self.debt().owed.len(),
            breaker: self.link.breaker.counts(),
        }
    }

    /// Whether Redis answers.
    ///
    /// # Errors
    /// Redis does not answer, or its circuit is open because it did not.
    pub async fn ping(&self) -> Result<(), Error> {
        let ping = redis::cmd("PING");
        self.link.run::<()>(self.link.deadline(), &ping).await.map(drop)
    }

    async fn check_all(
        &self,
        tokens: Vec<Hash>,
        now: Millis,
    ) -> Result<Vec<Option<Holder>>, Error> {
        let Found { mut holders, said } = self.look_up(&tokens, now).await;
        let missing = holders.iter().zip(&tokens).filter(|(holder, _)| holder.is_none());
        let missing: Vec<Hash> = missing.map(|(_, token)| *token).collect();
        count(&self.misses, missing.len());
        let hits = tokens.len() - missing.len();
        if missing.is_empty() {
            count(&self.hits, hits);
            return Ok(holders);
        }
        let begun = Instant::now();
        let answers = self.store.check(missing.clone(), now).await?;
        if let Some(said) = said.filter(|_| begun.elapsed() < self.ttl / 2) {
            self.fill(said, &missing, &answers, now).await;
        }
        let gaps = holders.iter_mut().filter(|holder| holder.is_none());
        for (gap, answer) in gaps.zip(answers) {
            *gap = answer;
        }
        count(&self.hits, hits);
        Ok(holders)
    }

    /// Asks Redis without the store.
    async fn look_up(&self, tokens: &[Hash], now: Millis) -> Found {
        let nothing = || Found { holders: vec![None; tokens.len()], said: None };
        let until = self.link.deadline();
        if tokens.is_empty() || !self.is_even(until).await {
            return nothing();
        }
        match self.ask(until, tokens, now).await {
            Ok(found) => found,
            Err(_) => {
                count(&self.errors, 1);
                nothing()
            }
        }
    }

    async fn ask(&self, until: Instant, tokens: &[Hash], now: Millis) -> Result<Found, Error> {
        let mut ask = redis::cmd("MGET");
        ask.arg(self.epoch_key());
        for token in tokens {
            ask.arg(self.token_key(token));
        }
        let (entries, conn): (Vec<Option<Vec<u8>>>, _) = self.link.run(until, &ask).await?;
        let mut entries = entries.into_iter();
        let epoch = match entries.next().flatten() {
            Some(epoch) => epoch,
            None => self.begin_epoch(until, conn.clone()).await?,
        };
        let mut holders: Vec<Option<Holder>> =
            entries.map(|bytes| entry::decode(&bytes?)).collect();
        holders.resize(tokens.len(), None);
        if holders.iter().all(Option::is_none) {
            return Ok(Found { holders, said: Some((conn, epoch)) });
        }
        let mut ask = redis::cmd("MGET");
        for holder in holders.iter().flatten() {
            ask.arg(self.generation_key(&holder.serial));
        }
        let newest: Vec<Option<u64>> = self.link.run_on(until, conn.clone(), &ask).await?;
        let there = holders.iter_mut().filter(|holder| holder.is_some());
        for (entry, newest) in there.zip(newest) {
            let Some(holder) = entry else { continue };
            if newest.is_some_and(|newest| holder.generation < newest) {
                count(&self.stale, 1);
                *entry = None;
            } else if holder.expires <= now {
                *entry = None;
            }
        }
        Ok(Found { holders, said: Some((conn, epoch)) })
    }

    /// Draws an epoch for a Redis without one. Returns the epoch that Redis then has.
    async fn begin_epoch(
        &self,
        until: Instant,
        conn: MultiplexedConnection,
    ) -> Result<Vec<u8>, Error> {
        let drawn = format!("{:016x}", rand::random::<u64>());
        let mut begin = redis::pipe();
        // Another gateway may be drawing one as well.
        begin.cmd("SET").arg(self.epoch_key()).arg(drawn).arg("NX").ignore();
        begin.cmd("GET").arg(self.epoch_key());
        let (epoch,): (Vec<u8>,) = self.link.run_on(until, conn, &begin).await?;
        Ok(epoch)
    }

    /// Writes the store's answer to Redis, through the connection of the look-up before it and in
    /// its epoch. A Redis that has restarted or was emptied since then has forgotten generations,
    /// and does not get the entry.
    async fn fill(
        &self,
        (conn, epoch): (MultiplexedConnection, Vec<u8>),
        tokens: &[Hash],
        answers: &[Option<Holder>],
        now: Millis,
    ) {
        let (mut keys, mut values) = (vec![self.epoch_key()], Vec::new());
        for (token, holder) in tokens.iter().zip(answers) {
            let Some(holder) = holder else { continue };
            let left = Duration::from_millis(holder.expires.saturating_sub(now));
            let life = millis(left.min(self.ttl));
            if life > 0 {
                keys.push(self.token_key(token));
                values.push((entry::encode(holder), life));
            }
        }
        if values.is_empty() {
            return;
        }
        let mut eval = redis::cmd("EVAL");
        eval.arg(REMEMBER).arg(keys.len()).arg(keys).arg(epoch);
        for (holder, life) in values {
            eval.arg(holder).arg(life);
        }
        if self.link.run_on::<()>(self.link.deadline(), conn, &eval).await.is_err() {
            count(&self.errors, 1);
        }
    }

    /// Tells Redis the present generations of devices. If that fails, they are owed.
    async fn raise(&self, raised: HashMap<Serial, u64>) {
        if raised.is_empty() || self.tell(self.link.deadline(), &raised).await.is_ok() {
            return;
        }
        count(&self.errors, 1);
        let mut debt = self.debt();
        for (serial, generation) in raised {
            let owed = debt.owed.entry(serial).or_default();
            *owed = generation.max(*owed);
        }
        if debt.owed.len() > OWED_MAX {
            debt.owed = HashMap::new();
            debt.waits_until = Some(Instant::now() + self.ttl);
        }
    }

    /// Whether nothing is owed any more, after an attempt to pay for half of the available time. It
    /// pays part by part, because Redis could not take all in one answer's time.
    async fn is_even(&self, until: Instant) -> bool {
        if self.has_no_debt() {
            return true;
        }
        let Ok(_one) = self.paying.try_lock() else {
            return false;
        };
        let enough = until - self.link.timeout / 2;
        loop {
            let part = self.debt().part();
            if part.is_empty() {
                return self.has_no_debt();
            }
            if self.tell(until, &part).await.is_err() {
                count(&self.errors, 1);
                return false;
            }
            self.debt().settle(&part);
            if Instant::now() > enough {
                return self.has_no_debt();
            }
        }
    }

    fn has_no_debt(&self) -> bool {
        let mut debt = self.debt();
        debt.waits_until = debt.waits_until.filter(|until| Instant::now() < *until);
        debt.owed.is_empty() && debt.waits_until.is_none()
    }

    async fn tell(&self, until: Instant, raised: &HashMap<Serial, u64>) -> Result<(), Error> {
        let mut eval = redis::cmd("EVAL");
        eval.arg(RAISE).arg(raised.len());
        for serial in raised.keys() {
            eval.arg(self.generation_key(serial));
        }
        eval.arg(millis(self.ttl * 2));
        for generation in raised.values() {
            eval.arg(*generation);
        }
        self.link.run::<()>(until, &eval).await.map(|_| ())
    }

    async fn issue_all(&self, issues: Vec<Issue>) -> Result<Vec<Result<Issued, Refusal>>, Error> {
        let answers = self.store.issue(issues).await?;
        let mut raised = HashMap::new();
        // Before its first token a device has no token that could be in the cache.
        for issued in answers.iter().flatten().filter(|issued| !issued.is_first) {
            let newest = raised.entry(issued.serial.clone()).or_default();
            *newest = issued.generation.max(*newest);
        }
        self.raise(raised).await;
        Ok(answers)
    }

    async fn put_all(&self, entries: Vec<DeviceEntry>, now: Millis) -> Result<Vec<Put>, Error> {
        let serials: Vec<Serial> = entries.iter().map(|entry| entry.serial.clone()).collect();
        let answers = match self.store.put(entries, now).await {
            Ok(answers) => answers,
            Err(error) => {
                // Any of the items may have been carried out. A caller that repeats an item learns
                // only that nothing changes.
                self.raise(serials.into_iter().map(|serial| (serial, EVERY)).collect()).await;
                return Err(error);
            }
        };
        let changed = serials.into_iter().zip(&answers).filter(|(_, put)| match put {
            Put::Rekeyed | Put::Relabelled => true,
            Put::Added | Put::Unchanged => false,
        });
        self.raise(changed.map(|(serial, _)| (serial, EVERY)).collect()).await;
        Ok(answers)
    }

    async fn revoke_all(&self, serials: Vec<Serial>) -> Result<Vec<Revoked>, Error> {
        let answers = self.store.revoke(serials.clone()).await?;
        // Also for `Before`: the caller may repeat a revocation whose first attempt ended half-way.
        let shut = serials.into_iter().zip(&answers).filter(|(_, revoked)| match revoked {
            Revoked::Now | Revoked::Before => true,
            Revoked::Unknown => false,
        });
        self.raise(shut.map(|(serial, _)| (serial, EVERY)).collect()).await;
        Ok(answers)
    }

    fn epoch_key(&self) -> Vec<u8> {
        [&self.prefix, b"e".as_slice()].concat()
    }

    fn token_key(&self, token: &Hash) -> Vec<u8> {
        [&self.prefix, b"t:".as_slice(), &token.0].concat()
    }

    fn generation_key(&self, serial: &Serial) -> Vec<u8> {
        [&self.prefix, b"g:".as_slice(), serial.as_str().as_bytes()].concat()
    }

    fn debt(&self) -> MutexGuard<'_, Debt> {
        self.debt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Cached {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn put(&self, entries: Vec<DeviceEntry>, now: Millis) -> Answer<'_, Vec<Put>> {
        Box::pin(self.put_all(entries, now))
    }

    fn issue(&self, issues: Vec<Issue>) -> Answer<'_, Vec<Result<Issued, Refusal>>> {
        Box::pin(self.issue_all(issues))
    }

    fn check(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        Box::pin(self.check_all(tokens, now))
    }

    fn recall(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        Box::pin(async move {
            let holders = self.look_up(&tokens, now).await.holders;
            count(&self.hits, holders.iter().flatten().count());
            Ok(holders)
        })
    }

    fn revoke(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Revoked>> {
        Box::pin(self.revoke_all(serials))
    }

    fn find(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Option<Device>>> {
        self.store.find(serials)
    }

    fn list(&self, page: Page) -> Answer<'_, Vec<Device>> {
        self.store.list(page)
    }

    fn seen(&self, seen: Vec<(Serial, Millis)>) -> Answer<'_, ()> {
        self.store.seen(seen)
    }

    fn sweep(&self, now: Millis, limit: usize) -> Answer<'_, usize> {
        self.store.sweep(now, limit)
    }

    fn count(&self) -> Answer<'_, u64> {
        self.store.count()
    }

    fn probe(&self) -> Answer<'_, ()> {
        self.store.probe()
    }

    fn memory(&self) -> StoreMemory {
        self.store.memory()
    }

    fn close(&self) -> Answer<'_, ()> {
        self.store.close()
    }
}

fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(u64::try_from(by).unwrap_or(u64::MAX), Ordering::Relaxed);
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Newer than every generation, so that no entry of the device counts. The largest whole number
/// that is exact in Lua.
const EVERY: u64 = 1 << 53;

/// The largest number of owed devices, at about 150 bytes each. Beyond it the gateway does not
/// believe Redis for the life of an entry.
const OWED_MAX: usize = 65_536;

/// Owed devices in one command. Redis then does nothing else for some milliseconds.
const PART_MAX: usize = 512;

/// Sets entries in the epoch that is the first argument. The value and the life of each further key
/// follow.
const REMEMBER: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then
  for place = 2, #KEYS do
    redis.call('SET', KEYS[place], ARGV[2 * place - 2], 'PX', ARGV[2 * place - 1])
  end
end
return redis.status_reply('OK')";

/// Raises generations and renews their life. The keys are those of devices; the arguments are their
/// life and the values.
const RAISE: &str = "\
for place, key in ipairs(KEYS) do
  local known, new = redis.call('GET', key), ARGV[place + 1]
  if known and tonumber(known) > tonumber(new) then
    redis.call('PEXPIRE', key, ARGV[1])
  else
    redis.call('SET', key, new, 'PX', ARGV[1])
  end
end
return redis.status_reply('OK')";

#[cfg(test)]
mod tests;
