//! A scripted shard, and what the tests of the router do with it.

use super::*;

/// A shard as simple as can be: it carries out one command at a time and checks what it is told.
pub(super) struct Shard {
    pub(super) index: usize,
    pub(super) mailbox: Detached<OwnedFd>,
    /// Per membership: the epoch and the offset after which everything is due.
    pub(super) members: BTreeMap<(ConnId, TopicId), EpochOffset>,
    pub(super) names: BTreeMap<TopicId, String>,
    /// Per resume: its number, its topic's name, and the position that it has come to.
    pub(super) resumes: BTreeMap<(ConnId, TopicId), (u32, String, EpochOffset)>,
    pub(super) closed: BTreeSet<ConnId>,
    pub(super) delivered: usize,
    pub(super) told: Arc<Told>,
}

/// Epoch and offset.
pub(super) type EpochOffset = (u64, u64);

/// A part that is asked for: number of the resume, and behind which offset.
pub(super) type Asked = (ConnId, TopicId, (u32, u64));

/// What a shard tells.
#[derive(Default)]
pub(super) struct Told {
    /// The position that each connection has come to in each topic.
    pub(super) seen: Mutex<BTreeMap<(ConnId, String), Position>>,
    /// Parts of resumes that are asked for.
    pub(super) asked: Mutex<VecDeque<Asked>>,
}

pub(super) fn conn(shard: usize, number: u64) -> ConnId {
    ConnId::from_u64((shard as u64) << 46 | number)
}

/// A router over `shards` mailboxes of `capacity` commands.
pub(super) fn world(
    shards: usize,
    capacity: usize,
    topics_max: usize,
) -> (Arc<Router>, Vec<Shard>) {
    let mut config = Config::default();
    config.limits.topics_max = topics_max;
    world_of(&config, shards, capacity)
}

pub(super) fn world_of(
    config: &Config,
    shards: usize,
    capacity: usize,
) -> (Arc<Router>, Vec<Shard>) {
    let (mailboxes, ends): (Vec<Mailbox<OwnedFd>>, Vec<_>) =
        (0..shards).map(|_| Detached::mailbox(capacity, 1)).unzip();
    let shard_of = |(index, mailbox)| Shard {
        index,
        mailbox,
        members: BTreeMap::new(),
        names: BTreeMap::new(),
        resumes: BTreeMap::new(),
        closed: BTreeSet::new(),
        delivered: 0,
        told: Arc::default(),
    };
    let shards = ends.into_iter().enumerate().map(shard_of).collect();
    let budget = Budget::new(1 << 20);
    (Arc::new(Router::new(mailboxes.into(), budget, Arc::default(), config, false)), shards)
}

/// Config with one class.
pub(super) fn config_of(class: TopicClass) -> Config {
    Config { topic_classes: vec![class], ..Config::default() }
}

/// A message that carries name and offset: what a shard compares with what it knows.
pub(super) fn message(
    budget: &Arc<Budget>,
    (name, key): (&str, &str),
    class: &Class,
    position: crate::topics::MessagePosition,
) -> Option<Arc<Message>> {
    let push = hot::Push {
        topic: name,
        payload: hot::Payload::Text("value"),
        key,
        message_id: 1,
        offset: position.offset,
        ..hot::Push::default()
    };
    let mut frame = Vec::new();
    let key = push.encode_frame(&mut frame);
    let key = u32::try_from(key.start).unwrap()..u32::try_from(key.end).unwrap();
    Message::of_topic(budget, frame, Nanos(0), None, class.topic_message(position, key))
}

pub(super) const OFFER: Offer<'_> =
    Offer { frame_bytes: 40, key: "", accepted_at: Nanos(0), publisher: Publisher::Backend };

pub(super) fn publish(
    router: &Router,
    budget: &Arc<Budget>,
    name: &str,
) -> Result<Option<Routed>, RouteError> {
    publish_key(router, budget, name, "")
}

pub(super) fn publish_key(
    router: &Router,
    budget: &Arc<Budget>,
    name: &str,
    key: &str,
) -> Result<Option<Routed>, RouteError> {
    let offer = Offer { key, ..OFFER };
    let routed = router.publish(name, router.destination(name), offer, |class, position| {
        message(budget, (name, key), class, position)
    });
    without_epoch(routed)
}

/// Epochs are random: tests compare the rest.
pub(super) fn without_epoch(
    routed: Result<Option<Routed>, RouteError>,
) -> Result<Option<Routed>, RouteError> {
    routed.map(|routed| routed.map(|routed| Routed { epoch: 0, ..routed }))
}

/// `false`: there was no credit.
pub(super) fn subscribe(router: &Router, conn: ConnId, name: &str) -> bool {
    resume(router, conn, name, None)
}

pub(super) fn resume(
    router: &Router,
    conn: ConnId,
    name: &str,
    position: Option<Position>,
) -> bool {
    let Some(credit) = router.mailboxes[conn.shard()].try_credit(CreditKind::Control) else {
        return false;
    };
    let subscriber = Subscriber { position, ..Subscriber::new(conn, Format::Stream) };
    router.subscribe(credit, name, subscriber, || None).map_err(|(error, _)| error).unwrap();
    true
}

/// Gives a connection the next part that its shard has asked for; `false`: there is none, or no
/// credit.
pub(super) fn resume_next(router: &Router, told: &Told) -> bool {
    let Some((conn, topic, part)) = lock(&told.asked).pop_front() else { return false };
    let Some(credit) = router.mailboxes[conn.shard()].try_credit(CreditKind::Control) else {
        lock(&told.asked).push_front((conn, topic, part));
        return false;
    };
    router.resume_next(credit, conn, topic, part);
    true
}

/// Lets go of what is too old at `now`.
pub(super) fn sweep(router: &Router, now: Nanos) {
    let topics = std::mem::take(&mut *lock(&router.rings));
    for topic in topics {
        if router.sweep_ring(&topic, now) {
            lock(&router.rings).push(topic);
        }
    }
}

pub(super) fn decode(reply: &[u8]) -> server_message::Kind {
    let (body, _) = frame::decode(reply, 1 << 20).unwrap().unwrap();
    ServerMessage::decode(body).unwrap().kind.unwrap()
}

/// Topic, offset and key of each message in the frames of one.
pub(super) fn pushes(mut frames: &[u8]) -> Vec<(String, u64, String)> {
    let mut pushes = Vec::new();
    let told = |push: hot::Push<'_>| (push.topic.to_owned(), push.offset, push.key.to_owned());
    while let Some((body, taken)) = frame::decode(frames, 1 << 20).unwrap() {
        frames = &frames[taken..];
        match hot::FromServer::decode(body).unwrap() {
            hot::FromServer::Push(push) => pushes.push(told(push)),
            hot::FromServer::Batch(batch) => {
                let messages = batch.messages().map(|push| told(push.unwrap()));
                let messages: Vec<_> = messages.collect();
                let ends = |end: Option<&(String, u64, String)>| end.map(|push| push.1);
                assert_eq!(ends(messages.first()), Some(batch.first_offset));
                assert_eq!(ends(messages.last()), Some(batch.last_offset));
                pushes.extend(messages);
            }
            other @ (hot::FromServer::Pong { .. }
            | hot::FromServer::Other
            | hot::FromServer::Unknown) => panic!("no message but {other:?}"),
        }
    }
    pushes
}

impl Shard {
    /// Carries out one command; `false` if there is none. Tells `left` each count that goes down.
    pub(super) fn step(&mut self, router: &Router, mut left: impl FnMut(&str)) -> bool {
        let Some(command) = self.mailbox.pop() else { return false };
        let kind = command.credit_kind();
        match command {
            Command::Subscribe { conn, topic, reply } => {
                let server_message::Kind::Subscribed(subscribed) = decode(&reply) else { panic!() };
                let Position { epoch, offset } = subscribed.position.unwrap();
                let key = (conn, topic);
                let is_busy = self.members.contains_key(&key) || self.resumes.contains_key(&key);
                let known = self.names.entry(topic).or_insert_with(|| subscribed.topic.clone());
                assert_eq!(*known, subscribed.topic, "a number stands for one topic at a time");
                if self.closed.contains(&conn) || is_busy {
                    left(&subscribed.topic);
                    router.leave(topic, conn);
                } else {
                    self.see(conn, &subscribed.topic, (epoch, offset));
                    self.members.insert((conn, topic), (epoch, offset));
                }
            }
            Command::Resume(chunk) => self.resume(router, *chunk, left),
            Command::Unsubscribe { conn, topic, .. } => {
                self.resumes.remove(&(conn, topic));
                if self.members.remove(&(conn, topic)).is_some() {
                    left(&self.names[&topic]);
                    router.leave(topic, conn);
                }
            }
            Command::Publish(topic, message) => self.deliver(topic, &message),
            Command::Retire(topic) => {
                assert!(self.members.keys().all(|(_, other)| *other != topic), "nobody is in it");
                self.names.remove(&topic).expect("only a shard that knows it is asked");
                router.retired(topic);
            }
            Command::Send(..) => {}
            other @ (Command::Adopt(_)
            | Command::AdoptPassed(_)
            | Command::Broadcast(_)
            | Command::Evict(..)
            | Command::Welcome(..)
            | Command::Drain(_)
            | Command::EndDrain(_)
            | Command::Inspect(_)) => panic!("the router does not push {other:?}"),
        }
        self.mailbox.return_credit(kind);
        true
    }

    fn deliver(&mut self, topic: TopicId, message: &Message) {
        let pushes = pushes(message.frame());
        assert_eq!(pushes.last().map(|push| push.1), Some(message.offset()));
        for (name, offset, _) in pushes {
            assert_eq!(self.names[&topic], name);
            for ((conn, other), (epoch, position)) in &mut self.members {
                if *other == topic {
                    assert_eq!(*position + 1, offset, "no message is missed, none comes twice");
                    *position = offset;
                    self.delivered += 1;
                    let seen = Position { epoch: *epoch, offset };
                    lock(&self.told.seen).insert((*conn, name.clone()), seen);
                }
            }
        }
    }

    /// As the engine does it; every part asks for the next at once.
    fn resume(&mut self, router: &Router, chunk: ReplayChunk, mut left: impl FnMut(&str)) {
        let key = (chunk.conn, chunk.topic);
        let is_open = !self.closed.contains(&chunk.conn);
        if is_open && chunk.begin.is_some() && !chunk.is_last && self.members.contains_key(&key) {
            return router.resume_refused(chunk.conn, chunk.topic, chunk.resume);
        }
        let running = match chunk.begin {
            Some(begin) => {
                let server_message::Kind::Subscribed(subscribed) = decode(&begin.reply) else {
                    panic!()
                };
                assert!(subscribed.recovered);
                let position = subscribed.position.unwrap();
                let is_busy = self.members.contains_key(&key) || self.resumes.contains_key(&key);
                let begun = (subscribed.topic, (position.epoch, position.offset));
                (!is_busy).then_some(begun)
            }
            None => match self.resumes.get(&key) {
                Some((number, name, position)) if *number == chunk.resume => {
                    Some((name.clone(), *position))
                }
                Some(_) | None => None,
            },
        };
        let running = running.filter(|_| is_open);
        let Some((name, (epoch, mut position))) = running else {
            if chunk.is_last {
                left(&router.name(chunk.topic).unwrap());
                router.leave(chunk.topic, chunk.conn);
            }
            return;
        };
        for message in &chunk.messages {
            let pushes = pushes(message.frame());
            assert_eq!((&pushes[0].0, pushes[0].1), (&name, position + 1), "as it was missed");
            position += 1;
            self.delivered += 1;
        }
        self.see(chunk.conn, &name, (epoch, position));
        if chunk.is_last {
            self.resumes.remove(&key);
            self.names.insert(chunk.topic, name);
            self.members.insert(key, (epoch, position));
        } else {
            self.resumes.insert(key, (chunk.resume, name, (epoch, position)));
            let part = (chunk.resume, chunk.after);
            lock(&self.told.asked).push_back((chunk.conn, chunk.topic, part));
        }
    }

    fn see(&self, conn: ConnId, name: &str, (epoch, offset): (u64, u64)) {
        lock(&self.told.seen).insert((conn, name.to_owned()), Position { epoch, offset });
    }

    pub(super) fn close(&mut self, router: &Router, conn: ConnId, mut left: impl FnMut(&str)) {
        self.closed.insert(conn);
        let topics: Vec<TopicId> =
            self.members.keys().filter(|key| key.0 == conn).map(|key| key.1).collect();
        for topic in topics {
            self.members.remove(&(conn, topic));
            left(&self.names[&topic]);
            router.leave(topic, conn);
        }
        self.resumes.retain(|key, _| key.0 != conn);
        router.end_resumes(conn);
    }
}
