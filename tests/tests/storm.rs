//! A token storm: all devices connect at once to a gateway that has just started and knows none of their tokens. None
//! fails, and the store is asked for many at a time.
//!
//! Each test prints its figures (`--nocapture`). Variables make it larger:
//! - `WEIR_STORM_DEVICES`: how many connect (1,000);
//! - `WEIR_STORM_BATCH_WAIT_MS`: `store.batch_wait` (10, so that it shows on slow machines too; the default is 1).
//!
//! ```console
//! $ WEIR_STORM_DEVICES=10000 WEIR_STORM_BATCH_WAIT_MS=1 cargo test -p weir-tests --test storm -- --nocapture
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_tests::{Database, Device, Fleet, Member, Metrics, Redis, Server, now, raise_open_files};
use weir_wire::v1::{self, client_message, server_message};

/// How much is done.
struct Scale {
    devices: usize,
    batch_wait_ms: u64,
}

impl Scale {
    fn read() -> Result<Scale> {
        let number = |name: &str, default: usize| {
            let value = std::env::var(name).ok();
            value.map_or(Ok(default), |value| {
                value.parse().with_context(|| format!("{name} is a number"))
            })
        };
        Ok(Scale {
            devices: number("WEIR_STORM_DEVICES", 1_000)?,
            batch_wait_ms: number("WEIR_STORM_BATCH_WAIT_MS", 10)?.try_into()?,
        })
    }
}

/// What a storm was like.
struct Storm {
    devices: usize,
    /// Until all have said who they are, and until all have been let in.
    said: Duration,
    welcomed: Duration,
    /// All of the time in which the store may have been asked.
    took: Duration,
}

impl fmt::Display for Storm {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Storm { devices, said, welcomed, .. } = self;
        write!(
            out,
            "{devices} devices had said Hello in {said:.2?}, and were welcomed in {welcomed:.2?}"
        )
    }
}

/// Has all connect at once, and keeps them until all are there.
fn storm(server: &Server, members: &[Member]) -> Result<Storm> {
    let start = Barrier::new(THREADS + 1);
    let begun = now();
    let times = thread::scope(|scope| {
        let parts: Vec<_> = (0..THREADS)
            .map(|part| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let begun = now();
                    let mine = members.iter().skip(part).step_by(THREADS);
                    let mut devices =
                        mine.map(|member| greet(server.tcp, member)).collect::<Result<Vec<_>>>()?;
                    let said = begun.elapsed();
                    for device in &mut devices {
                        let heard = device.hear()?;
                        ensure!(
                            matches!(heard, Some(server_message::Kind::Welcome(_))),
                            "{heard:?}"
                        );
                    }
                    Ok((devices, said, begun.elapsed()))
                })
            })
            .collect();
        start.wait();
        parts
            .into_iter()
            .map(|part| part.join().ok().context("nobody panics")?)
            .collect::<Result<Vec<_>>>()
    })?;
    let took = begun.elapsed();
    let count = members.len() as f64;
    server.await_metrics("all devices", |metrics| {
        metrics.connections("settled") == count && metrics.sum("weir_devices", "") == count
    })?;
    let longest = |time: fn(&(Vec<Device>, Duration, Duration)) -> Duration| {
        times.iter().map(time).max().unwrap_or_default()
    };
    Ok(Storm {
        devices: members.len(),
        said: longest(|part| part.1),
        welcomed: longest(|part| part.2),
        took,
    })
}

/// Connects, and says whose token it has, without waiting for more.
fn greet(addr: SocketAddr, member: &Member) -> Result<Device> {
    let token = member.tokens.last().context("it is active")?.clone();
    let mut device = Device::connect(addr)?;
    device.send(client_message::Kind::Hello(v1::Hello { token, ..v1::Hello::default() }))?;
    Ok(device)
}

/// What a storm asked of what is before the store, since the gateway has started.
struct Asked {
    requests: f64,
    batches: f64,
    report: String,
}

impl Asked {
    fn of(server: &Server) -> Result<Asked> {
        let metrics = server.metrics()?;
        let checks = |name: &str| metrics.sum_of(name, &[("kind", "check")]);
        for failure in ["batches_failed", "requests_refused", "requests_timed_out"] {
            let count = checks(&format!("weir_store_{failure}_total"));
            ensure!(count == 0.0, "{failure}: {count}");
        }
        let (requests, batches) =
            (checks("weir_store_requests_total"), checks("weir_store_batches_total"));
        let peak = checks("weir_store_queue_depth_peak");
        let report = format!("{requests} checks in {batches} batches, at most {peak} waited");
        Ok(Asked { requests, batches, report })
    }

    /// Batches leave when they are full, or when their first has waited; none of them leaves a remainder but a full one.
    fn is_coalesced(&self, scale: &Scale, storm: &Storm) -> Result<()> {
        ensure!(self.requests == scale.devices as f64, "{}", self.report);
        let waits = storm.took.as_millis() / u128::from(scale.batch_wait_ms);
        let most = waits + 1 + 2 * (scale.devices / 512) as u128;
        ensure!(self.batches <= most as f64, "{}; {most} would do", self.report);
        Ok(())
    }
}

/// One storm at a time: each may need half of the descriptors that a process is given.
fn alone() -> Result<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    raise_open_files()?;
    Ok(ONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Imported and activated devices of a gateway that then is killed.
fn prepare(server: &mut Server, scale: &Scale) -> Result<Vec<Member>> {
    let members = Fleet::import(server, scale.devices)?;
    let members = Fleet::activate(server.http.context("it speaks HTTP")?, members)?;
    server.kill()?;
    Ok(members)
}

#[test]
fn the_embedded_store_is_asked_for_many_at_a_time() -> Result<()> {
    let _alone = alone()?;
    let scale = Scale::read()?;
    let mut server = Server::start_with_http(&format!(
        "[store]\npath = \"devices.db\"\nbatch_wait = \"{}ms\"\ntimeout = \"1m\"\n{PATIENT}",
        scale.batch_wait_ms
    ))?;
    let members = prepare(&mut server, &scale)?;
    server.restart()?;
    let storm = storm(&server, &members)?;
    let asked = Asked::of(&server)?;
    println!("embedded store: {storm}; {}", asked.report);
    asked.is_coalesced(&scale, &storm)
}

#[test]
fn the_database_is_asked_for_many_at_a_time_and_then_not_at_all() -> Result<()> {
    let _alone = alone()?;
    let scale = Scale::read()?;
    let (database, mut redis) = (Database::start()?, Redis::start()?);
    let mut server = Server::start_with_http(&format!(
        "[store]\nkind = \"mongodb\"\nhash_key = \"store.key\"\nbatch_wait = \"{}ms\"\ntimeout = \"1m\"\n\
         [store.mongodb]\nuri = \"{}\"\n[cache]\nredis = \"{}\"\ntimeout = \"10s\"\nttl = \"10m\"\n{PATIENT}",
        scale.batch_wait_ms,
        database.uri(),
        redis.url()
    ))?;
    let members = prepare(&mut server, &scale)?;
    // While no gateway runs: one that holds a connection to the old Redis asks the first batch in vain.
    redis.kill()?;
    redis.restart()?;
    server.restart()?;
    let cold = storm(&server, &members)?;
    let asked = Asked::of(&server)?;
    let metrics = server.metrics()?;
    let trips = metrics.sum_of("weir_store_circuit_requests_total", &[("of", "store")]);
    println!("MongoDB, Redis empty: {cold}; {}; {trips} trips to the database", asked.report);
    let looked_up = |metrics: &Metrics| {
        ["hit", "miss", "stale"]
            .map(|outcome| metrics.sum_of("weir_cache_lookups_total", &[("outcome", outcome)]))
    };
    let count = scale.devices as f64;
    assert_eq!(looked_up(&metrics), [0.0, count, 0.0]);
    asked.is_coalesced(&scale, &cold)?;
    // Every five seconds it is told who has come, of 500 at a time; once a minute what has ended is removed.
    let took = cold.took.as_secs_f64();
    let others = (count / 500.0 + took / 5.0 + 2.0) + (took / 60.0 + 1.0);
    assert!(trips <= asked.batches + others, "{trips}; {others} are no checks");

    // They come back, and Redis knows them all.
    server.await_metrics("an empty house", |metrics| metrics.is_empty_house())?;
    let warm = storm(&server, &members)?;
    println!("MongoDB, Redis warm: {warm}");
    assert_eq!(looked_up(&server.metrics()?), [count, count, 0.0]);
    Ok(())
}

/// As many connect at a time as there are threads.
const THREADS: usize = 8;
/// A slow machine is no failure.
const PATIENT: &str = "[connection]\nhello_timeout = \"1m\"\n";
