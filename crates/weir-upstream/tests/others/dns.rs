//! Names of upstreams against dnsmasq: short TTLs, changes, failures, slow answers, SRV records.
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::common::{Program, ask, service, until, upstream};
use weir_upstream::{IpFamilies, Settings};

/// dnsmasq that knows the lines of `hosts` in its directory, with a TTL of one second.
fn dnsmasq(addr: SocketAddr, directory: &Path) -> Command {
    let hosts = directory.join("hosts");
    if !hosts.exists() {
        fs::write(&hosts, "127.0.0.1 api.test\n127.0.0.3 spare.test\n").unwrap();
    }
    let mut command = Command::new("dnsmasq");
    command.args(["--keep-in-foreground", "--no-resolv", "--no-hosts", "--bind-interfaces"]);
    command.args(["--conf-file=/dev/null", "--pid-file=", "--local=/test/", "--local-ttl=1"]);
    command.args(["--listen-address=127.0.0.1", "--user=", "--group="]);
    command.arg(format!("--port={}", addr.port()));
    command.arg(format!("--addn-hosts={}", hosts.display()));
    command
}

fn by(server: &Program) -> impl FnOnce(&mut Settings) {
    let server = server.addr.to_string();
    move |settings| {
        settings.dns.servers = vec![server];
        settings.dns.families = IpFamilies::Ipv4;
        settings.dns.timeout = Duration::from_secs(1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_follow_the_records_and_stay_while_dns_is_down() {
    let mut server = Program::start(dnsmasq);
    let one = service(([127, 0, 0, 1], 0).into(), "one").await;
    service(([127, 0, 0, 2], one.port()).into(), "two").await;
    let upstream = upstream(&format!("api.test:{}", one.port()), by(&server));
    assert_eq!(ask(&upstream).await, "one");
    fs::write(server.directory.path().join("hosts"), "127.0.0.2 api.test\n").unwrap();
    server.signal("HUP");
    until("the other address", || async { ask(&upstream).await == "two" }).await;
    server.stop();
    until("stale records", || async {
        assert_eq!(ask(&upstream).await, "two");
        upstream.status().names.stale_uses > 2
    })
    .await;
    assert!(upstream.status().names.failures > 0);
    assert_eq!(upstream.status().names.problems.len(), 1);
    fs::write(server.directory.path().join("hosts"), "127.0.0.1 api.test\n").unwrap();
    server.restart(dnsmasq);
    until("new records", || async { ask(&upstream).await == "one" }).await;
    assert!(upstream.status().names.problems.is_empty());
    let stale = upstream.status().names.stale_uses;
    assert_eq!(ask(&upstream).await, "one");
    assert_eq!(upstream.status().names.stale_uses, stale);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_without_records_is_named_until_it_has_some() {
    let server = Program::start(dnsmasq);
    let one = service(([127, 0, 0, 1], 0).into(), "one").await;
    let upstream = upstream(&format!("new.test:{}", one.port()), by(&server));
    assert_eq!(ask(&upstream).await, "upstream api: no address: new.test has no A record");
    assert_eq!(upstream.status().names.failures, 0);
    fs::write(server.directory.path().join("hosts"), "127.0.0.1 new.test\n").unwrap();
    server.signal("HUP");
    until("the new name", || async { ask(&upstream).await == "one" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_answer_is_awaited_by_all_and_no_answer_is_an_error() {
    let server = Program::start(dnsmasq);
    let one = service(([127, 0, 0, 1], 0).into(), "one").await;
    let address = format!("api.test:{}", one.port());
    server.signal("STOP");
    let patient = upstream(&address, |settings| {
        by(&server)(settings);
        settings.dns.timeout = super::common::PATIENCE;
    });
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let patient = patient.clone();
            tokio::spawn(async move { ask(&patient).await })
        })
        .collect();
    let hasty = upstream(&address, |settings| {
        by(&server)(settings);
        settings.dns.timeout = Duration::from_millis(200);
    });
    let said = ask(&hasty).await;
    assert!(said.starts_with("upstream api: no address: api.test A: "), "{said}");
    assert!(hasty.status().names.failures >= 1);
    assert!(!waiting[0].is_finished());
    server.signal("CONT");
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), "one");
    }
    until("the hasty one", || async { ask(&hasty).await == "one" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_records_tell_names_and_ports() {
    let port = service(([127, 0, 0, 1], 0).into(), "first").await.port();
    let server = Program::start(|addr, directory| {
        let mut command = dnsmasq(addr, directory);
        for (name, priority) in [("api.test", 10), ("spare.test", 20)] {
            command.arg(format!("--srv-host=_http._tcp.api.test,{name},{port},{priority}"));
        }
        command
    });
    let upstream = upstream("srv:_http._tcp.api.test", by(&server));
    for _ in 0..10 {
        assert_eq!(ask(&upstream).await, "first", "only the lowest priority");
    }
}
