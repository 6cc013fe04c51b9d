//! New certificates while devices come and stay: nobody is lost, and who comes gets the new one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustls::ClientConfig;
use serde_json::json;
use weir_tests::{Authority, Device, Leaf, Server};
use weir_wire::v1::push;

const ESTABLISHED: usize = 1_000;
/// Between two that come.
const PACE: Duration = Duration::from_millis(10);
/// So many come for each change, at least.
const JOINING_MIN: usize = 200;
const SWAPS: usize = 10;
/// The swap whose file is broken.
const BROKEN: usize = 4;

/// Devices that come at a pace, and stay.
struct Crowd {
    server: Server,
    client: Arc<ClientConfig>,
    devices: Vec<Device>,
    pace: Duration,
    next: Instant,
}

impl Crowd {
    /// One more, at its time; the certificate that it was shown.
    #[expect(clippy::disallowed_methods, reason = "a test that paces its clients")]
    fn join(&mut self) -> Result<Vec<u8>> {
        std::thread::sleep(self.next.saturating_duration_since(Instant::now()));
        self.next += self.pace;
        let addr = self.server.tls.context("it listens with TLS")?;
        let mut device = Device::connect_tls(addr, &self.client)?;
        device.say_hello(&format!("device-{}", self.devices.len()), &["news"])?;
        let shown = device.server_certificate().context("a certificate")?.to_vec();
        self.devices.push(device);
        Ok(shown)
    }

    /// Whether everybody who is there hears what is published now.
    fn check_all(&mut self, text: &str) -> Result<()> {
        let answer = self.server.publish(&json!({"topic": "news", "text": text}))?;
        assert_eq!(answer["connections"], self.devices.len(), "{text}");
        for (number, device) in self.devices.iter_mut().enumerate() {
            let push = device.push().with_context(|| format!("device {number}, {text}"))?;
            assert_eq!(push.payload, Some(push::Payload::Text(text.to_owned())));
        }
        Ok(())
    }

    /// Devices come until one is shown the new certificate; before it all are shown the old one, after it none.
    fn join_until(&mut self, old: &Leaf, new: &Leaf) -> Result<()> {
        let begun = self.devices.len();
        loop {
            let shown = self.join()?;
            if shown == new.der {
                break;
            }
            ensure!(shown == old.der, "neither the old nor the new certificate");
            if self.devices.len() - begun > 2_000 {
                bail!("the new certificate does not come into use; log:\n{}", self.server.log());
            }
        }
        for _ in 0..5 {
            ensure!(self.join()? == new.der, "the old certificate is back");
        }
        Ok(())
    }
}

/// A thousand devices are there, and a hundred more come a second while certificates change, two hundred at least for
/// each change. Half a minute.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test that paces its clients")]
fn new_certificates_come_into_use_and_nobody_is_lost() -> Result<()> {
    weir_tests::raise_open_files()?;
    let authority = Authority::new()?;
    let certificate = authority.files("server", "localhost", false)?;
    let mut current = authority.sign("localhost", false)?;
    authority.put("server", &current)?;
    let server =
        Server::start_with_tls(&format!("[tls]\nreload_interval = \"100ms\"\n{certificate}"))?;
    let client = authority.client()?;
    let mut crowd =
        Crowd { server, client, devices: Vec::new(), pace: Duration::ZERO, next: Instant::now() };
    for _ in 0..ESTABLISHED {
        ensure!(crowd.join()? == current.der, "another certificate than configured");
    }
    let begun_at = Instant::now();
    (crowd.pace, crowd.next) = (PACE, begun_at);
    for swap in 0..SWAPS {
        let begun = crowd.devices.len();
        if swap == BROKEN {
            authority.write("server.pem", "nonsense")?;
            let refusals = crowd.server.log().matches(REFUSED).count();
            while crowd.server.log().matches(REFUSED).count() == refusals {
                ensure!(crowd.join()? == current.der, "another certificate than the last good one");
                ensure!(crowd.devices.len() - begun <= 2_000, "nothing in the log");
            }
        } else {
            let new = authority.sign("localhost", false)?;
            authority.put("server", &new)?;
            crowd.join_until(&current, &new)?;
            current = new;
        }
        while crowd.devices.len() - begun < JOINING_MIN {
            ensure!(crowd.join()? == current.der, "the old certificate is back");
        }
        crowd.check_all(&format!("swap {swap}"))?;
    }
    let joined = crowd.devices.len() - ESTABLISHED;
    println!(
        "{ESTABLISHED} established, {joined} more in {:.1?}, {SWAPS} changes: {} connected at the end",
        begun_at.elapsed(),
        crowd.devices.len()
    );
    let metrics = crowd.server.metrics()?;
    assert_eq!(metrics.sum("weir_tls_handshakes_total", ""), metrics.connections("settled"));
    for nothing in [
        "weir_connections_closed_total",
        "weir_connections_refused_total",
        "weir_tls_handshakes_failed_total",
        "weir_tls_handshakes_refused_total",
        "weir_tls_not_moved_total",
    ] {
        assert_eq!(metrics.sum(nothing, ""), 0.0, "{nothing}: {}", metrics.text());
    }
    Ok(())
}

const REFUSED: &str = "certificates not reloaded; those loaded before stay in use";
