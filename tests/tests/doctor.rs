//! `weir doctor`, and whether a gateway then holds as many connections as it has forecast.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_tests::{
    Authority, Cgroup, Database, Device, Redis, Server, now, program, raise_open_files,
};

/// What `weir doctor` says about a configuration after `before`, and its exit code.
fn doctor(before: &str, config: &str, args: &[&str]) -> Result<(Option<i32>, Value)> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("weir.toml");
    std::fs::write(&file, config)?;
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{before}; exec \"$@\""), "sh"]);
    command.arg(program("weir")?).args(["doctor", "--json", "--config"]).arg(&file).args(args);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    let report = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stdout).into_owned())?;
    Ok((output.status.code(), report))
}

/// The check with this name.
#[track_caller]
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().expect("a list of checks");
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
}

/// Opens connections until none is admitted any more; all stay until then. What a storm of them takes
/// beside, the gateway gives back within seconds.
fn held(mut open: impl FnMut(usize) -> Option<Device>) -> u64 {
    let (mut devices, mut refused) = (Vec::new(), None);
    loop {
        match open(devices.len()) {
            Some(device) => {
                devices.push(device);
                refused = None;
            }
            None if refused.is_some_and(|since: Instant| since.elapsed() > GIVEN_BACK) => {
                return devices.len() as u64;
            }
            None => {
                refused.get_or_insert_with(now);
            }
        }
    }
}

fn held_plain(server: &Server) -> u64 {
    held(|number| {
        Device::greet(server.tcp, &format!("weir-test-device-{number:06}"), &["news"]).ok()
    })
}

fn held_with_tls(server: &Server, authority: &Authority) -> Result<u64> {
    let (tls, client) = (server.tls.context("it listens with TLS")?, authority.client()?);
    Ok(held(|number| {
        let mut device = Device::connect_tls(tls, &client).ok()?;
        device.say_hello(&format!("weir-test-device-{number:06}"), &["news"]).ok()?;
        Some(device)
    }))
}

#[expect(clippy::print_stdout, reason = "shows how near")]
#[track_caller]
fn assert_near(report: &Value, name: &str, held: u64) {
    let forecast = report["forecast"][name].as_u64().expect("a number");
    println!("{name}: {forecast} forecast, {held} held; {}", report["forecast"]["costs"]);
    assert!(forecast.abs_diff(held) * 5 <= held, "{forecast} forecast, {held} held: {report:#}");
}

/// A gateway under the same limits holds as many connections as forecast, and is not killed.
fn check_forecast(before: &str, limited_by: &str, args: &[&str]) -> Result<Value> {
    raise_open_files()?;
    let listen = "[listen]\ntls = [\"127.0.0.1:7443\"]\nhttp = []\nudp = []\n";
    let config = format!("{listen}[store]\nkind = \"none\"\n");
    let (code, report) = doctor(before, &config, args)?;
    assert_eq!(code, Some(1), "{report:#}");
    assert_eq!(report["forecast"]["limited_by"], limited_by, "{report:#}");
    assert_eq!(report["forecast"]["tls_limited_by"], limited_by, "{report:#}");
    let authority = Authority::new()?;
    let extra = authority.files("server", "localhost", false)?;
    let server = Server::start_after(before, &extra)?;
    assert_near(&report, "idle_connections", held_plain(&server));
    drop(server);
    // The kernel gives back slowly what the first gateway had.
    let server = Server::start_after(before, &extra)?;
    assert_near(&report, "tls_connections", held_with_tls(&server, &authority)?);
    server.metrics().context("the gateway is alive")?;
    Ok(report)
}

#[test]
fn few_open_files_are_found_and_forecast() -> Result<()> {
    let report = check_forecast("ulimit -n 256", "open_files", &["--connections", "1000"])?;
    let files = check(&report, "open_files");
    assert_eq!(files["found"], "256 soft, 256 hard");
    assert_eq!(files["bites_at_connections"], report["forecast"]["idle_connections"]);
    assert_eq!(files["mend"][0], "LimitNOFILE=2024   (in the unit of systemd)");
    // Deliveries are measured even with so few.
    assert!(report["forecast"]["costs"]["delivery_us"].as_f64().is_some_and(|us| us > 0.1));
    assert!(report["forecast"]["pushed_connections"].is_u64(), "{report:#}");
    Ok(())
}

#[test]
fn open_files_of_each_shard_are_forecast() -> Result<()> {
    let config =
        "[threads]\nshards = 4\n[engine]\nown_descriptors = true\n[store]\nkind = \"none\"\n";
    let (_, report) = doctor("ulimit -n 256", config, &["--connections", "1000"])?;
    let held = report["forecast"]["idle_connections"].as_u64().context("a number")?;
    // Four tables with 256 files each, of which a shard takes a few.
    assert!((4 * 200..=4 * 256).contains(&held), "{report:#}");
    assert_eq!(report["forecast"]["limited_by"], "open_files", "{report:#}");
    assert!(report["forecast"]["pushed_connections"].is_u64(), "{report:#}");
    Ok(())
}

/// Without a limit of its own, the connections would take the whole group, and the kernel would kill.
#[test]
fn the_memory_of_a_small_cgroup_is_forecast_and_not_exceeded() -> Result<()> {
    let Some(cgroup) = cgroup(SMALL_BYTES) else { return Ok(()) };
    let report = check_forecast(&cgroup.enter(), "cgroup_memory", &[])?;
    assert!(report["forecast"]["costs"]["cgroup_kernel_bytes"].is_u64(), "{report:#}");
    assert!(
        check(&report, "memory")["mend"][0]
            .as_str()
            .is_some_and(|line| line.starts_with("MemoryMax="))
    );
    assert_eq!(cgroup.kills()?, 0);
    Ok(())
}

#[test]
fn a_cgroup_of_512_mb_is_found_and_forecast() -> Result<()> {
    let Some(cgroup) = cgroup(512 << 20) else { return Ok(()) };
    let before = format!("{}; ulimit -n 2000", cgroup.enter());
    let report = check_forecast(&before, "open_files", &[])?;
    let memory = check(&report, "memory");
    assert!(memory["found"].as_str().is_some_and(|found| found.contains("512 MiB")), "{memory}");
    let rooms = report["forecast"]["rooms"].as_array().context("a list")?;
    let room = rooms.iter().find(|room| room["name"] == "cgroup_memory").context("its room")?;
    // Between 1 and 10 KB each.
    let connections = room["connections"].as_u64().context("a number")?;
    assert!((40_000..400_000).contains(&connections), "{room}");
    assert_eq!(cgroup.kills()?, 0);
    Ok(())
}

/// A cgroup; `None`, with a message, where this machine lets none be made.
#[expect(clippy::print_stdout, reason = "says that it is skipped")]
fn cgroup(bytes: u64) -> Option<Cgroup> {
    match Cgroup::with_memory(bytes) {
        Ok(cgroup) => Some(cgroup),
        Err(error) => {
            println!("SKIPPED: no cgroup can be made here: {error:#}");
            None
        }
    }
}

#[test]
fn exit_codes_tell_what_was_found() -> Result<()> {
    let none = "[store]\nkind = \"none\"\n";
    let (code, report) = doctor("true", none, &["--no-self-test", "--connections", "1"])?;
    let wrong =
        report["checks"].as_array().context("a list")?.iter().filter(|check| check["ok"] == false);
    // What is left to mend belongs to this machine.
    let wrong: Vec<&Value> = wrong.collect();
    assert_eq!(code, Some(i32::from(!wrong.is_empty())), "{wrong:#?}");
    assert_eq!(report["ok"], wrong.is_empty());
    assert_eq!(report["forecast"]["costs"]["kernel_measured"], false);
    assert!(report["forecast"]["pushed_connections"].is_null());
    assert_eq!(report["forecast"]["limited_by"], "limits.connections_max");
    for name in ["open_files", "accept_backlog", "tcp_memory", "memory", "clock_source", "entropy"]
    {
        assert!(check(&report, name)["found"].is_string());
    }
    let (code, _) = doctor("ulimit -n 256", none, &["--no-self-test", "--connections", "9999"])?;
    assert_eq!(code, Some(1));
    for args in [["--connections", "none"], ["--rate", "0"]] {
        let status = Command::new(program("weir")?).arg("doctor").args(args).output()?.status;
        assert_eq!(status.code(), Some(2), "{args:?}");
    }
    let refused =
        Command::new(program("weir")?).args(["doctor", "--config", "/no/file"]).output()?;
    assert_eq!(refused.status.code(), Some(2));
    Ok(())
}

#[test]
fn stores_are_asked_for_their_clocks_and_redis_for_its_policy() -> Result<()> {
    let policy = |name: &str| vec!["--maxmemory-policy".to_owned(), name.to_owned()];
    let cache = Redis::start_with(|_| Ok(policy("allkeys-lru")))?;
    let broker = Redis::start()?;
    let database = Database::start()?;
    let config = format!(
        "[cluster]\nredis = \"{}\"\n[store]\nkind = \"mongodb\"\n[store.mongodb]\nuri = \"mongodb://{}\"\n\
         [cache]\nredis = \"{}/3\"\n",
        broker.url(),
        database.addr,
        cache.url()
    );
    let (code, report) = doctor("true", &config, &["--no-self-test", "--connections", "1"])?;
    assert_eq!(code, Some(1), "{report:#}");
    let checks = report["checks"].as_array().context("a list")?;
    let of = |name: &str| -> Vec<(bool, &str)> {
        let named = checks.iter().filter(|check| check["name"] == name);
        named
            .map(|check| (check["ok"] == true, check["found"].as_str().unwrap_or_default()))
            .collect()
    };
    let clocks = of("store_clock");
    assert_eq!(clocks.len(), 3, "{report:#}");
    assert!(clocks.iter().all(|(ok, _)| *ok), "{clocks:?}");
    let evictions = of("redis_eviction");
    let expected = [
        (false, format!("Redis {} (cache): maxmemory-policy allkeys-lru", cache.addr)),
        (true, format!("Redis {} (cluster): maxmemory-policy noeviction", broker.addr)),
    ];
    let expected = expected.each_ref().map(|(ok, found)| (*ok, found.as_str()));
    assert_eq!(evictions, expected, "{report:#}");
    // One that does not answer is told, and does not stop the others.
    drop(cache);
    let (code, report) = doctor("true", &config, &["--no-self-test", "--connections", "1"])?;
    assert_eq!(code, Some(1));
    ensure!(
        check(&report, "store")["found"].as_str().is_some_and(|found| found.contains("no answer"))
    );
    Ok(())
}

const GIVEN_BACK: Duration = Duration::from_secs(4);
/// Some ten thousand connections: fewer than this process may open files.
const SMALL_BYTES: u64 = 28 << 20;
