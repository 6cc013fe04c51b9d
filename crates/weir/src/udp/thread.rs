//! A UDP thread and its socket: receive, answer, send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use tracing::warn;
use weir_engine::Nanos;
use weir_engine::datagrams::{DatagramSocket, Inbox, Outbox};

use super::handler::{Handler, Memory, Shared};
use super::handover::{Order, Suspension};
use crate::observe::counters::udp::Count;

/// Serves a socket until `stop` is set. Then it answers the datagrams that it has received, and
/// ends. While an order suspends it, it receives nothing.
pub(super) fn run(
    socket: &Arc<DatagramSocket>,
    (shared, memory): (Arc<Shared>, Option<Memory>),
    (stop, orders): (&AtomicBool, &Receiver<Order>),
) {
    let mut inbox = Inbox::new(shared.config.datagram_bytes_max);
    let mut outbox = Outbox::default();
    let mut losses = Losses::default();
    let mut ended: Option<Nanos> = None;
    let mut suspension = Suspension::default();
    let mut handler = Handler::new(shared, socket.waker(), memory);
    loop {
        let now = Nanos::now();
        if ended.is_none() && stop.load(Ordering::Acquire) {
            ended = Some(now);
        }
        handler.handle_done(&mut outbox, now);
        let since_end = ended.map(|ended| now.since(ended));
        // Datagrams that came before the stop are answered too, but those that keep coming are not.
        suspension.take_orders(orders, &mut handler, now);
        handler.forget_elsewhere(now);
        let is_taking = !suspension.is_on() && since_end.is_none_or(|since| since < LAST_TURN);
        let received = if is_taking { receive(&mut inbox, socket, &mut handler) } else { 0 };
        for datagram in inbox.datagrams().take(received) {
            if outbox.is_full() {
                send(&mut outbox, socket, &mut handler);
            }
            handler.handle(&datagram, &mut outbox, now);
        }
        send(&mut outbox, socket, &mut handler);
        losses.tell(socket, now);
        handler.flush_counts();
        if received == Inbox::BATCH {
            continue;
        }
        suspension.export(&mut handler, now);
        if let Some(since) = since_end
            && received == 0
            && (handler.is_idle() || !suspension.is_patient(since, now))
        {
            return;
        }
        let waited = if suspension.is_on() {
            socket.wait_for_waker(SUSPENDED_TURN)
        } else {
            socket.wait(if ended.is_some() { LAST_TURN } else { TURN_MAX })
        };
        if waited.is_err() {
            handler.count(Count::ReceiveErrors, 1);
        }
    }
}

fn receive(inbox: &mut Inbox, socket: &DatagramSocket, handler: &mut Handler) -> usize {
    match inbox.receive(socket) {
        Ok(received) => {
            handler.count(Count::Received, received as u64);
            received
        }
        Err(_) => {
            handler.count(Count::ReceiveErrors, 1);
            0
        }
    }
}

fn send(outbox: &mut Outbox, socket: &DatagramSocket, handler: &mut Handler) {
    if !outbox.is_empty() {
        let outcome = outbox.send(socket);
        handler.count(Count::Sent, outcome.sent as u64);
        handler.count(Count::SendErrors, outcome.refused as u64);
    }
}

/// Datagrams that the kernel dropped. Each turn may ask for them; a line is logged at most once in
/// [`TELL_INTERVAL`].
#[derive(Default)]
struct Losses {
    told: u32,
    /// The kernel is not asked before this time.
    next_at: Nanos,
}

impl Losses {
    fn tell(&mut self, socket: &DatagramSocket, now: Nanos) {
        if now < self.next_at {
            return;
        }
        self.next_at = now.after(TURN_MAX);
        let Ok(total) = socket.lost() else { return };
        if total == self.told {
            return;
        }
        warn!(
            lost = total.wrapping_sub(self.told),
            total,
            recv_buffer_bytes = socket.buffers().map_or(0, |buffers| buffers.recv_bytes),
            "datagrams lost: a socket's receive buffer was full; raise udp.recv_buffer_bytes, and raise the sysctl \
             net.core.rmem_max to that size"
        );
        self.told = total;
        self.next_at = now.after(TELL_INTERVAL);
    }
}

/// The longest wait of a thread without datagrams.
const TURN_MAX: Duration = Duration::from_secs(1);
/// How often a suspended thread looks whether the front has answered all.
const SUSPENDED_TURN: Duration = Duration::from_millis(10);
/// After the stop, a thread receives datagrams for at most this time.
const LAST_TURN: Duration = Duration::from_millis(100);
const TELL_INTERVAL: Duration = Duration::from_secs(10);
