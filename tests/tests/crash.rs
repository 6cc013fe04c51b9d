//! Clients that vanish in the middle of a broadcast: nothing of them is left behind.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use weir_tests::{Server, program};

const CONNECTIONS: usize = 2000;

/// The load generator in the middle of a broadcast; killed with its workers when dropped.
fn broadcast(server: &Server) -> Result<Child> {
    Command::new(program("weir-bench")?)
        .args([
            "broadcast",
            "--addr",
            &server.tcp.to_string(),
            "--admin",
            &server.admin.to_string(),
        ])
        .args(["--pid", &server.pid().to_string(), "--connections", &CONNECTIONS.to_string()])
        .args(["--size", "4096", "--rate", "50", "--seconds", "600", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting weir-bench")
}

fn descriptors(server: &Server) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{}/fd", server.pid()))?.count())
}

#[test]
fn ten_kills_of_the_load_generator_leave_nothing_behind() -> Result<()> {
    let server = Server::start("")?;
    let mut before = None;
    for round in 1..=10 {
        let mut bench = broadcast(&server)?;
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        let connected = server.await_metrics("the crowd and a broadcast", |metrics| {
            metrics.connections("settled") == CONNECTIONS as f64
                && metrics.sum("weir_messages_delivered_total", "")
                    > (round * 10 * CONNECTIONS) as f64
        });
        bench.kill()?;
        bench.wait()?;
        connected?;
        server.await_metrics("an empty house", |metrics| metrics.is_empty_house())?;
        let descriptors = descriptors(&server)?;
        let first = *before.get_or_insert(descriptors);
        assert!(
            descriptors <= first + 2,
            "{descriptors} descriptors after round {round}, {first} after the first"
        );
    }
    Ok(())
}
