//! A copy of a directory of `examples/`, with its gateway on free ports.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::program::{free_addr, free_udp, program};
use crate::wait::{PATIENCE, now, rest};
use crate::{Answer, Metrics};

/// A running example; its gateway is killed when dropped.
pub struct Example {
    gateway: Child,
    directory: TempDir,
    name: String,
    /// The environment of all its programs: the ports.
    variables: Vec<(&'static str, String)>,
    /// Where devices connect with TLS.
    pub tls: SocketAddr,
    /// Where HTTP is spoken.
    pub http: SocketAddr,
    /// Where datagrams are answered.
    pub udp: SocketAddr,
    /// Where the admin API is.
    pub admin: SocketAddr,
}

impl Example {
    /// Starts the gateway of an example with its own configuration. Only the ports are others.
    ///
    /// `prepare` gets the directory before the start, and answers with more variables.
    pub fn start(
        name: &str,
        prepare: impl Fn(&Path) -> Result<Vec<(&'static str, String)>>,
    ) -> Result<Example> {
        // A port that was free a moment ago may be taken: then another is tried.
        for _ in 0..5 {
            let mut example = Self::spawn(name, &prepare)?;
            if example.wait_until_ready()? {
                return Ok(example);
            }
        }
        bail!("the gateway of {name} does not start: {}", Self::spawn(name, &prepare)?.complaint()?)
    }

    fn spawn(
        name: &str,
        prepare: impl Fn(&Path) -> Result<Vec<(&'static str, String)>>,
    ) -> Result<Example> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
        let directory = tempfile::tempdir()?;
        // The examples find the client where it is in the repository.
        symlink(root.join("sdk"), directory.path().join("sdk"))?;
        let copy = directory.path().join("examples").join(name);
        fs::create_dir_all(&copy)?;
        for file in fs::read_dir(root.join("examples").join(name))? {
            let file = file?;
            fs::copy(file.path(), copy.join(file.file_name()))?;
        }
        let (tcp, tls, http, admin) = (free_addr()?, free_addr()?, free_addr()?, free_addr()?);
        let udp = free_udp([127, 0, 0, 1].into())?;
        let mut variables = vec![
            ("WEIR_LISTEN_TCP", tcp.to_string()),
            ("WEIR_LISTEN_HTTP", http.to_string()),
            ("WEIR_LISTEN_UDP", udp.to_string()),
            ("WEIR_LISTEN_ADMIN", admin.to_string()),
        ];
        let config = fs::read_to_string(copy.join("weir.toml"))?;
        if config.contains("\ntls = [") {
            variables.push(("WEIR_LISTEN_TLS", tls.to_string()));
        }
        variables.extend(prepare(&copy)?);
        let log = fs::File::create(directory.path().join("log"))?;
        let gateway = Command::new(program("weir")?)
            .args(["--config", "weir.toml"])
            .current_dir(&copy)
            .env_remove("WEIR_CONFIG")
            .envs(variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("starting weir")?;
        let name = name.to_owned();
        Ok(Example { gateway, directory, name, variables, tls, http, udp, admin })
    }

    fn wait_until_ready(&mut self) -> Result<bool> {
        let deadline = now() + PATIENCE;
        while now() < deadline {
            if self.gateway.try_wait()?.is_some() {
                return Ok(false);
            }
            if Answer::get(self.admin, "/readyz").is_ok_and(|answer| answer.status == 200) {
                return Ok(true);
            }
            rest();
        }
        Ok(false)
    }

    fn complaint(&mut self) -> Result<String> {
        self.gateway.wait()?;
        Ok(fs::read_to_string(self.directory.path().join("log"))?)
    }

    /// Its directory, a copy of the one in the repository.
    pub fn directory(&self) -> PathBuf {
        self.directory.path().join("examples").join(&self.name)
    }

    /// A command in its directory, with its ports in the environment.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.directory()).env_remove("WEIR_CONFIG").stdin(Stdio::null());
        command.envs(self.variables.iter().cloned());
        command
    }

    /// Runs such a command to its end, and answers with its standard output.
    pub fn run(&self, program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Result<String> {
        let output = self.command(program.as_ref()).args(args).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{:?} {args:?}: {said}{complaint}", program.as_ref());
        Ok(said)
    }

    /// Waits until the metrics of its gateway satisfy `condition`.
    pub fn await_metrics(&self, what: &str, condition: impl Fn(&Metrics) -> bool) -> Result<()> {
        let deadline = now() + PATIENCE;
        loop {
            let metrics = Metrics::read(self.admin)?;
            if condition(&metrics) {
                return Ok(());
            }
            ensure!(now() < deadline, "waited in vain for {what}; metrics:\n{}", metrics.text());
            rest();
        }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.gateway.kill();
        let _ = self.gateway.wait();
    }
}
