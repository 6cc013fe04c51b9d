//! The gateway, Redis and the database are killed, stopped and cut off while devices activate: whatever was answered is
//! there afterwards and nothing twice, and all recovers by itself.
//!
//! Each test prints its figures (`--nocapture`). Variables make it larger:
//! - `WEIR_OUTAGE_ACTIVATIONS`: activations that are answered at least, in each test (1,000);
//! - `WEIR_OUTAGE_TIMES`: outages among them, as evenly as they are noticed (2);
//! - `WEIR_OUTAGE_CLIENTS`: connections that devices activate by (32).
//!
//! ```console
//! $ WEIR_OUTAGE_ACTIVATIONS=50000 WEIR_OUTAGE_TIMES=10 WEIR_OUTAGE_CLIENTS=64 \
//!     cargo test -p weir-tests --test outages -- --nocapture --test-threads 1
//! ```

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_tests::{
    Database, Device, Fleet, Line, Member, Metrics, OWN_TOPICS, PATIENCE, Proxy, Redis, Server, now,
};
use weir_wire::CloseReason;
use weir_wire::v1::{self, client_message, server_message};

/// A gateway whose devices are in its own file.
const EMBEDDED: &str = "[store]\npath = \"devices.db\"\n";
/// Only the newest token counts, and all devices are at one address, as are all tokens that no longer hold.
const LIMITS: &str = "[auth]\nfailures_per_source_per_second = 0\n[activation]\ngrace = \"0ms\"\nfailures_per_source_per_minute = 0\n";
/// Within that nobody waits for the store any more: `store.timeout` is 2 s, and the machine may be slow.
const BOUND: Duration = Duration::from_secs(20);
/// What [`BOUND`] is about.
const IN_TWO_SECONDS: &str = "timeout = \"2s\"";
/// What waits for the store at most, unless less is configured.
const QUEUE_MAX: usize = 16_384;

/// What outages have cost.
#[derive(Default)]
struct Figures {
    /// From the moment that everything is there again to the next answer.
    recoveries: Vec<Duration>,
    /// The most that has waited for the store, of issues and of checks, and what found no room.
    peaks: [f64; 2],
    refused: f64,
}

/// How much is done.
struct Scale {
    activations: u64,
    times: u64,
    clients: usize,
}

impl Scale {
    fn read() -> Result<Scale> {
        let number = |name: &str, default: u64| {
            let value = std::env::var(name).ok();
            value.map_or(Ok(default), |value| {
                value.parse().with_context(|| format!("{name} is a number"))
            })
        };
        Ok(Scale {
            activations: number("WEIR_OUTAGE_ACTIVATIONS", 1_000)?,
            times: number("WEIR_OUTAGE_TIMES", 2)?,
            clients: usize::try_from(number("WEIR_OUTAGE_CLIENTS", 32)?)?,
        })
    }

    /// About as many as may be asked at once, so that an outage fills the queue.
    fn queue_max(&self) -> usize {
        self.clients / 2
    }
}

impl Figures {
    /// Before the process ends that counts.
    fn look(&mut self, server: &Server) -> Result<()> {
        let metrics = server.metrics()?;
        for (peak, kind) in self.peaks.iter_mut().zip(["issue", "check"]) {
            *peak = peak.max(metrics.sum_of("weir_store_queue_depth_peak", &[("kind", kind)]));
        }
        self.refused += metrics.sum("weir_store_requests_refused_total", "");
        Ok(())
    }
}

/// Has devices activate, and brings about outages meanwhile; the requests that failed, and what there is to tell.
fn endure(
    what: &str,
    server: &mut Server,
    queue_max: usize,
    mut outage: impl FnMut(u64, &mut Server, &Fleet, &mut Figures) -> Result<()>,
) -> Result<(u64, String)> {
    let Scale { activations, times, clients } = Scale::read()?;
    let members = Fleet::import(server, usize::try_from(activations / 2)?)?;
    let mut figures = Figures::default();
    let begun = now();
    let fleet = Fleet::start(server.http.context("it speaks HTTP")?, members, clients);
    for time in 1..=times {
        fleet.await_answered(activations * time / (times + 1))?;
        outage(time, server, &fleet, &mut figures)?;
    }
    fleet.await_answered(activations)?;
    let (members, tally) = fleet.end()?;
    let took = begun.elapsed();
    figures.look(server)?;
    let [issues, checks] = figures.peaks;
    ensure!(issues.max(checks) <= queue_max as f64, "{issues} and {checks} of {queue_max} waited");
    let answered: usize = members.iter().map(|member| member.tokens.len()).sum();
    Fleet::verify(server, members)?;
    let mut recoveries = figures.recoveries;
    recoveries.sort();
    let (median, worst) = (recoveries[recoveries.len() / 2], recoveries[recoveries.len() - 1]);
    let report = format!(
        "{what}, {times} times: {answered} activations answered in {took:.1?} and all there; {tally}; \
         recovery median {median:.2?}, worst {worst:.2?}; at most {issues} issues and {checks} checks of {queue_max} \
         waited, {} found no room",
        figures.refused
    );
    Ok((tally.failed.values().sum(), report))
}

/// Kills the gateway, and starts it again.
fn kill_gateway(_: u64, server: &mut Server, fleet: &Fleet, figures: &mut Figures) -> Result<()> {
    figures.look(server)?;
    server.kill()?;
    fleet.await_failed(fleet.failed() + 1)?;
    let begun = now();
    server.restart()?;
    figures.recoveries.push(fleet.next_answer(begun)?);
    Ok(())
}

#[test]
fn the_gateway_is_killed_with_the_embedded_store() -> Result<()> {
    let mut server = Server::start_with_http(&format!("{EMBEDDED}{LIMITS}{OWN_TOPICS}"))?;
    let (_, report) =
        endure("gateway killed, embedded store", &mut server, QUEUE_MAX, kill_gateway)?;
    println!("{report}");
    Ok(())
}

#[test]
fn the_gateway_is_killed_with_mongodb_and_redis() -> Result<()> {
    let (database, redis) = (Database::start()?, Redis::start()?);
    let mut server = start(&database.uri(), &redis, QUEUE_MAX, IN_TWO_SECONDS)?;
    let (_, report) =
        endure("gateway killed, MongoDB and Redis", &mut server, QUEUE_MAX, kill_gateway)?;
    println!("{report}");
    Ok(())
}

/// Kills Redis, and starts it again; meanwhile devices activate as before.
fn kill_redis(
    redis: &mut Redis,
    server: &Server,
    fleet: &Fleet,
    figures: &mut Figures,
) -> Result<()> {
    redis.kill()?;
    server.await_metrics("an open circuit", |metrics| is_open(metrics, "cache"))?;
    fleet.await_answered(fleet.answered() + 100)?;
    redis.restart()?;
    let begun = now();
    server.await_metrics("a closed circuit", |metrics| {
        !is_open(metrics, "cache") && metrics.sum("weir_cache_owed", "") == 0.0
    })?;
    figures.recoveries.push(begun.elapsed());
    Ok(())
}

fn is_open(metrics: &Metrics, of: &str) -> bool {
    metrics.sum_of("weir_store_circuit_open", &[("of", of)]) > 0.0
}

#[test]
fn redis_is_killed_before_the_embedded_store() -> Result<()> {
    let mut redis = Redis::start()?;
    let cache = format!("[cache]\nredis = \"{}\"\n", redis.url());
    // None may fail, however slow the machine is.
    let mut server = Server::start_with_http(&format!(
        "{EMBEDDED}timeout = \"1m\"\n{cache}{LIMITS}{OWN_TOPICS}"
    ))?;
    let (failed, report) = endure(
        "Redis killed, embedded store",
        &mut server,
        QUEUE_MAX,
        |_, server, fleet, figures| kill_redis(&mut redis, server, fleet, figures),
    )?;
    println!("{report}");
    assert_eq!(failed, 0, "the store answers instead");
    Ok(())
}

#[test]
fn redis_is_killed_before_mongodb() -> Result<()> {
    let (database, mut redis) = (Database::start()?, Redis::start()?);
    let mut server = start(&database.uri(), &redis, QUEUE_MAX, "timeout = \"1m\"")?;
    let (failed, report) =
        endure("Redis killed, MongoDB", &mut server, QUEUE_MAX, |_, server, fleet, figures| {
            kill_redis(&mut redis, server, fleet, figures)
        })?;
    println!("{report}");
    assert_eq!(failed, 0, "the database answers instead");
    Ok(())
}

/// A device whose token Redis knows.
struct Resident {
    line: Line,
    member: Member,
    tcp: SocketAddr,
}

impl Resident {
    fn new(server: &Server) -> Result<Resident> {
        let line = Line::new(server.http.context("it speaks HTTP")?);
        let member = Member::import(server, "resident")?;
        Ok(Resident { line, member, tcp: server.tcp })
    }

    fn activate(&mut self) -> Result<()> {
        let deadline = now() + PATIENCE;
        // A slow database may be late.
        while self.member.activate(&mut self.line)?.status != 200 {
            ensure!(now() < deadline, "it is not activated");
        }
        loop {
            match self.greeted()? {
                Some(server_message::Kind::Goodbye(told)) if told.code == unavailable() => {
                    ensure!(now() < deadline, "it is not admitted: {told:?}");
                }
                heard => return is_welcome(heard.as_ref()),
            }
        }
    }

    /// With the token that it has.
    fn connect(&self) -> Result<()> {
        is_welcome(self.greeted()?.as_ref())
    }

    /// What a new connection is told first.
    fn greeted(&self) -> Result<Option<server_message::Kind>> {
        let mut device = Device::connect(self.tcp)?;
        greet(&mut device, &self.member)?;
        device.hear()
    }

    /// While the database is down: no token is given, which is said in time, and those that there are let in.
    fn is_bounded(&mut self) -> Result<()> {
        let begun = now();
        let refused = self.member.activate(&mut self.line)?;
        ensure!(refused.status == 503, "{refused:?}");
        ensure!(refused.head.to_ascii_lowercase().contains("retry-after: "), "{refused:?}");
        ensure!(begun.elapsed() < BOUND, "a refusal took {:?}", begun.elapsed());
        self.connect()
    }
}

fn is_welcome(heard: Option<&server_message::Kind>) -> Result<()> {
    ensure!(matches!(heard, Some(server_message::Kind::Welcome(_))), "{heard:?}");
    Ok(())
}

fn unavailable() -> u32 {
    CloseReason::StoreUnavailable.code().into()
}

/// Has a device show its token.
fn greet(device: &mut Device, member: &Member) -> Result<()> {
    let token = member.tokens.last().context("it is active")?.clone();
    device.send(client_message::Kind::Hello(v1::Hello { token, ..v1::Hello::default() }))
}

/// A gateway with MongoDB and Redis, and this TOML about its store.
fn start(uri: &str, redis: &Redis, queue_max: usize, store: &str) -> Result<Server> {
    Server::start_with_http(&format!(
        "[store]\nkind = \"mongodb\"\nhash_key = \"store.key\"\nqueue_max = {queue_max}\n{store}\n\
         [store.mongodb]\nuri = \"{uri}\"\n[cache]\nredis = \"{}\"\nttl = \"10m\"\n{LIMITS}{OWN_TOPICS}",
        redis.url()
    ))
}

/// Has the database go and come back, while a resident comes and goes.
fn lose_database(
    server: &Server,
    fleet: &Fleet,
    figures: &mut Figures,
    resident: &mut Resident,
    lose: impl FnOnce() -> Result<()>,
    bring_back: impl FnOnce() -> Result<()>,
) -> Result<()> {
    resident.activate()?;
    lose()?;
    server.await_metrics("an open circuit", |metrics| is_open(metrics, "store"))?;
    resident.is_bounded()?;
    fleet.await_failed(fleet.failed() + 100)?;
    bring_back()?;
    let begun = now();
    figures.recoveries.push(fleet.next_answer(begun)?);
    server.await_metrics("a closed circuit", |metrics| !is_open(metrics, "store"))?;
    Ok(())
}

#[test]
fn the_database_is_stopped() -> Result<()> {
    let (mut database, redis) = (Database::start_with_file()?, Redis::start()?);
    let queue_max = Scale::read()?.queue_max();
    let mut server = start(&database.uri(), &redis, queue_max, IN_TWO_SECONDS)?;
    let mut resident = Resident::new(&server)?;
    let (_, report) =
        endure("database stopped", &mut server, queue_max, |_, server, fleet, figures| {
            let database = RefCell::new(&mut database);
            let (stop, restart) =
                (|| database.borrow_mut().stop(), || database.borrow_mut().restart());
            lose_database(server, fleet, figures, &mut resident, stop, restart)
        })?;
    println!("{report}");
    Ok(())
}

#[test]
fn the_database_is_cut_off() -> Result<()> {
    let (database, redis) = (Database::start()?, Redis::start()?);
    let proxy = Proxy::start(database.addr)?;
    let queue_max = Scale::read()?.queue_max();
    let mut server =
        start(&format!("mongodb://{}", proxy.addr), &redis, queue_max, IN_TWO_SECONDS)?;
    let mut resident = Resident::new(&server)?;
    let (_, report) =
        endure("database cut off", &mut server, queue_max, |time, server, fleet, figures| {
            // In turn: connections are closed and refused, or nothing answers any more.
            let cut = || if time % 2 == 0 { proxy.cut() } else { proxy.freeze() };
            let (cut, heal) = (
                || {
                    cut();
                    Ok(())
                },
                || {
                    proxy.heal();
                    Ok(())
                },
            );
            lose_database(server, fleet, figures, &mut resident, cut, heal)
        })?;
    println!("{report}");
    Ok(())
}

#[test]
fn a_known_token_does_not_wait_in_vain_beside_an_unknown_one() -> Result<()> {
    let (database, redis) = (Database::start()?, Redis::start()?);
    let proxy = Proxy::start(database.addr)?;
    // Both in one batch, and time enough between the database's limit and that of who waits.
    let times = "timeout = \"8s\"\nbatch_wait = \"1s\"";
    let server = start(&format!("mongodb://{}", proxy.addr), &redis, QUEUE_MAX, times)?;
    let mut known = Resident::new(&server)?;
    let mut unknown = Member::import(&server, "unknown")?;
    known.activate()?;
    ensure!(unknown.activate(&mut known.line)?.status == 200);
    let batches = |metrics: &Metrics| metrics.sum("weir_store_batches_total", "kind=\"check\"");
    let before = batches(&server.metrics()?);
    proxy.freeze();
    let (mut one, mut other) = (Device::connect(server.tcp)?, Device::connect(server.tcp)?);
    greet(&mut one, &known.member)?;
    greet(&mut other, &unknown)?;
    is_welcome(one.hear()?.as_ref())?;
    assert_eq!(other.goodbye()?.code, unavailable());
    assert_eq!(batches(&server.metrics()?) - before, 1.0, "they were not asked for together");
    Ok(())
}
