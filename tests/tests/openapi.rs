//! The descriptions of the HTTP APIs, held against running servers by tools of other hands: one checks that they are
//! OpenAPI, the other makes requests from them, valid and invalid, and looks at what is answered.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use weir_tests::{Answer, Device, Server, installed};

/// Runs a tool that `cargo xtask test` has installed.
fn run(tool: &str, directory: &Path, arguments: &[String]) -> Result<()> {
    let path = installed(&format!("python/bin/{tool}"))?;
    let output = Command::new(path).args(arguments).current_dir(directory).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{tool} {arguments:?}: {said}{complaint}");
    Ok(())
}

/// Checks the description that is served at `addr`, and drives the paths that these options choose.
fn check(addr: SocketAddr, paths: &[&str]) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let answer = Answer::get(addr, "/openapi.json")?;
    ensure!(answer.status == 200, "{answer:?}");
    std::fs::write(directory.path().join("openapi.json"), answer.body)?;
    run("openapi-spec-validator", directory.path(), &["openapi.json".to_owned()])?;
    let mut arguments: Vec<String> = format!(
        "run http://{addr}/openapi.json --checks {CHECKS} --phases examples,coverage,fuzzing --max-examples 20 --seed 1 \
         --request-timeout 60 --no-color"
    )
    .split_whitespace()
    .map(str::to_owned)
    .collect();
    arguments.extend(paths.iter().map(|path| (*path).to_owned()));
    run("schemathesis", directory.path(), &arguments)
}

#[test]
fn the_admin_api_is_as_it_is_described() -> Result<()> {
    let server = Server::start("")?;
    let _device = Device::greet(server.tcp, "d1", &["news"])?;
    // Streams do not end, a profile takes up to a minute, and a node that is drained is not ready.
    let others = ["/v1/events", "/v1/stats/stream", "/v1/debug/cpu", "/v1/drain"]
        .map(|path| format!("--exclude-path={path}"));
    check(server.admin, &others.each_ref().map(String::as_str))?;
    check(server.admin, &["--include-path=/v1/drain"])
}

#[test]
fn the_public_api_is_as_it_is_described() -> Result<()> {
    // Few may be published, so that there are answers of that kind too.
    let server = Server::start_with_http(
        "[limits]\npublishes_per_second = 20\npublish_burst = 50\n\
         [[topic_classes]]\npattern = \"*\"\npublish = [\"devices\"]\nretention_messages = 50\nhistory = true\n",
    )?;
    for text in ["a", "b"] {
        server.publish(&json!({"topic": "0", "text": text, "key": "k"}))?;
    }
    check(
        server.http.context("it speaks HTTP")?,
        &["--exclude-path=/v1/sse", "--exclude-path=/v1/connect"],
    )
}

/// That each status, media type, header and body is one of those described, none of them says that the server failed,
/// and methods that are not described are refused.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,unsupported_method";
