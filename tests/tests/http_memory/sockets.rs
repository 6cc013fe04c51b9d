//! Clients that open every window of HTTP/2, and whose sockets then take nothing.

use serde_json::Value;
use weir_tests::now;

use super::*;

/// What connections have gathered for sockets that take none: how many there are, and their bytes.
fn unsent(server: &Server) -> Result<(u64, u64)> {
    let answer = Answer::get(server.admin, "/v1/debug/memory")?;
    let memory: Value = serde_json::from_str(&answer.body)?;
    let mut parts = memory["parts"].as_array().context("a list")?.iter();
    let part = parts.find(|part| part["name"] == "http" && part["of"] == "unsent");
    let figure = |name: &str| part.and_then(|part| part[name].as_u64()).unwrap_or(0);
    Ok((figure("count"), figure("bytes")))
}

fn await_unsent(server: &Server, expected: (u64, u64)) -> Result<()> {
    let deadline = now() + PATIENCE;
    while unsent(server)? != expected {
        ensure!(now() < deadline, "{:?}, not {expected:?}", unsent(server)?);
        rest(20);
    }
    Ok(())
}

#[test]
fn what_a_blocked_socket_leaves_is_bounded_and_charged() -> Result<()> {
    const GATHERED: u64 = 16_384;
    const LARGEST: [u8; 4] = 0x7fff_0000_u32.to_be_bytes();
    // More than the kernel takes.
    const ANSWERS: u32 = 8;
    // The table `http` is still open where the rest of the configuration begins.
    let (server, http) = start(256, FAR, &format!("answer_bytes_max = 16777216\n{KEPT}"))?;
    keep(&server)?;
    let open_window = [&[0, 4][..], &LARGEST].concat();
    let mut peers = Vec::new();
    for _ in 0..3 {
        let mut peer = Http2::connect(http, &open_window)?;
        peer.stream.write_all(&frame(WINDOW_UPDATE, 0, 0, &LARGEST))?;
        for index in 0..ANSWERS {
            peer.get(2 * index + 1, "/v1/topics/kept/history")?;
        }
        peers.push(peer);
    }
    await_unsent(&server, (3, 3 * GATHERED))?;
    ensure!(charged(&server)? >= 3.0 * GATHERED as f64, "it is not charged");
    // One reads, one goes, and one stays.
    let mut reader = peers.pop().context("a peer")?;
    let mut ended = 0;
    while ended < ANSWERS {
        match reader.hear_with_flags()?.context("it goes on")? {
            (DATA, flags, ..) if flags & END_STREAM != 0 => ended += 1,
            (RST_STREAM | GOAWAY, ..) => bail!("it ends early"),
            _ => {}
        }
    }
    peers.pop();
    await_unsent(&server, (1, GATHERED))?;
    reader.get(2 * ANSWERS + 1, "/rest/hello")?;
    ensure!(!reader.body(2 * ANSWERS + 1)?.is_empty(), "the connection does not go on");
    drop(peers);
    await_unsent(&server, (0, 0))?;
    await_nothing_charged(&server)
}
