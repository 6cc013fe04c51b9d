//! The threads for datagrams in an upgrade: they stop reading, and what they remember moves.
//!
//! Datagrams that come then wait in the kernel, in the sockets that both processes have.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};

use weir_engine::Nanos;
use weir_engine::datagrams::DatagramSocket;
use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::handler::{Handler, Retries, new_retries};
use crate::base::config::UdpConfig;

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
    /// Say what is remembered as soon as nothing is being carried out. Until then, tokens that are
    /// being looked up are waited for too.
    Export(SyncSender<v1::Duplicates>, Nanos),
    /// Read again.
    Resume,
}

/// The state of a thread that may be suspended.
#[derive(Default)]
pub(super) struct Suspension {
    is_on: bool,
    export: Option<(SyncSender<v1::Duplicates>, Nanos)>,
}

/// Threads that read nothing. Dropped before [`Suspended::leave`], it lets them read again.
pub(crate) struct Suspended {
    threads: Arc<Threads>,
    is_over: bool,
}

/// What the threads of an old process remembered, by address and in the order of its sockets.
#[derive(Default)]
pub(crate) struct Remembered(Vec<(SocketAddr, Retries)>);

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

    /// Lets the threads end when everything is answered.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
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
    /// What the threads remember, one after the other; each says it when nothing is being carried
    /// out for it any more. Nothing changes until they read again. It blocks.
    ///
    /// Until `checked` they wait for tokens that are being looked up too. `None`: `until` has come.
    pub(crate) fn export(
        &self,
        checked: Nanos,
        until: Nanos,
    ) -> Option<Vec<v1::DatagramSocketState>> {
        let export = |way: &Way| {
            let (sender, exported) = sync_channel(1);
            way.tell(Order::Export(sender, checked));
            let left = until.since(Nanos::now());
            let retries = match exported.recv_timeout(left) {
                Ok(retries) => Some(retries),
                Err(RecvTimeoutError::Timeout) => return None,
                // The thread has ended by itself. Another process gives the socket a new one.
                Err(RecvTimeoutError::Disconnected) => None,
            };
            Some(v1::DatagramSocketState { addr: way.addr.to_string(), retries })
        };
        self.threads.ways.iter().map(export).collect()
    }

    /// Another process reads from now on. The threads send the answers that are still due, and end.
    pub(crate) fn leave(mut self) {
        self.is_over = true;
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

    pub(super) fn take_orders(&mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.try_recv() {
            match order {
                Order::Suspend => self.is_on = true,
                Order::Export(sender, checked) => self.export = Some((sender, checked)),
                Order::Resume => *self = Suspension::default(),
            }
        }
    }

    /// Says what is remembered, if that was asked for and nothing is being carried out.
    pub(super) fn export(&mut self, handler: &Handler, now: Nanos) {
        let is_due = |checked: Nanos| handler.is_settled() && (handler.is_idle() || now >= checked);
        if let Some((sender, _)) = self.export.take_if(|(_, checked)| is_due(*checked)) {
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
    let import = |v1::DatagramSocketState { addr, retries }: v1::DatagramSocketState| {
        let not_understood = |_| NotUnderstood { field: "datagrams.addr", value: 0 };
        let addr = addr.parse().map_err(not_understood)?;
        let mut known = new_retries(config);
        if let Some(retries) = retries {
            known.import(retries, |answer| Ok(answer.into()))?;
        }
        Ok((addr, known))
    };
    states.into_iter().map(import).collect::<Result<_, _>>().map(Remembered)
}

impl Remembered {
    /// What the next thread of this address remembered.
    pub(super) fn take(&mut self, addr: SocketAddr) -> Option<Retries> {
        let index = self.0.iter().position(|(of, _)| *of == addr)?;
        Some(self.0.remove(index).1)
    }
}

/// Orders that a thread has not taken yet.
pub(super) const ORDERS_MAX: usize = 4;
