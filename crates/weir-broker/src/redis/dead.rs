//! Ends the stays of dead nodes: their members leave.
//!
//! One node looks at a time; when it ends, another goes on. What it has not done yet stands in Redis.

use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep};

use super::attendance::is_attended;
use super::client::Client;
use super::presence::PIECE;
use super::scripts::DEAD;
use super::servers::Request;
use super::values::{array, damaged, int, number, text};
use crate::contract::Error;
use crate::records::Name;

impl Client {
    /// Looks for dead nodes again and again: runs until it is dropped.
    pub(super) async fn end_dead(&self) {
        let every = (self.presence_kept / LOOKS).max(EVERY_MIN);
        let mut is_behind = false;
        loop {
            if !is_behind {
                sleep(every.mul_f64(rand::random_range(0.75..1.25))).await;
            }
            // While Redis cannot be reached, nobody is dead.
            let ended = self.look(every).await.unwrap_or_default();
            is_behind = self.end_stays(ended, Instant::now() + every).await;
        }
    }

    /// Looks, if it is this node's turn; the stays that have ended and may have members.
    async fn look(&self, every: Duration) -> Result<Vec<String>, Error> {
        let shared = self.keys.shared();
        let keys = ['w', 'y', 'z', 'f'].map(|kind| shared.key(kind));
        let mut command = DEAD.run(keys.iter());
        command
            .arg(&self.context.instance)
            .arg((every * TURN).as_millis().to_string())
            .arg(self.presence_kept.as_millis().to_string())
            .arg((every * 2).as_millis().to_string());
        let answer = self.run_one(shared.slot, command, Instant::now() + self.timeout).await?;
        if answer == Value::Nil {
            return Ok(Vec::new());
        }
        let stays = array(&answer).map_err(damaged)?;
        stays.iter().map(|stay| Ok(text(stay).map_err(damaged)?.to_owned())).collect()
    }

    /// Ends stays until it is time to look again; whether there is more to do.
    async fn end_stays(&self, stays: Vec<String>, until: Instant) -> bool {
        for stay in stays {
            loop {
                if Instant::now() >= until {
                    return true;
                }
                match self.end_some((&stay, None), Instant::now() + self.timeout).await {
                    Ok(true) => sleep(PAUSE).await,
                    Ok(false) => {
                        if self.forget_stay(&stay).await.is_ok() {
                            tracing::info!(stay, "a node has ended, and its members have left");
                        }
                        break;
                    }
                    Err(error) => {
                        // Its turn comes again.
                        tracing::warn!(stay, %error, "the members of a dead node cannot leave");
                        break;
                    }
                }
            }
        }
        false
    }

    /// Takes some members of a stay out, and tells it; whether there may be more. `call`: the stay is this node's own.
    pub(super) async fn end_some(
        &self,
        (stay, call): (&str, Option<u64>),
        until: Instant,
    ) -> Result<bool, Error> {
        let index = self.keys.place(&stay.into());
        let mut command = redis::cmd("ZRANGE");
        command.arg(index.key('x')).arg(0).arg(PIECES - 1).arg("WITHSCORES");
        let answer = self.run_one(index.slot, command, until).await?;
        let entry = |pair: &[Value]| match pair {
            [topic, entry] => Ok((Name::from(text(topic)?), number(entry)?)),
            _ => Err("an entry is cut".to_owned()),
        };
        let entries = array(&answer).map_err(damaged)?.chunks(2).map(entry);
        let entries = entries.collect::<Result<Vec<_>, _>>().map_err(damaged)?;
        if entries.is_empty() {
            return Ok(false);
        }
        // Few topics have several pieces at once.
        let places = (0..entries.len()).cycle().take(PIECES - PIECES % entries.len());
        let places: Vec<usize> = places.collect();
        let request = |place: &usize| {
            let topic = &entries[*place].0;
            if let Some(request) = self.end_attendance(topic, (stay, call)) {
                return request;
            }
            let mut request = self.change_request(("end", call), topic, (stay, None));
            request.command.arg(PIECE);
            request
        };
        let requests: Vec<Request> = places.iter().map(request).collect();
        let answers = self.servers.run(requests, 0, until).await;
        let mut is_empty = vec![false; entries.len()];
        let mut went = Ok(true);
        for (place, answer) in places.into_iter().zip(answers) {
            if is_attended(&entries[place].0) {
                // The same request again says the same.
                let told = answer.and_then(|answer| match is_empty[place] {
                    true => Ok(()),
                    false => self.tell_end(&entries[place].0, &answer),
                });
                match told {
                    Ok(()) => is_empty[place] = true,
                    Err(error) => went = Err(error),
                }
                continue;
            }
            match answer.and_then(|answer| int(&answer).map_err(damaged)) {
                Ok(left) => is_empty[place] |= left == 0,
                Err(error) => went = Err(error),
            }
        }
        let emptied = entries.into_iter().zip(is_empty).filter(|(_, is_empty)| *is_empty);
        let emptied: Vec<_> = emptied.map(|(entry, _)| entry).collect();
        if !emptied.is_empty() {
            let request = self.forget_request(stay, &emptied);
            self.run_one(request.slot, request.command, until).await?;
        }
        went
    }

    /// Forgets a stay that has no members any more.
    async fn forget_stay(&self, stay: &str) -> Result<(), Error> {
        let shared = self.keys.shared();
        let mut command = redis::cmd("ZREM");
        command.arg(shared.key('z')).arg(stay);
        self.run_one(shared.slot, command, Instant::now() + self.timeout).await.map(drop)
    }
}

/// Looks in the time for which members outlive their node.
const LOOKS: u32 = 6;
/// Between two looks, however short that time is.
const EVERY_MIN: Duration = Duration::from_millis(10);
/// Looks after which it is another node's turn, if they fail.
const TURN: u32 = 3;
/// Pieces at once. Together they take Redis some milliseconds.
const PIECES: usize = 32;
/// Between them, so that others have their turn.
const PAUSE: Duration = Duration::from_millis(10);
