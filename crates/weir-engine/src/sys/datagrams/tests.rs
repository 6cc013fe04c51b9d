//! Datagrams over real sockets, in batches.

use std::net::UdpSocket;

use super::*;

const OPTIONS: DatagramOptions =
    DatagramOptions { recv_buffer_bytes: 1 << 16, send_buffer_bytes: 1 << 16, only_v6: true };

fn client(addr: SocketAddr) -> UdpSocket {
    let any = if addr.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let client = UdpSocket::bind(any).unwrap();
    client.connect(addr).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client
}

/// Takes `count` datagrams and sends each back.
fn echo(socket: &DatagramSocket, inbox: &mut Inbox, count: usize) {
    let mut outbox = Outbox::default();
    let mut left = count;
    while left > 0 {
        let received = inbox.receive(socket).unwrap();
        if received == 0 {
            socket.wait(Duration::from_secs(20)).unwrap();
        }
        for datagram in inbox.datagrams() {
            outbox.push(datagram.peer, |out| {
                out.extend_from_slice(datagram.bytes);
                true
            });
        }
        assert_eq!(outbox.send(socket), Sent { sent: received, refused: 0 });
        left -= received;
    }
}

#[test]
fn datagrams_of_many_come_and_go_in_batches() {
    for addr in ["127.0.0.1:0", "[::1]:0"] {
        let [socket] = &DatagramSocket::bind(addr.parse().unwrap(), 1, &OPTIONS).unwrap()[..]
        else {
            panic!("one socket")
        };
        let addr = socket.local_addr().unwrap();
        let clients: Vec<UdpSocket> = (0..100).map(|_| client(addr)).collect();
        for (index, client) in clients.iter().enumerate() {
            client.send(&index.to_ne_bytes()).unwrap();
        }
        assert!(socket.queued_bytes().unwrap() > 0);
        let mut inbox = Inbox::new(100);
        echo(socket, &mut inbox, clients.len());
        for (index, client) in clients.iter().enumerate() {
            let mut buf = [0; 100];
            let got = client.recv(&mut buf).unwrap();
            assert_eq!(buf[..got], index.to_ne_bytes());
        }
        assert_eq!(socket.queued_bytes().unwrap(), 0);
    }
}

#[test]
fn who_sent_it_and_what_was_cut_is_told() {
    let sockets = DatagramSocket::bind("[::1]:0".parse().unwrap(), 1, &OPTIONS).unwrap();
    let client = client(sockets[0].local_addr().unwrap());
    for bytes in [0, 8, 9] {
        client.send(&vec![7; bytes]).unwrap();
    }
    let mut inbox = Inbox::new(8);
    let mut seen = Vec::new();
    while seen.len() < 3 {
        sockets[0].wait(Duration::from_secs(20)).unwrap();
        inbox.receive(&sockets[0]).unwrap();
        seen.extend(inbox.datagrams().map(|datagram| {
            assert_eq!(datagram.peer.addr(), client.local_addr().unwrap());
            (datagram.bytes.len(), datagram.is_cut)
        }));
    }
    assert_eq!(seen, [(0, false), (8, false), (8, true)]);
}

#[test]
fn sockets_of_one_address_share_it_with_each_other_and_nobody_else() {
    let any = "127.0.0.1:0".parse().unwrap();
    let sockets = DatagramSocket::bind(any, 3, &OPTIONS).unwrap();
    let addr = sockets[0].local_addr().unwrap();
    assert!(sockets.iter().all(|socket| socket.local_addr().unwrap() == addr));
    for count in [1, 2] {
        let error = DatagramSocket::bind(addr, count, &OPTIONS).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
    // Of a hundred ports no socket is left out, but once in 10^17 runs.
    let clients: Vec<UdpSocket> = (0..100).map(|_| client(addr)).collect();
    clients.iter().for_each(|client| assert_eq!(client.send(b"x").unwrap(), 1));
    let mut inbox = Inbox::new(8);
    for socket in &sockets {
        socket.wait(Duration::from_secs(20)).unwrap();
        assert!(inbox.receive(socket).unwrap() > 0);
    }
}

#[test]
fn what_the_kernel_throws_away_is_counted() {
    let options = DatagramOptions { recv_buffer_bytes: 1, ..OPTIONS };
    let sockets = DatagramSocket::bind("127.0.0.1:0".parse().unwrap(), 1, &options).unwrap();
    let socket = &sockets[0];
    assert!(socket.buffers().unwrap().recv_bytes < 1 << 14);
    let client = client(socket.local_addr().unwrap());
    let mut inbox = Inbox::new(1000);
    let (mut received, mut sent) = (0, 0);
    assert_eq!(socket.lost().unwrap(), 0);
    while socket.lost().unwrap() == 0 {
        for _ in 0..50 {
            client.send(&[0; 1000]).unwrap();
        }
        sent += 50;
        while let taken @ 1.. = inbox.receive(socket).unwrap() {
            received += taken;
        }
    }
    assert_eq!(socket.lost().unwrap() as usize, sent - received);
}

#[test]
fn an_answer_comes_from_the_address_that_was_asked() {
    let options = DatagramOptions { only_v6: false, ..OPTIONS };
    for any in ["0.0.0.0:0", "[::]:0"] {
        let sockets = DatagramSocket::bind(any.parse().unwrap(), 1, &options).unwrap();
        let port = sockets[0].local_addr().unwrap().port();
        // A connected socket hears this address only.
        let client = client(SocketAddr::from(([127, 0, 0, 2], port)));
        client.send(b"x").unwrap();
        echo(&sockets[0], &mut Inbox::new(8), 1);
        assert_eq!(client.recv(&mut [0; 8]).unwrap(), 1, "{any}");
    }
}

#[test]
fn an_address_that_cannot_be_reached_holds_up_no_other() {
    let sockets = DatagramSocket::bind("127.0.0.1:0".parse().unwrap(), 1, &OPTIONS).unwrap();
    let client = client(sockets[0].local_addr().unwrap());
    client.send(b"x").unwrap();
    let mut inbox = Inbox::new(8);
    sockets[0].wait(Duration::from_secs(20)).unwrap();
    inbox.receive(&sockets[0]).unwrap();
    let peer = inbox.datagrams().next().unwrap().peer;
    let mut port_0 = peer;
    port_0.name.0[2..4].copy_from_slice(&[0, 0]);
    let mut outbox = Outbox::default();
    for peer in [peer, port_0, peer] {
        assert!(outbox.push(peer, |out| {
            out.push(b'y');
            true
        }));
    }
    assert!(!outbox.push(peer, |out| {
        out.push(b'z');
        false
    }));
    assert_eq!(outbox.send(&sockets[0]), Sent { sent: 2, refused: 1 });
    let mut buf = [0; 8];
    assert_eq!([client.recv(&mut buf).unwrap(), client.recv(&mut buf).unwrap()], [1, 1]);
}

#[test]
fn the_waker_ends_a_wait() {
    let sockets = DatagramSocket::bind("127.0.0.1:0".parse().unwrap(), 1, &OPTIONS).unwrap();
    let waker = sockets[0].waker();
    std::thread::scope(|scope| {
        scope.spawn(waker);
        sockets[0].wait(Duration::from_secs(60)).unwrap();
    });
    sockets[0].wait(Duration::ZERO).unwrap();
}
