//! An upgrade to another configuration has the effects of a reload.

use anyhow::{Context, Result, ensure};
use weir_tests::{Answer, Device, Server};
use weir_wire::v1::{Hello, Ping, Subscribe, client_message, server_message};

use super::upgrade;

/// The line behind which the configuration of this test begins.
const BEGIN: &str = "# The rules\n";

const BEFORE: &str = r#"
[auth]
anonymous = true
[[auth.tokens]]
token = "stays"
[[auth.tokens]]
token = "goes"
[[auth.tokens]]
token = "loses-its-label"
labels = ["vip"]
[[topic_classes]]
pattern = "vip/*"
subscribe = ["label:vip"]
[[topic_classes]]
pattern = "room/*"
"#;

const AFTER: &str = r#"
[auth]
anonymous = false
[[auth.tokens]]
token = "stays"
[[auth.tokens]]
token = "loses-its-label"
[[auth.tokens]]
token = "other"
labels = ["vip"]
[[topic_classes]]
pattern = "vip/*"
subscribe = ["label:vip"]
[[topic_classes]]
pattern = "room/*"
subscribe = []
"#;

/// The devices with their tokens and topics, and what each hears of the change.
const DEVICES: [(&str, &str, &[&str], Effect); 5] = [
    ("stays", "stays", &["news"], Effect::Nothing),
    ("goes", "goes", &["news"], Effect::Revoked),
    ("nobody", "", &["news"], Effect::Revoked),
    ("less", "loses-its-label", &["vip/a", "news"], Effect::Unsubscribed("vip/a")),
    ("closed", "stays", &["room/a", "news"], Effect::Unsubscribed("room/a")),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Effect {
    Nothing,
    Revoked,
    Unsubscribed(&'static str),
}

fn enter(server: &Server, id: &str, token: &str, topics: &[&str]) -> Result<Device> {
    let mut device = Device::connect(server.tcp)?;
    let subscribe = |topic: &&str| Subscribe { topic: (*topic).into(), ..Subscribe::default() };
    let hello = Hello {
        device_id: id.into(),
        token: token.into(),
        topics: topics.iter().map(subscribe).collect(),
        ..Hello::default()
    };
    device.send(client_message::Kind::Hello(hello))?;
    for _ in 0..=topics.len() {
        use server_message::Kind::{Subscribed, Welcome};
        let heard = device.hear()?;
        ensure!(matches!(heard, Some(Welcome(_) | Subscribed(_))), "{id}: {heard:?}");
    }
    Ok(device)
}

/// Checks that the device hears of the change as it should, and nothing else.
fn check(device: &mut Device, effect: Effect) -> Result<()> {
    use server_message::Kind;
    match (effect, if effect == Effect::Nothing { None } else { device.hear()? }) {
        (Effect::Nothing, None) => {}
        (Effect::Unsubscribed(topic), Some(Kind::Unsubscribed(told))) => {
            ensure!(told.topic == topic && told.reason == "not_permitted", "{told:?}");
        }
        (Effect::Revoked, Some(Kind::Goodbye(goodbye))) => {
            ensure!(goodbye.code == 4201, "{goodbye:?}");
            let end = device.hear()?;
            ensure!(end.is_none(), "{end:?} behind Goodbye");
            return Ok(());
        }
        (_, heard) => anyhow::bail!("{heard:?}"),
    }
    device.send(client_message::Kind::Ping(Ping { data: b"x".to_vec() }))?;
    let heard = device.hear()?;
    ensure!(matches!(heard, Some(Kind::Pong(_))), "{heard:?}");
    Ok(())
}

/// Connects all devices, changes the configuration, and checks what they hear.
fn check_effects(change: impl FnOnce(&Server) -> Result<()>) -> Result<()> {
    let server = Server::start(&format!("{BEGIN}{BEFORE}"))?;
    let mut devices = Vec::new();
    for (id, token, topics, effect) in DEVICES {
        devices.push((id, enter(&server, id, token, topics)?, effect));
    }
    let text = std::fs::read_to_string(server.config())?;
    let (head, _) = text.split_once(BEGIN).context("the configuration has its mark")?;
    std::fs::write(server.config(), format!("{head}{AFTER}"))?;
    change(&server)?;
    for (id, device, effect) in &mut devices {
        check(device, *effect).with_context(|| format!("{id}, {effect:?}\n{}", server.log()))?;
    }
    Ok(())
}

#[test]
fn a_changed_configuration_ends_what_a_reload_ends() -> Result<()> {
    check_effects(|server| {
        let reloaded = Answer::post(server.admin, "/v1/reload", "{}")?;
        ensure!(reloaded.status == 200, "{reloaded:?}");
        Ok(())
    })?;
    let mut newest = None;
    check_effects(|server| {
        newest = Some(upgrade(server)?.0);
        server.await_log("the configuration differs from that of the old process", 1)?;
        Ok(())
    })
}
