//! `weir topics`: the topics of a node, by name.

use std::path::PathBuf;

use anyhow::Result;
use serde::Deserialize;

use super::args::TopicsArgs;
use super::pages;
use super::table::{Table, number, text};
use crate::http::Api;
use crate::output::say;

/// The shown parts of a topic.
#[derive(Debug, Deserialize)]
struct Topic {
    topic: String,
    subscribers: u64,
    offset: u64,
    class: String,
    retained_messages: u64,
}

pub(crate) async fn run(args: TopicsArgs, file: Option<PathBuf>) -> Result<()> {
    let TopicsArgs { prefix, list } = args;
    let api = Api::find(list.api, file)?;
    let parameters = [("prefix", prefix)];
    let listed = pages::list(&api, ("/v1/topics", "topics"), &parameters, list.limit).await?;
    if list.json {
        return listed.say_lines();
    }
    let mut table = Table::new([
        text("TOPIC"),
        number("SUBSCRIBERS"),
        number("OFFSET"),
        number("RETAINED"),
        text("CLASS"),
    ]);
    for Topic { topic, subscribers, offset, class, retained_messages } in listed.rows()? {
        let [subscribers, offset, retained] =
            [subscribers, offset, retained_messages].map(|count| count.to_string());
        table.add([topic, subscribers, offset, retained, class]);
    }
    say(table.text().trim_end())?;
    listed.tell_more();
    Ok(())
}
