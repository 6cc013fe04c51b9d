//! Tests of the rules of names, under virtual time with a scripted resolver.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{advance, sleep};

use super::question::{Looking, RecordKind, Records, Target};
use super::*;

/// A resolver that says what the test tells it.
#[derive(Default)]
struct Script {
    answers: Mutex<BTreeMap<(String, RecordKind), Said>>,
    asked: Mutex<Vec<String>>,
}

#[derive(Clone)]
enum Said {
    Found(Vec<IpAddr>, u64),
    Targets(Vec<(u16, &'static str, u16)>, u64),
    None(Option<u64>),
    Failed,
    Silent,
    After(u64, Box<Said>),
}

impl Script {
    fn say(&self, name: &str, kind: RecordKind, said: Said) {
        let mut answers = self.answers.lock().unwrap();
        answers.insert((name.to_owned(), kind), said);
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl LookUp for Script {
    fn look_up(&self, question: &Question) -> Looking {
        self.asked.lock().unwrap().push(format!("{} {}", question.name, question.kind.word()));
        let answers = self.answers.lock().unwrap();
        let said = answers.get(&(question.name.to_string(), question.kind)).cloned();
        Box::pin(answer(said.unwrap_or(Said::None(None))))
    }
}

async fn answer(said: Said) -> Result<Answer, NoAnswer> {
    match said {
        Said::Found(ips, ttl) => {
            Ok(Answer { records: Records::Addresses(ips), ttl: Duration::from_secs(ttl) })
        }
        Said::Targets(targets, ttl) => {
            let target = |(priority, name, port): (u16, &str, u16)| Target {
                priority,
                name: name.into(),
                port,
            };
            let records = Records::Targets(targets.into_iter().map(target).collect());
            Ok(Answer { records, ttl: Duration::from_secs(ttl) })
        }
        Said::None(ttl) => Err(NoAnswer::None { ttl: ttl.map(Duration::from_secs) }),
        Said::Failed => Err(NoAnswer::Failed("server failure".to_owned())),
        Said::Silent => std::future::pending().await,
        Said::After(ms, said) => {
            sleep(Duration::from_millis(ms)).await;
            Box::pin(answer(*said)).await
        }
    }
}

fn names(addresses: &[&str], change: impl FnOnce(&mut Source)) -> (Names, Arc<Script>) {
    let addresses = addresses.iter().map(|text| Address::parse(text).unwrap()).collect();
    let upstream = "api".to_owned();
    let mut source =
        Source { upstream, addresses, dns: DnsSettings::default(), proxy_resolves: false };
    source.dns.families = crate::settings::IpFamilies::Ipv4;
    change(&mut source);
    let script = Arc::new(Script::default());
    let resolver = Arc::clone(&script) as Arc<dyn LookUp>;
    let resolver = (!source.table().is_fixed()).then_some(resolver);
    (Names::from(source, resolver, Duration::from_secs(3)), script)
}

async fn shown(names: &Names) -> Vec<String> {
    let endpoints = names.endpoints().await;
    match endpoints {
        Ok(endpoints) => endpoints.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

/// Lets time go by, and the task do what is due.
async fn pass(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
    sleep(Duration::from_millis(1)).await;
}

fn ip(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

const A: RecordKind = RecordKind::A;

#[tokio::test(start_paused = true)]
async fn fixed_addresses_need_no_look_up() {
    let (names, script) = names(&["10.0.0.2:80", "unix:/run/a", "10.0.0.2:80"], |_| ());
    assert_eq!(shown(&names).await, ["10.0.0.2:80", "unix:/run/a"], "none twice");
    assert!(script.asked().is_empty());
    let (one, two) = (names.endpoints().await.unwrap(), names.endpoints().await.unwrap());
    assert!(Arc::ptr_eq(&one, &two));
}

#[tokio::test(start_paused = true)]
async fn an_answer_counts_for_its_ttl_within_the_bounds() {
    for (ttl, asked_after) in [(0, 2), (60, 60), (9_000, 300)] {
        let (names, script) = names(&["api:80"], |source| {
            source.dns.ttl_min = Duration::from_secs(2);
        });
        script.say("api", A, Said::Found(vec![ip(1)], ttl));
        assert_eq!(shown(&names).await, ["10.0.0.1:80"]);
        script.asked();
        pass(asked_after - 1).await;
        assert!(script.asked().is_empty(), "TTL {ttl}");
        pass(1).await;
        assert_eq!(script.asked(), ["api A"], "TTL {ttl}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_list_is_the_same_one_until_it_changes() {
    let (names, script) = names(&["api:80"], |_| ());
    script.say("api", A, Said::Found(vec![ip(2), ip(1)], 10));
    let first = names.endpoints().await.unwrap();
    // Rotated.
    script.say("api", A, Said::Found(vec![ip(1), ip(2)], 10));
    pass(10).await;
    assert!(Arc::ptr_eq(&first, &names.endpoints().await.unwrap()));
    script.say("api", A, Said::Found(vec![ip(3)], 10));
    pass(10).await;
    assert_eq!(shown(&names).await, ["10.0.0.3:80"]);
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_one_look_up_and_only_before_the_first_answer() {
    let (names, script) = names(&["api:80", "api:81"], |_| ());
    script.say("api", A, Said::After(500, Box::new(Said::Found(vec![ip(1)], 10))));
    let names = Arc::new(names);
    let start = Instant::now();
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let names = Arc::clone(&names);
            tokio::spawn(async move { shown(&names).await })
        })
        .collect();
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), ["10.0.0.1:80", "10.0.0.1:81"]);
    }
    assert_eq!(start.elapsed(), Duration::from_millis(500));
    assert_eq!(script.asked(), ["api A"], "joined");
    script.say("api", A, Said::Silent);
    pass(10).await;
    let start = Instant::now();
    assert_eq!(shown(&names).await, ["10.0.0.1:80", "10.0.0.1:81"]);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_is_awaited_for_connect_timeout() {
    let (names, script) = names(&["api:80"], |source| {
        source.dns.timeout = Duration::from_secs(60);
    });
    script.say("api", A, Said::Silent);
    let start = Instant::now();
    let error = names.endpoints().await.unwrap_err();
    assert!(matches!(error, DialError::Timeout(DialStep::Dns)), "{error:?}");
    assert_eq!(start.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn stale_records_serve_while_dns_is_down() {
    let (names, script) = names(&["api:80"], |source| {
        source.dns.stale_max = Duration::from_secs(100);
    });
    script.say("api", A, Said::Found(vec![ip(1)], 10));
    assert_eq!(shown(&names).await, ["10.0.0.1:80"]);
    script.say("api", A, Said::Failed);
    pass(10).await;
    assert_eq!(shown(&names).await, ["10.0.0.1:80"]);
    let status = names.status();
    assert_eq!((status.failures, status.stale_uses), (1, 1));
    assert_eq!(status.problems, ["api A: server failure"]);
    script.say("api", A, Said::Found(vec![ip(2)], 10));
    pass(1).await;
    assert_eq!(shown(&names).await, ["10.0.0.2:80"]);
    let status = names.status();
    assert_eq!((status.stale_uses, status.problems.len()), (1, 0), "fresh again");
    script.say("api", A, Said::Failed);
    pass(10 + 99).await;
    assert_eq!(shown(&names).await, ["10.0.0.2:80"]);
    pass(1).await;
    assert_eq!(shown(&names).await, ["no address: api A: server failure"], "after stale_max");
}

#[tokio::test(start_paused = true)]
async fn failures_and_time_outs_back_off() {
    for (said, took) in [(Said::Failed, 0), (Said::Silent, 2)] {
        let (names, script) = names(&["api:80"], |_| ());
        script.say("api", A, said);
        assert!(names.endpoints().await.is_err());
        for pause in [1, 2, 4, 8, 16, 30, 30] {
            script.asked();
            pass(pause - 1).await;
            assert!(script.asked().is_empty(), "{pause}");
            pass(1).await;
            assert_eq!(script.asked(), ["api A"], "{pause}");
            let start = Instant::now();
            assert!(names.endpoints().await.is_err());
            assert_eq!(start.elapsed(), Duration::ZERO, "nobody waits for the next attempt");
            sleep(Duration::from_secs(took)).await;
        }
        script.say("api", A, Said::Found(vec![ip(1)], 10));
        pass(30).await;
        assert_eq!(shown(&names).await, ["10.0.0.1:80"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_negative_answer_removes_the_endpoints() {
    let (names, script) = names(&["api:80"], |_| ());
    script.say("api", A, Said::Found(vec![ip(1)], 10));
    assert_eq!(shown(&names).await, ["10.0.0.1:80"]);
    script.say("api", A, Said::None(Some(7)));
    pass(10).await;
    assert_eq!(shown(&names).await, ["no address: api has no A record"]);
    let status = names.status();
    assert_eq!((status.negatives, status.failures, status.stale_uses), (1, 0, 0));
    script.asked();
    pass(6).await;
    assert!(script.asked().is_empty(), "its own TTL counts");
    script.say("api", A, Said::None(Some(86_400)));
    pass(1).await;
    assert_eq!(script.asked(), ["api A"]);
    script.say("api", A, Said::Found(vec![ip(2)], 10));
    pass(30).await;
    assert_eq!(shown(&names).await, ["10.0.0.2:80"], "asked again soon, whatever its TTL");
}

#[tokio::test(start_paused = true)]
async fn one_family_suffices_and_a_slow_one_holds_nothing_up() {
    let both = |source: &mut Source| source.dns.families = crate::settings::IpFamilies::Both;
    let (names, script) = names(&["api:80"], both);
    script.say("api", A, Said::Found(vec![ip(1)], 100));
    script.say("api", RecordKind::Aaaa, Said::Silent);
    let start = Instant::now();
    assert_eq!(shown(&names).await, ["10.0.0.1:80"]);
    assert_eq!(start.elapsed(), Duration::ZERO);
    script.say("api", RecordKind::Aaaa, Said::Found(vec!["fd00::1".parse().unwrap()], 100));
    pass(3).await;
    assert_eq!(shown(&names).await, ["10.0.0.1:80", "[fd00::1]:80"]);
    script.say("api", RecordKind::Aaaa, Said::None(None));
    pass(100).await;
    assert_eq!(shown(&names).await, ["10.0.0.1:80"]);
    assert!(names.status().problems.is_empty(), "a name needs no AAAA records");
}

#[tokio::test(start_paused = true)]
async fn srv_records_name_the_endpoints_of_the_lowest_priority() {
    let (names, script) = names(&["srv:_http._tcp.api"], |_| ());
    let targets = vec![(10, "b.", 81), (10, "a.", 80), (20, "c.", 82)];
    script.say("_http._tcp.api", RecordKind::Srv, Said::Targets(targets, 10));
    for (name, last) in [("a.", 1), ("b.", 2), ("c.", 3)] {
        script.say(name, A, Said::Found(vec![ip(last)], 1_000));
    }
    // The first name with an address is enough.
    assert!(!shown(&names).await.is_empty());
    pass(0).await;
    assert_eq!(shown(&names).await, ["10.0.0.1:80", "10.0.0.2:81"]);
    assert_eq!(script.asked(), ["_http._tcp.api SRV", "a. A", "b. A"]);
    let endpoints = names.endpoints().await.unwrap();
    assert_eq!(endpoints[0].authority(), "a:80", "Host is the target's name");
    // Other targets: the endpoints stay until the new names have addresses.
    script.say("c.", A, Said::After(500, Box::new(Said::Found(vec![ip(3)], 1_000))));
    script.say("_http._tcp.api", RecordKind::Srv, Said::Targets(vec![(20, "c.", 82)], 10));
    pass(10).await;
    assert_eq!(shown(&names).await, ["10.0.0.1:80", "10.0.0.2:81"]);
    pass(1).await;
    assert_eq!(shown(&names).await, ["10.0.0.3:82"]);
    script.say("_http._tcp.api", RecordKind::Srv, Said::None(None));
    pass(10).await;
    assert_eq!(shown(&names).await, ["no address: _http._tcp.api has no SRV record"]);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_endpoints_and_look_ups_is_bounded() {
    let (names, script) = names(&["api:80"], |source| source.dns.endpoints_max = 3);
    script.say("api", A, Said::Found((1..=9).rev().map(ip).collect(), 10));
    assert_eq!(shown(&names).await, ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
    assert_eq!(names.status().left_out, 6);

    let addresses: Vec<String> = (0..40).map(|number| format!("n{number}:80")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let (names, script) = self::names(&addresses, |_| ());
    for number in 0..40 {
        script.say(&format!("n{number}"), A, Said::After(100, Box::new(Said::Failed)));
    }
    assert!(tokio::time::timeout(Duration::from_millis(50), names.endpoints()).await.is_err());
    assert_eq!(script.asked().len(), UNDER_WAY_MAX);
    advance(Duration::from_millis(60)).await;
    pass(0).await;
    assert_eq!(script.asked().len(), UNDER_WAY_MAX, "the others follow");
}

#[tokio::test(start_paused = true)]
async fn names_that_a_proxy_looks_up_are_passed_on() {
    let addresses = ["api.:80", "10.0.0.9:80", "srv:_h._tcp.api"];
    let (names, script) = names(&addresses, |source| source.proxy_resolves = true);
    script.say("_h._tcp.api", RecordKind::Srv, Said::Targets(vec![(1, "t.", 81)], 10));
    assert!(shown(&names).await.len() >= 2);
    pass(0).await;
    assert_eq!(shown(&names).await, ["api:80", "10.0.0.9:80", "t:81"]);
    assert_eq!(script.asked(), ["_h._tcp.api SRV"]);
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_with_its_names() {
    let (names, script) = names(&["api:80"], |_| ());
    script.say("api", A, Said::Found(vec![ip(1)], 10));
    assert_eq!(shown(&names).await, ["10.0.0.1:80"]);
    drop(names);
    script.asked();
    pass(1_000).await;
    assert!(script.asked().is_empty());
    assert_eq!(Arc::strong_count(&script), 1);
}
