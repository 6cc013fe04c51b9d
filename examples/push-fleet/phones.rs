//! A fleet of phones: each connects with TLS, sleeps, returns, and checks that it has missed nothing.

#![expect(clippy::print_stdout, reason = "its result is a line")]

use std::env;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use weir_client::{Backoff, Client, ClientError, Event, Options, Payload, TlsOptions};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long a phone is awake, and then asleep.
const AWAKE: Duration = Duration::from_millis(700);
const ASLEEP: Duration = Duration::from_millis(500);

/// Arguments: the gateway's address, the file of its certificate, the number of phones, and the
/// number of messages that each waits for.
#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [addr, ca, phones, messages] = words.as_slice() else {
        return Err("push_fleet ADDRESS CA.PEM PHONES MESSAGES".into());
    };
    let (phones, messages): (usize, u64) = (phones.parse()?, messages.parse()?);
    // The phones share sessions here. A real phone resumes its own.
    let tls = TlsOptions::new("localhost", &std::fs::read(ca)?)?;
    let mut fleet = tokio::task::JoinSet::new();
    for number in 1..=phones {
        fleet.spawn(live(addr.clone(), number, messages, tls.clone()));
    }
    println!("{phones} phones are coming");
    let mut returns = 0;
    while let Some(ended) = fleet.join_next().await {
        returns += ended??;
    }
    println!("{phones} phones got {messages} messages each, once and in order; {returns} returns");
    Ok(())
}

/// One phone, until it has got all messages. Tells how often it returned.
async fn live(addr: String, number: usize, all: u64, tls: TlsOptions) -> Result<u64, Failure> {
    let id = format!("phone-{number}");
    let mut options = Options::device(id.as_str()).topic(format!("phone/{id}")).tls(tls);
    let (mut backoff, mut got, mut returns) = (Backoff::default(), 0, 0);
    loop {
        let rest = match Box::pin(wake(&addr, &mut options, &mut got, all)).await {
            Ok(()) if got == all => return Ok(returns),
            Ok(()) => ASLEEP,
            // The delay that the server asks for, or one that grows; `None`: another attempt is
            // of no use.
            Err(error) => backoff.after_error(&error).ok_or(error)?,
        };
        sleep(rest).await;
        returns += 1;
    }
}

/// One time awake. The options keep the positions, from which the next time continues.
async fn wake(
    addr: &str,
    options: &mut Options,
    got: &mut u64,
    all: u64,
) -> Result<(), ClientError> {
    let mut client = Client::connect(addr, options.clone()).await?;
    let end = Instant::now() + AWAKE;
    while *got < all
        && let Ok(event) = timeout_at(end, client.next()).await
    {
        match event? {
            Some(Event::Push(push)) => {
                *got += 1;
                // The backend numbers what it sends to each phone.
                assert_eq!(push.payload, Payload::Text(format!("message {got}")), "{}", push.topic);
            }
            Some(Event::Goodbye(_)) | None => break,
            Some(_) => {}
        }
        options.topics = client.positions();
    }
    Ok(())
}
