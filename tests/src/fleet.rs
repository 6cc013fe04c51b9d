//! Devices that activate again and again, whatever becomes of the gateway and of what is behind it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::admin::Answer;
use crate::line::Line;
use crate::program::{Server, program};
use crate::wait::{PATIENCE, now, rest};

/// A topic class that tells by a publish whose token it is.
pub const OWN_TOPICS: &str =
    "[[topic_classes]]\npattern = \"own/{device}\"\npublish = [\"devices\"]\n";

/// A device, and what it has been answered.
#[derive(Debug)]
pub struct Member {
    /// Its serial number.
    pub serial: String,
    key: String,
    /// Those of all activations that were answered.
    pub tokens: Vec<String>,
    /// Activations that it asked for, answered or not.
    attempts: u64,
    /// Its generation before the first.
    begun_at: u64,
}

/// What went wrong, and how long answers took.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    /// Requests that failed, by what they met; each was made again until it was answered.
    pub failed: BTreeMap<&'static str, u64>,
    /// The longest that somebody waited for a token.
    pub longest: Duration,
    /// The longest that somebody waited until he was told that there is none now.
    pub longest_refusal: Duration,
}

/// Devices at work.
pub struct Fleet {
    clients: Vec<JoinHandle<Result<Vec<Member>>>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    answered: AtomicU64,
    failed: AtomicU64,
    tally: Mutex<Tally>,
    /// Set by who waits for the next answer; taken by who gets it.
    is_awaited: AtomicBool,
    /// Why somebody has given up.
    given_up: Mutex<Option<String>>,
    next_at: Mutex<Option<Instant>>,
}

impl Fleet {
    /// Imports so many devices, which are not there yet.
    pub fn import(server: &Server, count: usize) -> Result<Vec<Member>> {
        let serials: Vec<String> = (0..count).map(|number| format!("{FLEET}{number:06}")).collect();
        let mut members = Vec::new();
        import(server, &serials)?;
        let kept = kept(server)?;
        for serial in serials {
            let (_, begun_at) = kept.get(&serial).context("each was imported")?;
            members.push(Member::new(serial, *begun_at));
        }
        Ok(members)
    }

    /// Sends them to work by so many connections, each device again and again by one of them: it activates, its new
    /// token counts, and the one before does not.
    pub fn start(http: SocketAddr, members: Vec<Member>, connections: usize) -> Fleet {
        let shared = Arc::<Shared>::default();
        let clients = deal(members, connections).map(|mut members| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut line = Line::new(http);
                loop {
                    for member in &mut members {
                        if shared.is_over.load(Ordering::Relaxed) {
                            return Ok(members);
                        }
                        shared.work(&mut line, member).inspect_err(|error| {
                            *lock(&shared.given_up) = Some(format!("{error:#}"));
                        })?;
                    }
                }
            })
        });
        Fleet { clients: clients.collect(), shared }
    }

    /// Has each device activate once.
    pub fn activate(http: SocketAddr, members: Vec<Member>) -> Result<Vec<Member>> {
        let clients = deal(members, CHECKS).map(|mut members| {
            thread::spawn(move || {
                let (shared, mut line) = (Shared::default(), Line::new(http));
                for member in &mut members {
                    shared.activate(&mut line, member)?;
                }
                Ok(members)
            })
        });
        let mut activated = Vec::new();
        for client in clients.collect::<Vec<JoinHandle<Result<Vec<Member>>>>>() {
            activated.append(&mut client.join().ok().context("a client does not panic")??);
        }
        Ok(activated)
    }

    /// Activations that have been answered so far.
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Requests that have failed so far.
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Waits until so many have been answered.
    pub fn await_answered(&self, count: u64) -> Result<()> {
        self.wait("answers", || self.answered() >= count)
    }

    /// Waits until so many have failed.
    pub fn await_failed(&self, count: u64) -> Result<()> {
        self.wait("failures", || self.failed() >= count)
    }

    /// Waits for the next answer; how long that took from now on.
    pub fn next_answer(&self, since: Instant) -> Result<Duration> {
        *lock(&self.shared.next_at) = None;
        self.shared.is_awaited.store(true, Ordering::Relaxed);
        self.wait("the next answer", || lock(&self.shared.next_at).is_some())?;
        let at = lock(&self.shared.next_at).context("it came")?;
        Ok(at.duration_since(since))
    }

    /// Waits, as long as something goes on, for `condition`.
    fn wait(&self, what: &str, condition: impl Fn() -> bool) -> Result<()> {
        let mut seen = (self.answered(), now());
        while !condition() {
            if self.clients.iter().any(JoinHandle::is_finished) {
                bail!("somebody has given up: {:?}", lock(&self.shared.given_up));
            }
            if seen.0 != self.answered() {
                seen = (self.answered(), now());
            }
            if seen.1.elapsed() > PATIENCE {
                bail!("waited in vain for {what}: {:?}", lock(&self.shared.tally));
            }
            rest();
        }
        Ok(())
    }

    /// Ends the work, when each has been answered what it has asked.
    pub fn end(self) -> Result<(Vec<Member>, Tally)> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let mut members = Vec::new();
        for client in self.clients {
            members.append(&mut client.join().ok().context("a client does not panic")??);
        }
        let tally = lock(&self.shared.tally).clone();
        Ok((members, tally))
    }

    /// Every activation that was answered is there: each device once, nothing carried out twice, no token given twice;
    /// the newest token of each counts and that before it does not.
    pub fn verify(server: &Server, members: Vec<Member>) -> Result<()> {
        let kept = kept(server)?;
        let count = kept.keys().filter(|serial| serial.starts_with(FLEET)).count();
        ensure!(count == members.len(), "{count} devices of {}", members.len());
        let mut tokens = HashSet::new();
        for member in &members {
            let (state, generation) = kept.get(&member.serial).context("each is there")?;
            let carried_out = generation.saturating_sub(member.begun_at);
            let answered = member.tokens.len() as u64;
            // What was not answered may have been carried out, and nothing more than once.
            ensure!(
                (answered..=member.attempts).contains(&carried_out),
                "{}: {answered} answered of {}, {carried_out} carried out",
                member.serial,
                member.attempts
            );
            ensure!(state == if carried_out > 0 { "active" } else { "new" }, "{member:?}: {state}");
            for token in &member.tokens {
                ensure!(
                    tokens.insert(token.as_str()),
                    "{}: {token} was given twice",
                    member.serial
                );
            }
        }
        let http = server.http.context("it speaks HTTP")?;
        let shared = Arc::<Shared>::default();
        let checks = deal(members, CHECKS).map(|members| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut line = Line::new(http);
                members.iter().try_for_each(|member| shared.check(&mut line, member))
            })
        });
        for check in checks.collect::<Vec<_>>() {
            check.join().ok().context("a check does not panic")??;
        }
        Ok(())
    }
}

impl Member {
    /// Imports one of its own, which does not belong to the fleet.
    pub fn import(server: &Server, serial: &str) -> Result<Member> {
        import(server, &[serial.to_owned()])?;
        Ok(Member::new(serial.to_owned(), 0))
    }

    fn new(serial: String, begun_at: u64) -> Member {
        Member { key: key(&serial), serial, tokens: Vec::new(), attempts: 0, begun_at }
    }

    /// Asks for a token once; what it is answered.
    pub fn activate(&mut self, line: &mut Line) -> io::Result<Answer> {
        self.attempts += 1;
        let body = json!({"devSn": self.serial, "devKey": self.key}).to_string();
        let answer = line.post("/v1/devices/activate", None, &body)?;
        if answer.status == 200 {
            let body: Value = serde_json::from_str(&answer.body)?;
            self.tokens.push(body["pt"].as_str().unwrap_or_default().to_owned());
        }
        Ok(answer)
    }
}

impl Shared {
    fn work(&self, line: &mut Line, member: &mut Member) -> Result<()> {
        self.activate(line, member)?;
        if self.is_awaited.swap(false, Ordering::Relaxed) {
            *lock(&self.next_at) = Some(now());
        }
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.check(line, member)
    }

    /// Asks for a token until it is there.
    fn activate(&self, line: &mut Line, member: &mut Member) -> Result<()> {
        let answer = self.until_answered(|| {
            let begun = now();
            let answer = member.activate(line)?;
            let mut tally = lock(&self.tally);
            let longest =
                if answer.status == 200 { &mut tally.longest } else { &mut tally.longest_refusal };
            *longest = begun.elapsed().max(*longest);
            Ok(answer)
        })?;
        ensure!(answer.status == 200, "{}: {answer:?}", member.serial);
        Ok(())
    }

    /// The newest token lets its device publish to a topic of its own, and the one before is nobody's.
    fn check(&self, line: &mut Line, member: &Member) -> Result<()> {
        let body = json!({"topic": format!("own/{}", member.serial), "text": "here"}).to_string();
        for (token, status) in member.tokens.iter().rev().zip([200, 401]) {
            let answer = self.until_answered(|| line.post("/v1/publish", Some(token), &body))?;
            ensure!(answer.status == status, "{}, not {status}: {answer:?}", member.serial);
        }
        Ok(())
    }

    /// Asks until there is an answer that is not to be asked for again.
    fn until_answered(&self, mut ask: impl FnMut() -> io::Result<Answer>) -> Result<Answer> {
        let deadline = now() + PATIENCE * 2;
        loop {
            let failure = match ask() {
                Ok(answer) if answer.status == 503 => {
                    ensure!(
                        answer.head.to_ascii_lowercase().contains("retry-after: "),
                        "{answer:?}"
                    );
                    "503"
                }
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    // No answer at all is none of them.
                    let known = BROKEN.iter().find(|(kind, _)| *kind == error.kind());
                    known.map(|(_, name)| *name).ok_or(error)?
                }
            };
            *lock(&self.tally).failed.entry(failure).or_default() += 1;
            self.failed.fetch_add(1, Ordering::Relaxed);
            ensure!(now() < deadline, "it does not recover: {failure}");
            // Far sooner than it was told, so as to see when it is over.
            (0..5).for_each(|_| rest());
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "failed requests {:?}; longest wait for a token {:.2?}, for a refusal {:.2?}",
            self.failed, self.longest, self.longest_refusal
        )
    }
}

fn import(server: &Server, serials: &[String]) -> Result<()> {
    let rows: String = serials.iter().map(|serial| format!("{serial},{}\n", key(serial))).collect();
    std::fs::write(server.directory().join("fleet.csv"), format!("devSn,devKey\n{rows}"))?;
    devices(server, &["import", "fleet.csv"])?;
    Ok(())
}

/// State and generation of each device that is kept.
fn kept(server: &Server) -> Result<HashMap<String, (String, u64)>> {
    let mut kept = HashMap::new();
    for line in devices(server, &["export"])?.lines() {
        let device: Value = serde_json::from_str(line)?;
        let text = |member: &str| device[member].as_str().map(str::to_owned).context("a text");
        let generation = device["generation"].as_u64().context("a number")?;
        let earlier = kept.insert(text("device")?, (text("state")?, generation));
        ensure!(earlier.is_none(), "twice: {line}");
    }
    Ok(kept)
}

/// `weir devices …` with the server's configuration: the command waits longer for a slow database than a request does.
fn devices(server: &Server, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program("weir")?);
    command.args(["devices", "--config", "weir.toml"]).args(args);
    command.current_dir(server.directory()).env_remove("WEIR_CONFIG").stdin(Stdio::null());
    let output = command.output()?;
    ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn key(serial: &str) -> String {
    format!("key-of-device-{serial}")
}

/// Deals them out to so many.
fn deal(members: Vec<Member>, hands: usize) -> impl Iterator<Item = Vec<Member>> {
    let mut dealt: Vec<Vec<Member>> = Vec::new();
    dealt.resize_with(hands, Vec::new);
    for (place, member) in members.into_iter().enumerate() {
        dealt[place % hands].push(member);
    }
    dealt.into_iter().filter(|members| !members.is_empty())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connections by which all are asked once.
const CHECKS: usize = 16;
/// What the serial numbers of a fleet begin with.
const FLEET: &str = "fleet-";
/// How a connection ends that has lost its gateway.
const BROKEN: [(ErrorKind, &str); 4] = [
    (ErrorKind::ConnectionRefused, "connection refused"),
    (ErrorKind::ConnectionReset, "connection reset"),
    (ErrorKind::BrokenPipe, "connection reset"),
    (ErrorKind::UnexpectedEof, "connection closed"),
];
