//! The threads for datagrams in an upgrade: they stop reading, and what they remember moves.
//!
//! Datagrams that come then wait in the kernel, in the sockets that both processes have. Requests that
//! the front is carrying out are answered by the process that has begun them.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use weir_engine::Nanos;
use weir_engine::datagrams::DatagramSocket;
use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::handler::{FRONT_TIMEOUT, Handler, Memory, TellEnded};
use crate::base::config::UdpConfig;
use crate::limits::duplicates::Key;

/// The way to all threads, in the order of their sockets.
pub(crate) struct Threads {
    pub(super) stop: Arc<AtomicBool>,
    pub(super) ways: Vec<Way>,
}

/// The way to one thread.
pub(super) struct Way {
    pub(super) addr: SocketAddr,
    pub(super) socket: Arc<DatagramSocket>,
    pub(super) sender: SyncSender<Order>,
}

/// What a thread is told.
pub(super) enum Order {
    /// Read nothing any more.
    Suspend,
    /// Say what is remembered as soon as the front has answered all, or at that time.
    Export(SyncSender<Exported>, Nanos),
    /// Read again.
    Resume,
    /// Another process reads. Tell it what becomes of the requests that were begun.
    Leave(TellEnded),
    /// Do not wait for answers of the front after that time.
    EndBy(Nanos),
    /// The old process has ended a request with this answer, or without one.
    Ended(Key, Option<Box<[u8]>>),
}

/// What a thread remembers, and the requests that are being carried out for it.
pub(super) type Exported = (v1::Duplicates, Vec<v1::RequestKey>);

/// The state of a thread that may be suspended.
#[derive(Default)]
pub(super) struct Suspension {
    is_on: bool,
    export: Option<(SyncSender<Exported>, Nanos)>,
    end_by: Option<Nanos>,
}

/// Threads that read nothing. Dropped before [`Suspended::leave`], it lets them read again.
pub(crate) struct Suspended {
    threads: Arc<Threads>,
    is_over: bool,
}

/// What the threads of an old process remembered, by address and in the order of its sockets.
#[derive(Default)]
pub(crate) struct Remembered(Vec<(SocketAddr, Memory)>);

impl Threads {
    /// The sockets, each address's in their order.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ways.iter().map(|way| way.socket.as_fd())
    }

    /// Lets the threads read nothing any more.
    pub(crate) fn suspend(self: &Arc<Self>) -> Suspended {
        self.tell(|| Order::Suspend);
        Suspended { threads: Arc::clone(self), is_over: false }
    }

    /// Takes what has become of a request that the old process had begun. It blocks.
    pub(crate) fn hear(&self, v1::LinkDatagram { request, answer }: v1::LinkDatagram) {
        // The old process is left to itself by now.
        let Some(Ok(key)) = request.as_ref().map(Key::import) else { return };
        let answer = answer.map(Vec::into_boxed_slice);
        self.tell(|| Order::Ended(key, answer.clone()));
    }

    /// When the threads are told to end, they do not wait for answers of the front after that time.
    pub(super) fn end_by(&self, until: Nanos) {
        self.tell(|| Order::EndBy(until));
    }

    /// Lets the threads end when everything is answered.
    pub(super) fn stop(&self) {
        // What a thread was told before, it finds before this.
        self.stop.store(true, Ordering::Release);
        self.ways.iter().for_each(|way| way.socket.waker()());
    }

    fn tell(&self, order: impl Fn() -> Order) {
        self.ways.iter().for_each(|way| way.tell(order()));
    }
}

impl Way {
    fn tell(&self, order: Order) {
        // It waits for room if the thread is busy. One that has ended by itself is counted.
        let _ = self.sender.send(order);
        self.socket.waker()();
    }
}

impl Suspended {
    /// What the threads remember, one after the other; each says it when the front has answered all,
    /// and at the latest at `answered`. It blocks.
    ///
    /// `None`: `until` has come.
    pub(crate) fn export(
        &self,
        answered: Nanos,
        until: Nanos,
    ) -> Option<Vec<v1::DatagramSocketState>> {
        let export = |way: &Way| {
            let (sender, exported) = sync_channel(1);
            way.tell(Order::Export(sender, answered));
            let left = until.since(Nanos::now());
            let (retries, begun) = match exported.recv_timeout(left) {
                Ok((retries, begun)) => (Some(retries), begun),
                Err(RecvTimeoutError::Timeout) => return None,
                // The thread has ended by itself. Another process gives the socket a new one.
                Err(RecvTimeoutError::Disconnected) => (None, Vec::new()),
            };
            Some(v1::DatagramSocketState { addr: way.addr.to_string(), retries, begun })
        };
        self.threads.ways.iter().map(export).collect()
    }

    /// Another process reads from now on. The threads send the answers that are still due, tell it of
    /// them, and end.
    pub(crate) fn leave(mut self, tell: Option<&TellEnded>) {
        self.is_over = true;
        if let Some(tell) = tell {
            self.threads.tell(|| Order::Leave(Arc::clone(tell)));
        }
        self.threads.stop();
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        if !self.is_over {
            self.threads.tell(|| Order::Resume);
        }
    }
}

impl Suspension {
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether a thread that was told to end `since` so long still waits for answers of the front.
    pub(super) fn is_patient(&self, since: Duration, now: Nanos) -> bool {
        match (self.end_by, self.is_on) {
            (Some(until), _) => now < until,
            // Each has come by then.
            (None, true) => since <= FRONT_TIMEOUT,
            (None, false) => since <= LAST_ANSWERS,
        }
    }

    pub(super) fn take_orders(
        &mut self,
        orders: &Receiver<Order>,
        handler: &mut Handler,
        now: Nanos,
    ) {
        while let Ok(order) = orders.try_recv() {
            match order {
                Order::Suspend => self.is_on = true,
                Order::Export(sender, answered) => self.export = Some((sender, answered)),
                Order::Resume => {
                    *self = Suspension::default();
                    handler.go_on();
                }
                Order::Leave(tell) => handler.tell(tell),
                Order::EndBy(until) => self.end_by = Some(until),
                Order::Ended(key, answer) => handler.ended_elsewhere(key, answer, now),
            }
        }
    }

    /// Says what is remembered, if that was asked for and is due.
    pub(super) fn export(&mut self, handler: &mut Handler, now: Nanos) {
        let is_due = |answered: Nanos| handler.is_idle() || now >= answered;
        if let Some((sender, _)) = self.export.take_if(|(_, answered)| is_due(*answered)) {
            // Whoever asked may not wait any more.
            let _ = sender.send(handler.export());
        }
    }
}

/// Reads what the threads of an old process remembered.
pub(crate) fn import(
    config: &UdpConfig,
    states: Vec<v1::DatagramSocketState>,
) -> Result<Remembered, NotUnderstood> {
    let import = |v1::DatagramSocketState { addr, retries, begun }: v1::DatagramSocketState| {
        let not_understood = |_| NotUnderstood { field: "datagrams.addr", value: 0 };
        let addr = addr.parse().map_err(not_understood)?;
        let mut memory = Memory::new(config);
        if let Some(retries) = retries {
            memory.retries.import(retries, |answer| Ok(answer.into()))?;
        }
        for key in &begun {
            memory.begun.insert(memory.retries.import_begun(key)?);
        }
        Ok((addr, memory))
    };
    states.into_iter().map(import).collect::<Result<_, _>>().map(Remembered)
}

impl Remembered {
    /// What the next thread of this address remembered.
    pub(super) fn take(&mut self, addr: SocketAddr) -> Option<Memory> {
        let index = self.0.iter().position(|(of, _)| *of == addr)?;
        Some(self.0.remove(index).1)
    }
}

/// After the stop, a thread waits for answers of the front for at most this time.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Orders that a thread has not taken yet.
pub(super) const ORDERS_MAX: usize = 4;
