//! Reaching the shards: who may take the last credits of a lane, and how to wait for one without blocking.

use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use weir_engine::{
    Command, Credit, Full, Inspect, InspectPage, InspectWhat, Mailbox, Priority, Urgent,
};

/// The way to each shard, by its index.
pub(crate) type Lanes = [Mailbox<OwnedFd>];

/// A credit for a message of this priority; `None` when the lane is full but for what is kept free.
///
/// The last eighth is left to what is done for settled connections (welcome, subscriptions, evictions): their jobs
/// wait for credits, and those who ask again and again must not starve them. The one before it is left to messages of
/// high priority, and another to those of normal: fan-outs of lower priority hold credits while higher ones go first.
pub(crate) fn try_credit(
    lane: &Mailbox<OwnedFd>,
    priority: Priority,
) -> Option<Credit<'_, OwnedFd>> {
    let eighths = match priority {
        Priority::High => 1,
        Priority::Normal => 2,
        Priority::Low => 3,
    };
    if lane.depth() >= lane.capacity() - lane.capacity() * eighths / 8 {
        return None;
    }
    lane.try_credit()
}

/// Waits for a credit for a new connection, of which all but the last eighth may be taken, asking at growing intervals. No lock may be held meanwhile.
pub(crate) async fn credit(lane: &Mailbox<OwnedFd>) -> Credit<'_, OwnedFd> {
    let mut pause = PAUSE_MIN;
    loop {
        if let Some(credit) = try_credit(lane, Priority::High) {
            return credit;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Pushes a command that has to come through: it takes the last credits too. Waits at growing intervals.
pub(crate) async fn push(lane: &Mailbox<OwnedFd>, mut command: Command<OwnedFd>) {
    let mut pause = PAUSE_MIN;
    while let Err(back) = lane.try_push(command) {
        command = back;
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Pushes to the reserved lane, waiting for room at growing intervals.
pub(crate) async fn urgent(lane: &Mailbox<OwnedFd>, mut request: Urgent) {
    let mut pause = PAUSE_MIN;
    while let Err(Full(back)) = lane.try_urgent(request) {
        request = back;
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Likewise, but not for ever; `false` if the shard takes nothing.
pub(crate) async fn urgent_in_time(lane: &Mailbox<OwnedFd>, request: Urgent) -> bool {
    timeout(ANSWER_TIMEOUT, urgent(lane, request)).await.is_ok()
}

/// Looks at connections of a shard; `None` if it does not answer in time.
pub(crate) async fn inspect(lane: &Mailbox<OwnedFd>, what: InspectWhat) -> Option<InspectPage> {
    let (sender, page) = oneshot::channel();
    let reply = Box::new(move |page| {
        // Whoever asked may have given up.
        let _ = sender.send(page);
    });
    let asked = async {
        urgent(lane, Urgent::Inspect(Inspect { what, reply })).await;
        page.await
    };
    timeout(ANSWER_TIMEOUT, asked).await.ok()?.ok()
}

/// A turn of a busy shard takes about this long.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(16);
/// A shard answers within a turn; one that takes this long has stopped.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use weir_engine::Detached;

    use super::*;

    /// Fails when a lane that messages of low priority have filled has no credit for higher ones.
    #[test]
    fn higher_messages_find_credits_in_a_lane_that_lower_ones_fill() {
        let (mailbox, _detached) = Detached::mailbox(16, 1);
        let mut taken = Vec::new();
        let mut counts = Vec::new();
        for priority in [Priority::Low, Priority::Normal, Priority::High] {
            taken.extend(std::iter::from_fn(|| try_credit(&mailbox, priority)));
            counts.push(taken.len());
        }
        assert_eq!(counts, [10, 12, 14]);
    }
}
