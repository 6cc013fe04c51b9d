//! Installs and builds what the pieces need.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::golang;
use crate::maven;
use crate::process::{beside_programs, cargo, program, run as run_command, succeeds};
use crate::test::install;

/// The programs of a run.
pub(super) struct Programs {
    pub(super) weir: PathBuf,
    pub(super) bench: PathBuf,
    /// Where other servers are built.
    pub(super) peers: PathBuf,
    /// Whether a check that fails fails the piece, even if it came to its figures.
    pub(super) is_strict: bool,
}

/// The programs, built if need be. The quick run takes those of the tests, and of the other servers
/// those that are there, and Netty.
pub(super) fn programs(root: &Path, is_quick: bool, is_built: bool) -> anyhow::Result<Programs> {
    if !is_quick {
        install(root, &TOOLS)?;
        golang::build_module(root, "bench/peers/nats", "peers/nats", NATS)?;
        maven::build(root)?;
        build_pingora(root)?;
        if !is_built {
            let line = "build --release --locked -p weir-server -p weir-bench";
            run_command(&mut cargo(root, line))?;
        }
    }
    build_netty(root)?;
    let directory = if is_quick {
        let own = std::env::current_exe().context("cannot find the path of xtask")?;
        own.parent().map(Path::to_path_buf).context("xtask is in no directory")?
    } else {
        beside_programs(root, "release")
    };
    Ok(Programs {
        weir: directory.join("weir"),
        bench: directory.join("weir-bench"),
        peers: beside_programs(root, "peers"),
        is_strict: is_quick,
    })
}

fn build_netty(root: &Path) -> anyhow::Result<()> {
    maven::build_module(root, "bench/peers/netty", "peers/netty")
}

/// The reverse proxy of pingora, in a workspace of its own: its dependencies are not ours.
fn build_pingora(root: &Path) -> anyhow::Result<()> {
    let line = "build --release --locked --manifest-path bench/peers/pingora/Cargo.toml";
    let target = beside_programs(root, "peers").join("pingora");
    run_command(cargo(root, line).env("CARGO_TARGET_DIR", target))
}

/// Whether a program of Debian is there.
pub(super) fn has(root: &Path, tool: &str) -> bool {
    succeeds(&mut program(root, "which", tool))
}

const NATS: &str = "github.com/nats-io/nats-server/v2";

/// Each program with the arguments that print its version, and its Debian package.
const TOOLS: [(&str, &str, &str); 12] = [
    ("curl", "--version", "curl"),
    ("openssl", "version", "openssl"),
    ("go", "version", "golang-go"),
    ("java", "--version", "openjdk-17-jdk-headless"),
    ("mvn", "--version", "maven"),
    ("redis-server", "--version", "redis-server"),
    ("nginx", "-v", "nginx-light"),
    // These print their versions, but fail.
    ("which", "mosquitto", "mosquitto"),
    ("which", "wrk", "wrk"),
    ("which", "ab", "apache2-utils"),
    ("h2load", "--version", "nghttp2-client"),
    ("ip", "-V", "iproute2"),
];
