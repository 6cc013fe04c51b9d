//! Weir inside another program: a game server that hears what its players do and tells everyone in their room.
//!
//! Run it with `cargo run --example embed`, then connect with the client: `weir subscribe room/1`.

use std::time::Duration;

use weir::{Config, ErrorCode, Gateway, Payload, Publication, Refusal, Target};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::default();
    config.listen.tcp = vec!["127.0.0.1:7070".parse()?];
    config.listen.udp = vec![];
    config.listen.admin = None;
    config.listen.http = vec![];

    let gateway = Gateway::builder()
        .config(config)
        .on_publish(|message| {
            // Runs on a thread of the gateway: look, decide, answer; never block.
            let Payload::Text(text) = message.payload else {
                let message = "this game speaks text".to_owned();
                return Err(Refusal { code: ErrorCode::NotSupported, message });
            };
            let room = message.topic;
            let line = format!("{} says: {text}", message.device);
            // Publish under the server's own name; `message.publish()` would pass it on as it is.
            let accepted = message.handle().publish(&to_room(room, &line))?;
            Ok(Some(accepted))
        })
        .start()
        .await?;

    // The game's own clock ticks into a room, whoever is there.
    let handle = gateway.handle();
    let game = tokio::spawn(async move {
        for tick in 1u64.. {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let line = format!("tick {tick}");
            // Too busy to take it now: a game skips the tick.
            let _ = handle.publish(&to_room("room/1", &line));
        }
    });

    tokio::signal::ctrl_c().await?;
    game.abort();
    gateway.shutdown().await;
    Ok(())
}

fn to_room<'a>(room: &'a str, line: &'a str) -> Publication<'a> {
    Publication {
        target: Target::Topic(room),
        payload: Payload::Text(line),
        content_type: "text/plain",
        key: "",
        ttl: Some(Duration::from_secs(5)),
        sender: None,
        idempotency_key: None,
    }
}
