//! A gateway that systemd runs: what it tells the service manager, sockets that it gets from there,
//! and the unit of the package.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use weir_tests::{Answer, Device, PATIENCE, UnderWay, free_addr, now, program, rest};

/// The addresses and files of a gateway.
struct Place {
    directory: TempDir,
    tcp: SocketAddr,
    http: SocketAddr,
    admin: SocketAddr,
}

impl Place {
    fn new() -> Result<Place> {
        let (tcp, http, admin) = (free_addr()?, free_addr()?, free_addr()?);
        let directory = tempfile::tempdir()?;
        let text = format!(
            "[listen]\ntcp = [\"{tcp}\"]\nhttp = [\"{http}\"]\nudp = []\nadmin = \"{admin}\"\n\
             [store]\nkind = \"none\"\n[upgrade]\nsocket = \"{}\"\n",
            directory.path().join("upgrade.sock").display()
        );
        std::fs::write(directory.path().join("weir.toml"), text)?;
        Ok(Place { directory, tcp, http, admin })
    }

    fn config(&self) -> PathBuf {
        self.directory.path().join("weir.toml")
    }

    fn start(&self, mut command: Command) -> Result<Running> {
        let log = std::fs::File::create(self.directory.path().join("log"))?;
        command.arg("--config").arg(self.config()).stdout(Stdio::null()).stderr(log);
        Ok(Running(command.spawn()?))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Waits until a look succeeds.
    fn wait<T>(&self, what: &str, look: impl Fn() -> Result<T>) -> Result<T> {
        let deadline = now() + PATIENCE;
        loop {
            match look() {
                Ok(found) => return Ok(found),
                Err(error) if now() > deadline => {
                    return Err(error.context(format!("{what}; log:\n{}", self.log())));
                }
                Err(_) => rest(),
            }
        }
    }
}

/// A process; killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hear(manager: &UnixDatagram) -> Result<String> {
    let mut bytes = [0; 4096];
    let count = manager.recv(&mut bytes).context("waiting for a message to systemd")?;
    Ok(String::from_utf8(bytes[..count].to_vec())?)
}

#[test]
fn systemd_hears_that_it_is_ready_alive_and_stopping() -> Result<()> {
    let place = Place::new()?;
    let path = place.directory.path().join("notify");
    let manager = UnixDatagram::bind(&path)?;
    manager.set_read_timeout(Some(PATIENCE))?;
    let mut weir = Command::new(program("weir")?);
    weir.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "300000");
    let mut weir = place.start(weir)?;
    ensure!(hear(&manager)? == "READY=1\n");
    ensure!(Answer::get(place.admin, "/readyz")?.status == 200, "it listens when it says so");
    for _ in 0..3 {
        ensure!(hear(&manager)? == "WATCHDOG=1\n");
    }
    let pid = Pid::from_raw(i32::try_from(weir.0.id())?).context("a child has a pid")?;
    kill_process(pid, Signal::TERM)?;
    let mut last = hear(&manager)?;
    while last == "WATCHDOG=1\n" {
        last = hear(&manager)?;
    }
    // `connection.drain_timeout` and the time for the rest.
    ensure!(last == "STOPPING=1\nEXTEND_TIMEOUT_USEC=50000000\n", "{last}");
    ensure!(weir.0.wait()?.success());
    Ok(())
}

/// A message to systemd, the process that has sent it, and a descriptor that came with it.
struct Told {
    text: String,
    sender: Pid,
    passed: Option<OwnedFd>,
}

fn hear_sender(manager: &UnixDatagram) -> Result<Told> {
    let (mut bytes, mut sender, mut passed) = ([0; 4096], None, None);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let count = recvmsg(manager, &mut parts, &mut ancillary, RecvFlags::empty())
        .context("waiting for a message to systemd")?
        .bytes;
    for message in ancillary.drain() {
        match message {
            RecvAncillaryMessage::ScmCredentials(credentials) => sender = Some(credentials.pid),
            RecvAncillaryMessage::ScmRights(mut rights) => passed = rights.next(),
            _ => {}
        }
    }
    let text = String::from_utf8(bytes[..count].to_vec())?;
    Ok(Told { text, sender: sender.context("the kernel names the sender")?, passed })
}

#[test]
fn systemd_hears_which_process_is_the_main_one_after_an_upgrade() -> Result<()> {
    let place = Place::new()?;
    let path = place.directory.path().join("notify");
    let manager = UnixDatagram::bind(&path)?;
    manager.set_read_timeout(Some(PATIENCE))?;
    set_socket_passcred(&manager, true)?;
    let mut weir = Command::new("sh");
    weir.args(["-c", "WATCHDOG_PID=$$ exec \"$@\"", "sh"]).arg(program("weir")?);
    weir.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "300000");
    let mut weir = place.start(weir)?;
    let old = Pid::from_raw(i32::try_from(weir.0.id())?).context("a child has a pid")?;
    let ready = hear_sender(&manager)?;
    ensure!((ready.text.as_str(), ready.sender) == ("READY=1\n", old));
    let mut device = Device::greet(place.tcp, "d", &["news"])?;
    kill_process(old, Signal::USR2)?;
    // Its own pings go on until it leaves.
    let main = loop {
        let told = hear_sender(&manager)?;
        ensure!(!told.text.starts_with("READY"), "the service is active already");
        if let Some(pid) = told.text.strip_prefix("MAINPID=") {
            ensure!(told.sender == old, "{} says it", told.sender.as_raw_nonzero());
            break Pid::from_raw(pid.trim_end().parse()?).context("a number")?;
        }
    };
    let new = Ended(main);
    ensure!(main != old);
    let barrier = loop {
        let told = hear_sender(&manager)?;
        if told.text.starts_with("BARRIER=1") {
            break told.passed.context("a descriptor with the barrier")?;
        }
    };
    place.wait("a message", || {
        let message = r#"{"topic":"news","text":"hello"}"#;
        let answer = Answer::post(place.admin, "/v1/publish", message)?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    })?;
    ensure!(device.hear()?.is_some());
    ensure!(weir.0.try_wait()?.is_none(), "it has left before systemd knew");
    drop(barrier);
    ensure!(weir.0.wait()?.success(), "{}", place.log());
    // What the old process has said before its end, and then the new one.
    let mut pings = 0;
    while pings < 3 {
        let told = hear_sender(&manager)?;
        pings += u32::from(told.text == "WATCHDOG=1\n" && told.sender == main);
    }
    kill_process(main, Signal::TERM)?;
    place.wait("STOPPING", || {
        let told = hear_sender(&manager)?;
        ensure!(told.text.starts_with("STOPPING=1") && told.sender == main);
        Ok(())
    })?;
    drop(new);
    Ok(())
}

/// A process that is nobody's child here; killed when dropped.
struct Ended(Pid);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// `systemd-socket-activate` opens the addresses, and becomes `weir` when the first peer connects.
fn activate(names: &str, listen: &[SocketAddr]) -> Result<Command> {
    let mut activate = Command::new("systemd-socket-activate");
    activate.arg(format!("--fdname={names}"));
    for addr in listen {
        activate.arg(format!("--listen={addr}"));
    }
    activate.arg(program("weir")?);
    Ok(activate)
}

#[test]
fn sockets_of_systemd_are_used_and_the_others_opened() -> Result<()> {
    let place = Place::new()?;
    let listen = [place.tcp, place.http, place.admin];
    let _weir = place.start(activate("tcp:http:admin", &listen)?)?;
    // The first device is there before the gateway is.
    let mut device = place.wait("a device", || Device::greet(place.tcp, "d", &["news"]))?;
    ensure!(Answer::get(place.admin, "/readyz")?.status == 200);
    ensure!(Answer::get(place.http, "/v1/topics/news")?.status != 0);
    let again = Device::greet(place.tcp, "e", &["news"])?;
    drop(again);
    ensure!(place.log().contains("listening"), "{}", place.log());
    let mut publish = || -> Result<()> {
        let message = r#"{"topic":"news","text":"hello"}"#;
        let answer = Answer::post(place.admin, "/v1/publish", message)?;
        ensure!(answer.status == 200, "{answer:?}");
        ensure!(device.hear()?.is_some());
        Ok(())
    };
    publish()?;
    // A process that takes over gets them from the one before.
    let mut upgrade = Command::new(program("weir")?);
    upgrade.args(["upgrade", "--json", "--config"]).arg(place.config());
    let ended = UnderWay::begin_with(upgrade)?.end()?;
    let (_newest, _) = ended.map_err(|why| anyhow::anyhow!("{why}\n{}", place.log()))?;
    publish()?;
    drop(Device::greet(place.tcp, "f", &["news"])?);
    ensure!(Answer::get(place.http, "/v1/topics/news")?.status != 0);

    let other = Place::new()?;
    let _weir = other.start(activate("tcp", &[other.tcp])?)?;
    other.wait("a device", || Device::greet(other.tcp, "d", &[]))?;
    ensure!(Answer::get(other.admin, "/readyz")?.status == 200, "it opens what it did not get");
    Ok(())
}

#[test]
fn a_socket_without_a_listener_stops_the_start() -> Result<()> {
    let place = Place::new()?;
    let mut weir = place.start(activate("tls", &[place.tcp])?)?;
    place.wait("a connection", || Ok(std::net::TcpStream::connect(place.tcp)?))?;
    ensure!(!weir.0.wait()?.success());
    let expected = format!("the passed socket \"tls\" has the address {}", place.tcp);
    ensure!(place.log().contains(&expected), "{}", place.log());
    Ok(())
}

/// The unit is well-formed, and shuts out what a gateway does not need.
#[test]
fn the_units_are_valid_and_hardened() -> Result<()> {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    let directory = tempfile::tempdir()?;
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]);
    for name in ["weir.service", "weir.socket"] {
        let text = std::fs::read_to_string(packaging.join("systemd").join(name))?;
        // The program is not installed here.
        let text = text.replace("/usr/bin/weir", &program("weir")?.display().to_string());
        std::fs::write(directory.path().join(name), text)?;
        verify.arg(directory.path().join(name));
    }
    let output = verify.output().context("running systemd-analyze")?;
    ensure!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", "--no-pager", "--threshold=15"]);
    let output = security.arg(directory.path().join("weir.service")).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}
