//! The cost of a line: in our log, and through the queue of tracing-appender.
//!
//! `cargo test --release -p weir --lib -- --ignored --nocapture access::tests::cost`
//!
//! Each way in turn, at 100,000 lines a second from all threads together, and at full speed.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use http::{HeaderMap, Version};
use rustix::time::{ClockId, clock_gettime};
use tracing_appender::non_blocking::NonBlockingBuilder;

use super::super::ids::{Ids, Wanted};
use super::super::queue::now;
use super::super::stamp::Stamp;
use super::super::{AccessLog, Entry, line};
use crate::base::config::{AccessLogConfig, AccessLogFormat};

#[test]
#[ignore = "measures; to be run alone and optimised"]
fn a_line() {
    println!(
        "{:<10} {:<9} {:>7} {:>6} {:>12} {:>12} {:>9} {:>8} {:>7}",
        "way",
        "format",
        "threads",
        "rate",
        "thread ns",
        "process ns",
        "lines/s",
        "dropped",
        "bytes"
    );
    for format in AccessLogFormat::ALL {
        for rate in [Some(100_000), None] {
            for threads in [1, 2] {
                for way in [Way::None, Way::Queued, Way::Appender] {
                    measure(way, format, rate, threads);
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    /// The entry is made and dropped.
    None,
    Queued,
    Appender,
}

fn measure(way: Way, format: AccessLogFormat, rate: Option<u64>, threads: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    let lines = rate.map_or(LINES, |rate| rate * 3) / threads;
    let (began, cpu_began) = (now(), cpu(ClockId::ProcessCPUTime));
    let (spent, dropped) = match way {
        Way::None => (
            run(threads, lines, rate, |_| {
                |entry: &Entry<'_>| {
                    std::hint::black_box(entry);
                }
            }),
            0,
        ),
        Way::Queued => {
            let config =
                AccessLogConfig { path: path.clone(), format, ..AccessLogConfig::default() };
            let log = AccessLog::start(&config, 2).unwrap();
            let log = &log;
            let spent =
                run(threads, lines, rate, move |_| move |entry: &Entry<'_>| log.record(entry));
            log.finish();
            (spent, log.counts().unwrap().dropped)
        }
        Way::Appender => appender(&path, format, rate, threads, lines),
    };
    let took = began.elapsed().as_secs_f64();
    let process = (cpu(ClockId::ProcessCPUTime) - cpu_began).as_secs_f64();
    let all = (lines * threads) as f64;
    let written = std::fs::read(&path).unwrap_or_default();
    let in_file = written.split_inclusive(|byte| *byte == b'\n').count();
    println!(
        "{:<10} {:<9} {threads:>7} {:>6} {:>12.0} {:>12.0} {:>9.0} {dropped:>8} {:>7}",
        format!("{way:?}"),
        format.name(),
        rate.map_or("most".to_owned(), |rate| format!("{}k", rate / 1000)),
        spent.as_secs_f64() * 1e9 / all,
        process * 1e9 / all,
        in_file as f64 / took,
        written.len().checked_div(in_file).unwrap_or(0),
    );
}

fn appender(
    path: &Path,
    format: AccessLogFormat,
    rate: Option<u64>,
    threads: u64,
    lines: u64,
) -> (Duration, u64) {
    let file = std::io::BufWriter::with_capacity(64 * 1024, std::fs::File::create(path).unwrap());
    let (queue, guard) = NonBlockingBuilder::default().lossy(true).finish(file);
    let spent = run(threads, lines, rate, |_| {
        let (mut queue, mut bytes, mut stamp) = (queue.clone(), Vec::new(), Stamp::new());
        move |entry: &Entry<'_>| {
            bytes.clear();
            stamp.set(1_795_292_341_123_999);
            line::write(format, &mut bytes, &stamp, entry);
            queue.write_all(&bytes).unwrap();
        }
    });
    let dropped = queue.error_counter();
    drop(guard);
    (spent, dropped.dropped_lines() as u64)
}

/// CPU time of the threads that record.
fn run<R: FnMut(&Entry<'_>)>(
    threads: u64,
    lines: u64,
    rate: Option<u64>,
    recorder: impl Fn(u64) -> R + Sync,
) -> Duration {
    thread::scope(|scope| {
        let recording: Vec<_> = (0..threads)
            .map(|thread| {
                let recorder = &recorder;
                scope.spawn(move || {
                    let mut record = recorder(thread);
                    let cpu_began = cpu(ClockId::ThreadCPUTime);
                    record_all(lines, rate.map(|rate| rate / threads), &mut record);
                    cpu(ClockId::ThreadCPUTime) - cpu_began
                })
            })
            .collect();
        recording.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

fn record_all(lines: u64, rate: Option<u64>, record: &mut impl FnMut(&Entry<'_>)) {
    let (began, head) = (now(), HeaderMap::new());
    let remote: Option<IpAddr> = "127.0.0.1".parse().ok();
    for index in 0..lines {
        if let Some(rate) = rate
            && index % BURST == 0
        {
            let due = began + Duration::from_nanos(index * 1_000_000_000 / rate);
            pause(due.saturating_duration_since(now()));
        }
        let request = now();
        let ids = Ids::of(&head, Wanted { in_log: true, in_answers: false });
        record(&Entry {
            began: request,
            took: Duration::from_micros(index % 1000),
            remote,
            method: "GET",
            target: "/rest/hello",
            version: Version::HTTP_11,
            status: 200,
            bytes: 11,
            host: Some(b"gate.example:8080"),
            user_agent: Some(
                b"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
            ),
            referer: None,
            device: None,
            ids: &ids,
        });
    }
}

#[expect(clippy::disallowed_methods, reason = "a bench keeps to its rate")]
fn pause(time: Duration) {
    thread::sleep(time);
}

fn cpu(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::from_secs(time.tv_sec.cast_unsigned())
        + Duration::from_nanos(time.tv_nsec.cast_unsigned())
}

const LINES: u64 = 2_000_000;
/// Requests that one turn of an event loop answers.
const BURST: u64 = 50;
