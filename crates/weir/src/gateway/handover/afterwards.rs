//! After the decision: the old process passes on what it still hears, and each process tells the
//! other how the calls go on that have begun in the old one.

use std::io;
use std::sync::Arc;

use tokio::runtime;
use tokio::sync::mpsc;
use weir_wire::handover::v1::link_word::Kind as Word;

use crate::auth::devices::HeldBack;
use crate::backends::calls::MovedCalls;
use crate::core::state::SharedState;
use crate::handover::{Conversation, Link};
use crate::observe::upgrades::UpgradeLimit;
use crate::udp;

/// Begins the conversation in the old process, before its door says that the new one serves. The
/// result tells what has become of requests by datagram.
pub(super) fn tell_new(
    shared: &Arc<SharedState>,
    link: Link,
    runtime: &runtime::Handle,
) -> io::Result<udp::TellEnded> {
    let hearing = Arc::clone(shared);
    let entered = runtime.clone();
    let conversation = Conversation::begin(link, move |word| match word {
        Word::Call(call) => entered.block_on(hearing.calls.hear(call)),
        Word::Published(published) => hearing.forwards.answered(&published),
        // The new process holds nothing back, publishes itself, and counts itself.
        Word::HeldBack(_) | Word::Publish(_) | Word::Limit(_) | Word::Datagram(_) => {}
    })?;
    let (news, told) = mpsc::channel(NEWS_MAX);
    shared.calls.tell_to(news);
    runtime.spawn(tell(conversation.clone(), told, Word::Call));
    let (messages, asked) = mpsc::channel(NEWS_MAX);
    shared.forwards.begin(messages);
    let (telling, forwarding) = (conversation.clone(), Arc::clone(shared));
    runtime.spawn(async move {
        tell(telling, asked, Word::Publish).await;
        forwarding.forwards.end();
    });
    runtime.spawn(tell_of_limits(conversation.clone(), Arc::clone(shared)));
    runtime.spawn(tell_of_devices(conversation.clone(), Arc::clone(shared)));
    let entered = runtime.clone();
    Ok(Arc::new(move |ended| {
        // The other process may have gone.
        let _ = entered.block_on(conversation.tell_surely(Word::Datagram(ended)));
    }))
}

/// Begins the conversation in the new process. `calls` have begun in the old one, and so have requests
/// that the threads for `datagrams` know. Called within a tokio runtime.
pub(super) fn hear_old(
    shared: &Arc<SharedState>,
    link: Link,
    calls: MovedCalls,
    datagrams: Option<Arc<udp::Threads>>,
) -> io::Result<()> {
    let (news, told) = mpsc::channel(NEWS_MAX);
    // If the conversation fails, they are answered as if the old process had ended.
    shared.calls.go_on(calls, &news);
    let (hearing, runtime) = (Arc::clone(shared), runtime::Handle::current());
    let (answers, answered) = mpsc::channel(NEWS_MAX);
    let conversation = Conversation::begin(link, move |word| match word {
        Word::Call(call) => runtime.block_on(hearing.calls.hear(call)),
        Word::HeldBack(held_back) => {
            let _runtime = runtime.enter();
            hearing.carry_out(HeldBack::from(held_back));
        }
        Word::Publish(publish) => {
            let _runtime = runtime.enter();
            let (published, answers) = (hearing.publish_forwarded(&publish), answers.clone());
            tokio::spawn(async move {
                // The old process may have gone.
                let _ = answers.send(published.await).await;
            });
        }
        Word::Limit(limit) => hearing.upgrades.add_limit(&limit),
        Word::Datagram(ended) => {
            if let Some(threads) = &datagrams {
                threads.hear(ended);
            }
        }
        // This process forwards nothing to the old one.
        Word::Published(_) => {}
    })?;
    tokio::spawn(tell(conversation.clone(), told, Word::Call));
    tokio::spawn(tell(conversation, answered, Word::Published));
    Ok(())
}

/// Tells the other process everything of a kind, until one of the two ends it.
async fn tell<T>(
    conversation: Conversation,
    mut news: mpsc::Receiver<T>,
    word: impl Fn(T) -> Word,
) {
    let tell = async {
        while let Some(news) = news.recv().await {
            conversation.tell(word(news)).await;
        }
        // The other process may still have something to tell.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = tell => {}
        () = conversation.over() => {}
    }
}

async fn tell_of_devices(conversation: Conversation, shared: Arc<SharedState>) {
    let tell = async {
        loop {
            let waiting = shared.devices.held_back().await;
            shared.upgrades.reach(UpgradeLimit::HeldBack, waiting.forgotten);
            for held_back in waiting.all {
                conversation.tell(Word::HeldBack(held_back.into())).await;
            }
        }
    };
    tokio::select! {
        () = tell => {}
        () = conversation.over() => {}
    }
}

async fn tell_of_limits(conversation: Conversation, shared: Arc<SharedState>) {
    let tell = async {
        loop {
            for limit in shared.upgrades.untold().await {
                if !conversation.tell_surely(Word::Limit(limit.clone())).await {
                    return;
                }
                shared.upgrades.note_told(&limit);
            }
        }
    };
    tokio::select! {
        () = tell => {}
        () = conversation.over() => {}
    }
}

/// What waits for the other process.
const NEWS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep, timeout};
    use weir_engine::ConnId;
    use weir_wire::v1::{Answer, call};

    use super::*;
    use crate::backends::calls::{DeviceCall, NoAnswer};
    use crate::backends::notices::Author;
    use crate::base::model::{IdempotencyKey, Payload, Publication, PublishError, Target};
    use crate::limits::admission::AcceptOrder;
    use crate::{Config, Gateway};

    fn publication(idempotency_key: Option<IdempotencyKey<'static>>) -> Publication<'static> {
        Publication {
            target: Target::Topic("t"),
            payload: Payload::Text("x"),
            content_type: "",
            key: "",
            ttl: None,
            sender: None,
            idempotency_key,
        }
    }

    async fn start() -> (Gateway, Arc<SharedState>) {
        let mut config = Config::default();
        config.listen.tcp = vec!["127.0.0.1:0".parse().unwrap()];
        (config.listen.udp, config.listen.http, config.listen.admin) = (vec![], vec![], None);
        config.threads.shards = 1;
        config.threads.pin = false;
        config.connection.drain_timeout = Duration::ZERO;
        config.memory.budget_bytes = 16 << 20;
        let gateway = Gateway::builder().config(config).start().await.unwrap();
        let shared = Arc::clone(gateway.parts().0);
        (gateway, shared)
    }

    /// Enters a connection that answers calls. No shard has it.
    fn connect(shared: &SharedState, device: &str, number: u64) -> ConnId {
        let (pin, conn) = (shared.devices.pin(device), ConnId::from_u64(number));
        shared.devices.enter(&pin, (AcceptOrder(number), conn), true, || ()).unwrap();
        shared.calls.enter(conn);
        conn
    }

    fn device_call() -> DeviceCall {
        DeviceCall {
            method: "m".to_owned(),
            payload: call::Payload::Text("?".to_owned()),
            content_type: String::new(),
            deadline: Instant::now() + Duration::from_secs(60),
        }
    }

    /// Waits until the caller's call goes on.
    async fn begun(shared: &SharedState) {
        while shared.calls.in_flight() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        // The frame is on its way to the shard, or there.
        sleep(Duration::from_millis(20)).await;
    }

    /// Stands still as in the pause, and hands the callers over.
    fn hand_over(here: &Arc<SharedState>, there: &Arc<SharedState>) -> MovedCalls {
        here.door.pause();
        here.door.shut();
        here.devices.stand_still();
        let callers = here.export_callers();
        let taken = there.import_callers(callers).unwrap();
        taken.calls
    }

    fn decide(here: &Arc<SharedState>, there: &Arc<SharedState>, calls: MovedCalls) {
        let (one, other) = Link::pair().unwrap();
        tell_new(here, one, &runtime::Handle::current()).unwrap();
        here.door.move_away();
        hear_old(there, other, calls, None).unwrap();
    }

    async fn until(mut is_so: impl FnMut() -> bool) {
        let wait = async {
            while !is_so() {
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(Duration::from_secs(20), wait).await.expect("it happens");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_old_process_answers_its_caller_with_what_the_device_tells_the_new_one() {
        let ((old, here), (new, there)) = (start().await, start().await);
        let conn = connect(&here, "d", 1);
        let asking = Arc::clone(&here);
        let asked =
            tokio::spawn(async move { asking.calls.ask_device(&[conn], &device_call()).await });
        begun(&here).await;
        let calls = hand_over(&here, &there);
        decide(&here, &there, calls);
        let text = Some(weir_wire::v1::answer::Payload::Text("yes".to_owned()));
        there.calls.answered(conn, Answer { id: 1, payload: text.clone(), ..Answer::default() });
        let answer = timeout(Duration::from_secs(20), asked).await.unwrap().unwrap().unwrap();
        assert_eq!((answer.id, answer.payload), (1, text));
        // A further one is for the new process.
        let refused = here.calls.ask_device(&[conn], &device_call()).await;
        assert!(matches!(refused, Err(NoAnswer::Limited(..))), "{refused:?}");
        new.shutdown().await;
        old.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_end_of_a_connection_or_of_a_caller_is_told() {
        let ((old, here), (new, there)) = (start().await, start().await);
        let conn = connect(&here, "d", 1);
        let ask = || {
            let here = Arc::clone(&here);
            tokio::spawn(async move { here.calls.ask_device(&[conn], &device_call()).await })
        };
        let first = ask();
        begun(&here).await;
        let second = ask();
        until(|| here.calls.in_flight() == 2).await;
        sleep(Duration::from_millis(20)).await;
        let calls = hand_over(&here, &there);
        decide(&here, &there, calls);
        second.abort();
        // The new process forgets it, and tells the device.
        until(|| there.calls.export().asked_ids == [1]).await;
        there.calls.end(conn);
        let gone = timeout(Duration::from_secs(20), first).await.unwrap().unwrap();
        assert_eq!(gone, Err(NoAnswer::Disconnected));
        new.shutdown().await;
        old.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_the_old_process_takes_is_published_by_the_new_one() {
        let ((old, here), (new, there)) = (start().await, start().await);
        let calls = hand_over(&here, &there);
        here.router.stand_still();
        let publication = publication(Some(IdempotencyKey { caller: "c", key: "k" }));
        let publish = || here.publish(&publication, Author::AdminApi, None);
        assert!(matches!(publish(), Err(PublishError::Busy(_))), "nobody serves");
        decide(&here, &there, calls);
        let first = publish().unwrap().await.unwrap();
        assert_eq!(there.idempotency.counts().known, 1);
        // Sent again, it has the same answer.
        assert_eq!(publish().unwrap().await, Ok(first));
        new.shutdown().await;
        old.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn limits_that_the_old_process_reaches_count_in_the_new_one() {
        let ((old, here), (new, there)) = (start().await, start().await);
        let calls = hand_over(&here, &there);
        here.router.stand_still();
        // More than has room, before the decision and after it.
        assert!(here.devices.hold_back(None, &[0; 17 << 20]));
        decide(&here, &there, calls);
        until(|| there.upgrades.reached(UpgradeLimit::HeldBack) == 1).await;
        assert!(here.devices.hold_back(Some("d"), &[0; 17 << 20]));
        until(|| there.upgrades.reached(UpgradeLimit::HeldBack) == 2).await;
        let (way, _unread) = mpsc::channel(1);
        here.forwards.begin(way);
        let publication = publication(None);
        let publish = || here.publish(&publication, Author::AdminApi, None);
        let waiting = publish().unwrap();
        assert!(matches!(publish(), Err(PublishError::Busy(_))));
        until(|| there.upgrades.reached(UpgradeLimit::Publishes) == 1).await;
        until(|| here.upgrades.has_told_all()).await;
        drop(waiting);
        new.shutdown().await;
        old.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_revoked_in_the_pause_or_later_is_revoked_by_the_new_process() {
        let ((old, here), (new, there)) = (start().await, start().await);
        for (number, device) in (1..).zip(["a", "b", "c"]) {
            connect(&here, device, number);
        }
        connect(&here, "before", 4);
        assert_eq!(here.revoke("before").await, Ok(true));
        let calls = hand_over(&here, &there);
        assert!(here.revoke("a").await.is_err(), "the caller asks again");
        assert!(there.devices.connections_of("a").is_some());
        decide(&here, &there, calls);
        until(|| there.devices.connections_of("a").is_none()).await;
        assert!(here.revoke("b").await.is_err());
        until(|| there.devices.connections_of("b").is_none()).await;
        assert!(there.devices.connections_of("c").is_some());
        // What was revoked before the pause is still to be closed, if its shard does not know it.
        let leaving = there.devices.leaving();
        assert!(leaving.contains(&ConnId::from_u64(4)), "{leaving:?}");
        new.shutdown().await;
        old.shutdown().await;
    }
}
