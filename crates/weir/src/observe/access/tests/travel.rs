//! Tests of the way of lines to the file: complete, counted, through errors and rotation.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_setfl, mknodat};
use tempfile::tempdir;

use super::super::output::Output;
use super::super::queue::{Chunk, Shared};
use super::super::writer::Writer;
use super::super::{AccessLog, Counts};
use super::{config, entry, no_ids, paths, record, until};
use crate::base::config::{AccessLogConfig, AccessLogFormat};

const THREADS: usize = 4;

/// Each thread records `lines` numbered lines.
fn record_from_threads(log: &AccessLog, lines: usize) {
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                (0..lines).for_each(|line| record(log, &format!("/{thread}/{line}")));
            });
        }
    });
}

/// Returns the number of lines. The lines of each thread must be in order and without repetition.
fn check_order(paths: &[String]) -> u64 {
    let mut next = [0; THREADS];
    for path in paths {
        let mut parts = path[1..].split('/').map(|part| part.parse::<usize>().unwrap());
        let (thread, line) = (parts.next().unwrap(), parts.next().unwrap());
        assert!(line >= next[thread], "{path} is behind {}", next[thread]);
        next[thread] = line + 1;
    }
    paths.len() as u64
}

fn queue_bytes_min() -> AccessLogConfig {
    let queue_bytes = AccessLogConfig::QUEUE_BYTES_MIN;
    AccessLogConfig { queue_bytes, ..config(Path::new("pipe")) }
}

#[test]
fn lines_of_many_threads_are_whole_in_order_and_counted() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("log");
    let log = AccessLog::start(&config(&path), THREADS).unwrap();
    record_from_threads(&log, 5_000);
    log.finish();
    let written = check_order(&paths(&fs::read_to_string(&path).unwrap()));
    let expected = Counts { lines: 20_000, dropped: 0, errors: 0 };
    assert_eq!((written, log.counts()), (20_000, Some(expected)));
}

#[test]
fn what_finds_no_room_is_dropped_whole_and_counted() {
    let (mut reader, writer) = io::pipe().unwrap();
    let output = Output::of(Path::new("pipe"), writer);
    let log = AccessLog::with_output(&queue_bytes_min(), THREADS, output).unwrap();
    // Far more than pipe and queue hold. No thread waits for the pipe, which is read only
    // afterwards.
    record_from_threads(&log, 10_000);
    let before = log.counts().unwrap();
    assert!(before.dropped > 0, "{before:?}");
    let mut text = String::new();
    thread::scope(|scope| {
        scope.spawn(|| log.finish());
        reader.read_to_string(&mut text).unwrap();
    });
    let (written, counts) = (check_order(&paths(&text)), log.counts().unwrap());
    assert_eq!((written, counts.errors), (counts.lines, 0));
    assert_eq!(counts.lines + counts.dropped, 40_000);
    // A late line is counted, too.
    record(&log, "/0/10000");
    assert_eq!(log.counts().unwrap().dropped, counts.dropped + 1);
}

#[test]
fn a_line_comes_without_more_and_without_an_end() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("log");
    let log = AccessLog::start(&config(&path), 1).unwrap();
    record(&log, "/0/0");
    until(|| fs::read_to_string(&path).unwrap().ends_with('\n'));
    until(|| log.counts().unwrap().lines == 1);
    // Without `finish`, a drop ends the writer, which writes the remaining lines.
    record(&log, "/0/1");
    drop(log);
    until(|| paths(&fs::read_to_string(&path).unwrap()).len() == 2);
}

#[test]
fn a_renamed_file_is_left_and_nothing_is_lost() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("log");
    let log = AccessLog::start(&config(&path), 1).unwrap();
    let mut all = Vec::new();
    for turn in 0..5 {
        (0..500).for_each(|line| record(&log, &format!("/0/{}", turn * 500 + line)));
        let renamed = path.with_extension(turn.to_string());
        fs::rename(&path, &renamed).unwrap();
        assert!(log.reopen());
        until(|| path.exists());
        all.push(renamed);
    }
    log.finish();
    all.push(path);
    let texts = all.iter().map(|path| paths(&fs::read_to_string(path).unwrap()));
    let lines: Vec<String> = texts.flatten().collect();
    assert_eq!(check_order(&lines), 2_500);
    assert_eq!(log.counts(), Some(Counts { lines: 2_500, dropped: 0, errors: 0 }));
}

#[test]
fn a_file_that_cannot_be_opened_anew_is_an_error_and_the_old_one_stays() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("gone").join("log");
    fs::create_dir(path.parent().unwrap()).unwrap();
    let log = AccessLog::start(&config(&path), 1).unwrap();
    let kept = directory.path().join("kept");
    fs::rename(path.parent().unwrap(), &kept).unwrap();
    log.reopen();
    until(|| log.counts().unwrap().errors == 1);
    record(&log, "/0/0");
    log.finish();
    assert_eq!(log.counts(), Some(Counts { lines: 1, dropped: 0, errors: 1 }));
    assert_eq!(paths(&fs::read_to_string(kept.join("log")).unwrap()), ["/0/0"]);
}

#[test]
fn a_full_disk_holds_nobody_up_and_is_counted() {
    let log = AccessLog::start(&config(Path::new("/dev/full")), 1).unwrap();
    (0..100).for_each(|line| record(&log, &format!("/0/{line}")));
    until(|| log.counts().unwrap().errors > 0);
    log.finish();
    let counts = log.counts().unwrap();
    assert_eq!((counts.lines, counts.dropped), (0, 100));
}

#[test]
fn a_write_that_fails_within_a_line_is_finished_later() {
    let (mut reader, writer) = io::pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    let output = Output::of(Path::new("pipe"), writer);
    let log = AccessLog::with_output(&config(Path::new("pipe")), 1, output).unwrap();
    // More than the pipe holds, but less than the queue does.
    (0..2_000).for_each(|line| record(&log, &format!("/0/{line}")));
    until(|| log.counts().unwrap().errors > 0);
    fcntl_setfl(&reader, OFlags::NONBLOCK).unwrap();
    let mut bytes = Vec::new();
    until(|| {
        // Bytes that were read stay, even if no more come for now.
        let _ = reader.read_to_end(&mut bytes);
        log.counts().unwrap().lines == 2_000
    });
    log.finish();
    until(|| reader.read_to_end(&mut bytes).is_ok());
    assert_eq!(check_order(&paths(&String::from_utf8(bytes).unwrap())), 2_000);
    assert_eq!(log.counts().unwrap().dropped, 0);
}

/// A writer with a pipe that has room for one page only, the pipe's reader, and 100 lines of 100
/// bytes.
fn writer_before_a_full_pipe(path: &Path) -> (Arc<Shared>, Writer, io::PipeReader, Chunk) {
    let (reader, mut writer) = io::pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    let mut pages = 0;
    while writer.write_all(&[b'.'; PAGE_BYTES]).is_ok() {
        pages += 1;
    }
    let mut reader = reader;
    // A page is free again only when all of it has been read.
    reader.read_exact(&mut [0; PAGE_BYTES]).unwrap();
    assert!(pages > 1);
    let shared = Shared::new(&config(path), 1);
    let writer = Writer::new(Arc::clone(&shared), Output::of(path, writer));
    let lines: Vec<String> = (0..100).map(|line| format!("{line:099}\n")).collect();
    (shared, writer, reader, Chunk { bytes: lines.concat().into_bytes(), lines: 100 })
}

/// The bytes after the dots.
fn rest(mut reader: io::PipeReader) -> String {
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text.trim_start_matches('.').to_owned()
}

const PAGE_BYTES: usize = 4096;

#[test]
fn a_new_file_begins_with_the_line_that_the_old_one_could_not_take() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("log");
    let (shared, mut writer, reader, chunk) = writer_before_a_full_pipe(&path);
    let lines = String::from_utf8(chunk.bytes.clone()).unwrap();
    shared.reopen();
    writer.write(chunk);
    drop(writer);
    let old = rest(reader);
    assert_eq!(old, lines[..PAGE_BYTES]);
    assert_eq!(fs::read_to_string(&path).unwrap(), lines[PAGE_BYTES - PAGE_BYTES % 100..]);
    assert_eq!(shared.counts(), Counts { lines: 100, dropped: 0, errors: 1 });
}

#[test]
fn an_end_within_a_line_counts_what_is_lost() {
    let (shared, mut writer, reader, chunk) = writer_before_a_full_pipe(Path::new("pipe"));
    shared.end();
    writer.write(chunk);
    drop(writer);
    let whole = rest(reader).matches('\n').count() as u64;
    assert_eq!(whole, 40);
    assert_eq!(shared.counts(), Counts { lines: 40, dropped: 60, errors: 1 });
}

#[test]
fn a_file_that_cannot_be_opened_is_refused_at_the_start() {
    let directory = tempdir().unwrap();
    let check = |path: &Path, why: &str| {
        let Err(error) = AccessLog::start(&config(path), 1) else { panic!("{path:?} is opened") };
        let error = error.to_string();
        assert!(error.starts_with("access_log.path: cannot open "), "{error}");
        assert!(error.contains(&*path.to_string_lossy()) && error.contains(why), "{error}");
    };
    check(directory.path(), "directory");
    check(&directory.path().join("none").join("log"), "No such file");
    let pipe = directory.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from(0o600), 0).unwrap();
    check(&pipe, "named pipe");
    assert!(AccessLog::start(&config(Path::new("")), 1).unwrap().is_off());
}

#[test]
fn what_is_off_takes_nothing_and_says_so() {
    let log = AccessLog::off();
    record(&log, "/");
    log.finish();
    assert_eq!((log.is_off(), log.reopen(), log.counts()), (true, false, None));
}

#[test]
fn a_file_is_appended_to_and_not_for_everybody() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempdir().unwrap();
    let path = directory.path().join("log");
    for run in 0..2 {
        let log = AccessLog::start(&config(&path), 1).unwrap();
        record(&log, &format!("/0/{run}"));
        log.finish();
    }
    assert_eq!(paths(&fs::read_to_string(&path).unwrap()), ["/0/0", "/0/1"]);
    let mode = File::open(&path).unwrap().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o007, 0);
}

#[test]
fn some_requests_have_no_line() {
    let directory = tempdir().unwrap();
    let check = |sample: u32, errors_only: bool, statuses: &[u16], expected: &[&str]| {
        let path = directory.path().join(format!("{sample}-{errors_only}"));
        let config = AccessLogConfig { sample, errors_only, ..config(&path) };
        // A new thread counts from the start.
        thread::scope(|scope| {
            scope.spawn(|| {
                let (log, ids) = (AccessLog::start(&config, 1).unwrap(), no_ids());
                for (index, status) in statuses.iter().enumerate() {
                    let target = format!("/{index}");
                    let mut entry = entry(&target, &ids);
                    entry.status = *status;
                    log.record(&entry);
                }
                log.finish();
            });
        });
        assert_eq!(paths(&fs::read_to_string(&path).unwrap()), expected);
    };
    check(1, false, &[200, 404, 101], &["/0", "/1", "/2"]);
    check(3, false, &[200; 7], &["/0", "/3", "/6"]);
    check(1, true, &[200, 399, 400, 500], &["/2", "/3"]);
    check(2, true, &[200, 400, 200, 500, 503], &["/1", "/4"]);
}

#[test]
fn the_combined_format_travels_likewise() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("log");
    let config = AccessLogConfig { format: AccessLogFormat::Combined, ..config(&path) };
    let log = AccessLog::start(&config, 1).unwrap();
    record(&log, "/a");
    log.finish();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("127.0.0.1 - - ["), "{text}");
    assert!(text.ends_with("] \"GET /a HTTP/1.1\" 200 11 \"-\" \"test\"\n"), "{text}");
}
