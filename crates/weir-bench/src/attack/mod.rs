//! Attacks on a server: scripts that hold connections, never wait for answers, and replace connections
//! that are closed.
//!
//! Attackers need no answers, so the same scripts also run against a process that discards everything.
//! The effect on other clients is then the cost of the traffic itself.

mod http2;
mod kinds;
mod plan;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, UdpSocket};
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep, timeout};

use crate::baseline;
use crate::peer::Peer;
use crate::process::Cpus;
use crate::stats::whole;
use kinds::Attack;

pub(crate) use kinds::HISTORY;
pub(crate) use plan::Plan;

/// The counts of an attack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Connections opened, or sockets.
    pub(crate) connects: u64,
    /// Connects that failed.
    pub(crate) failed: u64,
    /// Connections that the server ended.
    pub(crate) closed: u64,
    /// Frames, requests or datagrams sent after the opening.
    pub(crate) units: u64,
    /// Bytes sent.
    pub(crate) bytes: u64,
}

/// The counts of all attacks, by name.
pub(crate) type Tally = BTreeMap<String, Done>;

/// A handle of the attacking process.
pub(crate) struct Attackers(Peer);

/// Answers of the attacking process.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Begun,
    Ended(Tally),
}

impl Attackers {
    /// Starts the attacks, on these processors.
    pub(crate) fn start(plan: &Plan, cpus: Option<&Cpus>) -> Result<Attackers> {
        let mut peer = Peer::start("attack-process", &[], cpus)?;
        peer.say(plan)?;
        match peer.hear(PATIENCE)? {
            Answer::Begun => Ok(Attackers(peer)),
            Answer::Ended(_) => bail!("the attackers ended before they began"),
        }
    }

    /// Ends the attacks; all connections close.
    pub(crate) fn stop(mut self) -> Result<Tally> {
        self.0.say(&())?;
        match self.0.hear(PATIENCE)? {
            Answer::Ended(tally) => Ok(tally),
            Answer::Begun => bail!("the attackers began twice"),
        }
    }
}

/// Runs the attacking process: reads a plan, attacks until the next line comes, and reports the
/// counts.
pub(crate) fn run() -> Result<()> {
    let mut line = String::new();
    io::stdin().read_line(&mut line).context("cannot read the plan")?;
    let plan: Plan = serde_json::from_str(&line).context("the plan makes no sense")?;
    let attacks = chosen(&plan)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (end, ended) = watch::channel(false);
    thread::Builder::new().name("orders".to_owned()).spawn(move || {
        // A line, or the end of the directing process.
        let _ = io::stdin().read_line(&mut String::new());
        end.send_replace(true);
    })?;
    let mut output = io::stdout();
    baseline::answer(&mut output, &Answer::Begun)?;
    let tally = LocalSet::new().block_on(&runtime, attack(&plan, attacks, &ended));
    baseline::answer(&mut output, &Answer::Ended(tally))
}

/// The attacks that the plan names.
fn chosen(plan: &Plan) -> Result<Vec<Attack>> {
    let all = kinds::all(plan);
    let names: Vec<&str> = all.iter().map(|attack| attack.name).collect();
    if let Some(unknown) = plan.only.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("no attack {unknown:?}; there are {}", names.join(", "));
    }
    let named =
        |attack: &Attack| plan.only.is_empty() || plan.only.iter().any(|n| n == attack.name);
    Ok(all.into_iter().filter(named).collect())
}

/// Makes all attacks until they are ended.
async fn attack(plan: &Plan, attacks: Vec<Attack>, ended: &watch::Receiver<bool>) -> Tally {
    let mut tasks = Vec::new();
    let tally: Rc<RefCell<Tally>> = Rc::default();
    for (index, attack) in attacks.into_iter().enumerate() {
        let source = Ipv4Addr::new(127, plan.source, 1, u8::try_from(index).unwrap_or(0) + 1);
        let attack = Rc::new(attack);
        tally.borrow_mut().insert(attack.name.to_owned(), Done::default());
        for number in 0..attack.connections {
            let attacker = Attacker {
                attack: attack.clone(),
                source: SocketAddr::from((source, 0)),
                number,
                pause: plan.pause,
                tally: tally.clone(),
            };
            let mut ended = ended.clone();
            tasks.push(tokio::task::spawn_local(async move {
                tokio::select! {
                    () = attacker.run() => {}
                    _ = ended.wait_for(|ended| *ended) => {}
                }
            }));
        }
    }
    for task in tasks {
        // A task that panicked has printed its message.
        let _ = task.await;
    }
    tally.take()
}

/// One connection of an attack, and its successors.
struct Attacker {
    attack: Rc<Attack>,
    source: SocketAddr,
    number: u32,
    /// The pause before the next connection.
    pause: Duration,
    tally: Rc<RefCell<Tally>>,
}

impl Attacker {
    async fn run(self) {
        // Not all at once: a full backlog would hide later attacks.
        sleep(STAGGER * self.number).await;
        loop {
            let done = if self.attack.datagrams {
                self.datagrams().await
            } else {
                self.connection().await
            };
            match done {
                Ok(()) => self.count(|done| done.closed += 1),
                Err(_) => self.count(|done| done.failed += 1),
            }
            sleep(self.pause).await;
        }
    }

    /// Sends at a fixed rate from one socket; ends only if that fails.
    async fn datagrams(&self) -> io::Result<()> {
        let socket = UdpSocket::bind(self.source).await?;
        socket.connect(self.attack.to).await?;
        self.count(|done| done.connects += 1);
        let mut pace = Pace::new(self.attack.rate);
        let mut pieces = self.attack.pieces.iter().cycle();
        loop {
            for piece in pieces.by_ref().take(pace.due().await) {
                // A datagram without room or without a receiver is lost.
                let _ = socket.try_send(piece);
                self.sent(piece.len());
            }
        }
    }

    /// Holds one connection until its end or its renewal.
    async fn connection(&self) -> io::Result<()> {
        let socket = TcpSocket::new_v4()?;
        if !self.attack.reads {
            socket.set_recv_buffer_size(DEAF_BYTES)?;
        }
        socket.bind(self.source)?;
        let stream = socket.connect(self.attack.to).await?;
        self.count(|done| done.connects += 1);
        let (read, write) = stream.into_split();
        let talk = async {
            tokio::select! {
                _ = self.talk(write) => {}
                _ = self.listen(&read) => {}
            }
        };
        match self.attack.renewed {
            Some(after) => {
                // It does not matter whether the connection ended before.
                let _ = timeout(after, talk).await;
            }
            None => talk.await,
        }
        // Close with a reset, so that no port stays in TIME_WAIT.
        Ok(sockopt::set_socket_linger(read.as_ref(), Some(Duration::ZERO))?)
    }

    /// Sends the opening, then the pieces at a fixed rate, as long as the server accepts them.
    async fn talk(&self, mut write: OwnedWriteHalf) -> io::Result<()> {
        let opening = (self.attack.opening)(self.number);
        write.write_all(&opening).await?;
        self.count(|done| done.bytes += u64::try_from(opening.len()).unwrap_or(0));
        if self.attack.pieces.is_empty() {
            return std::future::pending().await;
        }
        let mut pace = Pace::new(self.attack.rate);
        let mut pieces = self.attack.pieces.iter().cycle();
        loop {
            for piece in pieces.by_ref().take(pace.due().await) {
                write.write_all(piece).await?;
                self.sent(piece.len());
            }
        }
    }

    /// Reads and discards, or only waits for the end.
    async fn listen(&self, read: &OwnedReadHalf) -> io::Result<()> {
        let mut buf = vec![0; READ_BYTES];
        loop {
            if self.attack.reads {
                read.readable().await?;
                match read.try_read(&mut buf) {
                    Ok(0) => return Ok(()),
                    Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                    Ok(_) | Err(_) => {}
                }
            } else {
                sleep(LOOK).await;
                if read.ready(Interest::READABLE).await?.is_read_closed() {
                    return Ok(());
                }
            }
        }
    }

    fn sent(&self, bytes: usize) {
        let units = u64::from(self.attack.units);
        self.count(|done| {
            done.units += units;
            done.bytes += u64::try_from(bytes).unwrap_or(0);
        });
    }

    fn count(&self, change: impl FnOnce(&mut Done)) {
        if let Some(done) = self.tally.borrow_mut().get_mut(self.attack.name) {
            change(done);
        }
    }
}

/// Counts the pieces that are due: an open loop that catches up for a moment, and skips older
/// pieces.
struct Pace {
    ticks: Interval,
    per_tick: f64,
    owed: f64,
}

impl Pace {
    fn new(rate: f64) -> Pace {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        Pace { ticks, per_tick: rate * TICK.as_secs_f64(), owed: 0.0 }
    }

    async fn due(&mut self) -> usize {
        self.ticks.tick().await;
        self.owed += self.per_tick;
        let due = self.owed.floor();
        self.owed -= due;
        usize::try_from(whole(due)).unwrap_or(0)
    }
}

/// Longest wait for the other process.
const PATIENCE: Duration = Duration::from_secs(30);
/// The delay between the first connections of one attack.
const STAGGER: Duration = Duration::from_millis(1);
/// The delay between two checks of a connection that is not read.
const LOOK: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_millis(5);
/// `SO_RCVBUF` of those that do not read.
const DEAF_BYTES: u32 = 4096;
const READ_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(only: &[&str]) -> Plan {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 9));
        Plan {
            tcp: nowhere,
            tls: nowhere,
            http: nowhere,
            udp: nowhere,
            source: 64,
            token: "t".to_owned(),
            http_connections: 10,
            only: only.iter().map(|&name| name.to_owned()).collect(),
            pause: Duration::ZERO,
        }
    }

    #[test]
    fn attacks_are_chosen_by_name() {
        assert!(chosen(&plan(&[])).unwrap().len() > 15);
        assert_eq!(chosen(&plan(&["hello", "h2_heads"])).unwrap().len(), 2);
        let error = chosen(&plan(&["smile"])).err().unwrap().to_string();
        assert!(error.contains("smile") && error.contains("h2_heads"), "{error}");
    }

    #[test]
    fn every_attack_has_a_name_of_its_own_and_something_to_say() {
        let all = chosen(&plan(&[])).unwrap();
        let names: std::collections::BTreeSet<_> = all.iter().map(|attack| attack.name).collect();
        assert_eq!(names.len(), all.len());
        for attack in &all {
            assert!(
                !(attack.opening)(0).is_empty() || !attack.pieces.is_empty(),
                "{}",
                attack.name
            );
            assert_eq!(attack.pieces.is_empty(), attack.rate == 0.0, "{}", attack.name);
        }
    }
}
