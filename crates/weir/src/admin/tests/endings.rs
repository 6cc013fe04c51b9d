//! The last answer on a connection.

use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use super::*;

#[tokio::test]
async fn a_long_last_answer_leaves_whole() {
    let server = Server::start(Config::default()).await;
    let mut devices = Vec::new();
    for device in 0..10 {
        let names: Vec<String> = (0..50).map(|topic| format!("{device}/{topic:0>250}")).collect();
        let topics: Vec<&str> = names.iter().map(String::as_str).collect();
        let id = device.to_string();
        devices.push(Device::connect(server.device_addr(), &id, &topics).await);
    }
    // With short segments and a small buffer, the kernel takes the answer in several parts.
    let socket = TcpSocket::new_v4().unwrap();
    SockRef::from(&socket).set_tcp_mss(536).unwrap();
    socket.set_recv_buffer_size(4 * 1024).unwrap();
    let mut stream = socket.connect(server.admin_addr()).await.unwrap();
    // The body does not come, so the server closes the connection behind its answer.
    let request =
        "GET /v1/topics?limit=1000 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = Answer::parse(&answer);
    assert_eq!(answer.header("connection"), Some("close"));
    let length = answer.body.len().to_string();
    assert_eq!(answer.header("content-length"), Some(length.as_str()));
    assert!(answer.body.len() > 100_000, "too short to leave in parts");
    server.stop().await;
}
