//! Reaching the shards: reserved credits of a mailbox, and waiting for a credit without blocking.

use std::os::fd::OwnedFd;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use weir_engine::{
    Command, Credit, CreditKind, Full, Inspect, InspectPage, InspectWhat, Mailbox, Priority,
    Survey, SurveyPage, Urgent,
};

/// The mailboxes of all shards, by index.
pub(crate) type Mailboxes = [Mailbox<OwnedFd>];

/// Credits for one message, of all mailboxes that get it.
///
/// Cost: no allocation for up to eight of them.
pub(crate) type Credits<'a> = SmallVec<[Credit<'a, OwnedFd>; 8]>;

/// Who sends a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Publisher {
    /// A backend, a service, or the embedding program.
    Backend,
    /// A device.
    Device,
}

/// A credit for a message of this priority; `None` if only reserved credits are left.
///
/// An eighth is reserved for messages of high priority, and another one for those of normal
/// priority, because fan-outs of lower priority hold credits while higher ones go first. Devices
/// leave a further quarter to backends.
pub(crate) fn try_credit(
    mailbox: &Mailbox<OwnedFd>,
    priority: Priority,
    publisher: Publisher,
) -> Option<Credit<'_, OwnedFd>> {
    let by_priority = match priority {
        Priority::High => 0,
        Priority::Normal => 1,
        Priority::Low => 2,
    };
    let eighths = by_priority
        + match publisher {
            Publisher::Backend => 0,
            Publisher::Device => 2,
        };
    let leave = mailbox.capacity(CreditKind::Message) * eighths / 8;
    mailbox.try_credit_leaving(CreditKind::Message, leave)
}

/// Waits for a credit for a new connection and tries at growing intervals. The caller must hold no
/// lock.
///
/// The last eighth is reserved for settled connections (welcome, subscriptions, evictions). Their
/// jobs wait for credits, and new connections must not starve them.
pub(crate) async fn credit(mailbox: &Mailbox<OwnedFd>) -> Credit<'_, OwnedFd> {
    let leave = mailbox.capacity(CreditKind::Control) / 8;
    let mut pause = PAUSE_MIN;
    loop {
        if let Some(credit) = mailbox.try_credit_leaving(CreditKind::Control, leave) {
            return credit;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Pushes a command that must arrive, even with the last credits. Tries at growing intervals.
pub(crate) async fn push(mailbox: &Mailbox<OwnedFd>, mut command: Command<OwnedFd>) {
    let mut pause = PAUSE_MIN;
    while let Err(back) = mailbox.try_push(command) {
        command = back;
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Pushes to the reserved queue, and tries at growing intervals.
pub(crate) async fn urgent(mailbox: &Mailbox<OwnedFd>, mut request: Urgent) {
    let mut pause = PAUSE_MIN;
    while let Err(Full(back)) = mailbox.try_urgent(request) {
        request = back;
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The same with a timeout; `false` if the shard takes nothing.
pub(crate) async fn urgent_in_time(mailbox: &Mailbox<OwnedFd>, request: Urgent) -> bool {
    timeout(ANSWER_TIMEOUT, urgent(mailbox, request)).await.is_ok()
}

/// Asks a shard for a page of its memory; `None` if it does not answer in time.
pub(crate) async fn survey(
    mailbox: &Mailbox<OwnedFd>,
    cursor: u32,
    holdings_max: usize,
) -> Option<SurveyPage> {
    let (sender, page) = oneshot::channel();
    let reply = Box::new(move |page| {
        // The caller may have given up.
        let _ = sender.send(page);
    });
    let asked = async {
        urgent(mailbox, Urgent::Survey(Survey { cursor, holdings_max, reply })).await;
        page.await
    };
    timeout(ANSWER_TIMEOUT, asked).await.ok()?.ok()
}

/// Lists connections of a shard; `None` if it does not answer in time.
pub(crate) async fn inspect(mailbox: &Mailbox<OwnedFd>, what: InspectWhat) -> Option<InspectPage> {
    let (sender, page) = oneshot::channel();
    let reply = Box::new(move |page| {
        // The caller may have given up.
        let _ = sender.send(page);
    });
    let asked = async {
        urgent(mailbox, Urgent::Inspect(Inspect { what, reply })).await;
        page.await
    };
    timeout(ANSWER_TIMEOUT, asked).await.ok()?.ok()
}

/// A turn of a busy shard takes about this long.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(16);
/// A shard answers within a turn. A shard that takes longer than this has stopped.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use weir_engine::Detached;

    use super::*;

    /// Fails when a mailbox full of messages of low priority has no credit for higher ones, or a
    /// mailbox that devices have filled has none for backends.
    #[test]
    fn higher_messages_find_credits_in_a_lane_that_lower_ones_fill() {
        let (mailbox, _detached) = Detached::mailbox(16, 1);
        let mut taken = Vec::new();
        let mut counts = Vec::new();
        for publisher in [Publisher::Device, Publisher::Backend] {
            for priority in [Priority::Low, Priority::Normal, Priority::High] {
                taken.extend(std::iter::from_fn(|| try_credit(&mailbox, priority, publisher)));
                counts.push(taken.len());
            }
        }
        assert_eq!(counts, [8, 10, 12, 12, 14, 16]);
    }

    /// Fails when subscriptions and answers can use up the credits of messages, or messages theirs.
    #[test]
    fn neither_kind_of_commands_takes_the_credits_of_the_other() {
        for full in CreditKind::ALL {
            let (mailbox, _detached) = Detached::<OwnedFd>::mailbox(16, 1);
            let taken: Vec<_> = std::iter::from_fn(|| mailbox.try_credit(full)).collect();
            for kind in CreditKind::ALL {
                assert_eq!(mailbox.try_credit(kind).is_some(), kind != full, "{kind:?}");
            }
            drop(taken);
            assert_eq!(mailbox.depth(), 0);
        }
    }
}
