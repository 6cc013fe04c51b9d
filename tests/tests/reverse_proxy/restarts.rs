//! A service of three instances, of which one starts anew under load.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use weir_tests::{Answer, PATIENCE, Server, now, rest};

/// An instance that can be killed with all its connections, and started again at the same address.
struct Instance {
    addr: SocketAddr,
    up: Arc<AtomicBool>,
    /// Requests whose first byte has come.
    begun: Arc<AtomicU64>,
}

impl Instance {
    fn start() -> Result<Instance> {
        let instance = Instance {
            addr: SocketAddr::from(([127, 0, 0, 1], weir_tests::free_port()?)),
            up: Arc::default(),
            begun: Arc::default(),
        };
        instance.rise()?;
        Ok(instance)
    }

    fn rise(&self) -> Result<()> {
        let deadline = now() + PATIENCE;
        let listener = loop {
            match TcpListener::bind(self.addr) {
                Ok(listener) => break listener,
                Err(error) => ensure!(now() < deadline, "{}: {error}", self.addr),
            }
            rest();
        };
        listener.set_nonblocking(true)?;
        self.up.store(true, Ordering::SeqCst);
        let (up, begun) = (Arc::clone(&self.up), Arc::clone(&self.begun));
        thread::spawn(move || {
            while up.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let (up, begun) = (Arc::clone(&up), Arc::clone(&begun));
                        thread::spawn(move || serve(stream, &up, &begun));
                    }
                    Err(_) => rest(),
                }
            }
        });
        Ok(())
    }

    /// Ends everything at once, as a kill does.
    fn kill(&self) {
        self.up.store(false, Ordering::SeqCst);
    }
}

fn serve(mut stream: TcpStream, up: &AtomicBool, begun: &AtomicU64) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_read_timeout(Some(std::time::Duration::from_millis(5)));
    let mut heard = Vec::new();
    while up.load(Ordering::SeqCst) {
        let mut space = [0; 4_096];
        match stream.read(&mut space) {
            Ok(0) => return,
            Ok(count) => heard.extend_from_slice(&space[..count]),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                continue;
            }
            Err(_) => return,
        }
        if heard.ends_with(b"\r\n\r\n") || heard.ends_with(b"\r\n\r\nabc") {
            heard.clear();
            begun.fetch_add(1, Ordering::SeqCst);
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    }
}

/// Over ten restarts of one instance no GET is lost. A POST gets 502 only if bytes of it had reached the instance.
#[test]
fn no_get_is_lost_while_an_instance_starts_anew() -> Result<()> {
    let instances = [Instance::start()?, Instance::start()?, Instance::start()?];
    let addresses: Vec<_> =
        instances.iter().map(|instance| format!("\"{}\"", instance.addr)).collect();
    let server = Server::start_with_http(&format!(
        "[[upstreams]]\nname = \"api\"\naddresses = [{}]\n[[http.routes]]\nprefix = \"/\"\nupstream = \"api\"\n",
        addresses.join(", ")
    ))?;
    let http = server.http()?;
    let (is_over, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let ask = |request: &str| -> Result<Vec<Answer>> {
        let mut unhappy = Vec::new();
        while !is_over.load(Ordering::SeqCst) {
            let answer = Answer::ask(http, request)?;
            asked.fetch_add(1, Ordering::SeqCst);
            if answer.status != 200 {
                unhappy.push(answer);
            }
        }
        Ok(unhappy)
    };
    let get = "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let post = "POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";
    thread::scope(|scope| -> Result<()> {
        let getters = [(); 4].map(|()| scope.spawn(|| ask(get)));
        let posters = [(); 2].map(|()| scope.spawn(|| ask(post)));
        let restarting = (|| -> Result<()> {
            for round in 0..10 {
                let instance = &instances[round % instances.len()];
                instance.kill();
                await_requests(&asked, 50)?;
                instance.rise()?;
                await_requests(&asked, 50)?;
            }
            Ok(())
        })();
        is_over.store(true, Ordering::SeqCst);
        restarting?;
        for getter in getters {
            let lost = getter.join().ok().context("it panics")??;
            ensure!(lost.is_empty(), "GETs that are lost: {lost:?}\n{}", server.log());
        }
        for poster in posters {
            for answer in poster.join().ok().context("it panics")?? {
                let is_honest =
                    answer.status == 502 && answer.body.contains("it may have carried out");
                ensure!(is_honest, "a POST that nobody has seen fails: {answer:?}");
            }
        }
        Ok(())
    })?;
    server.await_metrics("the end of all", |metrics| {
        metrics.sum("weir_route_requests_in_progress", "") == 0.0
    })?;
    let begun: u64 = instances.iter().map(|instance| instance.begun.load(Ordering::SeqCst)).sum();
    ensure!(begun >= 1_000, "{begun} requests only");
    Ok(())
}

/// Waits for more requests, so that each state of the instances meets some.
fn await_requests(asked: &AtomicU64, more: u64) -> Result<()> {
    let (begun, deadline) = (asked.load(Ordering::SeqCst), now() + PATIENCE);
    while asked.load(Ordering::SeqCst) < begun + more {
        ensure!(now() < deadline, "no requests are answered");
        rest();
    }
    Ok(())
}
