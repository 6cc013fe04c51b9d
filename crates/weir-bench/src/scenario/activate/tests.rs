//! What is asked by datagrams, and what counts as an answer.

use std::net::UdpSocket;

use super::datagrams::Activating;
use crate::activations::Activations;
use crate::scenario::udp::caller::Caller;

/// Answers so many requests: the fifth with the token of the fourth, the sixth as if it were a stranger's; strangers
/// are refused.
fn serve(socket: &UdpSocket, requests: u32, known: &str) {
    let mut buf = [0; 2000];
    for number in 0..requests {
        let (bytes, peer) = socket.recv_from(&mut buf).unwrap();
        let request: serde_json::Value = serde_json::from_slice(&buf[..bytes]).unwrap();
        let is_known = known.contains(&format!(
            "{},{}\n",
            request["devSn"].as_str().unwrap(),
            request["devKey"].as_str().unwrap()
        ));
        let id = &request["id"];
        let answer = if is_known && number != 6 {
            let token = if number == 5 { 4 } else { number };
            format!(
                "{{\"answer\":true,\"pt\":\"{token:020}AA\",\"expiresAt\":1,\"gateways\":[],\"id\":{id}}}"
            )
        } else {
            format!(
                "{{\"answer\":true,\"error\":\"unauthorized\",\"field\":\"devSn\",\"id\":{id}}}"
            )
        };
        socket.send_to(answer.as_bytes(), peer).unwrap();
    }
}

#[test]
fn answers_are_right_if_devices_get_tokens_and_strangers_none() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let activations = Activations { devices: 10, misses: 0.25, first: 0 };
    let mut known = Vec::new();
    activations.write_csv(&mut known).unwrap();
    let known = String::from_utf8(known).unwrap();
    let script = Activating::new(activations, 1);
    let mut caller = Caller::with(server.local_addr().unwrap(), 1, script).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&server, 40, &known));
        let tally = caller.run(40, 1).unwrap();
        assert_eq!((tally.sent, tally.answered, tally.wrong), (40, 39, 1));
    });
    assert_eq!(caller.script.refused, 10);
    assert_eq!(std::mem::take(&mut caller.script.tokens).repeated(), 1);
}
