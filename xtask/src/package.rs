//! `cargo xtask package`: builds the Debian package with its bill of materials, and checks it on this
//! machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::process::{beside_programs, cargo, output, program, run as run_command};
use crate::steps::{Failed, Steps};
use crate::test::install;

/// Builds and checks the package.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    // The failure is in `steps`, which reports it.
    let _ = run_steps(root, &mut steps);
    steps.finish()
}

fn run_steps(root: &Path, steps: &mut Steps) -> Result<(), Failed> {
    let place = root.join("target/package");
    steps.run("tools", || {
        install(root, &TOOLS)?;
        CARGO_TOOLS.into_iter().try_for_each(|tool| install_cargo_tool(root, tool))
    })?;
    steps.run("program", || {
        run_command(&mut cargo(root, "build --locked --release --package weir-server"))
    })?;
    steps.run("files", || lay_files(root, &place))?;
    steps.run("bill of materials", || bill(root, &place))?;
    steps.run("package", || {
        let line = "deb --locked --package weir-server --no-build --no-strip --output";
        run_command(with_tools(root, &mut cargo(root, line)).arg(place.join("weir.deb")))
    })?;
    steps.run("lintian", || {
        run_command(program(root, "lintian", LINTIAN).arg(place.join("weir.deb")))
    })?;
    for (step, script) in CHECKS {
        steps.run(step, || {
            let script = root.join("packaging/debian").join(script);
            run_command(program(root, "sh", "").arg(script).arg(place.join("weir.deb")))
        })?;
    }
    Ok(())
}

/// The program without debugging information, man pages, completions and the change log.
///
/// The names of functions stay, for the profiles of the admin API.
fn lay_files(root: &Path, place: &Path) -> anyhow::Result<()> {
    for folder in ["man", "bash", "zsh", "fish"] {
        let folder = place.join(folder);
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let weir = place.join("weir");
    let built = beside_programs(root, "release").join("weir");
    run_command(program(root, "objcopy", "--strip-debug").arg(built).arg(&weir))?;
    run_command(program(root, &weir, "man").arg(place.join("man")))?;
    for (shell, file) in [("bash", "weir"), ("zsh", "_weir"), ("fish", "weir.fish")] {
        let script = output(program(root, &weir, "completions").arg(shell))?;
        fs::write(place.join(shell).join(file), script)?;
    }
    let date = output(&mut program(root, "git", "log -1 --format=%cD"))?;
    let text = format!(
        "weir ({VERSION}-1) unstable; urgency=medium\n\n  \
         * See https://keepachangelog.com/ for the form of CHANGELOG.md in the source.\n\n \
         -- {MAINTAINER}  {date}"
    );
    fs::write(place.join("changelog"), text).context("writing the change log")
}

/// What the program is made of, in the format CycloneDX.
fn bill(root: &Path, place: &Path) -> anyhow::Result<()> {
    let line = "cyclonedx --manifest-path crates/weir-server/Cargo.toml --format json \
                --spec-version 1.5 --no-build-deps --override-filename weir.cdx";
    run_command(with_tools(root, &mut cargo(root, line)))?;
    // The tool writes beside the manifest of each crate of the workspace.
    let mut folders: Vec<PathBuf> = vec![root.join("tests"), root.join("xtask")];
    for entry in root.join("crates").read_dir().context("listing crates")? {
        folders.push(entry?.path());
    }
    for folder in folders {
        let written = folder.join("weir.cdx.json");
        let done = if folder.ends_with("weir-server") {
            fs::rename(&written, place.join("weir.cdx.json"))
        } else {
            fs::remove_file(&written)
        };
        done.with_context(|| format!("moving {}", written.display()))?;
    }
    Ok(())
}

/// Builds a tool of cargo, unless this version is there.
fn install_cargo_tool(root: &Path, (name, version): (&str, &str)) -> anyhow::Result<()> {
    let place = tools(root);
    let built = place.join(format!("{name}.version"));
    if fs::read_to_string(&built).is_ok_and(|built| built == version) {
        return Ok(());
    }
    let mut install = cargo(root, &format!("install {name} --locked --force --version {version}"));
    run_command(install.arg("--root").arg(&place))?;
    // Written last, so that an interrupted build begins again.
    fs::write(&built, version).with_context(|| format!("writing {}", built.display()))
}

fn tools(root: &Path) -> PathBuf {
    beside_programs(root, "tools")
}

/// Lets cargo find its tools.
fn with_tools<'a>(
    root: &Path,
    command: &'a mut std::process::Command,
) -> &'a mut std::process::Command {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", tools(root).join("bin").display()))
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
const MAINTAINER: &str = "The authors of Weir <maintainers@weir.example>";

/// The tools that `cargo install` builds. It takes some minutes, once.
const CARGO_TOOLS: [(&str, &str); 2] = [("cargo-deb", "3.8.0"), ("cargo-cyclonedx", "0.5.9")];

/// Each program with the arguments that print its version, and its Debian package.
const TOOLS: [(&str, &str, &str); 6] = [
    ("python3", "--version", "python3"),
    ("dpkg-shlibdeps", "--version", "dpkg-dev"),
    ("lintian", "--version", "lintian"),
    ("adduser", "--version", "adduser"),
    ("systemd-analyze", "--version", "systemd"),
    ("systemd-nspawn", "--version", "systemd-container"),
];

/// packaging/debian/lintian-overrides says what is meant to be so.
const LINTIAN: &str = "--allow-root --fail-on error,warning";

/// What installs, upgrades, removes and purges the package.
const CHECKS: [(&str, &str); 2] =
    [("on this machine", "check.sh"), ("under systemd, in a copy of this machine", "boot.sh")];
