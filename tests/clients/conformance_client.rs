//! The adapter of weir-client for the conformance kit: commands from standard input, events to standard output.
//!
//! docs/client-authors.md describes both, and how an adapter is used.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead as _, Write as _};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, channel};
use weir_client::{
    Backoff, CallAnswer, Client, ClientError, Event, Options, Payload, Subscription,
};
use weir_tests::now;

/// A connection that comes back, as the documentation of [`Backoff`] has it.
struct Session {
    addr: String,
    options: Options,
    /// The token after [`Event::Expiring`].
    next_token: Option<String>,
    commands: Receiver<Value>,
    /// Publishes without an answer.
    waiting: HashSet<u32>,
    backoff: Backoff,
}

/// What follows the end of a connection.
enum After {
    Wait(Duration),
    GiveUp,
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, mut commands) = channel(64);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let command = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            if command.is_none_or(|command: Value| sender.blocking_send(command).is_err()) {
                break;
            }
        }
        // The kit has closed the adapter's standard input.
        std::process::exit(0);
    });
    runtime.block_on(async {
        let first = commands.recv().await.context("a command")?;
        Session::new(&first, commands)?.run().await
    })
}

impl Session {
    fn new(command: &Value, commands: Receiver<Value>) -> Result<Session> {
        let text = |name: &str| command[name].as_str().map(str::to_owned);
        let mut options = Options::device(text("device").context("a device")?);
        options.token = text("token").unwrap_or_default();
        options.calls = command["calls"] == true;
        // That of the gateway.
        options.frame_bytes_max = 65_536;
        let topics = command["topics"].as_array().context("topics")?;
        options.topics = topics.iter().filter_map(Value::as_str).map(Subscription::from).collect();
        Ok(Session {
            addr: text("address").context("an address")?,
            options,
            next_token: text("next_token"),
            commands,
            waiting: HashSet::new(),
            backoff: Backoff::default(),
        })
    }

    async fn run(mut self) -> Result<()> {
        loop {
            let after = match Client::connect(self.addr.as_str(), self.options.clone()).await {
                Ok(mut client) => {
                    let after = self.hold(&mut client).await?;
                    self.options.topics = client.positions();
                    after
                }
                Err(error) => self.after_error(&error),
            };
            for id in std::mem::take(&mut self.waiting) {
                tell(&json!({"event": "failed", "id": id, "code": "connection_lost"}))?;
            }
            let delay = match after {
                After::Wait(delay) => delay,
                After::GiveUp => {
                    tell(&json!({"event": "ended"}))?;
                    Duration::MAX
                }
            };
            self.pause(delay).await?;
        }
    }

    /// Serves a connection until it ends.
    async fn hold(&mut self, client: &mut Client) -> Result<After> {
        let since = now();
        loop {
            tokio::select! {
                command = self.commands.recv() => {
                    let command = command.context("a command")?;
                    if let Err(error) = self.obey(client, &command).await? {
                        return Ok(self.after_error(&error));
                    }
                }
                event = client.next() => {
                    self.backoff.handle_lasted(since.elapsed());
                    let event = match event {
                        Ok(Some(Event::Goodbye(goodbye))) => {
                            return Ok(self.backoff.after_goodbye(&goodbye).into());
                        }
                        Ok(Some(event)) => event,
                        Ok(None) => return Ok(After::Wait(self.backoff.after_close())),
                        Err(error) => return Ok(self.after_error(&error)),
                    };
                    if let Event::Call(call) = &event {
                        let answer = CallAnswer::unsupported(&call.method);
                        if let Err(error) = client.answer(call.id, answer).await {
                            return Ok(self.after_error(&error));
                        }
                    }
                    // This client has no request for another token on the same connection.
                    if let Event::Expiring(_) = &event
                        && let Some(token) = self.next_token.take()
                    {
                        self.options.token = token;
                        return Ok(After::Wait(Duration::ZERO));
                    }
                    self.report(&event)?;
                }
            }
        }
    }

    fn report(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Push(push) => {
                let text = match &push.payload {
                    Payload::Text(text) => text,
                    Payload::Data(_) => "",
                };
                tell(&json!({"event": "message", "topic": push.topic, "text": text}))
            }
            Event::Subscribed(told) if told.lost_after.is_some() => {
                tell(&json!({"event": "lost", "topic": told.topic}))
            }
            Event::Published(told) => {
                self.waiting.remove(&told.request);
                tell(&json!({"event": "published", "id": told.request}))
            }
            Event::Error(error) if self.waiting.remove(&error.request) => {
                tell(&json!({"event": "failed", "id": error.request, "code": error.code}))
            }
            Event::Subscribed(_)
            | Event::Unsubscribed(_)
            | Event::Presence(_)
            | Event::Error(_)
            | Event::Pong(_)
            | Event::Call(_)
            | Event::Answered(_)
            | Event::Cancelled(_)
            | Event::Expiring(_)
            | Event::Goodbye(_)
            | _ => Ok(()),
        }
    }

    /// The inner error is one of the connection.
    async fn obey(
        &mut self,
        client: &mut Client,
        command: &Value,
    ) -> Result<std::result::Result<(), ClientError>> {
        let topic = command["topic"].as_str().unwrap_or_default();
        match command["do"].as_str() {
            Some("subscribe") => return Ok(client.subscribe(topic).await),
            Some("unsubscribe") => return Ok(client.unsubscribe(topic).await),
            Some("publish") => {}
            other => anyhow::bail!("no command {other:?}"),
        }
        let id = u32::try_from(command["id"].as_u64().context("an id")?)?;
        let text = command["text"].as_str().unwrap_or_default().to_owned();
        self.waiting.insert(id);
        match client.publish(topic, Payload::Text(text), id).await {
            Err(ClientError::TooLarge { .. }) => {
                self.waiting.remove(&id);
                tell(&json!({"event": "failed", "id": id, "code": "too_large"}))?;
                Ok(Ok(()))
            }
            other => Ok(other),
        }
    }

    /// Waits before the next connection; the kit may speak meanwhile.
    async fn pause(&mut self, delay: Duration) -> Result<()> {
        // A pause that does not end is one of a year.
        let pause = tokio::time::sleep(delay.min(Duration::from_secs(31_536_000)));
        tokio::pin!(pause);
        let mut wanted: BTreeMap<String, Subscription> =
            self.options.topics.drain(..).map(|wanted| (wanted.topic.clone(), wanted)).collect();
        loop {
            let command = tokio::select! {
                () = &mut pause => break,
                command = self.commands.recv() => command.context("a command")?,
            };
            let topic = command["topic"].as_str().unwrap_or_default().to_owned();
            match command["do"].as_str() {
                Some("subscribe") => {
                    wanted.entry(topic.clone()).or_insert_with(|| topic.into());
                }
                Some("unsubscribe") => {
                    wanted.remove(&topic);
                }
                _ => {
                    let id = &command["id"];
                    tell(&json!({"event": "failed", "id": id, "code": "not_connected"}))?;
                }
            }
        }
        self.options.topics = wanted.into_values().collect();
        Ok(())
    }

    fn after_error(&mut self, error: &ClientError) -> After {
        self.backoff.after_error(error).into()
    }
}

impl From<Option<Duration>> for After {
    fn from(delay: Option<Duration>) -> After {
        delay.map_or(After::GiveUp, After::Wait)
    }
}

fn tell(event: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{event}")?;
    Ok(out.flush()?)
}
