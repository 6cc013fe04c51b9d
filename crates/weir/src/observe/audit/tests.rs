//! Tests of what becomes an entry.

use super::*;

const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn note(audit: &Audit, who: &str, (act, outcome): (Act, ActOutcome), what: &str, now: Duration) {
    audit.note(&Record { who, from: HOME, act, outcome }, || what.into(), now);
}

fn whats(audit: &Audit) -> Vec<String> {
    audit.last(2_000).into_iter().map(|entry| entry.what.into()).collect()
}

#[test]
fn each_act_is_an_entry_and_the_newest_comes_first() {
    let audit = Audit::default();
    note(&audit, "admin", (Act::Close, ActOutcome::Done), "connection 1", at(1));
    note(&audit, "ci", (Act::Revoke, ActOutcome::Failed), "device d", at(1));
    let last = audit.last(10);
    assert_eq!(whats(&audit), ["device d", "connection 1"]);
    assert_eq!((&*last[0].who, last[0].from, last[0].act), ("ci", HOME, Act::Revoke));
    assert_eq!((last[0].outcome, audit.last(1).len()), (ActOutcome::Failed, 1));
    assert_eq!([ActOutcome::Done, ActOutcome::Failed].map(|of| audit.count(of)), [1, 1]);
}

#[test]
fn a_publisher_is_an_entry_at_once_and_then_one_a_minute() {
    let audit = Audit::default();
    let publish = (Act::Publish, ActOutcome::Done);
    for second in 0..130 {
        for _ in 0..1_000 {
            note(&audit, "chat", publish, "topic news", at(100 + second));
        }
        audit.settle(at(100 + second));
    }
    // The entries at the ends of minutes tell of what came until then.
    let expected = ["60000 more requests in 60 s", "60999 more requests in 60 s", "topic news"];
    assert_eq!(whats(&audit), expected);
    assert_eq!(audit.count(ActOutcome::Done), 130_000);
    note(&audit, "other", publish, "all", at(231));
    assert_eq!(whats(&audit)[0], "all");
    for second in [280, 291, 340] {
        audit.settle(at(second));
    }
    assert_eq!(whats(&audit)[0], "9000 more requests in 60 s");
    // It was quiet for a minute.
    note(&audit, "chat", publish, "topic news", at(500));
    assert_eq!(whats(&audit)[0], "topic news");
}

#[test]
fn callers_without_number_are_tallied_in_bounded_room() {
    let audit = Audit::default();
    for number in 0..1_000u32 {
        let from = IpAddr::from(number.to_be_bytes());
        let record = Record { who: "chat", from, act: Act::Publish, outcome: ActOutcome::Done };
        for _ in 0..3 {
            audit.note(&record, || "all".into(), at(1));
        }
    }
    assert_eq!(audit.last(2_000).len(), PUBLISHES_MAX);
    assert_eq!(whats(&audit)[..2], ["all", "2 more requests in 0 s"]);
}

#[test]
fn a_flood_of_refusals_leaves_out_most_and_hides_nothing_else() {
    let audit = Audit::default();
    note(&audit, "admin", (Act::Drain, ActOutcome::Done), "node", at(1));
    note(&audit, "ci", (Act::Close, ActOutcome::WrongScope), "DELETE /v1/connections/1", at(1));
    let refused = (Act::Read, ActOutcome::NoToken);
    for second in 0..100 {
        for _ in 0..1_000 {
            note(&audit, "nobody", refused, "GET /metrics", at(1_000 + second));
        }
        audit.settle(at(1_000 + second));
    }
    let entries = audit.last(2_000);
    let of = |outcome| entries.iter().filter(|entry| entry.outcome == outcome).count();
    assert_eq!(of(ActOutcome::NoToken), REFUSALS_MAX - 1);
    assert_eq!((of(ActOutcome::WrongScope), of(ActOutcome::Done)), (1, 1));
    assert_eq!(audit.left_out(ActOutcome::NoToken), 100 * 995);
    let told = whats(&audit).into_iter().find(|what| what.contains("left out")).unwrap();
    assert_eq!(told, "9950 more attempts were left out, the last one from here");
    assert_eq!(audit.count(ActOutcome::NoToken), 100_000);
}

#[test]
fn long_texts_are_cut_and_the_room_is_bounded() {
    let audit = Audit::default();
    let long = "é".repeat(10_000);
    for number in 0..2_000 {
        note(&audit, &long, (Act::Close, ActOutcome::Done), &long, at(number));
    }
    let entries = audit.last(2_000);
    assert_eq!(entries.len(), ACTS_MAX);
    assert!(entries.iter().all(|entry| entry.what.len() == 300 && entry.who.len() == 300));
    assert!(audit.footprint().bytes < 600_000, "{:?}", audit.footprint());
}
