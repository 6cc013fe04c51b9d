//! One thread and its socket: receive, answer, send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::warn;
use weir_engine::Nanos;
use weir_engine::datagrams::{DatagramSocket, Inbox, Outbox};

use super::desk::{Desk, Shared};
use crate::observe::counters::udp::Count;

/// Serves a socket until it is told to stop; then it answers what it has taken.
pub(super) fn run(socket: &Arc<DatagramSocket>, shared: Arc<Shared>, stop: &AtomicBool) {
    let mut inbox = Inbox::new(shared.config.datagram_bytes_max);
    let mut outbox = Outbox::default();
    let mut losses = Losses::default();
    let mut ended: Option<Nanos> = None;
    let mut desk = Desk::new(shared, socket.bell());
    loop {
        let now = Nanos::now();
        if ended.is_none() && stop.load(Ordering::Relaxed) {
            ended = Some(now);
        }
        desk.handle_done(&mut outbox, now);
        let since_end = ended.map(|ended| now.since(ended));
        // What had come when it ended is taken too, but not all that keeps coming.
        let is_taking = since_end.is_none_or(|since| since < LAST_TURN);
        let received = if is_taking { receive(&mut inbox, socket, &mut desk) } else { 0 };
        for datagram in inbox.datagrams().take(received) {
            if outbox.is_full() {
                send(&mut outbox, socket, &mut desk);
            }
            desk.handle(&datagram, &mut outbox, now);
        }
        send(&mut outbox, socket, &mut desk);
        losses.tell(inbox.lost(), socket, &mut desk, now);
        desk.flush_counts();
        if received == Inbox::BATCH {
            continue;
        }
        if let Some(since) = since_end
            && received == 0
            && (desk.is_idle() || since > LAST_ANSWERS)
        {
            return;
        }
        let timeout = if ended.is_some() { LAST_TURN } else { TURN_MAX };
        if socket.wait(timeout).is_err() {
            desk.count(Count::ReceiveErrors, 1);
        }
    }
}

fn receive(inbox: &mut Inbox, socket: &DatagramSocket, desk: &mut Desk) -> usize {
    match inbox.receive(socket) {
        Ok(received) => {
            desk.count(Count::Received, received as u64);
            received
        }
        Err(_) => {
            desk.count(Count::ReceiveErrors, 1);
            0
        }
    }
}

fn send(outbox: &mut Outbox, socket: &DatagramSocket, desk: &mut Desk) {
    if !outbox.is_empty() {
        let outcome = outbox.send(socket);
        desk.count(Count::Sent, outcome.sent as u64);
        desk.count(Count::SendErrors, outcome.refused as u64);
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
    fn tell(&mut self, lost: u64, socket: &DatagramSocket, desk: &mut Desk, now: Nanos) {
        if lost == self.counted && lost == self.told {
            return;
        }
        desk.count(Count::Lost, lost - self.counted);
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
