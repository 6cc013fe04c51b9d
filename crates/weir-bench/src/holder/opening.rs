//! Opens connections, a bounded number at a time.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use weir_wire::v1::{
    ClientMessage, Hello, ServerMessage, Subscribe, client_message, server_message::Kind,
};
use weir_wire::{ProstMessage, frame};

use super::held::{Crowd, farewell};
use crate::protocol::HoldPlan;
use crate::stats::is_in_share;
use crate::tls::held::HeldKeys;
use crate::tls::holding_config;
use crate::worker::wire::{Inbox, Wire};
use crate::worker::{device_id, dial, source_of, topic};

/// Begins TLS.
pub(super) struct Client(Option<(Arc<ClientConfig>, ServerName<'static>)>);

/// Connections that are being opened.
pub(super) struct Opening {
    /// Connections that have not begun.
    left: u32,
    window: Vec<Newcomer>,
    inbox: Inbox,
    progressed: Duration,
}

/// A connection before `Welcome` and `Subscribed`.
struct Newcomer {
    wire: Wire,
    hello: Vec<u8>,
    is_greeting: bool,
    is_ready: bool,
    awaited: u8,
    heard: Vec<u8>,
}

impl Client {
    pub(super) fn new(plan: &HoldPlan) -> Result<Client> {
        let config = plan.tls.as_ref().map(|(_, tls)| holding_config(tls)).transpose()?;
        Ok(Client(config))
    }

    fn connection(&self) -> Result<Box<ClientConnection>> {
        let (config, name) = self.0.as_ref().context("the plan has no TLS")?;
        let conn = ClientConnection::new(Arc::clone(config), name.clone());
        conn.map(Box::new).context("cannot begin TLS")
    }
}

impl Opening {
    pub(super) fn new(count: u32, now: Duration) -> Opening {
        let inbox = Inbox::new(READ_BYTES);
        Opening { left: count, window: Vec::new(), inbox, progressed: now }
    }

    /// What to poll.
    pub(super) fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.window.iter().map(|newcomer| {
            let flags = if newcomer.is_greeting { PollFlags::IN } else { PollFlags::OUT };
            PollFd::new(&newcomer.wire, flags)
        })
    }

    /// Notes which of the polled ones are ready.
    pub(super) fn note_ready(&mut self, ready: &[bool]) {
        for (newcomer, is_ready) in self.window.iter_mut().zip(ready) {
            newcomer.is_ready = *is_ready;
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.left == 0 && self.window.is_empty()
    }

    /// Serves the ready ones, hands over those that are greeted, and begins others.
    ///
    /// Errors: the first connection that cannot be opened. Those on their way are dropped.
    pub(super) fn step(
        &mut self,
        (plan, client): &(HoldPlan, Client),
        crowd: &mut Crowd,
        now: Duration,
    ) -> Result<()> {
        let mut at = 0;
        while at < self.window.len() {
            let newcomer = &mut self.window[at];
            if std::mem::take(&mut newcomer.is_ready) && newcomer.serve(&mut self.inbox)? {
                let newcomer = self.window.swap_remove(at);
                newcomer.settle(crowd)?;
                self.progressed = now;
            } else {
                at += 1;
            }
        }
        while self.left > 0 && self.window.len() < plan.window as usize {
            let begun = u32::try_from(self.window.len()).context("a window is small")?;
            let number = plan.first + crowd.count() + begun;
            self.window.push(Newcomer::dial(plan, client, number)?);
            self.left -= 1;
        }
        let patience = Duration::from_millis(plan.patience_ms);
        if !self.window.is_empty() && now.saturating_sub(self.progressed) > patience {
            bail!(
                "{} connections on their way, and none opened for {patience:?}",
                self.window.len()
            );
        }
        Ok(())
    }
}

impl Newcomer {
    fn dial(plan: &HoldPlan, client: &Client, number: u32) -> Result<Newcomer> {
        let tls = plan.tls.as_ref().filter(|_| is_in_share(number, plan.tls_share));
        let addr = tls.map_or(plan.addr, |(addr, _)| *addr);
        let fd = dial(addr, source_of(addr, plan.source, number), None)?;
        let conn = tls.map(|_| client.connection()).transpose()?;
        Ok(Newcomer {
            wire: Wire::new(fd, conn),
            hello: hello(plan, number),
            is_greeting: false,
            is_ready: false,
            awaited: plan.hello.answers(),
            heard: Vec::new(),
        })
    }

    /// Takes the next step. Returns whether it is greeted.
    fn serve(&mut self, inbox: &mut Inbox) -> Result<bool> {
        if !self.is_greeting {
            sockopt::socket_error(self.wire.as_fd())?.context("cannot connect")?;
            // A fresh socket takes a small frame whole; under TLS it leaves with the handshake.
            self.wire.send(&self.hello)?;
            self.is_greeting = true;
            return Ok(false);
        }
        match self.wire.receive(READ_BYTES, inbox) {
            Ok(received) if received.bytes == 0 => bail!("the server has ended the connection"),
            Ok(_) => self.heard.extend_from_slice(inbox.content()),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        while self.awaited > 0
            && let Some((body, used)) = frame::decode(&self.heard, FRAME_BYTES_MAX)?
        {
            match ServerMessage::decode(body)?.kind {
                Some(Kind::Welcome(_) | Kind::Subscribed(_)) => self.awaited -= 1,
                Some(Kind::Goodbye(goodbye)) => return Err(farewell(goodbye.code)),
                other => bail!("an unexpected answer to Hello: {other:?}"),
            }
            self.heard.drain(..used);
        }
        Ok(self.awaited == 0)
    }

    /// Hands over the socket, the keys, and what was heard behind the greeting.
    fn settle(self, crowd: &mut Crowd) -> Result<()> {
        let (fd, conn) = self.wire.into_parts();
        let keys = conn.map(|conn| HeldKeys::of(*conn)).transpose()?;
        if keys.is_some() && !self.heard.is_empty() {
            bail!("a message came with the greeting");
        }
        crowd.add(fd, keys, self.heard);
        Ok(())
    }
}

/// The first frame of connection `number`.
fn hello(plan: &HoldPlan, number: u32) -> Vec<u8> {
    let name = topic(&plan.topic_prefix, number / plan.per_topic.max(1));
    let subscribe = Subscribe { topic: name, position: None, presence: false };
    let hello = Hello {
        device_id: device_id(),
        token: plan.hello.token.clone(),
        client: "weir-bench".to_owned(),
        heartbeat_ms: plan.heartbeat_ms,
        topics: plan.hello.subscribe.then_some(subscribe).into_iter().collect(),
        calls: false,
    };
    let mut out = Vec::new();
    let message = ClientMessage { kind: Some(client_message::Kind::Hello(hello)) };
    frame::encode(&message, &mut out);
    out
}

const READ_BYTES: usize = 16 << 10;
const FRAME_BYTES_MAX: usize = 1 << 20;
