//! The file of notices changes hands in upgrades: nothing is lost, and nothing is told twice.

use anyhow::{Result, ensure};
use serde_json::Value;
use weir_tests::{Answer, Device, Numbers, Server, upgrade};

use super::receiver::Receiver;
use super::{ALL, config, publish, start};

/// A device that publishes numbers.
fn numbers(server: &Server) -> Result<Numbers> {
    let mut device = Device::greet(server.tcp, "numbers", &[])?;
    Ok(Numbers::start_by(move |number| match number {
        Some(number) => publish(&mut device, "t/numbers", &number.to_string()).map(drop),
        None => Ok(()),
    }))
}

fn is_of(notice: &Value, event: &str, device: &str) -> bool {
    notice["event"] == event && notice["device"] == device
}

#[test]
fn numbered_notices_go_through_upgrades_each_once_and_in_order() -> Result<()> {
    let mut receiver = Receiver::new()?;
    receiver.start()?;
    let (server, _directory) = start(&config(&receiver, ALL))?;
    let stays = Device::greet(server.tcp, "stays", &["t/room"])?;
    let publisher = numbers(&server)?;
    let mut newest = None;
    for round in 0..2 {
        publisher.await_more(50)?;
        // In the second round they wait in the file while it changes hands.
        if round == 1 {
            receiver.refuse(true)?;
        }
        let (process, _) = upgrade(&server)?;
        drop(newest.replace(process));
        publisher.await_more(50)?;
    }
    receiver.refuse(false)?;
    let count = publisher.finish()?;
    // The process that tells of this end has not told of the beginning.
    drop(stays);
    let notices = receiver.wait("audit", "the end of all", |notices| {
        let has = |event, device| notices.iter().any(|notice| is_of(notice, event, device));
        has("disconnected", "stays") && has("disconnected", "numbers")
    })?;
    let texts = notices.iter().filter_map(|notice| notice["message"]["text"].as_str());
    let expected: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    ensure!(texts.eq(&expected), "{notices:#?}");
    for (event, device) in [("connected", "stays"), ("disconnected", "stays")] {
        let found: Vec<_> = notices.iter().filter(|one| is_of(one, event, device)).collect();
        ensure!(found.len() == 1 && found[0]["reason"] != "gateway_lost", "{found:?}");
    }
    ensure!(notices.iter().all(|notice| notice["event"] != "lost"), "{notices:#?}");
    ensure!(receiver.notices("audit")?.len() == notices.len(), "some came twice");
    ensure!(server.metrics()?.sum("weir_notices_dropped_total", "") == 0.0);
    let log = server.log();
    ensure!(!log.contains("broken off") && !log.contains("does not open"), "{log}");
    Ok(())
}

#[test]
fn an_upgrade_may_bring_the_first_receiver_and_take_the_last_away() -> Result<()> {
    let mut receiver = Receiver::new()?;
    receiver.start()?;
    let (server, directory) = start("")?;
    let before = std::fs::read_to_string(server.config())?;
    let path = directory.path().display().to_string();
    let stays = Device::greet(server.tcp, "stays", &[])?;
    let added = config(&receiver, ALL).replace('@', &path);
    std::fs::write(server.config(), format!("{before}{added}"))?;
    let (first, _) = upgrade(&server)?;
    drop(Device::greet(server.tcp, "comes", &[])?);
    drop(stays);
    receiver.wait("audit", "both ends", |notices| {
        let ends = |device| notices.iter().any(|notice| is_of(notice, "disconnected", device));
        ends("comes") && ends("stays")
    })?;
    std::fs::write(server.config(), before)?;
    let (_second, _) = upgrade(&server)?;
    drop(first);
    drop(Device::greet(server.tcp, "silent", &[])?);
    ensure!(Answer::get(server.admin, "/readyz")?.status == 200);
    let heard = receiver.notices("audit")?;
    ensure!(heard.iter().all(|notice| notice["device"] != "silent"), "{heard:?}");
    Ok(())
}
