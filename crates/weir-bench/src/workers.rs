//! The worker processes of one set of connections, directed as one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::peer::Peer;
use crate::process::Cpus;
use crate::protocol::{
    Answer, ChurnPlan, ChurnTally, Collect, ComeBack, EchoPlan, EchoTally, HttpEnd, HttpPlan,
    HttpTally, OpenPlan, Order, PublishPlan, PublishTally, Reading, SilentPlan, Tally,
};
use crate::stats::Lags;
use crate::sys;
use crate::tls::RESUMED;

/// Worker processes, each with a share of the connections.
pub(crate) struct Workers {
    peers: Vec<Peer>,
    /// Number of the first connection.
    first: u32,
    count: u32,
    handshakes: Handshakes,
}

/// TLS handshakes of all workers of a run, by agreed parameters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Handshakes(Rc<RefCell<BTreeMap<String, u64>>>);

/// The counts of all workers together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    /// Sums; the lags in it are empty.
    pub(crate) tally: Tally,
    /// Lags on connections that are not slow.
    pub(crate) lags: Lags,
    /// Lags on slow connections.
    pub(crate) lags_slow: Lags,
    /// Lags of the last message of each frame.
    pub(crate) lags_last: Lags,
    /// Times from dropping to being live again.
    pub(crate) returns: Lags,
    /// Ages of the values that connections held.
    pub(crate) ages: Lags,
    /// Times from a ping to its answer.
    pub(crate) lags_ping: Lags,
}

/// Connections of one process: below the usual hard limit of 20,000 descriptors, with room for the rest.
pub(crate) const PER_PROCESS: u32 = 18_000;
/// Longest wait for an answer to an order that needs no waiting.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time of one subscription.
const SUBSCRIBE_TIME_MAX: Duration = Duration::from_millis(1);
/// Longest CPU time of one guest, if guests come one after the other.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_millis(20);

impl Workers {
    /// Starts as many processes as `count` connections need.
    pub(crate) fn start(
        count: u32,
        cpus: Option<&Cpus>,
        handshakes: Handshakes,
    ) -> Result<Workers> {
        let processes = count.div_ceil(PER_PROCESS).max(1);
        let peers = (0..processes)
            .map(|_| Peer::start("worker-process", &[], cpus))
            .collect::<Result<_>>()?;
        Ok(Workers { peers, first: 0, count, handshakes })
    }

    /// The same, with connections that are numbered from `first` on, behind those of others.
    pub(crate) fn numbered_from(self, first: u32) -> Workers {
        Workers { first, ..self }
    }

    /// Number of processes.
    pub(crate) fn processes(&self) -> u32 {
        u32::try_from(self.peers.len()).unwrap_or(u32::MAX)
    }

    /// Number of connections.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// CPU time of all processes together.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let time = |peer: &Peer| {
            sys::process_cpu(peer.pid()).context("cannot read the CPU time of a worker")
        };
        self.peers.iter().map(time).sum()
    }

    /// First connection and number of connections of each process.
    pub(crate) fn shares(&self) -> Vec<(u32, u32)> {
        shares(self.count, self.processes())
    }

    /// Opens all connections; `plan_of` adapts the plan for each process. Returns the time that it
    /// took.
    pub(crate) fn open(
        &mut self,
        plan: &OpenPlan,
        plan_of: impl Fn(usize, OpenPlan) -> OpenPlan,
    ) -> Result<Duration> {
        let window = plan.window.div_ceil(self.processes()).max(1);
        for (index, (first, count)) in self.shares().into_iter().enumerate() {
            let first = self.first + first;
            let plan = plan_of(index, OpenPlan { first, count, window, ..plan.clone() });
            self.peers[index].say(&Order::Open(plan))?;
        }
        // No step takes longer than the worker's patience: it reports or gives up.
        let patience = Duration::from_millis(plan.patience_ms) * 100 + PATIENCE;
        let mut longest = 0.0_f64;
        let mut opened = 0;
        for peer in &mut self.peers {
            let share = hear_opened(peer, patience, |connected| {
                progress("connected", opened + connected, self.count)
            })?;
            opened += share.connected;
            longest = longest.max(share.seconds);
            self.handshakes.add(&share.handshakes);
        }
        progress("connected", opened, self.count);
        end_progress();
        Ok(Duration::from_secs_f64(longest))
    }

    /// Begins to count anew.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.tell_all(&Order::Begin)
    }

    /// Subscribes the connections to further topics, on which no message comes.
    pub(crate) fn subscribe(&mut self, topics: u32, prefix: &str) -> Result<()> {
        let plan =
            SilentPlan { topics, connections: self.count, prefix: format!("{prefix}silent/") };
        self.say_all(&Order::Subscribe(plan))?;
        let patience = PATIENCE + SUBSCRIBE_TIME_MAX * topics;
        for peer in &mut self.peers {
            match peer.hear(patience)? {
                Answer::Done => {}
                Answer::Failed { error } => bail!("subscribing failed: {error}"),
                other @ (Answer::Progress { .. }
                | Answer::Opened { .. }
                | Answer::Collected(_)
                | Answer::Echoed(_)
                | Answer::Published(_)
                | Answer::Churned(_)
                | Answer::Requested(_)) => return Err(unexpected(&other)),
            }
        }
        Ok(())
    }

    /// Changes how clients read.
    pub(crate) fn read(&mut self, reading: Reading) -> Result<()> {
        self.tell_all(&Order::Read(reading))
    }

    /// Records the ages of the values that connections hold.
    pub(crate) fn note_ages(&mut self) -> Result<()> {
        self.tell_all(&Order::NoteAges)
    }

    /// Lowers the priority of these workers below other workers.
    pub(crate) fn stand_back(&mut self) -> Result<()> {
        self.tell_all(&Order::StandBack)
    }

    /// Runs guests, all from the first process.
    pub(crate) fn churn(&mut self, plan: &ChurnPlan) -> Result<Churned> {
        self.begin_churn(plan)?;
        self.end_churn(plan)
    }

    /// Lets guests come, and does not wait until they have gone.
    pub(crate) fn begin_churn(&mut self, plan: &ChurnPlan) -> Result<()> {
        let peer = self.peers.first_mut().context("no worker")?;
        peer.say(&Order::Churn(plan.clone()))
    }

    /// Waits until the guests of [`Workers::begin_churn`] have gone.
    pub(crate) fn end_churn(&mut self, plan: &ChurnPlan) -> Result<Churned> {
        let peer = self.peers.first_mut().context("no worker")?;
        let seconds = crate::stats::real(plan.count) / plan.rate;
        let hold = Duration::from_millis(plan.hold_ms);
        let handshakes = HANDSHAKE_TIME_MAX * u32::try_from(plan.count).unwrap_or(u32::MAX);
        let answer =
            peer.hear(PATIENCE + Duration::from_secs_f64(2.0 * seconds) + hold + handshakes)?;
        let Answer::Churned(tally) = answer else { return Err(unexpected(&answer)) };
        let mut connects = Lags::new();
        connects.add(&tally.connects);
        Ok(Churned { tally: *tally, connects })
    }

    /// Sends HTTP requests, all from the first process.
    pub(crate) fn request(&mut self, plan: &HttpPlan) -> Result<HttpTally> {
        let peer = self.peers.first_mut().context("no worker")?;
        peer.say(&Order::Request(Box::new(plan.clone())))?;
        let patience = match plan.until {
            HttpEnd::Millis(millis) => PATIENCE + Duration::from_millis(plan.warm_up_ms + millis),
            // The worker itself gives up if there is no progress.
            HttpEnd::Answers(_) => Duration::from_secs(24 * 3600),
        };
        match peer.hear(patience)? {
            Answer::Requested(tally) => Ok(*tally),
            Answer::Failed { error } => bail!("{error}"),
            other @ (Answer::Progress { .. }
            | Answer::Opened { .. }
            | Answer::Done
            | Answer::Collected(_)
            | Answer::Echoed(_)
            | Answer::Published(_)
            | Answer::Churned(_)) => Err(unexpected(&other)),
        }
    }

    /// Resets a share of the connections and lets them come back.
    pub(crate) fn come_back(&mut self, plan: ComeBack) -> Result<()> {
        self.tell_all(&Order::ComeBack(plan))
    }

    /// Sends a frame from each connection.
    pub(crate) fn emit(&mut self, frame: String) -> Result<()> {
        self.tell_all(&Order::Emit { frame })
    }

    /// Closes all connections.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.tell_all(&Order::Close)
    }

    /// Waits for the published messages, as long as `order` permits, and adds up the counts.
    pub(crate) fn collect(&mut self, order: &Collect) -> Result<Totals> {
        self.say_all(&Order::Collect(order.clone()))?;
        let mut totals = Totals::default();
        for peer in &mut self.peers {
            let answer = peer.hear(PATIENCE + Duration::from_millis(order.wait_ms))?;
            let Answer::Collected(tally) = answer else { return Err(unexpected(&answer)) };
            totals.add(*tally);
        }
        Ok(totals)
    }

    /// Runs an echo on all connections. A rate is divided by the number of connections of each
    /// worker.
    pub(crate) fn echo(&mut self, plan: &EchoPlan) -> Result<Echoed> {
        let all = f64::from(self.count.max(1));
        for (index, (_, count)) in self.shares().into_iter().enumerate() {
            let rate = plan.rate.map(|rate| rate * f64::from(count) / all);
            self.peers[index].say(&Order::Echo(EchoPlan { rate, ..*plan }))?;
        }
        let patience = PATIENCE + Duration::from_millis(plan.warm_up_ms + plan.measure_ms);
        let mut echoed = Echoed { tally: EchoTally::default(), lags: Lags::new() };
        for peer in &mut self.peers {
            let answer = peer.hear(patience)?;
            let Answer::Echoed(tally) = answer else { return Err(unexpected(&answer)) };
            echoed.add(*tally);
        }
        Ok(echoed)
    }

    /// Publishes from connections, and runs `meanwhile`. Returns the messages of each publisher,
    /// the number that no socket took, and the longest delay.
    pub(crate) fn publish(
        &mut self,
        plan: &PublishPlan,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<PublishTally> {
        self.begin_publishing(plan)?;
        meanwhile()?;
        self.end_publishing(plan)
    }

    /// Lets connections publish, and does not wait until they have.
    pub(crate) fn begin_publishing(&mut self, plan: &PublishPlan) -> Result<()> {
        self.say_all(&Order::Publish(plan.clone()))
    }

    /// Waits until the messages of [`Workers::begin_publishing`] are published.
    pub(crate) fn end_publishing(&mut self, plan: &PublishPlan) -> Result<PublishTally> {
        let seconds = f64::from(plan.count) / plan.rate;
        let patience = PATIENCE + Duration::from_secs_f64(2.0 * seconds);
        let mut all =
            PublishTally { sent: vec![0; plan.publishers as usize], ..PublishTally::default() };
        for peer in &mut self.peers {
            let answer = peer.hear(patience)?;
            let Answer::Published(tally) = answer else { return Err(unexpected(&answer)) };
            all.add(&tally);
        }
        Ok(all)
    }

    fn say_all(&mut self, order: &Order) -> Result<()> {
        self.peers.iter_mut().try_for_each(|peer| peer.say(order))
    }

    fn tell_all(&mut self, order: &Order) -> Result<()> {
        self.say_all(order)?;
        for peer in &mut self.peers {
            let answer = peer.hear(PATIENCE)?;
            if !matches!(answer, Answer::Done) {
                return Err(unexpected(&answer));
            }
        }
        Ok(())
    }
}

/// The results of an echo on all workers together.
#[derive(Debug, Clone)]
pub(crate) struct Echoed {
    /// Sums; the lags in it are empty.
    pub(crate) tally: EchoTally,
    /// Latencies.
    pub(crate) lags: Lags,
}

/// The results of guests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Churned {
    /// Counts.
    pub(crate) tally: ChurnTally,
    /// Times from the connect to the welcome.
    pub(crate) connects: Lags,
}

/// The connections of a process.
struct Share {
    connected: u32,
    seconds: f64,
    handshakes: BTreeMap<String, u64>,
}

impl Handshakes {
    /// Takes all counts so far.
    pub(crate) fn take(&self) -> BTreeMap<String, u64> {
        self.0.take()
    }

    /// Version, suite and group of the full handshakes, each once.
    pub(crate) fn agreed(&self) -> BTreeSet<String> {
        let all = self.0.borrow();
        let words = all.keys().filter_map(|agreed| agreed.rsplit_once(' '));
        words.filter(|(_, kind)| *kind != RESUMED).map(|(agreed, _)| agreed.to_owned()).collect()
    }

    /// Adds more counts.
    pub(crate) fn add(&self, more: &BTreeMap<String, u64>) {
        let mut all = self.0.borrow_mut();
        for (agreed, count) in more {
            *all.entry(agreed.clone()).or_insert(0) += count;
        }
    }
}

impl Echoed {
    fn add(&mut self, other: EchoTally) {
        self.lags.add(&other.lags);
        self.tally.answered += other.answered;
        self.tally.answered_in_all += other.answered_in_all;
        self.tally.lost += other.lost;
        self.tally.wrong += other.wrong;
        self.tally.closed += other.closed;
        self.tally.errors.extend(other.errors);
    }
}

impl PublishTally {
    /// Adds the results of other connections.
    pub(crate) fn add(&mut self, other: &PublishTally) {
        let own = self.sent.iter_mut().skip(other.first as usize);
        own.zip(&other.sent).for_each(|(all, sent)| *all += sent);
        self.unsent += other.unsent;
        self.late_max_us = self.late_max_us.max(other.late_max_us);
    }
}

impl Totals {
    /// Adds the counts of one worker.
    fn add(&mut self, other: Tally) {
        self.lags.add(&other.lags);
        self.lags_slow.add(&other.lags_slow);
        self.lags_last.add(&other.lags_last);
        self.returns.add(&other.returns);
        self.ages.add(&other.ages);
        self.lags_ping.add(&other.lags_ping);
        self.tally.add(other);
    }

    /// Adds the counts of other workers.
    pub(crate) fn join(&mut self, other: Totals) {
        let Totals { tally, lags, lags_slow, lags_last, returns, ages, lags_ping } = other;
        self.add(Tally {
            lags: lags.counts(),
            lags_slow: lags_slow.counts(),
            lags_last: lags_last.counts(),
            returns: returns.counts(),
            ages: ages.counts(),
            lags_ping: lags_ping.counts(),
            ..tally
        });
    }
}

impl Tally {
    /// Adds the counts of another worker, except lags.
    pub(crate) fn add(&mut self, other: Tally) {
        self.delivered += other.delivered;
        self.bytes += other.bytes;
        self.gaps += other.gaps;
        self.gaps_slow += other.gaps_slow;
        self.duplicates += other.duplicates;
        self.wrong += other.wrong;
        self.unstamped += other.unstamped;
        self.missing += other.missing;
        self.missing_slow += other.missing_slow;
        self.open += other.open;
        self.open_slow += other.open_slow;
        self.closed += other.closed;
        for (by, count) in other.closed_by {
            *self.closed_by.entry(by).or_insert(0) += count;
        }
        self.frame_bytes = self.frame_bytes.max(other.frame_bytes);
        self.frames += other.frames;
        self.recovered += other.recovered;
        self.unrecovered += other.unrecovered;
        self.told += other.told;
        self.seen.extend(other.seen);
        self.away += other.away;
        for (by, count) in other.refused {
            *self.refused.entry(by).or_insert(0) += count;
        }
        self.pongs += other.pongs;
        self.unanswered += other.unanswered;
        self.errors.extend(other.errors);
    }

    /// Messages that connections missed although they always read.
    pub(crate) fn lost(&self) -> u64 {
        self.gaps + self.missing
    }
}

fn shares(count: u32, processes: u32) -> Vec<(u32, u32)> {
    let each = count.div_ceil(processes.max(1));
    (0..processes)
        .map(|index| (index * each).min(count))
        .map(|first| (first, each.min(count - first)))
        .collect()
}

fn hear_opened(peer: &mut Peer, patience: Duration, mut report: impl FnMut(u32)) -> Result<Share> {
    loop {
        match peer.hear(patience).context("while connecting")? {
            Answer::Progress { connected } => report(connected),
            Answer::Opened { connected, seconds, handshakes, error: None } => {
                return Ok(Share { connected, seconds, handshakes });
            }
            Answer::Opened { error: Some(error), .. } => bail!("connecting failed: {error}"),
            other @ (Answer::Done
            | Answer::Collected(_)
            | Answer::Echoed(_)
            | Answer::Published(_)
            | Answer::Churned(_)
            | Answer::Requested(_)
            | Answer::Failed { .. }) => {
                return Err(unexpected(&other));
            }
        }
    }
}

fn unexpected(answer: &Answer) -> anyhow::Error {
    anyhow::anyhow!("a worker said {answer:?}")
}

/// Shows progress, on a terminal only.
#[expect(clippy::print_stderr, reason = "progress is for the person at the terminal")]
pub(crate) fn progress(what: &str, done: u32, of: u32) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{what} {done} of {of}");
    }
}

/// The order in which so many contestants have their turns in each round: another one begins each time. Shows progress.
pub(crate) fn turns(rounds: u32, count: usize) -> impl Iterator<Item = usize> {
    (0..rounds).flat_map(move |round| {
        progress("round", round + 1, rounds);
        (0..count).map(move |turn| (turn + round as usize) % count)
    })
}

/// Clears the line of [`progress`].
#[expect(clippy::print_stderr, reason = "progress is for the person at the terminal")]
pub(crate) fn end_progress() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_shared_out_whole() {
        assert_eq!(shares(18_000, 1), [(0, 18_000)]);
        assert_eq!(shares(40_001, 3), [(0, 13_334), (13_334, 13_334), (26_668, 13_333)]);
        assert_eq!(shares(1, 2), [(0, 1), (1, 0)]);
        assert_eq!(shares(0, 1), [(0, 0)]);
    }
}
