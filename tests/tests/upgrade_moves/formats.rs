//! Upgrades between programs of two versions, and back.

use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result, ensure};
use weir_tests::{Device, Numbers, Server, UnderWay, program};

use super::RETAINED;

/// A program that starts the one of these tests, with or without the variable that makes it the next
/// version.
fn version(server: &Server, name: &str, how: &str) -> Result<String> {
    let path = server.directory().join(name);
    let text = format!("#!/bin/sh\n{how}\nexec {} \"$@\"\n", program("weir")?.display());
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path.display().to_string())
}

#[test]
fn the_next_version_takes_over_and_gives_back() -> Result<()> {
    let server = Server::start(RETAINED)?;
    let this = version(&server, "this", "unset WEIR_NEXT_FORMAT")?;
    let next = version(&server, "next", "export WEIR_NEXT_FORMAT=1")?;
    let mut device = Device::greet(server.tcp, "d", &["feed/a"])?;
    let numbers = Numbers::start(server.admin);
    let mut newest = None;
    // From this version to the next one, to the same, back, and on.
    for (program, reads) in [(&next, 2), (&next, 2), (&this, 1), (&this, 1), (&next, 2)] {
        numbers.await_more(20)?;
        let mut under_way = UnderWay::begin(&server, &["--program", program])?;
        let reads = format!("versions 1 to {reads} of the state");
        let mut line = under_way.line()?;
        while line.is_some_and(|line| line["stage"]["name"] != "answered") {
            line = under_way.line()?;
        }
        let answered = line.context("it does not answer")?["stage"]["text"].to_string();
        ensure!(answered.contains(&reads), "{answered}");
        let (process, _) = under_way.finish(&server)?;
        drop(newest.replace(process));
        numbers.await_more(20)?;
    }
    let count = numbers.finish()?;
    Numbers::heard_by(&mut device, count)
}
