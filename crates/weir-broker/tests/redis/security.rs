//! User and password, and TLS.

use std::sync::Arc;

use tokio::time::Duration;
use weir_broker::{
    Broker, Claim, ConnectionNumber, Entry, Error, Event, Member, Name, Node, RedisBroker,
    RedisOptions,
};
use weir_tests::{Authority, Redis, free_port};

use crate::common::{Heard, ask, batch, node_with, plain, publish, read};

async fn refused(options: RedisOptions) -> String {
    match RedisBroker::open(options, Arc::new(Heard::default())).await {
        Err(Error::Unavailable(why)) => why,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it is let in"),
    }
}

/// Publishes and hears it, also over new connections.
async fn works(options: RedisOptions, redis: &Redis) {
    let (broker, heard) = node_with(options).await;
    broker.join(vec!["t".into()]).await.expect("joined");
    assert_eq!(publish(&broker, batch("t", 1, &["a"])).await.nodes, 1);
    heard.messages("t", 1).await;
    for kind in ["pubsub", "normal"] {
        ask(redis, redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg(kind).arg("SKIPME").arg("yes"));
    }
    heard.take(|event| matches!(event, Event::Gap(_))).await;
    assert_eq!(publish(&broker, batch("t", 2, &["b"])).await.nodes, 1);
    heard.messages("t", 1).await;
}

#[tokio::test]
async fn a_user_and_a_password_are_given() {
    let redis = Redis::start().expect("a Redis");
    let options =
        |who: &str| RedisOptions::new(&format!("redis://{who}{}", redis.addr), "test", "one");
    // These are the rights that the broker needs.
    let rights = "on >p@ss~ss ~weir:* &weir:* -@all +evalsha +script|load +hmget +hset +hget +hdel +hlen \
        +hgetall +hkeys +hincrby +get +set +exists +pexpire +pttl +unlink +time +info +xadd +xtrim +xrange \
        +xinfo|stream +zadd +zrem +zcard +zrange +zscore +zpopmin +spublish +ssubscribe +sunsubscribe +wait \
        +auth +hello +ping +client|setname +cluster|slots +cluster|info +asking";
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("weir").arg(rights.split_whitespace().collect::<Vec<_>>());
    ask(&redis, &user);
    works(options("weir:p%40ss~ss@"), &redis).await;
    let (broker, _) = node_with(options("weir:p%40ss~ss@")).await;
    everything_is_allowed(&broker).await;
    let why = refused(options("weir:secret@")).await;
    assert!(!why.contains("secret") && why.contains(&redis.addr.to_string()), "{why}");
}

/// Every method succeeds once.
async fn everything_is_allowed(broker: &RedisBroker) {
    let (connection, device) = (ConnectionNumber(1), Name::from("d"));
    let claim = Claim { device: device.clone(), connection, age: Duration::ZERO, is_counted: true };
    let member = (Name::from("t"), Member { connection, device: device.clone() });
    let (name, about) = ("one".to_owned(), String::new());
    let node = Node { number: broker.number(), name, revoked_to: None, about };
    let mut keyed = batch("t", 3, &["c"]);
    keyed.entries[0].idempotency_key = Some("k".into());
    publish(broker, keyed).await;
    read(broker, "t", 0).await;
    let keyed_message = Entry { idempotency_key: Some("k".into()), ..plain("m") };
    let results = [
        broker.leave(vec!["t".into()]).await,
        broker.tops(vec!["t".into()]).await.map(drop),
        broker.claim(vec![claim.clone()]).await,
        broker.to_device(device.clone(), plain("m")).await.map(drop),
        broker.to_device(device.clone(), keyed_message).await.map(drop),
        broker.release(vec![claim]).await,
        broker.to_all(plain("")).await.map(drop),
        broker.to_node(broker.number(), Vec::new()).await.map(drop),
        broker.revoke(device).await.map(drop),
        broker.revocations(None).await.map(drop),
        broker.announce(node).await,
        broker.nodes().await.map(drop),
        broker.enter(vec![member.clone()]).await,
        broker.members("t".into(), None, 10).await.map(drop),
        broker.exit(vec![member.clone()]).await,
        broker.enter(vec![member]).await,
        broker.retire().await,
    ];
    assert_eq!(results, [const { Ok(()) }; 17]);
}

#[tokio::test]
async fn a_password_is_given() {
    let arguments = ["--requirepass", "p@ss word"].map(str::to_owned);
    let redis = Redis::start_with(|_| Ok(arguments.to_vec())).expect("a Redis");
    let options =
        |who: &str| RedisOptions::new(&format!("redis://{who}{}", redis.addr), "test", "one");
    let (broker, heard) = node_with(options(":p%40ss%20word@")).await;
    broker.join(vec!["t".into()]).await.expect("joined");
    assert_eq!(publish(&broker, batch("t", 1, &["a"])).await.nodes, 1);
    heard.messages("t", 1).await;
    let why = refused(options(":secret@")).await;
    assert!(!why.contains("secret") && why.contains(&redis.addr.to_string()), "{why}");
    refused(options("")).await;
}

#[tokio::test]
async fn tls_checks_who_answers() {
    let authority = Authority::new().expect("an authority");
    let leaf = authority.sign("127.0.0.1", false).expect("a certificate");
    authority.put("redis", &leaf).expect("written");
    let port = free_port().expect("a port");
    let path = |file: &str| authority.path(file).display().to_string();
    let arguments = [
        ["--tls-port".to_owned(), port.to_string()],
        ["--tls-cert-file".to_owned(), path("redis.pem")],
        ["--tls-key-file".to_owned(), path("redis.key")],
        ["--tls-ca-cert-file".to_owned(), path("ca.pem")],
        ["--tls-auth-clients".to_owned(), "no".to_owned()],
    ];
    let arguments: Vec<_> = arguments.into_iter().flatten().collect();
    let redis = Redis::start_with(|_| Ok(arguments.clone())).expect("a Redis");
    let options = |host: &str, file: Option<&str>| {
        let url = format!("rediss://{host}:{port}");
        let mut options = RedisOptions::new(&url, "test", "one");
        options.authorities = file.map(|file| std::fs::read(path(file)).expect("a file"));
        options
    };
    works(options("127.0.0.1", Some("ca.pem")), &redis).await;
    // Another name, another authority, and the authorities of the web.
    let why = refused(options("localhost", Some("ca.pem"))).await;
    assert!(why.contains("certificate"), "{why}");
    let other = Authority::new().expect("an authority");
    std::fs::copy(other.path("ca.pem"), path("other.pem")).expect("copied");
    for file in [Some("other.pem"), None] {
        let why = refused(options("127.0.0.1", file)).await;
        assert!(why.contains("certificate"), "{why}");
    }
    let mut empty = options("127.0.0.1", None);
    empty.authorities = Some(b"nothing".to_vec());
    let opened = RedisBroker::open(empty, Arc::new(Heard::default())).await;
    assert!(matches!(opened, Err(Error::Refused(_))));
}
