//! Phones: each connects with TLS, sleeps after a while, and resumes when it returns.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use weir_client::{Backoff, Client, ClientError, Event, Options, TlsOptions};

use super::{about, begin, note};

/// The id of a phone, counted from 1.
pub(super) fn id_of(number: usize) -> String {
    format!("phone-{}", number + 1)
}

/// Lives for ever. A phone that returns resumes its TLS session, and its topics from where it was.
pub(super) async fn live(addr: SocketAddr, tls: TlsOptions, (number, count): (usize, usize)) {
    begin(number).await;
    let id = id_of(number);
    let round = round_of(count);
    let mut options =
        Options::device(id.as_str()).topic(format!("phone/{id}")).topic(NEWS).tls(tls);
    options.client = concat!("demo-phone/", env!("CARGO_PKG_VERSION")).to_owned();
    let mut backoff = Backoff::default();
    loop {
        let rest = match wake(addr, &mut options, about(round.mul_f64(AWAKE))).await {
            Ok(()) => about(round.mul_f64(1.0 - AWAKE)),
            Err(error) => {
                note(&id, &error);
                backoff.after_error(&error).unwrap_or(round)
            }
        };
        sleep(rest).await;
    }
}

/// One time awake: connects, and takes what comes.
async fn wake(addr: SocketAddr, options: &mut Options, time: Duration) -> Result<(), ClientError> {
    let mut client = Box::pin(Client::connect(addr, options.clone())).await?;
    let end = Instant::now() + time;
    while let Ok(event) = timeout_at(end, client.next()).await {
        match event? {
            None | Some(Event::Goodbye(_)) => break,
            Some(_) => {}
        }
    }
    options.topics = client.positions();
    Ok(())
}

/// From one awakening to the next, on average: longer for many phones, so that the handshakes of all
/// together stay cheap.
fn round_of(count: usize) -> Duration {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    ROUND_MIN.max(Duration::from_secs(1) * count / RETURNS_PER_SECOND)
}

/// A topic that all phones are in.
pub(super) const NEWS: &str = "news";

/// Long enough to see a phone of the list come and go.
const ROUND_MIN: Duration = Duration::from_secs(20);
/// A resumed handshake costs both ends together less than 1 ms: 10 a second are 1 % of a processor.
const RETURNS_PER_SECOND: u32 = 10;
/// The share of a round for which a phone is awake.
const AWAKE: f64 = 0.6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_phones_return_less_often() {
        for (count, seconds) in [(0, 20), (60, 20), (200, 20), (2_000, 200)] {
            assert_eq!(round_of(count), Duration::from_secs(seconds), "{count}");
        }
    }
}
