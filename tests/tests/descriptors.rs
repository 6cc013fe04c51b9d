//! Descriptors run out: whoever is in is served, whoever is too many is told when to come back, and gets in once there
//! is room.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use weir_tests::{Answer, Device, Server, raise_open_files};
use weir_wire::CloseReason;
use weir_wire::v1::{self, client_message, server_message};

/// The server keeps a quarter of it to itself, beside what it has open anyway.
const OPEN_FILES_MAX: u32 = 256;
const DEVICES: usize = 300;
const MOMENT: Duration = Duration::from_secs(2);

fn greeting(device_id: String) -> client_message::Kind {
    client_message::Kind::Hello(v1::Hello { device_id, ..v1::Hello::default() })
}

/// A device that was let in, or nothing if it was told to come back later.
fn arrive(server: std::net::SocketAddr, device_id: String) -> Result<Option<Device>> {
    let mut device = Device::connect(server)?;
    // Whoever is too many may be told before it has said anything.
    let _ = device.send(greeting(device_id));
    match device.hear()? {
        Some(server_message::Kind::Welcome(_)) => Ok(Some(device)),
        Some(server_message::Kind::Goodbye(goodbye)) => {
            let expected = u32::from(CloseReason::TooManyConnections.code());
            assert_eq!(goodbye.code, expected, "{goodbye:?}");
            assert!(goodbye.retry_after_ms > 0, "{goodbye:?}");
            Ok(None)
        }
        other => bail!("neither Welcome nor Goodbye: {other:?}"),
    }
}

#[test]
fn running_out_of_descriptors_disturbs_nobody_and_passes() -> Result<()> {
    let server = Server::start_with_open_files("", Some(OPEN_FILES_MAX))?;
    let mut witness = Device::greet(server.tcp, "witness", &["news"])?;
    let (mut served, mut refused) = (Vec::new(), 0);
    for number in 0..DEVICES {
        match arrive(server.tcp, format!("device-{number}"))? {
            Some(device) => served.push(device),
            None => refused += 1,
        }
    }
    let room = usize::try_from(OPEN_FILES_MAX / 2)?;
    assert!(served.len() >= room && refused > 0, "{} served, {refused} refused", served.len());

    // The admin API answers, several at a time, and tells what happened.
    let answers: Vec<_> = (0..16)
        .map(|_| {
            let admin = server.admin;
            std::thread::spawn(move || Answer::get(admin, "/v1/connections?limit=1"))
        })
        .collect();
    for answer in answers {
        assert_eq!(answer.join().expect("no panic")?.status, 200);
    }
    let metrics = server.metrics()?;
    let counted = metrics.sum("weir_connections_refused_total", "cause=\"descriptors\"");
    assert_eq!(counted, f64::from(refused));
    assert_eq!(metrics.sum("weir_accept_errors_total", ""), 0.0, "{}", metrics.text());
    assert_eq!(metrics.connections("settled"), (served.len() + 1) as f64);
    // One line at once, and another one for all that came after it.
    let lines = server.log().lines().filter(|line| line.contains("connections refused")).count();
    assert!((1..=10).contains(&lines), "{lines} lines for {refused} refusals");
    let log = server.log();
    assert!(log.contains("room for fewer connections than limits.connections_max"), "{log}");

    // Those who are in are served, and nothing spins.
    server.publish(&serde_json::json!({"all": true, "text": "for all"}))?;
    for device in &mut served {
        assert_eq!(device.push()?.topic, "");
    }
    assert_eq!(witness.push()?.topic, "");
    let before = server.cpu_ticks()?;
    assert!(witness.is_silent(MOMENT)?);
    let used = server.cpu_ticks()? - before;
    assert!(used < 100, "{used} ticks of 10 ms in 2 s: it spins");

    // Room comes: whoever tries again gets in.
    let left = served.len() / 2;
    served.truncate(left);
    let stay = (left + 1) as f64;
    let gone = |metrics: &weir_tests::Metrics| {
        metrics.connections("settled") == stay && metrics.connections("lingering") == 0.0
    };
    server.await_metrics("half of them gone", gone)?;
    for number in 0..left {
        let device = arrive(server.tcp, format!("later-{number}"))?;
        served.push(device.context("there is room again")?);
    }
    Ok(())
}

#[test]
fn admin_connections_that_take_all_descriptors_lock_nobody_out() -> Result<()> {
    let server = Server::start_with_open_files("", Some(64))?;
    let mut witness = Device::greet(server.tcp, "witness", &[])?;
    let idle: Vec<_> = (0..80)
        .map(|_| std::net::TcpStream::connect(server.admin))
        .collect::<std::io::Result<_>>()?;
    // More than there are descriptors: the rest wait in the backlog, and so does a device.
    let mut waiting = Device::connect(server.tcp)?;
    waiting.send(greeting("waiting".to_owned()))?;
    let before = server.cpu_ticks()?;
    assert!(witness.is_silent(MOMENT)?);
    let used = server.cpu_ticks()? - before;
    assert!(used < 100, "{used} ticks of 10 ms in 2 s: it spins");
    witness.send(client_message::Kind::Ping(v1::Ping { data: b"served?".to_vec() }))?;
    assert!(matches!(witness.hear()?, Some(server_message::Kind::Pong(_))));
    drop(idle);
    // Either it was told to come back, or it waited; now there is room.
    if let Some(server_message::Kind::Goodbye(_)) = waiting.hear()? {
        waiting = arrive(server.tcp, "waiting".to_owned())?.context("there is room again")?;
    }
    let metrics = server.await_metrics("an answer", |_| true)?;
    assert!(metrics.sum("weir_accept_errors_total", "emfile") > 0.0, "{}", metrics.text());
    waiting.send(client_message::Kind::Ping(v1::Ping { data: b"served?".to_vec() }))?;
    assert!(matches!(waiting.hear()?, Some(server_message::Kind::Pong(_))));
    Ok(())
}

/// In full size, with figures: `cargo test -p weir-tests --test descriptors -- --ignored --nocapture full_size`.
#[test]
#[ignore = "takes 45,000 descriptors in three processes, and a minute"]
fn full_size() -> Result<()> {
    raise_open_files()?;
    let server =
        Server::start_with_open_files("[connection]\nheartbeat = \"15m\"\n", Some(20_000))?;
    let mut crowds = Vec::new();
    for number in 0..2 {
        crowds.push(Crowd::gather(&server, number, 12_500)?);
    }
    let watch = Watch::begin(&server);
    let arrived: Vec<String> = crowds.iter_mut().map(Crowd::hear).collect::<Result<_>>()?;
    println!("arriving: {arrived:?}; admin meanwhile: {}", watch.end());
    println!("cpu while idle and full: {} ticks of 10 ms in 5 s", cpu(&server, 5)?);
    let metrics = server.metrics()?;
    for cause in ["descriptors", "connections_max", "unsettled_max"] {
        let count = metrics.sum("weir_connections_refused_total", &format!("cause=\"{cause}\""));
        println!("refused for {cause}: {count}");
    }
    println!(
        "accept errors: {}; open: {} of {}; settled: {}",
        metrics.sum("weir_accept_errors_total", ""),
        metrics.sum("process_open_fds", ""),
        metrics.sum("process_max_fds", ""),
        metrics.connections("settled"),
    );
    for round in 0..3 {
        for crowd in &mut crowds {
            crowd.say("listen")?;
        }
        server.publish(&serde_json::json!({"all": true, "text": "for all"}))?;
        let lags: Vec<String> = crowds.iter_mut().map(Crowd::hear).collect::<Result<_>>()?;
        println!("broadcast {round}: {lags:?}");
    }
    // Surplus that tries again and again, while the others are full.
    crowds[1].say("retry")?;
    let watch = Watch::begin(&server);
    println!("cpu while surplus retries: {} ticks of 10 ms in 5 s", cpu(&server, 5)?);
    println!("retrying: {}; admin meanwhile: {}", crowds[1].hear()?, watch.end());
    crowds[0].say("leave")?;
    println!("left: {}", crowds[0].hear()?);
    crowds[1].say("return")?;
    println!("returned: {}", crowds[1].hear()?);
    Ok(())
}

fn cpu(server: &Server, seconds: u64) -> Result<u64> {
    let before = server.cpu_ticks()?;
    pause(Duration::from_secs(seconds));
    Ok(server.cpu_ticks()? - before)
}

/// Asks the admin API again and again until it is told to end.
struct Watch {
    stop: std::sync::mpsc::SyncSender<()>,
    asking: std::thread::JoinHandle<Vec<Duration>>,
    failed: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl Watch {
    fn begin(server: &Server) -> Watch {
        let admin = server.admin;
        let (stop, stopped) = std::sync::mpsc::sync_channel(1);
        let failed = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
        let failures = std::sync::Arc::clone(&failed);
        let asking = std::thread::spawn(move || {
            let mut times = Vec::new();
            while stopped.recv_timeout(Duration::from_millis(10)).is_err() {
                let began = now();
                match Answer::get(admin, "/v1/connections?limit=1") {
                    Ok(answer) if answer.status == 200 => times.push(began.elapsed()),
                    _ => {
                        failures.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            }
            times
        });
        Watch { stop, asking, failed }
    }

    fn end(self) -> String {
        let _ = self.stop.send(());
        let mut times = self.asking.join().unwrap_or_default();
        let failed = self.failed.load(std::sync::atomic::Ordering::Relaxed);
        format!("{}, {failed} failed", quantiles(&mut times))
    }
}

fn quantiles(times: &mut [Duration]) -> String {
    times.sort();
    let at = |per_mille: usize| {
        let index = (times.len() * per_mille / 1000).min(times.len().saturating_sub(1));
        times.get(index).copied().unwrap_or_default()
    };
    let (p50, p99, max) = (at(500), at(990), at(1000));
    format!("{} times, p50 {p50:.2?}, p99 {p99:.2?}, max {max:.2?}", times.len())
}

/// Devices in a process of their own, which does what it is told, line by line.
struct Crowd {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Crowd {
    fn gather(server: &Server, number: usize, devices: usize) -> Result<Crowd> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--exact", "crowd", "--ignored", "--nocapture"])
            .env(CROWD, format!("{} {number} {devices}", server.tcp))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take().context("a pipe")?;
        let from = BufReader::new(child.stdout.take().context("a pipe")?);
        Ok(Crowd { child, to, from })
    }

    fn say(&mut self, word: &str) -> Result<()> {
        writeln!(self.to, "{word}")?;
        if word == "listen" {
            // It says when it does.
            self.hear()?;
        }
        Ok(())
    }

    fn hear(&mut self) -> Result<String> {
        loop {
            let mut line = String::new();
            if self.from.read_line(&mut line)? == 0 {
                bail!("the crowd is gone");
            }
            if let Some(line) = line.trim().strip_prefix("crowd: ") {
                return Ok(line.to_owned());
            }
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "a part of full_size, which starts it in processes of its own"]
fn crowd() -> Result<()> {
    let Ok(orders) = std::env::var(CROWD) else { return Ok(()) };
    let words: Vec<&str> = orders.split(' ').collect();
    let (addr, name, count) = (words[0].parse()?, words[1], words[2].parse::<usize>()?);
    raise_open_files()?;
    let (mut devices, mut times) = (Vec::new(), Vec::new());
    let mut arrive_as = |name: String| {
        let began = now();
        let arrived = arrive(addr, name);
        times.push(began.elapsed());
        arrived
    };
    for number in 0..count {
        devices.extend(arrive_as(format!("{name}-{number}"))?);
    }
    let served = devices.len();
    println!("\ncrowd: {served} served, {} refused, {}", count - served, quantiles(&mut times));
    for line in std::io::stdin().lines() {
        match line?.as_str() {
            "listen" => println!("crowd: lag {}", listen(&mut devices)?),
            "retry" => {
                let (mut times, end) = (Vec::new(), now() + Duration::from_secs(5));
                while now() < end {
                    let began = now();
                    devices.extend(arrive(addr, format!("{name}-again"))?);
                    times.push(began.elapsed());
                }
                println!("crowd: {}", quantiles(&mut times));
            }
            "leave" => {
                let before = devices.len();
                devices.truncate(before / 2);
                println!("crowd: {}", before - devices.len());
            }
            "return" => {
                // Those who left linger for a moment.
                pause(Duration::from_secs(2));
                let mut returned = 0;
                for number in 0..count - served {
                    let device = arrive(addr, format!("{name}-returned-{number}"))?;
                    returned += usize::from(device.is_some());
                    devices.extend(device);
                }
                println!("crowd: {returned} of {}", count - served);
            }
            other => bail!("no such order: {other:?}"),
        }
    }
    Ok(())
}

/// Times from now until each device has something to read; what it reads is let go.
#[expect(clippy::print_stdout, reason = "this is how it answers the process that started it")]
fn listen(devices: &mut [Device]) -> Result<String> {
    use rustix::event::epoll;
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (index, device) in devices.iter_mut().enumerate() {
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&waiting, device.stream(), data, epoll::EventFlags::IN)?;
    }
    println!("crowd: listening");
    let mut times = Vec::with_capacity(devices.len());
    let mut began = None;
    let mut events = Vec::with_capacity(1024);
    while times.len() < devices.len() {
        epoll::wait(&waiting, rustix::buffer::spare_capacity(&mut events), None)?;
        // The first one is the measure for all others.
        let began = *began.get_or_insert_with(now);
        for event in events.drain(..) {
            let device = &mut devices[usize::try_from(event.data.u64())?];
            assert_eq!(device.push()?.topic, "");
            epoll::delete(&waiting, device.stream())?;
            times.push(began.elapsed());
        }
    }
    Ok(format!("behind the first: {}", quantiles(&mut times)))
}

#[expect(clippy::disallowed_methods, reason = "a test measures")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a test waits for what it measures")]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

const CROWD: &str = "WEIR_TESTS_CROWD";
