//! One thread and its socket: receive, answer, send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::warn;
use weir_engine::Nanos;
use weir_engine::datagrams::{DatagramSocket, Inbox, Outbox};

use super::handler::{Handler, Shared};
use crate::observe::counters::udp::Count;

/// Serves a socket until it is told to stop; then it answers what it has taken.
pub(super) fn run(socket: &Arc<DatagramSocket>, shared: Arc<Shared>, stop: &AtomicBool) {
    let mut inbox = Inbox::new(shared.config.datagram_bytes_max);
    let mut outbox = Outbox::default();
    let mut losses = Losses::default();
    let mut ended: Option<Nanos> = None;
    let mut handler = Handler::new(shared, socket.waker());
    loop {
        let now = Nanos::now();
        if ended.is_none() && stop.load(Ordering::Relaxed) {
            ended = Some(now);
        }
        handler.handle_done(&mut outbox, now);
        let since_end = ended.map(|ended| now.since(ended));
        // What had come when it ended is taken too, but not all that keeps coming.
        let is_taking = since_end.is_none_or(|since| since < LAST_TURN);
        let received = if is_taking { receive(&mut inbox, socket, &mut handler) } else { 0 };
        for datagram in inbox.datagrams().take(received) {
            if outbox.is_full() {
                send(&mut outbox, socket, &mut handler);
            }
            handler.handle(&datagram, &mut outbox, now);
        }
        send(&mut outbox, socket, &mut handler);
        losses.tell(inbox.lost(), socket, &mut handler, now);
        handler.flush_counts();
        if received == Inbox::BATCH {
            continue;
        }
        if let Some(since) = since_end
            && received == 0
            && (handler.is_idle() || since > LAST_ANSWERS)
        {
            return;
        }
        let timeout = if ended.is_some() { LAST_TURN } else { TURN_MAX };
        if socket.wait(timeout).is_err() {
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

/// What the kernel threw away, told seldom.
#[derive(Default)]
struct Losses {
    counted: u64,
    told: u64,
    told_at: Option<Nanos>,
}

impl Losses {
    fn tell(&mut self, lost: u64, socket: &DatagramSocket, handler: &mut Handler, now: Nanos) {
        if lost == self.counted && lost == self.told {
            return;
        }
        handler.count(Count::Lost, lost - self.counted);
        self.counted = lost;
        if self.told_at.is_some_and(|at| now.since(at) < TELL_INTERVAL) {
            return;
        }
        let granted = socket.buffers().map_or(0, |buffers| buffers.recv_bytes);
        warn!(
            lost = lost - self.told,
            total = lost,
            recv_buffer_bytes = granted,
            "datagrams lost: a socket's receive buffer was full; raise udp.recv_buffer_bytes, and the sysctl \
             net.core.rmem_max to as much"
        );
        self.told = lost;
        self.told_at = Some(now);
    }
}

/// How often the threads look round if nothing comes.
const TURN_MAX: Duration = Duration::from_secs(1);
/// What waits in the kernel when it ends is taken within this.
const LAST_TURN: Duration = Duration::from_millis(100);
/// Who waits for the front when it ends is answered within this, or not.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
const TELL_INTERVAL: Duration = Duration::from_secs(10);
