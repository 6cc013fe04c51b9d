//! A small blocking client of Redis: raw commands, and what the server has done so far.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// A connection to a Redis server.
pub(crate) struct Redis {
    stream: BufReader<TcpStream>,
}

/// What a server has done since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// CPU time of all its threads.
    pub(crate) cpu: Duration,
    /// Reads from clients.
    pub(crate) reads: u64,
    /// Writes to clients.
    pub(crate) writes: u64,
    /// Calls of each command, those of scripts included.
    pub(crate) calls: BTreeMap<String, u64>,
}

/// Longest wait for the server at each step.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The address in a URL without user, password and TLS.
pub(crate) fn address(url: &str) -> Result<SocketAddr> {
    let place = url.strip_prefix("redis://").map(|rest| rest.trim_end_matches('/'));
    let place = place.filter(|place| !place.contains(['@', '/', ',']));
    let Some(place) = place else {
        bail!("a Redis to measure is redis://HOST:PORT, without a password and TLS");
    };
    let place = if place.contains(':') { place.to_owned() } else { format!("{place}:6379") };
    let mut found = place.to_socket_addrs().with_context(|| format!("cannot find {place}"))?;
    found.next().with_context(|| format!("{place} has no address"))
}

impl Redis {
    /// Connects.
    pub(crate) fn connect(addr: SocketAddr) -> Result<Redis> {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE)
            .with_context(|| format!("cannot connect to Redis at {addr}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Redis { stream: BufReader::with_capacity(64 << 10, stream) })
    }

    /// Sends commands in Redis' protocol.
    pub(crate) fn send(&mut self, commands: &[u8]) -> Result<()> {
        self.stream.get_mut().write_all(commands).context("Redis takes no commands")
    }

    /// Reads this number of answers, and forgets them.
    ///
    /// Errors: also if one of them is an error.
    pub(crate) fn skip(&mut self, answers: usize) -> Result<()> {
        let mut left = answers;
        while left > 0 {
            left -= 1;
            let head = self.head()?;
            match head.split_at_checked(1) {
                Some(("+" | ":", _)) => {}
                Some(("$", length)) => self.skip_bytes(length)?,
                Some(("*", parts)) => left += parts.parse::<usize>().context("no number")?,
                Some(("-", error)) => bail!("Redis answers {error}"),
                _ => bail!("{head:?} is no answer of Redis"),
            }
        }
        Ok(())
    }

    /// What the server has done so far.
    pub(crate) fn usage(&mut self) -> Result<Usage> {
        self.send(b"*4\r\n$4\r\nINFO\r\n$3\r\ncpu\r\n$5\r\nstats\r\n$12\r\ncommandstats\r\n")?;
        let head = self.head()?;
        let length = head.strip_prefix('$').with_context(|| format!("Redis answers {head:?}"))?;
        let length: u64 = length.parse().context("no number")?;
        if length > ANSWER_BYTES_MAX {
            bail!("an answer of {length} bytes");
        }
        let mut text = String::new();
        (&mut self.stream).take(length).read_to_string(&mut text)?;
        self.head()?;
        usage_in(&text).context("Redis does not tell its CPU time")
    }

    /// The socket.
    pub(crate) fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    fn head(&mut self) -> Result<String> {
        let mut line = String::new();
        (&mut self.stream).take(ANSWER_BYTES_MAX).read_line(&mut line)?;
        let Some(line) = line.strip_suffix("\r\n") else { bail!("Redis has ended within a line") };
        Ok(line.to_owned())
    }

    fn skip_bytes(&mut self, length: &str) -> Result<()> {
        let length: i64 = length.parse().context("no number")?;
        // -1: nothing follows.
        let Ok(length) = u64::try_from(length) else { return Ok(()) };
        let skipped =
            std::io::copy(&mut (&mut self.stream).take(length + 2), &mut std::io::sink())?;
        if skipped < length + 2 {
            bail!("Redis has ended within an answer");
        }
        Ok(())
    }
}

impl Usage {
    /// What was done between an earlier moment and this one. Commands that were not called are left
    /// out.
    pub(crate) fn since(&self, before: &Usage) -> Usage {
        let calls = self.calls.iter().map(|(command, calls)| {
            let old = before.calls.get(command).copied().unwrap_or(0);
            (command.clone(), calls.saturating_sub(old))
        });
        Usage {
            cpu: self.cpu.saturating_sub(before.cpu),
            reads: self.reads.saturating_sub(before.reads),
            writes: self.writes.saturating_sub(before.writes),
            calls: calls.filter(|(_, calls)| *calls > 0).collect(),
        }
    }

    /// Calls of a command.
    pub(crate) fn calls_of(&self, command: &str) -> u64 {
        self.calls.get(command).copied().unwrap_or(0)
    }
}

fn usage_in(info: &str) -> Option<Usage> {
    let value = |key: &str| {
        info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
    };
    let seconds = |key: &str| value(key)?.parse::<f64>().ok();
    let count = |key: &str| value(key).and_then(|value| value.parse().ok()).unwrap_or(0);
    let calls = info.lines().filter_map(|line| {
        let (command, what) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let digits = what.split(',').next()?;
        Some((command.to_owned(), digits.parse().ok()?))
    });
    let cpu = seconds("used_cpu_user")? + seconds("used_cpu_sys")?;
    Some(Usage {
        cpu: Duration::try_from_secs_f64(cpu).ok()?,
        reads: count("total_reads_processed"),
        writes: count("total_writes_processed"),
        calls: calls.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# CPU\r\nused_cpu_sys:1.250000\r\nused_cpu_user:0.500000\r\n\
        used_cpu_sys_children:9.0\r\n# Stats\r\ntotal_reads_processed:7\r\n\
        total_writes_processed:8\r\n# Commandstats\r\n\
        cmdstat_evalsha:calls=3,usec=99,usec_per_call=33.00\r\ncmdstat_client|setname:calls=1,usec=2\r\n";

    #[test]
    fn usage_is_read_and_compared() {
        let before = usage_in(INFO).unwrap();
        assert_eq!(before.cpu, Duration::from_millis(1750));
        assert_eq!((before.reads, before.writes, before.calls_of("evalsha")), (7, 8, 3));
        assert_eq!(before.calls_of("client|setname"), 1);
        let after = usage_in(&INFO.replace("calls=3", "calls=5").replace(":0.5", ":0.75")).unwrap();
        let between = after.since(&before);
        assert_eq!((between.cpu, between.reads), (Duration::from_millis(250), 0));
        assert_eq!(between.calls, BTreeMap::from([("evalsha".to_owned(), 2)]));
        assert_eq!(usage_in("used_cpu_sys:1"), None);
    }

    #[test]
    fn urls_of_plain_servers_alone_are_addresses() {
        assert_eq!(address("redis://127.0.0.1:7").unwrap().to_string(), "127.0.0.1:7");
        assert_eq!(address("redis://127.0.0.1/").unwrap().to_string(), "127.0.0.1:6379");
        for url in ["rediss://a:1", "redis://u:p@a:1", "redis://a:1,b:2", "redis://a:1/3", "a:1"] {
            assert!(address(url).is_err(), "{url}");
        }
    }

    #[test]
    fn answers_are_skipped_and_errors_are_told() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut redis = Redis::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let answers = b"+OK\r\n$3\r\na\r\n\r\n*3\r\n$1\r\nx\r\n:5\r\n$-1\r\n-ERR no\r\n";
        server.write_all(answers).unwrap();
        redis.skip(3).unwrap();
        assert!(redis.skip(1).unwrap_err().to_string().contains("ERR no"));
        server.write_all(b"$5\r\nab").unwrap();
        drop(server);
        assert!(redis.skip(1).is_err());
    }
}
