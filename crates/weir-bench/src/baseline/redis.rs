//! What Redis costs without a gateway: the script that publishes, called by a bare client, and a bare
//! publish and subscribe.

use std::io::Read;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, poll};
use weir_broker::{Batch, BatchId, Entry, Name, PublishScript, Retention};

use crate::clock;
use crate::payload::Header;
use crate::redis::Redis;
use crate::stats::{Lags, real};
use crate::sys;

/// A load of calls of the script.
#[derive(Debug, Clone)]
pub(crate) struct ScriptPlan {
    /// The server.
    pub(crate) addr: SocketAddr,
    /// What all keys begin with.
    pub(crate) prefix: String,
    /// The topics, which take turns.
    pub(crate) topics: Vec<String>,
    /// Connections that call the script, and as many that subscribe to all topics.
    pub(crate) connections: u32,
    /// Messages in a call, in the mean.
    pub(crate) batch: f64,
    /// Calls that leave together, in the mean.
    pub(crate) calls: f64,
    /// Bytes of a message.
    pub(crate) message_bytes: usize,
    /// What is kept of each topic.
    pub(crate) retention: Option<Retention>,
    /// Messages a second on all connections; `None`: as fast as they are answered.
    pub(crate) rate: Option<f64>,
    /// How long.
    pub(crate) time: Duration,
}

/// The results of a load.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScriptTally {
    /// Messages.
    pub(crate) messages: u64,
    /// Calls of the script.
    pub(crate) calls: u64,
    /// The time that it took.
    pub(crate) seconds: f64,
}

/// Connections that have subscribed to all topics, and discard what comes.
pub(crate) struct Subscribers(Vec<(Redis, JoinHandle<()>)>);

impl Subscribers {
    /// Subscribes.
    pub(crate) fn start(plan: &ScriptPlan) -> Result<Subscribers> {
        let script = PublishScript::new(&plan.prefix, "");
        let commands: Vec<u8> = plan
            .topics
            .iter()
            .flat_map(|topic| script.subscribe(&Name::from(topic.as_str())))
            .collect();
        let mut all = Vec::new();
        for _ in 0..plan.connections {
            let mut redis = Redis::connect(plan.addr)?;
            redis.send(&commands)?;
            redis.skip(plan.topics.len())?;
            let mut socket = redis.socket().try_clone()?;
            socket.set_read_timeout(None)?;
            let reader = thread::Builder::new().name("discard".to_owned()).spawn(move || {
                let mut buf = vec![0; 64 << 10];
                while socket.read(&mut buf).is_ok_and(|bytes| bytes > 0) {}
            })?;
            all.push((redis, reader));
        }
        Ok(Subscribers(all))
    }
}

impl Drop for Subscribers {
    fn drop(&mut self) {
        for (redis, reader) in self.0.drain(..) {
            // The connection may have ended already.
            let _ = redis.socket().shutdown(Shutdown::Both);
            let _ = reader.join();
        }
    }
}

/// Calls the script from all connections.
pub(crate) fn call_script(plan: &ScriptPlan) -> Result<ScriptTally> {
    let began = clock::monotonic();
    let tallies: Vec<Result<ScriptTally>> = thread::scope(|scope| {
        let callers: Vec<_> = (0..plan.connections)
            .map(|number| scope.spawn(move || Caller::new(plan, number)?.run(began)))
            .collect();
        let joined = callers.into_iter().map(|caller| {
            caller
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a thread that calls the script panicked")))
        });
        joined.collect()
    });
    let mut all = ScriptTally::default();
    for tally in tallies {
        let tally = tally?;
        all.messages += tally.messages;
        all.calls += tally.calls;
    }
    all.seconds = (clock::monotonic() - began).as_secs_f64();
    Ok(all)
}

/// A connection that calls the script.
struct Caller<'a> {
    plan: &'a ScriptPlan,
    script: PublishScript,
    topics: Vec<Name>,
    redis: Redis,
    next_id: u64,
    /// Where the next call goes.
    next_topic: usize,
    number: u32,
    batch: Portions,
    calls: Portions,
    commands: Vec<u8>,
}

/// Whole numbers with a given mean.
struct Portions {
    mean: f64,
    owed: f64,
}

impl Portions {
    fn new(mean: f64) -> Portions {
        Portions { mean: mean.max(1.0), owed: 0.0 }
    }

    fn take(&mut self) -> usize {
        self.owed += self.mean;
        let whole = self.owed.floor();
        self.owed -= whole;
        usize::try_from(crate::stats::whole(whole)).unwrap_or(1)
    }
}

impl<'a> Caller<'a> {
    fn new(plan: &'a ScriptPlan, number: u32) -> Result<Caller<'a>> {
        let script = PublishScript::new(&plan.prefix, &format!("{number:016x}"));
        let mut redis = Redis::connect(plan.addr)?;
        redis.send(&script.load())?;
        redis.skip(1)?;
        let topics: Vec<Name> =
            plan.topics.iter().map(|topic| Name::from(topic.as_str())).collect();
        if topics.is_empty() {
            bail!("there is no topic");
        }
        Ok(Caller {
            plan,
            script,
            redis,
            next_id: clock::realtime_ns(),
            next_topic: topics.len() * number as usize / plan.connections.max(1) as usize,
            topics,
            number,
            batch: Portions::new(plan.batch),
            calls: Portions::new(plan.calls),
            commands: Vec::new(),
        })
    }

    fn run(mut self, began: Duration) -> Result<ScriptTally> {
        let end = began + self.plan.time;
        let mut tally = ScriptTally::default();
        // All connections together have the rate; they take turns.
        let each = self.plan.rate.map(|rate| rate / f64::from(self.plan.connections));
        let ahead = self.batch.mean * self.calls.mean * f64::from(self.number)
            / f64::from(self.plan.connections);
        loop {
            if let Some(rate) = each {
                let due = (real(tally.messages) + ahead) / rate;
                clock::sleep_until(began + Duration::from_secs_f64(due));
            }
            if clock::monotonic() >= end {
                return Ok(tally);
            }
            self.commands.clear();
            let calls = self.calls.take();
            for _ in 0..calls {
                tally.messages += self.add_call();
            }
            self.redis.send(&self.commands)?;
            self.redis.skip(calls)?;
            tally.calls += calls as u64;
        }
    }

    /// Adds a call to what leaves next; returns its messages.
    fn add_call(&mut self) -> u64 {
        let entry =
            || Entry { payload: vec![b'x'; self.plan.message_bytes], idempotency_key: None };
        let entries: Vec<Entry> = std::iter::repeat_with(entry).take(self.batch.take()).collect();
        let messages = entries.len() as u64;
        let topic = self.topics[self.next_topic % self.topics.len()].clone();
        self.next_topic += 1;
        self.next_id += 1;
        let retention = self.plan.retention;
        let batch = Batch { topic, id: BatchId(self.next_id), retention, entries };
        self.commands.extend(self.script.call(&batch));
        messages
    }
}

/// Publishes messages of `size` bytes at a rate to one subscriber, without the script. Lags end with
/// the kernel's receive time stamps.
pub(crate) fn bare_lags(addr: SocketAddr, rate: f64, size: usize, time: Duration) -> Result<Lags> {
    let channel = format!("bare/{:08x}", rand::random::<u32>());
    let mut subscriber = Redis::connect(addr)?;
    sys::stamp_receives(subscriber.socket().as_fd()).context("cannot ask for time stamps")?;
    subscriber.send(format!("*2\r\n$9\r\nSUBSCRIBE\r\n$13\r\n{channel}\r\n").as_bytes())?;
    subscriber.skip(1)?;
    let count = crate::stats::whole((rate * time.as_secs_f64()).max(1.0));
    thread::scope(|scope| {
        let socket = subscriber.socket();
        let reader = scope.spawn(move || receive(socket, &channel_head(size), size, count));
        let mut publisher = Redis::connect(addr)?;
        let (began, mut text) = (clock::monotonic(), String::new());
        for number in 0..count {
            clock::sleep_until(began + Duration::from_secs_f64(real(number) / rate));
            let seq = u32::try_from(number).context("too many messages")?;
            Header { stream: 0, seq, sent_ns: clock::realtime_ns() }.compose(size, &mut text);
            let head = format!("*3\r\n$7\r\nPUBLISH\r\n$13\r\n{channel}\r\n${size}\r\n");
            publisher.send(&[head.as_bytes(), text.as_bytes(), b"\r\n"].concat())?;
            publisher.skip(1)?;
        }
        reader.join().map_err(|_| anyhow!("the reading thread panicked"))?
    })
}

/// What stands before each payload on the subscriber's connection, except the name of the channel.
fn channel_head(size: usize) -> String {
    format!("*3\r\n$7\r\nmessage\r\n$13\r\nbare/........\r\n${size}\r\n")
}

/// Reads messages, which all have the same length.
fn receive(socket: impl AsFd, head: &str, size: usize, count: u64) -> Result<Lags> {
    let whole = head.len() + size + 2;
    let (mut lags, mut bytes, mut buf) = (Lags::new(), Vec::new(), vec![0; 64 << 10]);
    while lags.count() < count {
        let mut ready = [PollFd::new(&socket, PollFlags::IN)];
        let patience = clock::timespec(Duration::from_secs(20));
        if poll(&mut ready, Some(&patience)).context("poll failed")? == 0 {
            bail!("{} of {count} messages have come", lags.count());
        }
        let (got, stamp) = sys::receive_stamped(socket.as_fd(), &mut buf)?;
        if got == 0 {
            bail!("Redis has closed the connection");
        }
        bytes.extend_from_slice(&buf[..got]);
        while bytes.len() >= whole {
            let header = Header::parse(&bytes[head.len()..]).context("no head in a message")?;
            // The first reads may have no stamp yet.
            let stamp = stamp.unwrap_or_else(clock::realtime_ns);
            lags.record(stamp.saturating_sub(header.sent_ns));
            bytes.drain(..whole);
        }
    }
    Ok(lags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_keep_their_mean() {
        let mut portions = Portions::new(1.3);
        let taken: Vec<usize> = (0..100).map(|_| portions.take()).collect();
        assert!((129..=130).contains(&taken.iter().sum::<usize>()), "{taken:?}");
        assert!(taken.iter().all(|one| (1..=2).contains(one)));
        assert_eq!(Portions::new(0.2).take(), 1);
    }
}
