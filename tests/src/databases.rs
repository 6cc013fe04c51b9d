//! A real Redis, and a server of MongoDB's protocol, started as children on free ports.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::program::free_port;
use crate::wait::{PATIENCE, now, rest};

/// A running Redis, which keeps nothing on disk unless its arguments say otherwise; killed when dropped, and with this
/// process.
pub struct Redis {
    child: Leashed,
    /// Where it listens, before and after each restart.
    pub addr: SocketAddr,
    directory: TempDir,
    /// What it is started with besides.
    arguments: Vec<String>,
}

/// A running server of MongoDB's protocol; killed when dropped, and with this process.
pub struct Database {
    child: Leashed,
    /// Where it listens, before and after each restart.
    pub addr: SocketAddr,
    /// Where its file is, if it has one.
    directory: Option<TempDir>,
}

/// A child that does not outlive this process, however that ends: tests share some, which nobody drops.
struct Leashed {
    child: Child,
    /// Waits for the end of its input, which is that of this process, and kills the child.
    leash: Child,
}

impl Leashed {
    fn new(command: &mut Command) -> Result<Leashed> {
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut leash = Command::new("sh");
        leash.args(["-c", "read _; kill -KILL \"$1\"", "sh", &child.id().to_string()]);
        let quiet = leash.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let leash = quiet.spawn()?;
        Ok(Leashed { child, leash })
    }

    fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?).context("a child has a pid")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Waits for its end, and lets the leash go before the number is another's.
    fn wait(&mut self) -> Result<()> {
        self.leash.kill()?;
        self.leash.wait()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Leashed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.wait();
    }
}

impl Redis {
    /// Starts one.
    pub fn start() -> Result<Redis> {
        Self::start_with(|_| Ok(Vec::new()))
    }

    /// Starts one with more arguments, made for its port.
    pub fn start_with(arguments: impl Fn(u16) -> Result<Vec<String>>) -> Result<Redis> {
        // A port that was free a moment ago may be taken: then another is tried.
        for _ in 0..5 {
            let directory = tempfile::tempdir()?;
            let addr = SocketAddr::from(([127, 0, 0, 1], free_port()?));
            let arguments = arguments(addr.port())?;
            let child = Self::spawn(addr, &directory, &arguments)?;
            let mut redis = Redis { child, addr, directory, arguments };
            if redis.wait_until_ready()? {
                return Ok(redis);
            }
        }
        bail!("redis-server did not start")
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Kills it (SIGKILL): what it has not written to a file is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.child.kill()?;
        self.child.wait()
    }

    /// Has it do nothing (SIGSTOP), until [`Redis::resume`]. Its connections stay, and the kernel accepts new ones.
    pub fn suspend(&self) -> Result<()> {
        self.child.signal(Signal::STOP)
    }

    /// Has it go on (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        self.child.signal(Signal::CONT)
    }

    /// Starts it again where it was: empty, unless its arguments have it keep files.
    pub fn restart(&mut self) -> Result<()> {
        self.child = Self::spawn(self.addr, &self.directory, &self.arguments)?;
        if !self.wait_until_ready()? {
            bail!("redis-server did not start again");
        }
        Ok(())
    }

    /// Has it carry out one command that has no spaces in its words; what it answers, a line or a bulk, as it comes.
    pub fn command(&self, line: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{line}\r\n").as_bytes())?;
        let mut stream = BufReader::new(stream);
        let mut answer = String::new();
        stream.read_line(&mut answer)?;
        let is_known = answer.starts_with(['+', '-', ':', '$']);
        ensure!(is_known && answer.ends_with("\r\n"), "{answer:?} is neither a line nor a bulk");
        // Of one that is not there the length is -1.
        let length = answer.trim_end().strip_prefix('$').map(str::parse::<usize>);
        let Some(Ok(length)) = length else { return Ok(answer) };
        let mut bulk = vec![0; length + 2];
        stream.read_exact(&mut bulk)?;
        answer.push_str(&String::from_utf8_lossy(&bulk));
        Ok(answer)
    }

    /// Makes it a replica of another one, and waits until both know that it has everything.
    pub fn replicate(&self, primary: &Redis) -> Result<()> {
        self.command(&format!("REPLICAOF 127.0.0.1 {}", primary.addr.port()))?;
        self.await_info("replication", "master_link_status:up")?;
        primary.await_info("replication", "state=online")
    }

    /// Has it get nothing more, without becoming a primary.
    pub fn detach(&self) -> Result<()> {
        self.command(&format!("REPLICAOF 127.0.0.1 {}", free_port()?)).map(drop)
    }

    /// Makes it a primary.
    pub fn promote(&self) -> Result<()> {
        self.command("REPLICAOF NO ONE").map(drop)
    }

    /// Waits until a section of its `INFO` says this.
    pub fn await_info(&self, section: &str, part: &str) -> Result<()> {
        let deadline = now() + PATIENCE;
        loop {
            let info = self.command(&format!("INFO {section}")).unwrap_or_default();
            if info.contains(part) {
                return Ok(());
            }
            ensure!(now() < deadline, "waited in vain for {part} of {info}");
            rest();
        }
    }

    fn spawn(addr: SocketAddr, directory: &TempDir, arguments: &[String]) -> Result<Leashed> {
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &addr.port().to_string()])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(directory.path())
            .args(arguments)
            .stdout(Stdio::null());
        Leashed::new(&mut command)
            .context("running redis-server, which `cargo xtask test` installs")
    }

    fn wait_until_ready(&mut self) -> Result<bool> {
        let deadline = now() + PATIENCE;
        while now() < deadline && !self.child.has_ended()? {
            // It may ask for a password.
            let answers = ["+PONG", "-NOAUTH"];
            let is_up = |answer: String| answers.iter().any(|known| answer.starts_with(known));
            if self.command("PING").is_ok_and(is_up) {
                return Ok(true);
            }
            rest();
        }
        Ok(false)
    }
}

impl Database {
    /// Starts one that keeps everything in memory.
    pub fn start() -> Result<Database> {
        Self::launch(|| Ok(None))
    }

    /// Starts one that keeps everything in a file, where a restart finds it.
    pub fn start_with_file() -> Result<Database> {
        Self::launch(|| Ok(Some(tempfile::tempdir()?)))
    }

    /// Its URI.
    pub fn uri(&self) -> String {
        format!("mongodb://{}", self.addr)
    }

    /// Ends it as an operator does (SIGTERM), and waits until what was answered is in the file.
    pub fn stop(&mut self) -> Result<()> {
        self.child.signal(Signal::TERM)?;
        self.child.wait()
    }

    /// Starts it again where it was.
    pub fn restart(&mut self) -> Result<()> {
        self.child = Self::spawn(self.addr, self.directory.as_ref())?;
        if !self.wait_until_ready()? {
            bail!("the database did not start again");
        }
        Ok(())
    }

    /// Drops one of its databases, as somebody does who takes it for another one.
    pub fn drop_database(&self, name: &str) -> Result<()> {
        let mut document = b"\x10dropDatabase\0\x01\0\0\0\x02$db\0".to_vec();
        document.extend(u32::try_from(name.len() + 1)?.to_le_bytes());
        document.extend(name.as_bytes());
        // The ends of the text and of the document.
        document.extend([0, 0]);
        // OP_MSG: length, two ids, opcode, flags, and the kind of the one section; then the document behind its length.
        let mut message = Vec::new();
        let bytes = u32::try_from(document.len())? + 4;
        for number in [bytes + 21, 1, 0, 2_013, 0] {
            message.extend(number.to_le_bytes());
        }
        message.push(0);
        message.extend(bytes.to_le_bytes());
        message.extend(document);
        let mut stream = TcpStream::connect(self.addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&message)?;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut answer = vec![0; usize::try_from(u32::from_le_bytes(length))?.saturating_sub(4)];
        stream.read_exact(&mut answer)?;
        let is_done = contains(&answer, b"ok\0") && !contains(&answer, b"errmsg");
        ensure!(is_done, "{:?}", String::from_utf8_lossy(&answer));
        Ok(())
    }

    fn launch(directory: impl Fn() -> Result<Option<TempDir>>) -> Result<Database> {
        for _ in 0..5 {
            let directory = directory()?;
            let addr = SocketAddr::from(([127, 0, 0, 1], free_port()?));
            let child = Self::spawn(addr, directory.as_ref())?;
            let mut database = Database { child, addr, directory };
            if database.wait_until_ready()? {
                return Ok(database);
            }
        }
        bail!("the database did not start")
    }

    fn spawn(addr: SocketAddr, directory: Option<&TempDir>) -> Result<Leashed> {
        let place = place()?;
        let classes = format!("{0}/server.jar:{0}/libraries/*", place.display());
        let mut command = Command::new("java");
        command
            // Small and quick to start: it serves one test.
            .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-cp", &classes])
            .args(["Main", &addr.port().to_string()])
            .args(directory.map(|directory| directory.path().join("database")))
            .stdout(Stdio::piped());
        Leashed::new(&mut command).context("running java, which `cargo xtask test` installs")
    }

    /// Whether it says that it is ready, and does not end before.
    fn wait_until_ready(&mut self) -> Result<bool> {
        let mut said = String::new();
        let output = self.child.child.stdout.as_mut().context("a pipe")?;
        BufReader::new(output).read_line(&mut said)?;
        Ok(said.trim() == "ready")
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|found| found == part)
}

/// Where `cargo xtask test` has built it: beside the directory of the programs.
fn place() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let target = test.ancestors().nth(3).context("tests lie in target/*/deps")?;
    let place = target.join("mongo");
    if !place.join("built-from").exists() {
        bail!("{} is not built: run `cargo xtask test`", place.display());
    }
    Ok(place)
}
