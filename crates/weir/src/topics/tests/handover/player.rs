//! A router, and shards that note what they are told. The router can be handed over.

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use weir_engine::{Item, MessagePlace};
use weir_wire::handover::v1 as export;

use super::*;

/// A router with its shards, as far as a handover leaves them in place.
pub(super) struct Player {
    pub(super) config: Config,
    pub(super) router: Arc<Router>,
    pub(super) budget: Arc<Budget>,
    ends: Vec<Detached<OwnedFd>>,
    pub(super) members: BTreeSet<(ConnId, TopicId)>,
    closed: BTreeSet<ConnId>,
    /// The number of each resume.
    resumes: BTreeMap<(ConnId, TopicId), u32>,
    /// Parts that shards have asked for.
    asked: VecDeque<Asked>,
    /// The position to which a connection has come in a topic.
    pub(super) seen: BTreeMap<(ConnId, TopicId), Position>,
    /// What connections were told, without epochs.
    pub(super) heard: Vec<String>,
    /// What was sent early, and the parts as the other process reads them.
    pub(super) early: (SentRings, Vec<Vec<u8>>),
    runtime: Arc<Runtime>,
}

pub(super) const SHARDS: usize = 3;
const CAPACITY: usize = 40;

fn router_of(
    config: &Config,
    has_broker: bool,
) -> (Arc<Router>, Arc<Budget>, Vec<Detached<OwnedFd>>) {
    let (mailboxes, ends): (Vec<Mailbox<OwnedFd>>, Vec<_>) =
        (0..SHARDS).map(|_| Detached::mailbox(CAPACITY, 1)).unzip();
    let budget = Budget::with_classes(1 << 20, 1 << 18, CLASS_NUMBERS);
    let mailboxes = mailboxes.into();
    let router = Router::new(mailboxes, Arc::clone(&budget), Arc::default(), config, has_broker);
    (Arc::new(router), budget, ends)
}

/// An export, as the other process reads it.
pub(super) fn sent(router: &Router) -> export::Topics {
    sent_behind(router, &mut SentRings::default())
}

/// The same where retained messages were sent early.
fn sent_behind(router: &Router, early: &mut SentRings) -> export::Topics {
    let bytes = router.export(early).encode_to_vec();
    export::Topics::decode(&*bytes).expect("what is encoded can be decoded")
}

fn number(conn: ConnId) -> u64 {
    conn.to_u64() & 0xffff
}

impl Player {
    pub(super) fn new(config: &Config) -> Player {
        let (router, budget, ends) = router_of(config, false);
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        Player {
            runtime: Arc::new(runtime),
            config: config.clone(),
            router,
            budget,
            ends,
            members: BTreeSet::new(),
            closed: BTreeSet::new(),
            resumes: BTreeMap::new(),
            asked: VecDeque::new(),
            seen: BTreeMap::new(),
            heard: Vec::new(),
            early: Default::default(),
        }
    }

    /// Shards carry everything out. What topics had gathered that have ended goes.
    pub(super) fn rest(&mut self) {
        while self.step() {}
        self.sort_lists(true);
    }

    /// A handover does not keep the order in which topics are looked at.
    fn sort_lists(&self, lets_go: bool) {
        for ticker in self.router.tickers.all() {
            let topics = (0..ticker.len()).filter_map(|_| ticker.take());
            let mut topics: Vec<Arc<Topic>> = topics.collect();
            topics.sort_by_key(|topic| topic.id);
            for topic in topics {
                ticker.put_down();
                if !lets_go || !topic.lock().ended {
                    ticker.list(topic);
                }
            }
        }
        lock(&self.router.rings).sort_by_key(|topic| topic.id);
    }

    pub(super) fn end_ticks(&self) -> bool {
        self.sort_lists(false);
        self.router.end_ticks()
    }

    pub(super) fn sweep(&self) {
        self.sort_lists(false);
        sweep(&self.router, Nanos(u64::MAX));
    }

    /// Retained messages are sent; another process may take over later.
    pub(super) fn send_early(&mut self) {
        let (mut early, mut parts) = (SentRings::default(), Vec::new());
        let sent = self.router.send_rings(&mut early, |part| {
            parts.push(part.encode_to_vec());
            Ok::<(), ()>(())
        });
        assert!(sent.is_ok());
        self.early = (early, parts);
    }

    /// Another process takes over, with the configuration of the player.
    pub(super) fn hand_over(&mut self) -> std::collections::HashSet<TopicId> {
        self.rest();
        let (router, budget, ends) = router_of(&self.config, false);
        let mut rings = EarlyRings::new(&budget);
        let (mut early, parts) = std::mem::take(&mut self.early);
        for part in parts {
            rings.take(&part).unwrap();
        }
        let export = sent_behind(&self.router, &mut early);
        let changed = router.import(export, &mut rings).unwrap();
        drop(rings);
        (self.router, self.budget, self.ends) = (router, budget, ends);
        changed
    }

    pub(super) fn subscribe(
        &mut self,
        conn: ConnId,
        name: &str,
        position: Option<Position>,
        presence: bool,
    ) -> Option<Result<(), SubscribeError>> {
        let credit = self.router.mailboxes[conn.shard()].try_credit(CreditKind::Control)?;
        let subscriber = Subscriber { position, presence, ..Subscriber::new(conn, Format::Stream) };
        let device = format!("d{}", number(conn) / 2);
        let subscribed =
            self.router.subscribe(credit, name, subscriber, || Some(device.as_str().into()));
        Some(subscribed.map_err(|(error, _)| error))
    }

    pub(super) fn unsubscribe(&mut self, conn: ConnId, name: &str) -> Option<bool> {
        let credit = self.router.mailboxes[conn.shard()].try_credit(CreditKind::Control)?;
        Some(self.router.unsubscribe(credit, conn, name))
    }

    pub(super) fn publish(&mut self, name: &str, key: &str) -> Result<Option<Routed>, RouteError> {
        publish_key(&self.router, &self.budget, name, key)
    }

    /// Gives a resume the part that its shard has asked for.
    pub(super) fn resume_next(&mut self) -> bool {
        let Some((conn, topic, part)) = self.asked.pop_front() else { return false };
        let Some(credit) = self.router.mailboxes[conn.shard()].try_credit(CreditKind::Control)
        else {
            self.asked.push_front((conn, topic, part));
            return false;
        };
        self.router.resume_next(credit, conn, topic, part)
    }

    /// The same, if the router stands still: then the part is asked for again.
    pub(super) fn resume_next_anyway(&mut self) -> bool {
        let asked = self.asked.clone();
        let is_given = self.resume_next();
        self.asked = asked;
        is_given
    }

    /// The connection that has this place now. One that has ended does not come back.
    pub(super) fn conn(&self, place: usize) -> ConnId {
        let numbers = (place as u64..).step_by(16);
        let mut generations = numbers.map(|number| conn(place % SHARDS, number));
        generations.find(|conn| !self.closed.contains(conn)).unwrap()
    }

    pub(super) fn close(&mut self, conn: ConnId) {
        self.closed.insert(conn);
        for (_, topic) in self.members.extract_if(.., |(other, _)| *other == conn) {
            self.router.leave(topic, conn);
        }
        self.resumes.retain(|(other, _), _| *other != conn);
        self.router.end_resumes(conn);
    }

    /// Tells watchers what there is to tell.
    pub(super) fn end_presence(&mut self) {
        for topic in self.router.take_presence() {
            let router = Arc::clone(&self.router);
            self.runtime.clone().block_on(async {
                let mut telling = std::pin::pin!(router.tell_watchers(&topic));
                // A shard takes something while it is waited for.
                while timeout(Duration::from_millis(1), &mut telling).await.is_err() {
                    self.step();
                }
            });
            self.router.end_presence(&topic);
        }
    }

    /// Shards carry one command out each; `false`: there is none.
    pub(super) fn step(&mut self) -> bool {
        let mut is_busy = false;
        for shard in 0..SHARDS {
            let Some(command) = self.ends[shard].pop() else { continue };
            let kind = command.credit_kind();
            self.carry_out(command);
            self.ends[shard].return_credit(kind);
            is_busy = true;
        }
        is_busy
    }

    fn carry_out(&mut self, command: Command<OwnedFd>) {
        match command {
            Command::Subscribe { conn, topic, reply } => {
                let server_message::Kind::Subscribed(told) = decode(&reply) else { panic!() };
                let position = told.position.unwrap();
                self.tell(conn, format!("in {topic:?} at {}", position.offset));
                let key = (conn, topic);
                let is_busy = self.resumes.contains_key(&key) || self.closed.contains(&conn);
                if is_busy || !self.members.insert(key) {
                    self.router.leave(topic, conn);
                } else {
                    self.seen.insert(key, position);
                }
            }
            Command::Resume(chunk) => self.resume(*chunk),
            Command::Unsubscribe { conn, topic, reply } => {
                let server_message::Kind::Unsubscribed(told) = decode(&reply) else { panic!() };
                let position = told.position.map(|position| position.offset);
                self.tell(conn, format!("out of {topic:?} {} {position:?}", told.reason));
                self.resumes.remove(&(conn, topic));
                if self.members.remove(&(conn, topic)) {
                    self.router.leave(topic, conn);
                }
            }
            Command::Publish(topic, message) => {
                let offsets: Vec<u64> = pushes(message.frame()).iter().map(|push| push.1).collect();
                let members: Vec<ConnId> = self.members.iter().map(|(conn, _)| *conn).collect();
                let members =
                    members.into_iter().filter(|conn| self.members.contains(&(*conn, topic)));
                let members: BTreeSet<ConnId> = members.collect();
                for conn in members {
                    self.tell(conn, format!("{topic:?} {offsets:?}"));
                    if let Some(seen) = self.seen.get_mut(&(conn, topic)) {
                        seen.offset = message.offset();
                    }
                }
            }
            Command::Retire(topic) => self.router.retired(topic),
            Command::Send(conn, Item::Frame(frame)) => match decode(&frame) {
                server_message::Kind::Error(error) => self.tell(conn, error.message),
                server_message::Kind::Unsubscribed(_) => self.tell(conn, "in none".to_owned()),
                other => panic!("{other:?}"),
            },
            Command::Send(conn, Item::Message(message)) => {
                let server_message::Kind::Presence(told) = decode(message.frame()) else {
                    panic!()
                };
                let ids = |members: &[weir_wire::v1::Member]| {
                    members.iter().map(|one| number(ConnId::from_u64(one.connection_id))).collect()
                };
                let (joined, left): (Vec<u64>, Vec<u64>) = (ids(&told.joined), ids(&told.left));
                self.tell(conn, format!("+{joined:?} -{left:?} {}", told.missed));
            }
            other => panic!("the router does not push {other:?}"),
        }
    }

    fn resume(&mut self, chunk: ReplayChunk) {
        let (conn, topic) = (chunk.conn, chunk.topic);
        let key = (conn, topic);
        let offsets: Vec<u64> = chunk.messages.iter().map(|message| message.offset()).collect();
        self.tell(conn, format!("resume {} of {topic:?} {offsets:?}", chunk.resume));
        let is_member = self.members.contains(&key);
        if self.closed.contains(&conn) {
            // Its resumes have ended.
        } else if chunk.begin.is_some() && !chunk.is_last && is_member {
            return self.router.resume_refused(conn, topic, chunk.resume);
        }
        let is_running = match (&chunk.begin, self.resumes.get(&key)) {
            (Some(begin), None) if !is_member && !self.closed.contains(&conn) => {
                let server_message::Kind::Subscribed(told) = decode(&begin.reply) else { panic!() };
                self.seen.insert(key, told.position.unwrap());
                true
            }
            (Some(_), _) => false,
            (None, running) => running == Some(&chunk.resume),
        };
        if !is_running {
            if chunk.is_last {
                self.router.leave(topic, conn);
            }
            return;
        }
        if let Some(seen) = self.seen.get_mut(&key) {
            seen.offset = chunk.after;
        }
        if chunk.is_last {
            self.resumes.remove(&key);
            self.members.insert(key);
        } else {
            self.resumes.insert(key, chunk.resume);
            self.asked.push_back((conn, topic, (chunk.resume, chunk.after)));
        }
    }

    fn tell(&mut self, conn: ConnId, what: String) {
        self.heard.push(format!("{} {what}", number(conn)));
    }

    /// All that can be compared with another router.
    pub(super) fn state(&self) -> Vec<String> {
        let router = &self.router;
        let mut state: Vec<String> = router
            .list("", None, usize::MAX)
            .into_iter()
            .map(|info| {
                let id = router.id(&info.topic);
                let page = router.members(&info.topic, None, usize::MAX);
                format!("{id:?} {:?} {page:?}", TopicInfo { epoch: 0, ..info })
            })
            .collect();
        let ids = router.ids.export();
        state.push(format!("{ids:?}"));
        let (next, running) = router.resumes.export();
        let running =
            running.into_iter().map(|one| (one.connection, one.topic, one.first, one.last));
        state.push(format!("resumes {next} {:?}", running.collect::<Vec<_>>()));
        state.push(format!("retained {} {}", router.retained.messages(), router.retained.bytes()));
        state.push(format!("refused {}", router.retained.refused()));
        state.push(format!("unattended {}", router.unattended.load(Ordering::Relaxed)));
        state.push(format!("members {} {}", router.member_count(), router.unlisted_count()));
        state.push(format!("budget {}", self.budget.used()));
        for class in 0..u16::try_from(CLASS_NUMBERS).unwrap() {
            let levels = MessagePlace::ALL.map(|place| self.budget.messages(class, place));
            if levels.iter().any(|level| level.count > 0) {
                state.push(format!("class {class} {levels:?}"));
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let memory = runtime.block_on(router.memory(0));
        let counts = [memory.topics, memory.rings, memory.ticks, memory.presence, memory.resumes];
        state.push(format!("memory {:?}", counts.map(|footprint| footprint.count)));
        state
    }

    /// All connections go, and then the topics: nothing is left.
    pub(super) fn end(mut self) {
        self.early = Default::default();
        let settle = |player: &mut Player| loop {
            let is_idle = !player.step();
            let is_asked = player.resume_next();
            player.end_presence();
            if player.end_ticks() && player.router.retry_retirements() && is_idle && !is_asked {
                break;
            }
        };
        settle(&mut self);
        self.sweep();
        let conns = self.members.iter().map(|(conn, _)| *conn);
        for conn in conns.collect::<BTreeSet<_>>() {
            self.close(conn);
        }
        settle(&mut self);
        self.sweep();
        settle(&mut self);
        assert_eq!((self.router.check_empty(), self.budget.used()), (Ok(()), 0));
        assert!(self.router.mailboxes.iter().all(|mailbox| mailbox.depth() == 0));
    }
}
