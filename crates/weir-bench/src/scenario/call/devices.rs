//! The devices: those that call, and those that are called.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use weir_wire::v1::{Answer, Call, ClientMessage, Hello, ServerMessage, answer, call};
use weir_wire::v1::{client_message::Kind as Says, server_message::Kind as Hears};
use weir_wire::{ProstMessage, frame};

use crate::clock;

/// One connection of a device.
pub(super) struct Device {
    stream: TcpStream,
    received: Vec<u8>,
    number: u32,
}

/// What became of the calls of a round.
#[derive(Default)]
pub(super) struct Outcome {
    /// From the sending of each call to its answer.
    pub(super) lags: Vec<u64>,
    pub(super) lost: u64,
    pub(super) twice: u64,
    /// Answers with an error, or with another content.
    pub(super) wrong: u64,
}

impl Outcome {
    pub(super) fn add(&mut self, other: &Outcome) {
        self.lost += other.lost;
        self.twice += other.twice;
        self.wrong += other.wrong;
    }
}

impl Device {
    /// Connects devices that call, some at a time.
    pub(super) async fn connect_all(
        addr: SocketAddr,
        count: u32,
        window: u32,
    ) -> Result<Vec<Device>> {
        let window = Arc::new(Semaphore::new(window as usize));
        let mut connecting = JoinSet::new();
        for number in 0..count {
            let window = Arc::clone(&window);
            connecting.spawn(async move {
                let _turn = window.acquire_owned().await;
                Device::connect(addr, number, format!("caller-{number}"), false).await
            });
        }
        let mut devices = Vec::new();
        while let Some(device) = connecting.join_next().await {
            devices.push(device??);
        }
        Ok(devices)
    }

    /// Connects devices that answer calls until told to stop; those that are silent only read.
    pub(super) async fn answer_all(
        addr: SocketAddr,
        count: u32,
        is_silent: impl Fn(u32) -> bool,
    ) -> Result<Arc<AtomicBool>> {
        let stop = Arc::new(AtomicBool::new(false));
        for number in 0..count {
            let device = Device::connect(addr, number, super::callers::name(number), true).await?;
            let (is_silent, stop) = (is_silent(number), Arc::clone(&stop));
            tokio::spawn(device.answer(is_silent, stop));
        }
        Ok(stop)
    }

    async fn connect(addr: SocketAddr, number: u32, id: String, calls: bool) -> Result<Device> {
        let stream = TcpStream::connect(addr).await.context("cannot connect a device")?;
        stream.set_nodelay(true)?;
        let mut device = Device { stream, received: Vec::new(), number };
        device.say(Says::Hello(Hello { device_id: id, calls, ..Hello::default() })).await?;
        let heard = timeout(PATIENCE, device.hear()).await.context("no welcome")??;
        ensure!(matches!(heard, Hears::Welcome(_)), "expected Welcome, got {heard:?}");
        Ok(device)
    }

    async fn say(&mut self, kind: Says) -> Result<()> {
        let mut out = Vec::new();
        frame::encode(&ClientMessage { kind: Some(kind) }, &mut out);
        Ok(self.stream.write_all(&out).await?)
    }

    async fn hear(&mut self) -> Result<Hears> {
        loop {
            if let Some((body, used)) = frame::decode(&self.received, 1 << 20)? {
                let message = ServerMessage::decode(body)?;
                self.received.drain(..used);
                return message.kind.context("a message has a kind");
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                bail!("the server has closed a connection");
            }
        }
    }

    /// Makes one call, and waits for its answer, and a moment for another one.
    async fn call(&mut self, round: u32, size: usize) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let content = format!("{:08x}{round:08x}", self.number);
        let content = content.repeat(size.div_ceil(content.len()));
        let content = content.as_bytes()[..size].to_vec();
        let (id, sent) = (round + 1, clock::monotonic_ns());
        self.say(Says::Call(Call {
            id,
            method: "bench/echo".to_owned(),
            payload: Some(call::Payload::Data(content.clone())),
            deadline_ms: DEADLINE_MS,
            ..Call::default()
        }))
        .await?;
        match timeout(PATIENCE, self.hear()).await {
            Ok(heard) => {
                outcome.lags.push(clock::monotonic_ns() - sent);
                let payload = Some(answer::Payload::Data(content));
                let expected = Answer { id, payload, status: 200, ..Answer::default() };
                outcome.wrong += u64::from(heard? != Hears::Answer(expected));
            }
            Err(_) => outcome.lost += 1,
        }
        Ok(outcome)
    }

    /// Whether something more has come.
    fn has_more(&mut self) -> bool {
        !self.received.is_empty() || self.stream.try_read_buf(&mut self.received).is_ok()
    }

    async fn answer(mut self, is_silent: bool, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::Relaxed) {
            let Ok(heard) = self.hear().await else { return };
            let Hears::Call(call) = heard else { continue };
            if is_silent {
                continue;
            }
            let payload = Some(answer::Payload::Text(super::callers::name(self.number)));
            let answer = Answer { id: call.id, payload, ..Answer::default() };
            if self.say(Says::Answer(answer)).await.is_err() {
                return;
            }
        }
    }
}

/// All devices call at once. Returns them, and what became of the calls.
pub(super) async fn call_all(
    devices: Vec<Device>,
    round: u32,
    size: usize,
) -> Result<(Vec<Device>, Outcome)> {
    let mut calling = JoinSet::new();
    for mut device in devices {
        calling.spawn(async move {
            let outcome = device.call(round, size).await;
            (device, outcome)
        });
    }
    let (mut devices, mut sum) = (Vec::new(), Outcome::default());
    while let Some(called) = calling.join_next().await {
        let (device, outcome) = called?;
        let mut outcome = outcome?;
        sum.add(&outcome);
        sum.lags.append(&mut outcome.lags);
        devices.push(device);
    }
    for device in &mut devices {
        sum.twice += u64::from(device.has_more());
    }
    Ok((devices, sum))
}

const PATIENCE: Duration = Duration::from_secs(40);
const DEADLINE_MS: u32 = 30_000;
