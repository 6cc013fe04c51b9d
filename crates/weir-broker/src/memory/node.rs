//! The broker in memory as one node has it.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::agenda::Lane;
use super::faults::Method;
use super::state::{Next, Reply, Run, State};
use super::{LinkId, Memory, NodeOptions};
use crate::contract::{Answer, Broker, Error, Event, EventHandler, Published, check_sessions};
use crate::records::{
    Attendance, Batch, Claim, ConnectionNumber, Entry, History, HistoryQuery, Member, MemberPage,
    Name, Node, NodeNumber, Occupancy, Position, Reach, RevocationId, Revocations, SessionId,
    StoredSession,
};

/// One node's end of its link.
pub(super) struct MemoryNode {
    memory: Memory,
    id: LinkId,
    timeout: Duration,
    /// The number of the last call that changes presence.
    calls: AtomicU64,
}

impl MemoryNode {
    pub(super) fn open(
        memory: &Memory,
        name: &str,
        options: NodeOptions,
        handler: Arc<dyn EventHandler>,
    ) -> MemoryNode {
        let timeout = options.timeout;
        let mut state = memory.lock();
        let id = state.open(name, options, handler, Instant::now());
        if let Some(link) = state.links.get(&id) {
            tokio::spawn(run(Arc::downgrade(&memory.state), id, Arc::clone(&link.wake)));
        }
        MemoryNode { memory: memory.clone(), id, timeout, calls: AtomicU64::new(0) }
    }

    /// The number of a call that changes presence.
    fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends a request and waits for its answer.
    async fn ask<T: Send + 'static>(
        &self,
        method: Method,
        request: impl FnOnce(&mut State, LinkId, Instant) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.send(method, Lane::Requests, request)?.await
    }

    /// Sends a request. What it returns waits for the answer.
    fn send<T, F>(
        &self,
        method: Method,
        lane: Lane,
        request: F,
    ) -> Result<impl Future<Output = Result<T, Error>> + use<T, F>, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut State, LinkId, Instant) -> Result<T, Error> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let run: Run = Box::new(move |state, id, now| -> Reply {
            let result = request(state, id, now);
            Box::new(move || {
                // Nobody waits any more if its time is over.
                let _ = answer.send(result);
            })
        });
        let late = self.memory.lock().send(self.id, method, lane, run, Instant::now())?;
        let is_late = late.is_some();
        if let Some((late, request)) = late {
            let (memory, id) = (self.memory.clone(), self.id);
            tokio::spawn(async move {
                tokio::time::sleep(late).await;
                memory.lock().execute_late(id, request, Instant::now());
            });
        }
        let answered = tokio::time::timeout(self.timeout, answered);
        Ok(async move {
            if is_late {
                return Err(Error::Uncertain("the connection broke".to_owned()));
            }
            match answered.await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(Error::Uncertain("the connection broke".to_owned())),
                Err(_) => Err(Error::Uncertain("no answer came in time".to_owned())),
            }
        })
    }

    /// Sends one batch, unless another of its topic has no answer yet.
    async fn publish_one(&self, batch: Batch) -> Result<Published, Error> {
        let topic = Name::clone(&batch.topic);
        let is_alone = match self.memory.lock().links.get_mut(&self.id) {
            Some(link) => link.publishing.insert(Name::clone(&topic)),
            None => true,
        };
        if !is_alone {
            return Err(Error::Refused(format!("a batch of {topic:?} is on its way already")));
        }
        let _guard = Publishing { node: self, topic: &topic };
        let lane = Lane::Batches(Name::clone(&topic));
        self.send(Method::Publish, lane, move |state, id, now| state.publish(id, batch, now))?.await
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        let link = self.memory.lock().end(self.id);
        drop(link);
    }
}

impl Broker for MemoryNode {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn number(&self) -> NodeNumber {
        self.memory.lock().links.get(&self.id).map_or(NodeNumber(0), |link| link.number)
    }

    fn publish(&self, batches: Vec<Batch>) -> Answer<'_, Vec<Result<Published, Error>>> {
        Box::pin(async move {
            // Each goes its own way, as it does where topics are spread over servers.
            let mut sent: Vec<_> =
                batches.into_iter().map(|batch| Box::pin(self.publish_one(batch))).collect();
            let mut results: Vec<Option<Result<Published, Error>>> = vec![None; sent.len()];
            std::future::poll_fn(|context| {
                let mut is_pending = false;
                for (sent, result) in sent.iter_mut().zip(&mut results) {
                    if result.is_none() {
                        match sent.as_mut().poll(context) {
                            std::task::Poll::Ready(ready) => *result = Some(ready),
                            std::task::Poll::Pending => is_pending = true,
                        }
                    }
                }
                if is_pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
            })
            .await;
            Ok(results.into_iter().flatten().collect())
        })
    }

    fn join(&self, topics: Vec<Name>) -> Answer<'_, ()> {
        Box::pin(self.ask(Method::Join, move |state, id, _| {
            if let Some(link) = state.links.get_mut(&id) {
                link.topics.extend(topics);
            }
            Ok(())
        }))
    }

    fn leave(&self, topics: Vec<Name>) -> Answer<'_, ()> {
        Box::pin(async move {
            let leave = move |state: &mut State, id: LinkId| {
                if let Some(link) = state.links.get_mut(&id) {
                    link.topics.retain(|topic| !topics.contains(topic));
                }
            };
            {
                let mut state = self.memory.lock();
                if state.links.get(&self.id).is_some_and(|link| !link.is_up()) {
                    // The subscriptions have ended with the connection. They are not set up again.
                    leave(&mut state, self.id);
                    return Ok(());
                }
            }
            self.ask(Method::Leave, move |state, id, _| {
                leave(state, id);
                Ok(())
            })
            .await
        })
    }

    fn read(&self, queries: Vec<HistoryQuery>) -> Answer<'_, Vec<History>> {
        Box::pin(self.ask(Method::Read, move |state, _, now| {
            let State { topics, dice, .. } = state;
            Ok(queries.iter().map(|query| topics.read(query, now, dice)).collect())
        }))
    }

    fn tops(&self, topics: Vec<Name>) -> Answer<'_, Vec<Position>> {
        Box::pin(self.ask(Method::Tops, move |state, _, now| {
            let State { topics: known, dice, .. } = state;
            Ok(topics.iter().map(|topic| known.top(topic, now, dice)).collect())
        }))
    }

    fn claim(&self, claims: Vec<Claim>) -> Answer<'_, ()> {
        Box::pin(self.ask(Method::Claim, move |state, id, now| {
            claims.iter().for_each(|claim| state.claim(id, claim, now));
            Ok(())
        }))
    }

    fn release(&self, claims: Vec<Claim>) -> Answer<'_, ()> {
        Box::pin(self.ask(Method::Release, move |state, id, _| {
            claims.iter().for_each(|claim| state.release(id, claim));
            Ok(())
        }))
    }

    fn to_device(&self, device: Name, message: Entry) -> Answer<'_, u32> {
        Box::pin(self.ask(Method::ToDevice, move |state, _, now| {
            let Entry { payload, idempotency_key } = message;
            let key = idempotency_key.map(|key| (Some(Name::clone(&device)), key));
            let event = Event::ToDevice { device: Name::clone(&device), payload };
            Ok(state.tell_once(key, &event, now, |link| link.devices.contains_key(&device)))
        }))
    }

    fn to_all(&self, message: Entry) -> Answer<'_, Reach> {
        Box::pin(self.ask(Method::ToAll, move |state, _, now| {
            let Entry { payload, idempotency_key } = message;
            let key = idempotency_key.map(|key| (None, key));
            let reached = state.tell_once(key, &Event::ToAll(payload), now, |_| true);
            let live = u32::try_from(state.nodes.living(now).len()).unwrap_or(u32::MAX);
            Ok(Reach { reached, live })
        }))
    }

    fn to_node(&self, node: NodeNumber, payload: Vec<u8>) -> Answer<'_, bool> {
        Box::pin(self.ask(Method::ToNode, move |state, _, now| {
            Ok(state.tell(&Event::ToNode(payload), now, |link| link.number == node) > 0)
        }))
    }

    fn revoke(&self, device: Name) -> Answer<'_, RevocationId> {
        Box::pin(self.ask(Method::Revoke, move |state, _, now| Ok(state.revoke(device, now))))
    }

    fn revocations(&self, after: Option<RevocationId>) -> Answer<'_, Revocations> {
        Box::pin(self.ask(Method::Revocations, move |state, _, now| {
            Ok(state.revocations.after(after.as_ref(), now))
        }))
    }

    fn announce(&self, node: Node) -> Answer<'_, ()> {
        Box::pin(self.ask(Method::Announce, move |state, id, now| state.announce(id, node, now)))
    }

    fn nodes(&self) -> Answer<'_, Vec<Node>> {
        Box::pin(self.ask(Method::Nodes, |state, _, now| Ok(state.nodes.living(now))))
    }

    fn retire(&self) -> Answer<'_, ()> {
        let call = self.next_call();
        Box::pin(self.ask(Method::Retire, move |state, id, now| {
            state.retire(id, call, now);
            Ok(())
        }))
    }

    fn enter(&self, members: Vec<(Name, Member)>) -> Answer<'_, ()> {
        let call = self.next_call();
        Box::pin(self.ask(Method::Enter, move |state, id, now| {
            state.change((id, call), (members, true), now)
        }))
    }

    fn exit(&self, members: Vec<(Name, Member)>) -> Answer<'_, ()> {
        let call = self.next_call();
        Box::pin(self.ask(Method::Exit, move |state, id, now| {
            state.change((id, call), (members, false), now)
        }))
    }

    fn members(
        &self,
        topic: Name,
        after: Option<ConnectionNumber>,
        limit: usize,
    ) -> Answer<'_, MemberPage> {
        Box::pin(self.ask(Method::Members, move |state, _, now| {
            let lives = |link| state.nodes.lives(link, now);
            Ok(state.presence.members(&topic, after, limit, lives))
        }))
    }

    fn attend(&self, topics: Vec<Attendance>) -> Answer<'_, Vec<Occupancy>> {
        let call = self.next_call();
        Box::pin(
            self.ask(Method::Attend, move |state, id, now| state.attend((id, call), &topics, now)),
        )
    }

    fn keep_sessions(&self, kept: Vec<StoredSession>, forgotten: Vec<SessionId>) -> Answer<'_, ()> {
        Box::pin(async move {
            check_sessions(&kept)?;
            self.ask(Method::KeepSessions, move |state, _, now| {
                forgotten.iter().for_each(|id| state.sessions.forget(*id));
                kept.into_iter().for_each(|session| state.sessions.keep(session, now));
                Ok(())
            })
            .await
        })
    }

    fn session(&self, id: SessionId) -> Answer<'_, Option<Vec<u8>>> {
        Box::pin(self.ask(Method::Session, move |state, _, now| Ok(state.sessions.find(id, now))))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let is_open = self.memory.lock().is_open(self.id);
            let closed = match is_open {
                true => self.ask(Method::Close, |_, _, _| Ok(())).await,
                false => Ok(()),
            };
            let link = self.memory.lock().end(self.id);
            drop(link);
            closed
        })
    }
}

/// A topic has a batch without an answer as long as this lives.
struct Publishing<'a> {
    node: &'a MemoryNode,
    topic: &'a Name,
}

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.node.memory.lock().links.get_mut(&self.node.id) {
            link.publishing.remove(self.topic);
        }
    }
}

/// Carries out what is due on a link, until the link ends.
async fn run(state: Weak<Mutex<State>>, id: LinkId, wake: Arc<Notify>) {
    loop {
        let next = match state.upgrade() {
            Some(state) => {
                state.lock().unwrap_or_else(PoisonError::into_inner).next(id, Instant::now())
            }
            None => return,
        };
        match next {
            Next::Answer(reply) => reply(),
            Next::Handle(handler, event) => handler.handle(event),
            Next::Wait(None) => wake.notified().await,
            Next::Wait(Some(due)) => tokio::select! {
                biased;
                () = wake.notified() => {}
                () = tokio::time::sleep_until(due) => {}
            },
            Next::End => return,
        }
        // One link with much to do leaves the others their turn.
        tokio::task::coop::consume_budget().await;
    }
}
