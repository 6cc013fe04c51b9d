//! A message that is published again after an upgrade, under its key, is published once.

use anyhow::{Result, ensure};
use serde_json::json;
use weir_tests::{Device, Server};
use weir_wire::v1::push;

use super::cluster::publish_once;
use super::upgrade;

#[test]
fn a_message_that_is_sent_again_after_an_upgrade_arrives_once() -> Result<()> {
    let server = Server::start_with_http("[auth]\nanonymous = true\n")?;
    let mut device = Device::greet(server.tcp, "d", &["t"])?;
    let targets = [json!({"topic": "t"}), json!({"device": "d"}), json!({"all": true})];
    let message = |target: usize, text: &str| {
        let mut message = targets[target].clone();
        message["text"] = json!(text);
        message
    };
    let mut firsts = Vec::new();
    for target in 0..targets.len() {
        let key = format!("key-{target}");
        firsts.push(publish_once(server.admin, &key, &message(target, "first"))?);
    }
    let mut newest = None;
    for round in 0..2 {
        let (process, _) = upgrade(&server)?;
        drop(newest.replace(process));
        for (target, first) in firsts.iter().enumerate() {
            let key = format!("key-{target}");
            let again = publish_once(server.admin, &key, &message(target, "again"))?;
            ensure!(again == *first, "{again} is not {first}");
        }
        let new = publish_once(server.admin, &format!("new-{round}"), &message(0, "new"))?;
        ensure!(new["offset"] == round + 2, "{new}");
    }
    for expected in ["first", "first", "first", "new", "new"] {
        let payload = device.push()?.payload;
        ensure!(payload == Some(push::Payload::Text(expected.to_owned())), "{payload:?}");
    }
    Ok(())
}
