//! `hooks`: services that Weir asks and tells. Each kind of work has a file.

mod connect;
mod lag;
mod notices;
mod receiver;

use anyhow::{Context, Result};
use bytes::Bytes;
use serde_json::{Value, json};
use toml::Table;

use super::Setup;
use crate::backend::{Backend, Conduct};
use crate::cli::{HooksArgs, HooksWork};
use crate::report::Report;

/// Runs the scenario.
pub(crate) fn run(args: &HooksArgs, report: &mut Report) -> Result<()> {
    let setup = Setup::new(&args.run, Some(&args.target()), true)?;
    report.set("work", args.work.name());
    match args.work {
        HooksWork::Notices => notices::run(args, &setup, report)?,
        HooksWork::Lag => lag::run(args, &setup, report)?,
        HooksWork::Connect => connect::run(args, &setup, report)?,
    }
    setup.describe(report);
    Ok(())
}

/// Weir's configuration with a receiver of these events. The file of notices is in the server's scratch
/// directory.
fn receiver(told: &Backend, events: &[&str]) -> Result<Table> {
    let events: Vec<String> = events.iter().map(|event| format!("{event:?}")).collect();
    let text = format!(
        "[[upstreams]]\nname = \"told\"\naddresses = [\"{}\"]\n\
         [hooks]\nsecret = \"{SECRET}\"\nnotices_file = \"notices.db\"\n\
         [[hooks.receivers]]\nname = \"bench\"\nupstream = \"told\"\nevents = [{}]\n",
        told.addr,
        events.join(", ")
    );
    text.parse().context("the settings of the receiver")
}

/// Adds the question about tokens of new connections.
fn ask(settings: &mut Table, asked: &Backend) -> Result<()> {
    let text = format!(
        "[[upstreams]]\nname = \"asked\"\naddresses = [\"{}\"]\n\
         [hooks.connect]\nupstream = \"asked\"\ntimeout = \"5s\"\n",
        asked.addr
    );
    let further: Table = text.parse().context("the settings of the question")?;
    for (key, value) in further {
        match (settings.get_mut(&key), value) {
            (Some(toml::Value::Array(all)), toml::Value::Array(more)) => all.extend(more),
            (Some(toml::Value::Table(all)), toml::Value::Table(more)) => all.extend(more),
            (_, value) => drop(settings.insert(key, value)),
        }
    }
    Ok(())
}

/// The service that knows each token: the device is named as the token.
fn knows_all() -> Conduct {
    Conduct::answers(|asked| {
        let asked: Value = serde_json::from_slice(asked).unwrap_or_default();
        let device = asked["token"].as_str().unwrap_or_default();
        Bytes::from(json!({ "allow": true, "device": device }).to_string())
    })
}

/// The token of guests whose service is asked: `*` stands for the device, so no two are alike.
const TOKEN: &str = "*";
/// Of the test, and as long as it must be.
const SECRET: &str = "the secret of the load generator, 32 bytes at least";
