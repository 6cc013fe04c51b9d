//! Shards with descriptors of their own (`engine.own_descriptors`): one process holds more connections
//! than its limit on open files, of every kind, and what is too much is told so.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use rustls::ClientConfig;
use serde_json::json;
use weir_tests::{Answer, Authority, Crowd, Device, Metrics, Server, raise_open_files};
use weir_wire::CloseReason;
use weir_wire::v1::{self, client_message, server_message};

/// Each table: of the front, and of each of the shards.
const OPEN_FILES_MAX: u32 = 256;
const SHARDS: u32 = 4;
/// A shard keeps so many for itself.
const KEPT: u32 = 16;
const ROOM: usize = (SHARDS * (OPEN_FILES_MAX - KEPT)) as usize;

/// Tables of descriptors: those of the shards by their numbers, and that of the front.
fn tables(metrics: &Metrics) -> Vec<f64> {
    let table = |name: &str| metrics.sum("weir_descriptors", &format!("table=\"{name}\""));
    (0..SHARDS).map(|shard| table(&shard.to_string())).chain([table("front")]).collect()
}

fn start(extra: &str) -> Result<(Server, Arc<ClientConfig>)> {
    raise_open_files()?;
    let authority = Authority::new()?;
    let certificate = authority.files("server", "localhost", false)?;
    let config = format!(
        "[engine]\nown_descriptors = true\n[threads]\nshards = {SHARDS}\n\
         [connection]\ndrain_timeout = \"2s\"\n{extra}{certificate}"
    );
    let server = Server::start_with_all_doors_and_open_files(&config, Some(OPEN_FILES_MAX))?;
    let client = authority.client()?;
    // The server has read its files.
    drop(authority);
    Ok((server, client))
}

/// A device, by TLS if its number is odd; or nothing if it was told to come back later.
fn arrive(server: &Server, client: &Arc<ClientConfig>, number: usize) -> Result<Option<Device>> {
    let mut device = if number.is_multiple_of(2) {
        Device::connect(server.tcp)?
    } else {
        let tls: SocketAddr = server.tls.context("it was started with TLS")?;
        match Device::connect_tls(tls, client) {
            Ok(device) => device,
            // Without a place there is no handshake.
            Err(_) => return Ok(None),
        }
    };
    let subscribe = v1::Subscribe { topic: "all".into(), position: None, presence: false };
    let hello = v1::Hello {
        device_id: format!("device-{number}"),
        topics: vec![subscribe],
        ..v1::Hello::default()
    };
    // It may have been told already.
    let _ = device.send(client_message::Kind::Hello(hello));
    match device.hear()? {
        Some(server_message::Kind::Welcome(_)) => {}
        Some(server_message::Kind::Goodbye(goodbye)) => {
            let expected = u32::from(CloseReason::TooManyConnections.code());
            ensure!(goodbye.code == expected && goodbye.retry_after_ms > 0, "{goodbye:?}");
            return Ok(None);
        }
        other => bail!("neither Welcome nor Goodbye: {other:?}"),
    }
    match device.hear()? {
        Some(server_message::Kind::Subscribed(_)) => Ok(Some(device)),
        other => bail!("expected Subscribed, got {other:?}"),
    }
}

/// Has more devices arrive than there is room for. Returns how many were refused.
fn arrive_until_refused(
    server: &Server,
    client: &Arc<ClientConfig>,
    devices: &mut Vec<Device>,
) -> Result<u32> {
    let mut refused = 0;
    for number in devices.len()..ROOM + 20 {
        match arrive(server, client, number)? {
            Some(device) => devices.push(device),
            None => refused += 1,
        }
    }
    Ok(refused)
}

#[test]
fn one_process_holds_more_than_its_limit_on_open_files() -> Result<()> {
    let class = "[[topic_classes]]\npattern = \"news\"\npublish = [\"devices\"]\n";
    let (mut server, client) = start(class)?;
    let mut crowd = Crowd::enter(&server, "witness")?;
    let mut devices = Vec::new();
    while devices.len() < ROOM - 50 {
        let device = arrive(&server, &client, devices.len())?;
        devices.push(device.context("there is room")?);
    }
    // They are spread over the tables, and none is full. The front has none of them.
    let metrics = server.await_metrics("all to be counted", |metrics| {
        metrics.connections("settled") == (devices.len() + 5) as f64
            && tables(metrics)[..SHARDS as usize].iter().sum::<f64>()
                == (devices.len() + 5) as f64 + f64::from(8 * SHARDS)
    })?;
    let open = tables(&metrics);
    assert!(open.iter().all(|open| *open < f64::from(OPEN_FILES_MAX)), "{open:?}");
    assert!(open[SHARDS as usize] < 100.0, "{open:?}");
    assert_eq!(metrics.sum("weir_descriptors_max", "table=\"2\""), f64::from(OPEN_FILES_MAX));

    // All are reached, and are heard.
    server.publish(&json!({"topic": "news", "text": "to every kind"}))?;
    crowd.hear("to every kind")?;
    server.publish(&json!({"topic": "all", "text": "to all of them"}))?;
    for device in &mut devices {
        assert_eq!(device.push()?.topic, "all");
    }
    let publish = v1::Publish {
        topic: "news".into(),
        payload: Some(v1::publish::Payload::Text("from a device".into())),
        ..v1::Publish::default()
    };
    devices[7].send(client_message::Kind::Publish(publish))?;
    crowd.hear("from a device")?;
    let shown = Answer::get(server.admin, "/v1/devices/device-8")?;
    assert_eq!(shown.status, 200, "{shown:?}");
    assert!(shown.body.contains("\"connections\""), "{shown:?}");
    let list = Answer::get(server.admin, "/v1/connections?limit=1000")?;
    assert_eq!(list.body.matches("\"device\"").count(), devices.len() + 5);

    // What does not fit is refused, and disturbs nobody.
    let refused = arrive_until_refused(&server, &client, &mut devices)?;
    assert!((ROOM - 10..=ROOM).contains(&(devices.len() + 5)), "{} are held", devices.len());
    let metrics = server.metrics()?;
    let counted = metrics.sum("weir_connections_refused_total", "cause=\"descriptors\"");
    assert_eq!(counted, f64::from(refused));
    assert_eq!(metrics.sum("weir_accept_errors_total", ""), 0.0);
    assert!(server.log().contains("room for fewer connections"), "{}", server.log());
    server.publish(&json!({"all": true, "text": "for all"}))?;
    for device in &mut devices {
        assert_eq!(device.push()?.topic, "");
    }
    crowd.hear("for all")?;

    // There is room again.
    devices.truncate(ROOM / 2);
    let stay = (devices.len() + 5) as f64;
    server.await_metrics("some to be gone", |metrics| {
        metrics.connections("settled") == stay && metrics.connections("lingering") == 0.0
    })?;
    for number in 0..100 {
        let device = arrive(&server, &client, 10_000 + number)?;
        devices.push(device.context("there is room again")?);
    }

    // Nobody leaves without a word.
    server.signal(Signal::TERM)?;
    for mut device in devices {
        assert_eq!(device.goodbye()?.code, u32::from(CloseReason::Draining.code()));
    }
    crowd.are_told(CloseReason::Draining.code(), CloseReason::Draining.name())?;
    let status = server.wait()?;
    assert!(status.success(), "{status}; log:\n{}", server.log());
    assert!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}

/// A shard whose table is full although admission did not know: the kernel closes the socket on its way.
#[test]
fn a_shard_without_a_free_descriptor_loses_one_connection_and_nothing_else() -> Result<()> {
    let (server, client) = start("")?;
    let mut devices = Vec::new();
    for number in 0..600 {
        devices.push(arrive(&server, &client, 2 * number)?.context("there is room")?);
    }
    server.limit_open_files(128, OPEN_FILES_MAX)?;
    let mut lost = Device::connect(server.tcp)?;
    lost.send(client_message::Kind::Hello(v1::Hello {
        device_id: "lost".into(),
        ..v1::Hello::default()
    }))?;
    assert_eq!(lost.hear()?, None);
    let metrics = server.await_metrics("the loss to be counted", |metrics| {
        metrics.sum("weir_passage_lost_total", "") == 1.0
            && metrics.closed("too_many_connections") == 1.0
    })?;
    assert_eq!(metrics.sum("weir_passage_sockets", ""), 0.0);
    server.publish(&json!({"topic": "all", "text": "to all"}))?;
    for device in &mut devices {
        assert_eq!(device.push()?.topic, "all");
    }
    server.limit_open_files(OPEN_FILES_MAX, OPEN_FILES_MAX)?;
    devices.push(arrive(&server, &client, 5000)?.context("there is room again")?);
    drop(devices);
    server.await_metrics("an empty house", Metrics::is_empty_house)?;
    assert!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}

/// Devices come and go while the server ends: each is told, or sees the end, and nothing is left.
#[test]
fn a_storm_leaves_nothing_behind_and_does_not_hold_up_the_end() -> Result<()> {
    let (mut server, client) = start("")?;
    let own = tables(&server.metrics()?);
    let storm = |server: &Server, is_over: &AtomicBool, first: usize| -> Result<usize> {
        let mut came = 0;
        while !is_over.load(Ordering::Relaxed) {
            match arrive(server, &client, first + came) {
                Ok(Some(mut device)) if came.is_multiple_of(3) => {
                    device.send(client_message::Kind::Ping(v1::Ping { data: vec![1] }))?;
                }
                Ok(_) => {}
                Err(_) if is_over.load(Ordering::Relaxed) => break,
                Err(error) => return Err(error),
            }
            came += 1;
        }
        Ok(came)
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let (server, is_over, storm) = (&server, &is_over, &storm);
        let begin = |at: usize| scope.spawn(move || storm(server, is_over, 100_000 * at));
        let storms: Vec<_> = (0..8).map(begin).collect();
        server.await_metrics("a storm", |metrics| {
            metrics.sum("weir_connections_adopted_total", "") > 2000.0
        })?;
        is_over.store(true, Ordering::Relaxed);
        for storm in storms {
            assert!(storm.join().expect("no panic")? > 10);
        }
        Ok(())
    })?;
    let metrics = server.await_metrics("an empty house", |metrics| {
        metrics.is_empty_house() && tables(metrics)[..4] == own[..4]
    })?;
    assert_eq!(metrics.sum("weir_passage_sockets", ""), 0.0);
    assert_eq!(metrics.sum("weir_passage_lost_total", ""), 0.0);

    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let (server, is_over, storm) = (&server, &is_over, &storm);
        let begin = |at: usize| scope.spawn(move || storm(server, is_over, 100_000 * at));
        let storms: Vec<_> = (0..4).map(begin).collect();
        server.await_metrics("a storm", |metrics| {
            metrics.sum("weir_connections_adopted_total", "") > 3000.0
        })?;
        is_over.store(true, Ordering::Relaxed);
        server.signal(Signal::TERM)?;
        storms.into_iter().for_each(|storm| drop(storm.join().expect("no panic")));
        Ok(())
    })?;
    let status = server.wait()?;
    assert!(status.success(), "{status}; log:\n{}", server.log());
    assert!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}
