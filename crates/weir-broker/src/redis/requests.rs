//! Requests to one Redis node: gathered into pipelines, bounded in number and time.
//!
//! A request leaves at once while fewer than `pipelines_max` pipelines are on their way. Otherwise it waits until one is
//! answered, and leaves with all that came meanwhile. So an idle broker adds no delay, and a busy one needs few system
//! calls at both ends. This needs no timer; those of the runtime are too coarse for a tenth of a millisecond.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{Cmd, Pipeline, ServerErrorKind, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::backoff::Backoff;
use super::counts::{Counters, count};
use super::dial::{Requests, SharedDialer};
use super::options::Address;
use super::scripts::SCRIPTS;

/// Why requests have no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// They have not left.
    Unsent(String),
    /// They have left.
    Unanswered(String),
}

/// What a lane works with.
#[derive(Clone)]
pub(super) struct LaneOptions {
    pub(super) pipelines_max: usize,
    /// Jobs that may wait.
    pub(super) waiting_max: usize,
    pub(super) counts: Arc<Counters>,
}

/// Carries requests to one Redis node. It ends when this is dropped.
pub(super) struct Lane {
    jobs: mpsc::Sender<Job>,
    /// Whether the next request is to connect at once.
    hurry: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

/// Requests that belong together, and who waits for them.
struct Job {
    commands: Vec<Cmd>,
    until: Instant,
    /// Set by the first of two: who sends them, and who does not wait any longer.
    is_settled: Arc<AtomicBool>,
    answer: oneshot::Sender<Result<Vec<Value>, Fault>>,
}

impl Lane {
    pub(super) fn new(address: Address, dialer: SharedDialer, options: &LaneOptions) -> Lane {
        let (jobs, waiting) = mpsc::channel(options.waiting_max.max(1));
        let hurry = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            hurry: hurry.clone(),
            address,
            dialer,
            pipelines_max: options.pipelines_max.max(1),
            counts: options.counts.clone(),
            waiting,
            flights: JoinSet::new(),
            current: None,
            serial: 0,
            backoff: Backoff::default(),
        };
        Lane { jobs, hurry, task: tokio::spawn(worker.run()) }
    }

    /// Carries requests, in order; an answer for each.
    ///
    /// # Errors
    /// No answer, before `until`.
    pub(super) async fn ask(
        &self,
        commands: Vec<Cmd>,
        until: Instant,
    ) -> Result<Vec<Value>, Fault> {
        let (answer, answered) = oneshot::channel();
        let is_settled = Arc::new(AtomicBool::new(false));
        let job = Job { commands, until, is_settled: is_settled.clone(), answer };
        let sent = tokio::time::timeout_at(until, self.jobs.send(job)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return Err(Fault::Unsent("too much waits for this Redis node".to_owned()));
        }
        match tokio::time::timeout_at(until, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Fault::Unanswered("the connection was given up".to_owned())),
            Err(_) if is_settled.swap(true, Ordering::AcqRel) => {
                Err(Fault::Unanswered("no answer in time".to_owned()))
            }
            Err(_) => Err(Fault::Unsent("Redis was busy for too long".to_owned())),
        }
    }

    /// Sends one request without waiting for anything, not even for the end of a pause. It may get lost.
    pub(super) fn send(&self, command: Cmd, until: Instant) {
        self.hurry.store(true, Ordering::Relaxed);
        let (answer, _) = oneshot::channel();
        let is_settled = Arc::default();
        let _ = self.jobs.try_send(Job { commands: vec![command], until, is_settled, answer });
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task of a lane.
struct Worker {
    hurry: Arc<AtomicBool>,
    address: Address,
    dialer: SharedDialer,
    pipelines_max: usize,
    counts: Arc<Counters>,
    waiting: mpsc::Receiver<Job>,
    /// Pipelines on their way. Each ends with its connection's number, if that connection failed.
    flights: JoinSet<Option<u64>>,
    current: Option<(u64, Arc<Requests>)>,
    /// The number of the last connection.
    serial: u64,
    backoff: Backoff,
}

impl Worker {
    async fn run(mut self) {
        loop {
            let job = tokio::select! {
                Some(ended) = self.flights.join_next() => {
                    self.land(ended.ok().flatten());
                    continue;
                }
                job = self.waiting.recv(), if self.flights.len() < self.pipelines_max => job,
            };
            let Some(job) = job else { break };
            let mut jobs = self.gather(job);
            if jobs.is_empty() {
                continue;
            }
            match self.connect().await {
                Ok((serial, conn)) => {
                    jobs.retain(|job| !job.is_settled.swap(true, Ordering::AcqRel));
                    if jobs.is_empty() {
                        continue;
                    }
                    count(&self.counts.pipelines);
                    let commands = jobs.iter().flat_map(|job| &job.commands);
                    commands.for_each(|command| self.counts.count_command(command));
                    let counts = self.counts.clone();
                    self.flights.spawn(async move {
                        let began = Instant::now();
                        let flown = fly(&conn, jobs).await;
                        counts.count_round_trip(began.elapsed());
                        flown.is_err().then_some(serial)
                    });
                }
                Err(why) => refuse(jobs, &why),
            }
        }
        while self.flights.join_next().await.is_some() {}
    }

    fn land(&mut self, failed: Option<u64>) {
        if failed.is_some() && failed == self.current.as_ref().map(|(serial, _)| *serial) {
            self.current = None;
        }
    }

    /// What leaves together with a job.
    fn gather(&mut self, job: Job) -> Vec<Job> {
        let now = Instant::now();
        let (mut jobs, mut commands) = (Vec::new(), 0);
        let mut next = Some(job);
        while let Some(job) = next {
            // Nobody waits any more for what is late or given up.
            if job.until > now {
                commands += job.commands.len();
                jobs.push(job);
            }
            next = if commands < PIPELINE_MAX { self.waiting.try_recv().ok() } else { None };
        }
        jobs
    }

    async fn connect(&mut self) -> Result<(u64, Arc<Requests>), String> {
        if let Some((serial, conn)) = &self.current
            && !conn.has_ended()
        {
            return Ok((*serial, conn.clone()));
        }
        if let Some(why) = self.backoff.refuses()
            && !self.hurry.swap(false, Ordering::Relaxed)
        {
            return Err(why);
        }
        let made = async {
            let conn = self.dialer.dial_for_requests(&self.address).await?;
            let mut scripts = Pipeline::new();
            scripts.add_command(self.dialer.introduction());
            for script in SCRIPTS {
                scripts.add_command(script.load());
            }
            let answers = ask(&conn, &scripts).await?;
            match answers.iter().find(|answer| matches!(answer, Value::ServerError(_))) {
                Some(error) => Err(format!("{}: {error:?}", self.address)),
                None => Ok(conn),
            }
        };
        match made.await {
            Ok(conn) => {
                self.backoff.succeeded();
                count(&self.counts.connects);
                self.serial += 1;
                let conn = Arc::new(conn);
                self.current = Some((self.serial, conn.clone()));
                Ok((self.serial, conn))
            }
            Err(why) => {
                self.backoff.failed(&why);
                Err(why)
            }
        }
    }
}

fn refuse(jobs: Vec<Job>, why: &str) {
    for job in jobs {
        let _ = job.answer.send(Err(Fault::Unsent(why.to_owned())));
    }
}

/// Sends jobs and hands out their answers.
///
/// # Errors
/// The connection is no longer of use.
async fn fly(conn: &Requests, mut jobs: Vec<Job>) -> Result<(), ()> {
    let mut pipeline = Pipeline::new();
    let mut counts = Vec::with_capacity(jobs.len());
    for job in &mut jobs {
        counts.push(job.commands.len());
        for command in mem::take(&mut job.commands) {
            pipeline.add_command(command);
        }
    }
    match answer(conn, &pipeline).await {
        Ok(answers) => {
            let mut answers = answers.into_iter();
            for (job, count) in jobs.into_iter().zip(counts) {
                // Nobody may wait any more.
                let _ = job.answer.send(Ok(answers.by_ref().take(count).collect()));
            }
            Ok(())
        }
        Err(why) => {
            for job in jobs {
                let _ = job.answer.send(Err(Fault::Unanswered(why.clone())));
            }
            Err(())
        }
    }
}

/// The answers to a pipeline. A Redis that has lost its scripts is told them again.
async fn answer(conn: &Requests, pipeline: &Pipeline) -> Result<Vec<Value>, String> {
    let mut answers = ask(conn, pipeline).await?;
    let is_unknown = |answer: &Value| matches!(answer, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript));
    let unknown: Vec<usize> =
        (0..answers.len()).filter(|&index| is_unknown(&answers[index])).collect();
    if unknown.is_empty() {
        return Ok(answers);
    }
    let mut again = Pipeline::new();
    for script in SCRIPTS {
        again.add_command(script.load());
    }
    for command in unknown.iter().filter_map(|&index| pipeline.cmd_iter().nth(index)) {
        again.add_command(command.clone());
    }
    let new = ask(conn, &again).await?.into_iter().skip(SCRIPTS.len());
    for (index, answer) in unknown.into_iter().zip(new) {
        answers[index] = answer;
    }
    Ok(answers)
}

/// Asks all at once; an answer for each.
///
/// # Errors
/// The connection is no longer of use.
pub(super) async fn ask(conn: &Requests, pipeline: &Pipeline) -> Result<Vec<Value>, String> {
    let mut conn = conn.conn.clone();
    let answers = conn.send_packed_commands(pipeline, 0, pipeline.len()).await;
    let answers = answers.map_err(|error| error.to_string())?;
    if answers.len() == pipeline.len() {
        Ok(answers)
    } else {
        Err(format!("{} answers to {} requests", answers.len(), pipeline.len()))
    }
}

/// Requests in a pipeline, unless one job has more.
const PIPELINE_MAX: usize = 1000;
