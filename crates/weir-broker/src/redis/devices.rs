//! Devices in Redis: claims, and messages without an offset.
//!
//! A device's record is a sorted set. It has no expiry of its own that matters: [`Client::renew`] prolongs those of
//! the devices that are here, and the rest ends by itself.

use std::time::Duration;

use redis::Cmd;
use tokio::time::Instant;

use super::client::Client;
use super::keys::Interest;
use super::message::plain;
use super::scripts::{CLAIM, SEND};
use super::servers::Request;
use super::values::{damaged, int};
use crate::contract::Error;
use crate::records::{Claim, ConnectionNumber, Entry, Name, NodeNumber, Reach};

impl Client {
    pub(super) async fn claim_all(&self, claims: Vec<Claim>) -> Result<(), Error> {
        let began = Instant::now();
        let (_permit, until) = self.admit(claims.len())?;
        let mut devices = self.devices.lock().await;
        for claim in &claims {
            devices.insert(claim);
        }
        let mut interests: Vec<_> =
            claims.iter().map(|claim| Interest::Device(claim.device.clone())).collect();
        interests.dedup();
        // Under the lock, so that a release that comes later does not overtake it. Messages and evictions are heard
        // before the record is changed.
        self.servers.join(interests, until, Some(devices)).await?;
        let mut open: Vec<&Claim> = claims.iter().filter(|claim| claim.is_counted).collect();
        for lives_now in [false, true] {
            if open.is_empty() {
                break;
            }
            let lives = if lives_now { self.living(until).await? } else { self.lived() };
            let request = |claim: &&Claim| self.claim_request(claim, began, &lives, lives_now);
            let requests = open.iter().map(request).collect();
            let answers = self.servers.run(requests, 0, until).await;
            let mut unsettled = Vec::new();
            for (claim, answer) in open.into_iter().zip(answers) {
                if int(&answer?).map_err(damaged)? == 0 {
                    unsettled.push(claim);
                }
            }
            open = unsettled;
        }
        Ok(())
    }

    fn claim_request(
        &self,
        claim: &Claim,
        began: Instant,
        lives: &[String],
        lives_now: bool,
    ) -> Request {
        let place = self.keys.place(&claim.device);
        let now = Instant::now();
        let age = claim.age + (now - began);
        let latest = self.clock().latest(now, age).map(|latest| latest.to_string());
        let mut command = CLAIM.run([place.key('l')].iter());
        command
            .arg(place.key('d'))
            .arg(&self.context.instance)
            .arg(hex(claim.connection))
            .arg(u64::try_from(age.as_micros()).unwrap_or(u64::MAX))
            .arg(latest.unwrap_or_default())
            .arg(self.connections_per_device_max)
            .arg(RECORD_KEPT.as_millis().to_string())
            .arg(u8::from(lives_now));
        for node in lives {
            command.arg(node);
        }
        Request { slot: place.slot, command }
    }

    pub(super) async fn release_all(&self, claims: Vec<Claim>) -> Result<(), Error> {
        let (_permit, until) = self.admit(claims.len())?;
        let mut devices = self.devices.lock().await;
        let gone = claims.iter().filter(|claim| devices.remove(claim));
        let gone = gone.map(|claim| Interest::Device(claim.device.clone())).collect();
        self.servers.leave(gone, until).await?;
        drop(devices);
        self.unclaim(claims.iter().map(|claim| (&claim.device, claim.connection)), until).await
    }

    /// Takes connections out of their devices' records.
    async fn unclaim(
        &self,
        claims: impl Iterator<Item = (&Name, ConnectionNumber)>,
        until: Instant,
    ) -> Result<(), Error> {
        let request = |(device, connection)| {
            let place = self.keys.place(device);
            let mut command = redis::cmd("ZREM");
            command.arg(place.key('l')).arg(format!(
                "{} {}",
                hex(connection),
                self.context.instance
            ));
            Request { slot: place.slot, command }
        };
        let answers = self.servers.run(claims.map(request).collect(), 0, until).await;
        answers.into_iter().try_for_each(|answer| answer.map(drop))
    }

    /// Takes all connections of this node out of their devices' records.
    pub(super) async fn unclaim_all(&self) -> Result<(), Error> {
        let claims = self.devices.lock().await.take();
        for claims in claims.chunks(CHUNK) {
            let until = Instant::now() + self.timeout;
            let claims = claims.iter().map(|(device, number)| (device, *number));
            self.unclaim(claims.clone(), until).await?;
            let gone = claims.map(|(device, _)| Interest::Device(device.clone()));
            self.servers.leave(gone.collect(), until).await?;
        }
        Ok(())
    }

    /// Prolongs what has an expiry and belongs to this node, again and again.
    pub(super) async fn renew(&self) {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            let devices: Vec<Name> = self.devices.lock().await.names();
            let records = devices.iter().map(|device| {
                let place = self.keys.place(device);
                (place.slot, place.key('l'))
            });
            let keys: Vec<_> = records.collect();
            for keys in keys.chunks(CHUNK) {
                let request = |(slot, key): &(u16, String)| {
                    let mut command = redis::cmd("PEXPIRE");
                    command.arg(key).arg(RECORD_KEPT.as_millis().to_string());
                    Request { slot: *slot, command }
                };
                let until = Instant::now() + self.timeout;
                // What fails has its turn again long before its end.
                let _ = self.servers.run(keys.iter().map(request).collect(), 0, until).await;
                tokio::time::sleep(RENEW_PAUSE).await;
            }
            self.renew_presence().await;
        }
    }

    pub(super) async fn send_to_device(&self, device: Name, message: &Entry) -> Result<u32, Error> {
        let key = message.idempotency_key.as_ref();
        let key = key.map(|key| self.keys.place(&device).part('k', key));
        self.send(&Interest::Device(device), key, &message.payload).await
    }

    pub(super) async fn send_to_node(
        &self,
        node: NodeNumber,
        payload: &[u8],
    ) -> Result<bool, Error> {
        Ok(self.send(&Interest::Node(node), None, payload).await? > 0)
    }

    pub(super) async fn send_to_all(&self, message: &Entry) -> Result<Reach, Error> {
        let key = message.idempotency_key.as_ref();
        let key = key.map(|key| self.keys.shared().part('k', key));
        let reached = self.send(&Interest::All, key, &message.payload).await?;
        let live = self.living(Instant::now() + self.timeout).await?.len();
        Ok(Reach { reached, live: u32::try_from(live).unwrap_or(u32::MAX) })
    }

    /// Sends to those that are subscribed; how many those are. `key`: where its idempotency key is remembered.
    async fn send(
        &self,
        interest: &Interest,
        key: Option<String>,
        payload: &[u8],
    ) -> Result<u32, Error> {
        let (_permit, until) = self.admit(1)?;
        let (slot, channel) = self.keys.channel(interest);
        let mut command = match &key {
            Some(key) => SEND.run([key.clone()].iter()),
            None => redis::cmd("SPUBLISH"),
        };
        command.arg(channel).arg(plain(payload));
        if key.is_some() {
            command.arg(Entry::KEY_KEPT.as_millis().to_string());
        }
        let reached = int(&self.run_one(slot, command, until).await?).map_err(damaged)?;
        Ok(u32::try_from(reached).unwrap_or(u32::MAX))
    }

    /// Carries out one request.
    pub(super) async fn run_one(
        &self,
        slot: u16,
        command: Cmd,
        until: Instant,
    ) -> Result<redis::Value, Error> {
        let answers = self.servers.run(vec![Request { slot, command }], 0, until).await;
        answers.into_iter().next().unwrap_or_else(|| Err(damaged("an answer is missing")))
    }
}

/// A connection as it stands in Redis: in the order of its numbers.
pub(super) fn hex(connection: ConnectionNumber) -> String {
    format!("{:016x}", connection.0)
}

/// How long Redis keeps what a node has entered and does not renew.
pub(super) const RECORD_KEPT: Duration = Duration::from_secs(12 * 3600);
/// How often it is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(3 * 3600);
/// Between two chunks of it, so that Redis does not notice.
pub(super) const RENEW_PAUSE: Duration = Duration::from_millis(100);
/// Requests at once, where nobody waits.
const CHUNK: usize = 500;
