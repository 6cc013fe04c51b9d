//! Descriptors run out: whoever is in is served, nothing spins, and whoever waits gets in once there is room.

use std::time::Duration;

use anyhow::Result;
use weir_tests::{Device, Server};
use weir_wire::v1::{self, client_message, server_message};

/// The server's own descriptors take about half of it.
const OPEN_FILES_MAX: u32 = 64;
const DEVICES: usize = 80;
const MOMENT: Duration = Duration::from_secs(1);

fn greeting(number: usize) -> client_message::Kind {
    client_message::Kind::Hello(v1::Hello {
        device_id: format!("device-{number}"),
        ..v1::Hello::default()
    })
}

#[test]
fn running_out_of_descriptors_disturbs_nobody_and_passes() -> Result<()> {
    let server = Server::start_with_open_files("", Some(OPEN_FILES_MAX))?;
    let mut witness = Device::greet(server.tcp, "witness", &[])?;
    let mut devices = Vec::new();
    for number in 0..DEVICES {
        // The kernel takes them all into the backlog; the server answers those that it can accept.
        let mut device = Device::connect(server.tcp)?;
        device.send(greeting(number))?;
        devices.push(device);
    }
    // Accepted in the order of connecting: a moment of silence tells the first for whom there is no descriptor.
    let (mut served, mut waiting) = (Vec::new(), Vec::new());
    for mut device in devices {
        if waiting.is_empty() && !device.is_silent(MOMENT)? {
            served.push(device);
        } else {
            waiting.push(device);
        }
    }
    assert!(!served.is_empty() && !waiting.is_empty(), "{} are served", served.len());
    let before = server.cpu_ticks()?;
    assert!(witness.is_silent(MOMENT * 2)?);
    let used = server.cpu_ticks()? - before;
    assert!(used < 100, "{used} ticks of 10 ms in 2 s: it spins");
    witness.send(client_message::Kind::Ping(v1::Ping { data: b"served?".to_vec() }))?;
    assert!(matches!(witness.hear()?, Some(server_message::Kind::Pong(_))));
    // Room comes: each that waits gets in, and leaves for the next.
    drop(served);
    for mut device in waiting {
        assert!(matches!(device.hear()?, Some(server_message::Kind::Welcome(_))));
    }
    let metrics = server.await_metrics("room for the admin API", |_| true)?;
    assert!(metrics.sum("weir_accept_errors_total", "emfile") > 0.0, "{}", metrics.text());
    Ok(())
}
