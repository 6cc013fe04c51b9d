//! Gateways, each with the faults that are made to it.

use std::collections::VecDeque;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;
use weir_tests::{Answer, Authority, Cgroup, Device, Proxy, Redis, Server, now, rest};
use weir_wire::v1::{Hello, client_message};

use super::rare::{self, Clocked};
use super::service::{self, Repeated};

/// The alerts whose faults are made here, with the gateway of each.
pub(crate) const EXPECTED: [(&str, &str); 23] = [
    ("WeirDown", "peer"),
    ("WeirStoreDown", "store"),
    ("WeirPartDegraded", "store"),
    ("WeirBrokerDown", "lonely"),
    ("WeirRefusesMessages", "lonely"),
    ("WeirRefusesConnections", "edge"),
    ("WeirConnectionsNearLimit", "edge"),
    ("WeirCertificateEnds", "edge"),
    ("WeirCertificateEndsSoon", "edge"),
    ("WeirDeliveriesSlow", "late"),
    ("WeirLogLost", "late"),
    ("WeirSlowConnectionsClosed", "slow"),
    ("WeirConnectionsLost", "crowd"),
    ("WeirCannotAuthenticate", "calls"),
    ("WeirUpstreamFailing", "calls"),
    ("WeirNoticesNotDelivered", "calls"),
    ("WeirNoticesDropped", "calls"),
    ("WeirClusterNodeMissing", "node"),
    ("WeirClusterNodesDiffer", "node"),
    ("WeirRestartsOften", "restless"),
    ("WeirBrokerMayForget", "restless"),
    ("WeirOpenFilesNearLimit", "small"),
    ("WeirClockWrong", "ahead"),
];
/// One more, where a cgroup can be made.
pub(crate) const IN_CGROUP: (&str, &str) = ("WeirMemoryNearLimit", "small");
/// One more, where a process may trace another.
pub(crate) const TRACED: (&str, &str) = ("WeirNotReady", "broken");

/// A part of each configuration.
const LOG: &str = "[log]\nformat = \"json\"\n";
const CONNECTIONS_MAX: usize = 60;
const CROWD: usize = 60;
const OPEN_FILES_MAX: u32 = 1024;
/// What a slow reader of [`late`] has before it.
const BACKLOG_BYTES: usize = 6 << 20;

/// All gateways, what they need, and the faults that go on.
pub(crate) struct Faults {
    store: Server,
    cache: Redis,
    calls: Server,
    to_service: Proxy,
    edge: Server,
    authority: Authority,
    crowd: Server,
    slow: Server,
    late: Server,
    node: Server,
    peer: Server,
    redis: Redis,
    lonely: Server,
    to_redis: Proxy,
    restless: Server,
    policy: Redis,
    small: Small,
    ahead: Clocked,
    broken: Server,
    /// Whether a shard of `broken` could be stopped.
    is_broken: bool,
    /// Files that are not in a gateway's directory.
    files: TempDir,
    other: Option<Server>,
    devices: Vec<Device>,
    repeated: Vec<Repeated>,
}

/// A gateway with little memory and few descriptors.
struct Small {
    server: Server,
    hog: Option<(Child, ChildStdin)>,
    // Removed last.
    cgroup: Option<Cgroup>,
}

impl Faults {
    /// Starts everything, without a fault.
    pub(crate) fn new() -> Result<Faults> {
        let files = tempfile::tempdir()?;
        let path = |name: &str| files.path().join(name).display().to_string();
        let authority = Authority::new()?;
        let certificates =
            authority.files("a", "a.test", false)? + &authority.files("b", "b.test", false)?;
        let cache = Redis::start()?;
        let store = Server::start_with_limited_files(&format!(
            "{LOG}[store]\npath = \"devices.db\"\n[cache]\nredis = \"{}\"\n",
            cache.url()
        ))?;
        let to_service = Proxy::start(service::start()?)?;
        let receiver = |name: &str, more: &str| {
            format!(
                "[[hooks.receivers]]\nname = \"{name}\"\nupstream = \"api\"\nevents = [\"connected\", \"disconnected\"]\n\
                 backoff_max = \"500ms\"\n{more}"
            )
        };
        let calls = Server::start(&format!(
            "{LOG}[auth]\nanonymous = true\n[hooks]\nnotices_file = \"notices.db\"\n[hooks.connect]\nupstream = \"api\"\n{}{}\
             [[upstreams]]\nname = \"api\"\naddresses = [\"{}\"]\n",
            receiver("large", ""),
            receiver("little", "queue_notices_max = 100\nkeep = \"0ms\"\n"),
            to_service.addr
        ))?;
        let edge = Server::start_with_tls(&format!(
            "{LOG}[limits]\nconnections_max = {CONNECTIONS_MAX}\n[tls]\nreload_interval = \"100ms\"\n{certificates}"
        ))?;
        symlink(path("lines"), path("access.log"))?;
        let late = Server::start_with_http(&format!(
            "{LOG}[access_log]\npath = \"{}\"\n[connection]\nstall_timeout = \"10m\"\n[tcp]\nuser_timeout = \"20m\"\n\
             [memory]\nbudget_bytes = 268435456\n",
            path("access.log")
        ))?;
        let slow = Server::start(&format!(
            "{LOG}[engine]\nown_descriptors = true\n[connection]\nstall_timeout = \"200ms\"\n"
        ))?;
        let (redis, policy, apart) = (Redis::start()?, Redis::start()?, Redis::start()?);
        let to_redis = Proxy::start(apart.addr)?;
        let lonely = cluster(&format!("redis://{}", to_redis.addr), "lonely", "")?;
        // It lives as long as the test.
        std::mem::forget(apart);
        let small = Small::start(&authority)?;
        let certificate = authority.files("d", "d.test", false)?;
        let ahead = Clocked::start(files.path(), &format!("{LOG}{certificate}"))?;
        Ok(Faults {
            broken: Server::start(LOG)?,
            is_broken: false,
            node: cluster(&redis.url(), "node", "")?,
            peer: cluster(&redis.url(), "peer", "")?,
            restless: cluster(&policy.url(), "restless", "")?,
            crowd: Server::start(LOG)?,
            other: None,
            devices: Vec::new(),
            repeated: Vec::new(),
            store,
            cache,
            calls,
            to_service,
            edge,
            authority,
            slow,
            late,
            redis,
            lonely,
            to_redis,
            policy,
            small,
            ahead,
            files,
        })
    }

    /// The gateways by name, with the addresses of their metrics.
    pub(crate) fn targets(&self) -> Vec<(&'static str, SocketAddr)> {
        self.gateways().map(|(name, server)| (name, server.admin)).to_vec()
    }

    pub(crate) fn gateways(&self) -> [(&'static str, &Server); 13] {
        [
            ("store", &self.store),
            ("calls", &self.calls),
            ("edge", &self.edge),
            ("crowd", &self.crowd),
            ("slow", &self.slow),
            ("late", &self.late),
            ("node", &self.node),
            ("peer", &self.peer),
            ("lonely", &self.lonely),
            ("restless", &self.restless),
            ("small", &self.small.server),
            ("ahead", &self.ahead.server),
            ("broken", &self.broken),
        ]
    }

    /// The alerts that must fire on this machine.
    pub(crate) fn expected(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let in_cgroup = self.small.cgroup.is_some().then_some(IN_CGROUP);
        EXPECTED.into_iter().chain(in_cgroup).chain(self.is_broken.then_some(TRACED))
    }

    /// Makes all faults. Some go on until they are mended.
    pub(crate) fn make(&mut self) -> Result<()> {
        self.store.limit_files(Some(0))?;
        self.cache.suspend()?;
        self.to_service.cut();
        self.to_redis.cut();
        self.authority.put("a", &self.authority.sign_for("a.test", hours(12))?)?;
        self.authority.put("b", &self.authority.sign_for("b.test", hours(24 * 7))?)?;
        self.peer.kill()?;
        self.other = Some(cluster(
            &self.redis.url(),
            "other",
            "[[topic_classes]]\npattern = \"other/*\"\n",
        )?);
        self.policy.command("CONFIG SET maxmemory-policy allkeys-lru")?;
        self.restart()?;
        self.fail_access_log("/dev/full")?;
        self.small.make()?;
        self.ahead.make()?;
        self.is_broken = rare::stop_shard(&self.broken)?;
        while let Ok(device) = Device::greet(self.edge.tcp, &number(self.devices.len()), &[]) {
            self.devices.push(device);
        }
        self.repeat()
    }

    /// Begins what goes on.
    fn repeat(&mut self) -> Result<()> {
        let (edge, calls, crowd) = (self.edge.tcp, self.calls.tcp, self.crowd.tcp);
        let publish = |admin: SocketAddr| move || publish(admin, "news", 10).map(drop);
        let http = self.late.http()?;
        self.repeated.extend([
            // Too many.
            Repeated::start(move || Device::greet(edge, "late", &[]).map(drop)),
            // A token that the hook would have to know.
            Repeated::start(move || greet_with_token(calls)),
            // Notices.
            Repeated::start(move || Device::greet(calls, "a", &[]).map(drop)),
            Repeated::start(publish(self.lonely.admin)),
            Repeated::start(move || Answer::get(http, "/v1/nothing").map(drop)),
            Repeated::start(stall(&self.slow)),
            Repeated::start(come_and_go(crowd)),
            Repeated::start(lag(&self.late)?),
        ]);
        Ok(())
    }

    /// Restarts one gateway once more.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.restless.kill()?;
        self.restless.restart()
    }

    /// Ends all faults.
    pub(crate) fn mend(&mut self) -> Result<()> {
        self.repeated.clear();
        self.devices.clear();
        self.store.limit_files(None)?;
        self.cache.resume()?;
        self.to_service.heal();
        self.to_redis.heal();
        self.authority.put("a", &self.authority.sign("a.test", false)?)?;
        self.authority.put("b", &self.authority.sign("b.test", false)?)?;
        self.peer.restart()?;
        self.other = None;
        self.policy.command("CONFIG SET maxmemory-policy noeviction")?;
        self.restart()?;
        self.fail_access_log(&self.files.path().join("lines").display().to_string())?;
        self.ahead.mend()?;
        if self.is_broken {
            self.broken.kill()?;
            self.broken.restart()?;
        }
        self.small.mend()
    }

    fn fail_access_log(&self, to: &str) -> Result<()> {
        let path = self.files.path().join("access.log");
        fs::remove_file(&path)?;
        symlink(to, path)?;
        self.late.signal(Signal::HUP)
    }
}

impl Small {
    #[expect(clippy::print_stdout, reason = "says that it is skipped")]
    fn start(authority: &Authority) -> Result<Small> {
        let cgroup = match Cgroup::with_memory(128 << 20) {
            Ok(cgroup) => Some(cgroup),
            Err(error) => {
                println!("SKIPPED: no cgroup can be made here: {error:#}");
                None
            }
        };
        let enter = cgroup.as_ref().map_or("true".to_owned(), Cgroup::enter);
        let before = format!("{enter}; ulimit -n {OPEN_FILES_MAX}");
        let certificate = authority.files("c", "c.test", false)?;
        let server = Server::start_after(&before, &format!("{LOG}{certificate}"))?;
        Ok(Small { server, hog: None, cgroup })
    }

    fn make(&mut self) -> Result<()> {
        let open = self.server.metrics()?.sum("process_open_fds", "");
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some hundred"
        )]
        self.server.limit_open_files((open * 1.08) as u32, OPEN_FILES_MAX)?;
        let Some(cgroup) = &self.cgroup else { return Ok(()) };
        let script = "import sys\nkept = [b'x' * 2**20 for line in sys.stdin]\n";
        let enter = format!("{}; exec python3 -c \"$1\"", cgroup.enter());
        let mut hog = Command::new("sh");
        hog.args(["-c", &enter, "sh", script]).stdin(Stdio::piped());
        let mut hog = hog.spawn()?;
        let mut lines = hog.stdin.take().context("its input")?;
        let begun = now();
        // It grows until it has to; the rest of the memory is for the gateway.
        while self.used()? < 0.92 && begun.elapsed() < Duration::from_secs(60) {
            lines.write_all(b"\n")?;
            rest();
        }
        self.hog = Some((hog, lines));
        Ok(())
    }

    /// The part of the cgroup's memory that is in use.
    fn used(&self) -> Result<f64> {
        let metrics = self.server.metrics()?;
        let of = |name| metrics.sum(name, "limit=\"cgroup_max\"");
        Ok(of("weir_memory_used_bytes") / of("weir_memory_limit_bytes"))
    }

    fn mend(&mut self) -> Result<()> {
        self.end_hog();
        self.server.limit_open_files(OPEN_FILES_MAX, OPEN_FILES_MAX)
    }

    fn end_hog(&mut self) {
        if let Some((mut hog, _)) = self.hog.take() {
            let _ = hog.kill();
            let _ = hog.wait();
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        self.end_hog();
        // Before its cgroup.
        let _ = self.server.kill();
    }
}

fn cluster(redis: &str, name: &str, more: &str) -> Result<Server> {
    Server::start(&format!(
        "{LOG}[auth]\nanonymous = true\n[cluster]\nredis = \"{redis}\"\nnode = \"{name}\"\n{more}\
         [[topic_classes]]\npattern = \"*\"\npublish = [\"devices\"]\n"
    ))
}

fn hours(count: u64) -> Duration {
    Duration::from_secs(count * 3600)
}

fn number(index: usize) -> String {
    format!("device-{index}")
}

/// Publishes so many bytes to a topic, and returns them.
fn publish(admin: SocketAddr, topic: &str, bytes: usize) -> Result<usize> {
    let message = json!({"topic": topic, "text": "x".repeat(bytes)});
    Answer::post(admin, "/v1/publish", &message.to_string())?;
    Ok(bytes)
}

/// Connects with a token that nobody knows, and waits for the end.
fn greet_with_token(addr: SocketAddr) -> Result<()> {
    let mut device = Device::connect(addr)?;
    let token = "a-token".to_owned();
    device.send(client_message::Kind::Hello(Hello { token, ..Hello::default() }))?;
    device.hear().map(drop)
}

/// Devices that subscribe and never read, and more for them than the kernel takes. They stay while the
/// next two of them come.
fn stall(server: &Server) -> impl FnMut() -> Result<()> + use<> {
    let (tcp, admin) = (server.tcp, server.admin);
    let mut devices = VecDeque::new();
    move || {
        if devices.len() > 2 {
            devices.pop_front();
        }
        devices.push_back(Device::greet(tcp, "slow", &["news"])?);
        for _ in 0..200 {
            publish(admin, "news", 50_000)?;
        }
        Ok(())
    }
}

/// A crowd that comes, stays for five seconds, and goes all at once.
fn come_and_go(addr: SocketAddr) -> impl FnMut() -> Result<()> {
    let mut devices = Vec::new();
    let mut since = now();
    move || {
        if since.elapsed() < Duration::from_secs(5) {
            return Ok(());
        }
        since = now();
        if devices.is_empty() {
            for index in 0..CROWD {
                devices.push(Device::greet(addr, &number(index), &[])?);
            }
        } else {
            devices.clear();
        }
        Ok(())
    }
}

/// A device that reads a little at a time, with much before it.
fn lag(server: &Server) -> Result<impl FnMut() -> Result<()> + use<>> {
    let admin = server.admin;
    let mut device = Device::greet(server.tcp, "reader", &["late"])?;
    let mut behind = 0;
    let mut buf = vec![0; 40_000];
    Ok(move || {
        while behind < BACKLOG_BYTES {
            behind += publish(admin, "late", 50_000)?;
        }
        behind -= device.stream().read(&mut buf)?;
        Ok(())
    })
}
