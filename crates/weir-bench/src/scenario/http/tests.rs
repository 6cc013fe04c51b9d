//! What is made of the figures of several servers.

use std::collections::BTreeMap;

use super::*;
use crate::protocol::HttpTally;

fn tally(answered: u64, cpu_us: u64, agreed: &str) -> HttpTally {
    HttpTally {
        answered,
        seconds: 1.0,
        server_cpu_ns: Some(cpu_us * 1000 * answered),
        handshakes: BTreeMap::from([(agreed.to_owned(), 1)]),
        ..HttpTally::default()
    }
}

fn contestant(name: &'static str, tallies: Vec<HttpTally>) -> Contestant {
    let addr = SocketAddr::from(([127, 0, 0, 1], 1));
    Contestant { tallies, ..Contestant::new(name, addr, 1) }
}

#[test]
fn the_ratio_is_the_median_of_the_rounds() {
    let server = [6, 9, 6].map(|us| tally(10, us, "v s g full")).to_vec();
    let rival = [3, 3, 6].map(|us| tally(20, us, "v s g resumed")).to_vec();
    let contestants = [contestant("server", server), contestant("nginx", rival)];
    let mut report = Report::new("http");
    fill(&mut report, &contestants, &[]);
    assert!(report.is_ok(), "{:?}", report.errors());
    let shown = serde_json::to_string(&report).unwrap();
    for figure in
        ["\"cpu_us_per_request\":6.0", "\"nginx_us_per_request\":3.0", "\"ratio_to_nginx\":2.0"]
    {
        assert!(shown.contains(figure), "{figure}: {shown}");
    }
}

#[test]
fn errors_silence_and_another_suite_fail_the_run() {
    let mut failed = tally(10, 6, "v s g full");
    failed.errors.insert("eof".to_owned(), 1);
    for (own, rival) in [
        (failed, tally(10, 6, "v s g full")),
        (tally(10, 6, "v s g full"), tally(0, 6, "v s g full")),
        (tally(10, 6, "v s g full"), tally(10, 6, "v t g full")),
    ] {
        let contestants = [contestant("server", vec![own]), contestant("hyper", vec![rival])];
        let mut report = Report::new("http");
        fill(&mut report, &contestants, &[]);
        assert_eq!(report.errors().len(), 1, "{:?}", report.errors());
    }
}
