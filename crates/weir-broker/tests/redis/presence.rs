//! Presence: what Redis keeps of it, and how the members of dead nodes leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use redis::Value;
use tokio::task::JoinHandle;
use tokio::time::Duration;
use weir_broker::{
    Broker, ConnectionNumber, Event, Member, Name, NodeNumber, RedisBroker, RedisOptions, Scope,
};
use weir_tests::Redis;

use crate::common::{Heard, ask, node, node_with, told, until};

/// A node that announces itself. It dies when it is dropped.
struct Living {
    broker: Arc<RedisBroker>,
    heard: Arc<Heard>,
    heartbeat: JoinHandle<()>,
}

impl Drop for Living {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

impl Living {
    async fn open(options: RedisOptions) -> Living {
        let name = options.node.clone();
        let heard = Arc::new(Heard::default());
        let broker = RedisBroker::open(options, heard.clone()).await.expect("Redis runs");
        let broker = Arc::new(broker);
        broker.announce(told(&broker, &name)).await.expect("announced");
        let own = Arc::downgrade(&broker);
        let heartbeat = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let Some(broker) = own.upgrade() else { return };
                // It fails while Redis cannot be reached.
                let _ = broker.announce(told(&broker, &name)).await;
            }
        });
        Living { broker, heard, heartbeat }
    }

    async fn join(&self, topics: &[Name]) {
        self.broker.join(topics.to_vec()).await.expect("joined");
    }

    /// The members that have left, as it was told so far.
    fn left(&self) -> BTreeSet<(Name, u64)> {
        self.heard.look(|events| {
            let mut found = BTreeSet::new();
            for event in events {
                if let Event::Presence { topic, left, .. } = event {
                    found.extend(left.iter().map(|member| (topic.clone(), member.connection.0)));
                }
            }
            found
        })
    }

    /// How many members have left, as it was told so far.
    fn left_count(&self) -> usize {
        let count = |event: &Event| {
            if let Event::Presence { left, .. } = event { left.len() } else { 0 }
        };
        self.heard.look(|events| events.iter().map(count).sum())
    }
}

/// Nodes that die soon.
fn options(redis: &Redis, name: &str, kept: Duration) -> RedisOptions {
    let mut options = RedisOptions::new(&redis.url(), "test", name);
    // A slow machine is no failure.
    options.timeout = Duration::from_secs(20);
    options.probe_every = Duration::from_secs(10);
    options.node_kept = Duration::from_secs(1);
    options.presence_kept = kept;
    options
}

fn topics(count: usize) -> Vec<Name> {
    (0..count).map(|number| format!("topic {number}").into()).collect()
}

/// One connection in each of these topics.
fn one_each(topics: &[Name]) -> Vec<(Name, Member)> {
    topics.iter().zip(1..).map(|(topic, at)| (topic.clone(), member(at, "a"))).collect()
}

/// The key of a kind that belongs to the whole cluster.
fn shared(kind: char) -> String {
    format!("weir:{{36004}}{kind}:weir")
}

fn texts(value: Value) -> Vec<String> {
    redis::from_redis_value(value).expect("texts")
}

/// A Redis that logs all that it carries out.
fn logging() -> Redis {
    let log = ["--slowlog-log-slower-than", "0", "--slowlog-max-len", "1000000"];
    Redis::start_with(|_| Ok(log.map(str::to_owned).to_vec())).expect("a Redis")
}

/// What nodes have had carried out with this argument since the log began, newest first.
fn calls(redis: &Redis, argument: &str) -> Vec<Slow> {
    let log = ask(redis, redis::cmd("SLOWLOG").arg("GET").arg(-1));
    let mut log: Vec<Slow> = redis::from_redis_value(log).expect("a log");
    let has_it = |slow: &Slow| slow.3.iter().any(|found| found == argument.as_bytes());
    // What a script does has no name.
    log.retain(|slow| !slow.5.is_empty() && has_it(slow));
    log
}

/// The nodes that have carried out a script with this argument since the log began.
fn callers(redis: &Redis, argument: &str) -> BTreeSet<String> {
    calls(redis, argument).into_iter().map(|slow| slow.5).collect()
}

/// What Redis has carried out: number, time, microseconds, the command, from where, and from whom.
type Slow = (u64, u64, u64, Vec<Vec<u8>>, String, String);

/// What tells a node from all others.
fn instance(redis: &Redis, name: &str) -> String {
    let nodes = texts(ask(redis, redis::cmd("HGETALL").arg(shared('h'))));
    let node = nodes.chunks(2).find(|pair| pair[1].lines().nth(2) == Some(name));
    node.expect("it is announced")[0].clone()
}

/// Stays that go on, as far as Redis knows.
fn stays(redis: &Redis) -> Vec<String> {
    texts(ask(redis, redis::cmd("ZRANGE").arg(shared('y')).arg(0).arg(-1)))
}

/// For how long a stay was seen without its node (ms), if it goes on.
fn dead_for(redis: &Redis, stay: &str) -> Option<f64> {
    let time = ask(redis, redis::cmd("ZSCORE").arg(shared('y')).arg(stay));
    redis::from_redis_value(time).expect("a time")
}

/// Stays that have ended and may have members.
fn ended(redis: &Redis) -> Vec<String> {
    texts(ask(redis, redis::cmd("ZRANGE").arg(shared('z')).arg(0).arg(-1)))
}

fn keys(redis: &Redis, pattern: &str) -> Vec<String> {
    texts(ask(redis, redis::cmd("KEYS").arg(pattern)))
}

#[tokio::test]
async fn one_node_at_a_time_lets_the_members_of_a_dead_one_leave() {
    let redis = logging();
    // So long that no turn ends because a node is slow.
    let kept = Duration::from_secs(18);
    let topics = topics(100);
    let mut living = BTreeMap::new();
    for name in ["one", "two", "three"] {
        let node = Living::open(options(&redis, name, kept)).await;
        node.join(&topics).await;
        living.insert(format!("weir:{name}"), node);
    }
    let dead = Living::open(options(&redis, "dead", kept)).await;
    dead.broker.enter(one_each(&topics)).await.expect("entered");
    let stay = format!("{}:1", instance(&redis, "dead"));
    drop(dead);
    until("it is seen dead", || dead_for(&redis, &stay).is_some_and(|time| time > 0.0)).await;
    // As if its time were over. One of the topics holds the work up.
    let members = &keys(&redis, &format!("*m:topic 3?{stay}"))[0];
    ask(&redis, redis::cmd("RENAME").arg(members).arg("aside"));
    ask(&redis, redis::cmd("SET").arg(members).arg("no set"));
    ask(&redis, redis::cmd("ZADD").arg(shared('y')).arg(1e9).arg(&stay));
    let all_but_one = |node: &Living| node.left_count() == topics.len() - 1;
    until("the other members leave", || living.values().all(all_but_one)).await;
    let turn: Vec<String> = callers(&redis, "end").into_iter().collect();
    let [first] = &turn[..] else { panic!("{turn:?} do it") };
    ask(&redis, redis::cmd("SLOWLOG").arg("RESET"));
    until("every node has looked", || callers(&redis, &shared('f')).len() == 3).await;
    assert!(callers(&redis, "end").iter().all(|caller| caller == first));
    // It dies, too, and its turn ends.
    drop(living.remove(first).expect("it is not dead"));
    assert_eq!(ended(&redis), [&*stay]);
    ask(&redis, redis::cmd("RENAME").arg("aside").arg(members));
    ask(&redis, redis::cmd("HSET").arg(shared('f')).arg("t").arg(0));
    until("another one goes on", || ended(&redis).is_empty()).await;
    until("all have left", || living.values().all(|node| node.left_count() == topics.len())).await;
    for node in living.values() {
        assert_eq!(node.left().len(), topics.len(), "each has left once");
    }
    assert_eq!(keys(&redis, &format!("*{stay}*")), Vec::<String>::new());
}

#[tokio::test]
async fn a_silent_redis_empties_no_room() {
    let arguments = ["--enable-debug-command", "yes"].map(str::to_owned);
    let redis = Redis::start_with(|_| Ok(arguments.to_vec())).expect("a Redis");
    let kept = Duration::from_secs(2);
    let one = Living::open(options(&redis, "one", kept)).await;
    let two = Living::open(options(&redis, "two", kept)).await;
    let dead = Living::open(options(&redis, "dead", kept)).await;
    let topics = topics(1);
    one.join(&topics).await;
    for (node, at) in [(&one, 1), (&two, 2), (&dead, 3)] {
        let entered = vec![(topics[0].clone(), member(at, "a"))];
        node.broker.enter(entered).await.expect("entered");
    }
    drop(dead);
    let (redis, silence) = (Arc::new(redis), kept * 3);
    let asleep = redis.clone();
    let sleep = format!("DEBUG SLEEP {}", silence.as_secs());
    let slept = tokio::task::spawn_blocking(move || asleep.command(&sleep));
    assert_eq!(slept.await.expect("no panic").expect("an answer"), "+OK\r\n");
    // The time of the dead one has begun anew, or goes on. Those that live were not heard for long.
    until("the dead one's member leaves", || one.left_count() > 0).await;
    let entered = vec![(topics[0].clone(), member(9, "a"))];
    two.broker.enter(entered).await.expect("entered");
    let is_last = |event: &Event| matches!(event, Event::Presence { joined, .. } if joined.iter().any(|it| *it == member(9, "a")));
    let left = one.left();
    one.heard.take(is_last).await;
    assert_eq!(left, [(topics[0].clone(), 3)].into());
    assert_eq!(page_of(&one.broker, &topics[0]).await, [1, 2, 9]);
}

#[tokio::test]
async fn time_in_which_nobody_looks_does_not_count() {
    let redis = Redis::start().expect("a Redis");
    let kept = Duration::from_secs(12);
    let _one = Living::open(options(&redis, "one", kept)).await;
    let dead = Living::open(options(&redis, "dead", kept)).await;
    let stay = format!("{}:1", instance(&redis, "dead"));
    drop(dead);
    until("it is seen dead", || dead_for(&redis, &stay).is_some_and(|time| time > 0.0)).await;
    // As if that had been an hour ago.
    let looked = || {
        let at = ask(&redis, redis::cmd("HGET").arg(shared('f')).arg("s"));
        redis::from_redis_value::<u64>(at).expect("a time")
    };
    let long_ago = looked() - 3_600_000;
    ask(&redis, redis::cmd("HSET").arg(shared('f')).arg("s").arg(long_ago));
    until("a node has looked", || looked() > long_ago).await;
    assert!(dead_for(&redis, &stay).is_some(), "its stay has ended");
}

#[tokio::test]
async fn what_a_node_enters_again_has_not_left_in_between() {
    let redis = Redis::start().expect("a Redis");
    let kept = Duration::from_secs(1);
    let one = Living::open(options(&redis, "one", kept)).await;
    let two = Living::open(options(&redis, "two", kept)).await;
    one.join(&["t".into()]).await;
    let enter = async |members: &[(u64, &str)]| {
        let members = members.iter().map(|(at, device)| ("t".into(), member(*at, device)));
        two.broker.enter(members.collect()).await.expect("entered");
    };
    let exit = async |at: u64| {
        let gone = vec![("t".into(), member(at, "a"))];
        two.broker.exit(gone).await.expect("exited");
    };
    enter(&[(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a")]).await;
    two.heard.rest();
    // As if its time were over, and the node whose turn it is had not begun to let its members leave.
    let mut turn = redis::cmd("HSET");
    turn.arg(shared('f')).arg(&["n", "another", "t", "9999999999999"]);
    ask(&redis, &turn);
    let mut forget = redis::cmd("ZREM");
    ask(&redis, forget.arg(shared('y')).arg(stays(&redis)));
    two.heard.take(|event| *event == Event::Gap(Scope::All)).await;
    enter(&[(1, "a"), (2, "b"), (3, "a"), (6, "a")]).await;
    exit(3).await;
    exit(4).await;
    ask(&redis, redis::cmd("DEL").arg(shared('f')));
    until("what it has not entered again leaves", || one.left_count() == 4).await;
    until("nothing is left to do", || ended(&redis).is_empty()).await;
    enter(&[(1, "a"), (2, "b"), (6, "a"), (7, "a")]).await;
    let is_last = |event: &Event| matches!(event, Event::Presence { joined, .. } if joined.iter().any(|it| *it == member(7, "a")));
    let mut told = Vec::new();
    for event in one.heard.take(is_last).await {
        if let Event::Presence { joined, left, .. } = event {
            let connections = |members: Vec<Member>| -> Vec<u64> {
                members.into_iter().map(|member| member.connection.0).collect()
            };
            told.push((connections(joined), connections(left)));
        }
    }
    let expected = [
        (vec![1, 2, 3, 4, 5], vec![]),
        (vec![2, 6], vec![2]),
        (vec![], vec![3]),
        (vec![], vec![4]),
        (vec![], vec![5]),
        (vec![7], vec![]),
    ];
    assert_eq!(told, expected.map(|(joined, left)| (joined, left)));
    assert_eq!(page(&one.broker, None, 10).await, (vec![1, 2, 6, 7], true, 4, 2));
}

#[tokio::test]
async fn a_late_call_of_an_earlier_stay_changes_nothing() {
    let redis = logging();
    let kept = Duration::from_secs(20);
    let one = Living::open(options(&redis, "one", kept)).await;
    let two = Living::open(options(&redis, "two", kept)).await;
    one.join(&["t".into()]).await;
    let members = || vec![("t".into(), member(1, "a"))];
    two.broker.enter(members()).await.expect("entered");
    let late = calls(&redis, "enter").remove(0).3;
    two.heard.rest();
    // As if its time were over.
    let mut forget = redis::cmd("ZREM");
    ask(&redis, forget.arg(shared('y')).arg(stays(&redis)));
    two.heard.take(|event| *event == Event::Gap(Scope::All)).await;
    two.broker.exit(members()).await.expect("exited");
    until("it is told", || one.left_count() == 1).await;
    one.heard.rest();

    let mut again = redis::Cmd::new();
    late.iter().for_each(|argument| _ = again.arg(argument));
    let client = redis::Client::open(redis.url()).expect("a URL");
    let mut conn = client.get_connection().expect("a connection");
    let refused = again.query::<Value>(&mut conn).expect_err("it is late");
    assert_eq!(refused.code(), Some("STALE"), "{refused}");
    assert_eq!(page_of(&one.broker, &"t".into()).await, [] as [u64; 0]);
    // What shows that it is late goes by itself.
    assert_eq!(keys(&redis, "*}m:*"), [] as [&str; 0]);
    let [number] = &keys(&redis, "*}q:*")[..] else { panic!("one node has called for one topic") };
    let rest = ask(&redis, redis::cmd("PTTL").arg(number));
    let rest: u64 = redis::from_redis_value(rest).expect("a time");
    assert!((1..=120_000).contains(&rest), "{rest}");
    two.broker.enter(members()).await.expect("entered");
    assert_eq!(page_of(&one.broker, &"t".into()).await, [1]);
    let told = one.heard.take(|event| matches!(event, Event::Presence { .. })).await;
    let joined = vec![member(1, "a")];
    let expected = Event::Presence { topic: "t".into(), joined, left: vec![] };
    assert_eq!(told.last(), Some(&expected));
}

#[tokio::test]
async fn a_redis_that_has_lost_everything_learns_of_the_members_again() {
    let mut redis = Redis::start().expect("a Redis");
    let kept = Duration::from_secs(2);
    let one = Living::open(options(&redis, "one", kept)).await;
    let two = Living::open(options(&redis, "two", kept)).await;
    let topics = topics(3);
    one.join(&topics).await;
    let enter = async || while two.broker.enter(one_each(&topics)).await.is_err() {};
    enter().await;
    redis.kill().expect("killed");
    two.heard.take(|event| matches!(event, Event::Lost(_))).await;
    redis.restart().expect("restarted");
    two.heard.take(|event| matches!(event, Event::Back { .. })).await;
    one.heard.take(|event| matches!(event, Event::Back { .. })).await;
    // This goes to the stay that Redis does not know any more, or to the next one.
    enter().await;
    until("the next stays begin", || {
        let stays = stays(&redis);
        stays.len() == 2 && stays.iter().all(|stay| stay.ends_with(":2"))
    })
    .await;
    // As after the gap that the node is told then.
    let entering = async {
        while page_of(&one.broker, &topics[2]).await.is_empty() {
            enter().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), entering).await.expect("they are listed");
    for topic in &topics {
        assert_eq!(page_of(&one.broker, topic).await.len(), 1);
    }
    one.heard.rest();
    drop(two);
    until("its members leave", || one.left_count() == 3).await;
    until("nothing is left to do", || ended(&redis).is_empty()).await;
    assert_eq!(one.left().len(), 3, "each has left once");
}

#[tokio::test]
async fn an_index_names_the_topics_that_have_members() {
    let redis = Redis::start().expect("a Redis");
    let (broker, _) = node(&redis.url(), "one").await;
    let topics = topics(40);
    let each = |connection| {
        let each = topics.iter().map(|topic| (topic.clone(), member(connection, "a")));
        each.collect::<Vec<_>>()
    };
    let indexed = || match keys(&redis, "*}x:*").first() {
        Some(index) => texts(ask(&redis, redis::cmd("ZRANGE").arg(index).arg(0).arg(-1))),
        None => Vec::new(),
    };
    for round in 0..30 {
        broker.enter(each(1)).await.expect("entered");
        assert_eq!(indexed().len(), topics.len());
        // The last one leaves and another one enters, together.
        let (exited, entered) = match round % 2 {
            0 => tokio::join!(broker.exit(each(1)), broker.enter(each(2))),
            _ => {
                let (entered, exited) = tokio::join!(broker.enter(each(2)), broker.exit(each(1)));
                (exited, entered)
            }
        };
        exited.expect("exited");
        entered.expect("entered");
        assert_eq!(indexed().len(), topics.len(), "{round}");
        broker.exit(each(2)).await.expect("exited");
        for pattern in ["*}x:*", "*}m:*", "*}u:*"] {
            assert_eq!(keys(&redis, pattern), Vec::<String>::new(), "{round}");
        }
    }
}

async fn page_of(broker: &RedisBroker, topic: &Name) -> Vec<u64> {
    let page = broker.members(topic.clone(), None, 100).await.expect("read");
    page.members.iter().map(|member| member.connection.0).collect()
}

fn member(connection: u64, device: &str) -> Member {
    Member { connection: ConnectionNumber(connection), device: device.into() }
}

async fn page(
    broker: &RedisBroker,
    after: Option<u64>,
    limit: usize,
) -> (Vec<u64>, bool, u64, u64) {
    let page = broker.members("t".into(), after.map(ConnectionNumber), limit).await.expect("read");
    let connections = page.members.iter().map(|member| member.connection.0).collect();
    (connections, page.is_last, page.connections, page.devices)
}

#[tokio::test]
async fn who_is_present_is_known_at_every_node() {
    let redis = Redis::start().expect("a Redis");
    let (one, _) = node(&redis.url(), "one").await;
    let (two, _) = node(&redis.url(), "two").await;
    assert_eq!(page(&one, None, 10).await, (vec![], true, 0, 0));
    let enter = |members: &[(u64, &str)]| {
        members.iter().map(|(at, device)| ("t".into(), member(*at, device))).collect::<Vec<_>>()
    };
    let big = u64::MAX;
    one.enter(enter(&[(1, "a"), (5, "b"), (big, "b")])).await.expect("entered");
    one.enter(enter(&[(1, "a")])).await.expect("entered");
    two.enter(enter(&[(3, "a"), (9, "c")])).await.expect("entered");
    assert_eq!(page(&two, None, 10).await, (vec![1, 3, 5, 9, big], true, 5, 3));
    assert_eq!(page(&one, None, 2).await, (vec![1, 3], false, 5, 3));
    assert_eq!(page(&one, Some(3), 2).await, (vec![5, 9], false, 5, 3));
    assert_eq!(page(&one, Some(9), 2).await, (vec![big], true, 5, 3));
    let first = one.members("t".into(), None, 1).await.expect("read");
    assert_eq!(first.members, [member(1, "a")]);
    one.exit(enter(&[(5, "b"), (7, "x")])).await.expect("exited");
    assert_eq!(page(&two, None, 10).await, (vec![1, 3, 9, big], true, 4, 3));
    two.retire().await.expect("retired");
    assert_eq!(page(&one, None, 10).await, (vec![1, big], true, 2, 2));
}

#[tokio::test]
async fn who_was_at_a_node_that_has_ended_is_not_present() {
    let redis = Redis::start().expect("a Redis");
    let mut options = RedisOptions::new(&redis.url(), "test", "two");
    options.node_kept = Duration::from_millis(300);
    let (one, _) = node(&redis.url(), "one").await;
    let (two, _) = node_with(options).await;
    two.enter(vec![("t".into(), member(1, "a"))]).await.expect("entered");
    two.announce(told(&two, "two")).await.expect("announced");
    assert_eq!(page(&one, None, 10).await.0, [1]);
    drop(two);
    while !page(&one, None, 10).await.0.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(one.nodes().await, Ok(vec![]));
    assert_eq!(one.to_node(NodeNumber(1023), Vec::new()).await, Ok(false));
}
