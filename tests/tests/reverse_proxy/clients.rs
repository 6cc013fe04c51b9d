//! Programs that others wrote, through the gateway: curl, gRPC, WebSockets.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use weir_tests::{Server, installed};

use crate::backend::{Backend, echo};

/// A script that is both: a service that tells its port, and a client that waits for the gateway's address.
struct Script {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Script {
    fn start(name: &str) -> Result<(Script, String)> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/proxy").join(name);
        let mut command = Command::new(installed("python/bin/python")?);
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let input = child.stdin.take().context("a pipe")?;
        let output = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut script = Script { child, input, output };
        let port = script.line()?;
        Ok((script, format!("127.0.0.1:{port}")))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn run(mut self, server: &Server) -> Result<()> {
        writeln!(self.input, "{}", server.http()?)?;
        let mut said = Vec::new();
        loop {
            match self.line()? {
                line if line.is_empty() || line == "done" => {
                    said.push(line);
                    break;
                }
                line => said.push(line),
            }
        }
        ensure!(said.last().is_some_and(|line| line == "done"), "{said:?}\n{}", server.log());
        drop(self.input);
        ensure!(self.child.wait()?.success(), "it fails: {said:?}");
        server.await_metrics("the end of all", |metrics| {
            metrics.sum("weir_route_requests_in_progress", "") == 0.0
                && metrics.sum("weir_route_tunnels", "") == 0.0
        })?;
        assert!(!server.log().contains("panicked"), "{}", server.log());
        Ok(())
    }
}

fn gateway(addr: &str, protocol: &str) -> Result<Server> {
    Server::start_with_http(&format!(
        "[[upstreams]]\nname = \"api\"\naddresses = [\"{addr}\"]\nprotocol = \"{protocol}\"\n\
         [[http.routes]]\nprefix = \"/\"\nupstream = \"api\"\n"
    ))
}

/// Unary, streams in both directions, trailers, and errors with their details.
#[test]
fn grpc_passes_with_its_trailers() -> Result<()> {
    let (script, addr) = Script::start("grpc_calls.py")?;
    let server = gateway(&addr, "http2")?;
    script.run(&server)
}

/// Text and bytes, long and short, pings, and close codes from both sides.
#[test]
fn websockets_pass_both_ways() -> Result<()> {
    let (script, addr) = Script::start("websockets_pass.py")?;
    let server = gateway(&addr, "http1")?;
    script.run(&server)?;
    let answers = server.metrics()?.sum("weir_route_requests_total", "status=\"1xx\"");
    ensure!(answers >= 1.0, "{answers} have become WebSockets");
    Ok(())
}

/// The example of docs/reverse-proxy.md, as it stands there.
#[test]
fn the_documented_example_works_with_curl() -> Result<()> {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reverse-proxy.md");
    let document = std::fs::read_to_string(document)?;
    let (_, example) = document.split_once("```toml\n").context("an example")?;
    let (example, _) = example.split_once("```").context("its end")?;
    let (shop, orders) = (Backend::start(echo)?, Backend::start(echo)?);
    let mut config = example.to_owned();
    for (documented, backend) in [("9001", &shop), ("9002", &shop), ("9003", &orders)] {
        let documented = format!("127.0.0.1:{documented}");
        ensure!(config.contains(&documented), "{documented} in {config}");
        config = config.replace(&documented, &backend.addr.to_string());
    }
    let server = Server::start_with_http(&config)?;
    let http = server.http()?;
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let curl = |path: &str, more: &[&str]| -> Result<String> {
            let mut command = Command::new("curl");
            command.args(["-sS", version, "-w", "\n%{http_code}"]).args(more);
            let output = command.arg(format!("http://{http}{path}")).output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Ok(String::from_utf8(output.stdout)?)
        };
        assert_eq!(curl("/catalogue", &[])?, "GET /catalogue HTTP/1.1\n200");
        let header = "Authorization: Bearer a-long-random-text";
        assert_eq!(curl("/orders/17", &["-H", header])?, "GET /orders/17 HTTP/1.1\n200");
        assert!(curl("/orders/17", &[])?.ends_with("401"));
        assert_eq!(curl("/orders", &["-H", header, "-d", "x=1"])?, "POST /orders HTTP/1.1\n200");
        let seen = orders.requests();
        let last = seen.last().context("an order")?;
        assert_eq!((last.header("weir-service"), &last.body[..]), (Some("till"), &b"x=1"[..]));
    }
    Ok(())
}
