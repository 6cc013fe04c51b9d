//! Meters: each activates by datagram, then publishes readings and shows that it is alive. A service
//! collects the readings.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};
use weir_client::{Backoff, Client, ClientError, Event, Options};

use super::{METERS, SERVICE, about, begin, note};

/// Measures for ever. Datagrams may be lost, so a meter asks again.
pub(super) async fn measure(addr: SocketAddr, (serial, key): (String, String), number: usize) {
    begin(number).await;
    let socket = match UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!(serial, %error, "a meter of the demo has no socket");
            return;
        }
    };
    let meter = Meter { socket, addr };
    let mut watts = rand::random_range(100..3_000_i32);
    let mut token = None;
    for count in 0_u64.. {
        let Some(shown) = &token else {
            let answer = meter.ask(&json!({ "devSn": serial, "devKey": key })).await;
            token = answer.and_then(|answer| Some(answer["pt"].as_str()?.to_owned()));
            if token.is_none() {
                sleep(about(READING)).await;
            }
            continue;
        };
        watts = (watts + rand::random_range(-100..=100)).clamp(0, 5_000);
        let reading = json!({ "watts": watts }).to_string();
        let publish = json!({ "topic": format!("meter/{serial}"), "text": reading });
        let answer = meter.ask(&json!({ "pt": shown, "id": count, "publish": publish })).await;
        if count % READINGS_PER_CALL == 1 {
            meter.ask(&json!({ "pt": shown, "count": count })).await;
        }
        if answer.is_some_and(|answer| answer["error"] == "unauthorized") {
            token = None;
        }
        sleep(about(READING)).await;
    }
}

struct Meter {
    socket: UdpSocket,
    addr: SocketAddr,
}

impl Meter {
    /// Sends a request until an answer comes; `None`: none came.
    async fn ask(&self, request: &Value) -> Option<Value> {
        let request = request.to_string();
        let mut answer = [0; ANSWER_BYTES_MAX];
        for attempt in 1..=ATTEMPTS {
            // A datagram that cannot be sent is lost like others.
            let _ = self.socket.send_to(request.as_bytes(), self.addr).await;
            let heard = timeout(PATIENCE * attempt, self.socket.recv(&mut answer)).await;
            if let Ok(Ok(length)) = heard
                && let Ok(answer) = serde_json::from_slice(answer.get(..length)?)
            {
                return Some(answer);
            }
        }
        None
    }
}

/// Collects the readings of all meters for ever, as a service.
pub(super) async fn collect(addr: SocketAddr, token: String) {
    let mut options = Options::device(SERVICE).token(token);
    options.client = concat!("demo-service/", env!("CARGO_PKG_VERSION")).to_owned();
    let topics = (1..=METERS).map(|number| format!("meter/meter-{number}").into());
    options.topics = topics.collect();
    let mut backoff = Backoff::default();
    loop {
        let rest = match hear(addr, &mut options).await {
            Ok(()) => backoff.after_close(),
            Err(error) => {
                note(SERVICE, &error);
                backoff.after_error(&error).unwrap_or(READING)
            }
        };
        sleep(rest).await;
    }
}

async fn hear(addr: SocketAddr, options: &mut Options) -> Result<(), ClientError> {
    let mut client = Client::connect(addr, options.clone()).await?;
    while let Some(event) = client.next().await? {
        if matches!(event, Event::Goodbye(_)) {
            break;
        }
    }
    options.topics = client.positions();
    Ok(())
}

const READING: Duration = Duration::from_secs(2);
/// A sign of life about every ten seconds.
const READINGS_PER_CALL: u64 = 5;
const ATTEMPTS: u32 = 3;
/// For the first attempt; longer for each further one.
const PATIENCE: Duration = Duration::from_secs(1);
/// The default of `udp.datagram_bytes_max`.
const ANSWER_BYTES_MAX: usize = 1_200;
