//! The kernel's settings for sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Check, Input};
use crate::doctor::check::{count, size, sysctl};

/// Connections that the kernel holds until they are accepted.
pub(super) fn accept_backlog(input: &Input<'_>) -> Option<Check> {
    let somaxconn = input.machine.number("proc/sys/net/core/somaxconn")?;
    let wanted = u64::from(input.settings.gateway.listen.accept_backlog);
    let found = format!("net.core.somaxconn {somaxconn}, listen.accept_backlog {wanted}");
    let why = "devices that connect in one burst beyond it wait for seconds until they try again";
    let check = Check::new("accept_backlog", why, found).bites_at(somaxconn.min(wanted));
    if somaxconn >= wanted {
        return Some(check);
    }
    let wrong = format!("the kernel cuts listen.accept_backlog to {somaxconn}");
    Some(check.wrong(wrong, [sysctl("net.core.somaxconn", wanted)]))
}

/// Connections that have not answered the kernel yet.
pub(super) fn syn_backlog(input: &Input<'_>) -> Option<Check> {
    let backlog = input.machine.number("proc/sys/net/ipv4/tcp_max_syn_backlog")?;
    let cookies = input.machine.number("proc/sys/net/ipv4/tcp_syncookies").unwrap_or(0);
    let found = format!("net.ipv4.tcp_max_syn_backlog {backlog}, tcp_syncookies {cookies}");
    let why = "beyond it, without cookies, new connections are dropped, in a flood all of them";
    let check = Check::new("syn_backlog", why, found).bites_at(backlog);
    let wanted = u64::from(input.settings.gateway.listen.accept_backlog);
    if cookies > 0 || backlog >= wanted {
        return Some(check);
    }
    let mend =
        [sysctl("net.ipv4.tcp_syncookies", 1), sysctl("net.ipv4.tcp_max_syn_backlog", wanted)];
    Some(check.wrong("cookies are off and the backlog is short", mend))
}

/// Ports for connections from this machine to the gateway.
pub(super) fn local_ports(input: &Input<'_>) -> Option<Check> {
    let [first, last] = port_range(input)?;
    let ports = (last + 1).saturating_sub(first);
    let found = format!("net.ipv4.ip_local_port_range {first} to {last}: {} ports", count(ports));
    let why = "a proxy or client on this machine needs a port of its own for each connection to \
               one address of the gateway";
    let check = Check::new("local_ports", why, found);
    let own = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let networks = &input.settings.gateway.listen.proxy_networks;
    let has_proxy = networks.iter().any(|network| own.iter().any(|own| network.contains(own)));
    if !has_proxy {
        return Some(check.bites_at(ports));
    }
    let mend = [
        sysctl("net.ipv4.ip_local_port_range", "1024 65535"),
        "or let the gateway listen on further addresses of 127.0.0.0/8".to_owned(),
    ];
    Some(check.holds((ports, input.wanted), mend))
}

/// Whether another program's connection can take a port of the gateway.
pub(super) fn listen_ports(input: &Input<'_>) -> Option<Check> {
    let [first, last] = port_range(input)?;
    let reserved = input.machine.text("proc/sys/net/ipv4/ip_local_reserved_ports");
    let reserved = reserved.unwrap_or_default();
    let is_reserved = |port: u64| {
        reserved.split(',').any(|range| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let bound = |text: &str| text.trim().parse::<u64>().ok();
            bound(from).zip(bound(to)).is_some_and(|(from, to)| (from..=to).contains(&port))
        })
    };
    let listen = &input.settings.gateway.listen;
    let admin: Vec<SocketAddr> = listen.admin.into_iter().collect();
    let groups = [&listen.tcp, &listen.tls, &listen.http, &listen.https, &listen.udp, &admin];
    let mut ports: Vec<u64> =
        groups.into_iter().flatten().map(|addr| u64::from(addr.port())).collect();
    ports.retain(|port| *port != 0);
    ports.sort_unstable();
    ports.dedup();
    let list = |ports: &[u64]| ports.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let why = "while a connection of another program has the port, the gateway cannot start";
    let check = Check::new("listen_ports", why, list(&ports));
    ports.retain(|port| (first..=last).contains(port) && !is_reserved(*port));
    if ports.is_empty() {
        return Some(check);
    }
    let taken = list(&ports);
    let wrong = format!("{taken} may be given to any connection from this machine");
    let all = if reserved.is_empty() { taken } else { format!("{reserved},{taken}") };
    Some(check.wrong(wrong, [sysctl("net.ipv4.ip_local_reserved_ports", all)]))
}

/// Memory for the buffers of all TCP sockets.
pub(super) fn tcp_memory(input: &Input<'_>) -> Option<Check> {
    let [low, pressure, max] = input.machine.numbers("proc/sys/net/ipv4/tcp_mem")?;
    let found = format!(
        "net.ipv4.tcp_mem {low} {pressure} {max} pages: pressure at {}",
        size(pressure * PAGE_BYTES)
    );
    let why = "a connection with bytes on their way takes a page or more; under pressure the \
               kernel shortens all buffers, and at the last number it drops what arrives";
    let check = Check::new("tcp_memory", why, found).bites_at(pressure);
    if pressure >= input.wanted {
        return Some(check);
    }
    let total = input.machine.memory("MemTotal").unwrap_or(u64::MAX);
    // More than half of the memory would leave too little for the rest.
    let pages = (input.wanted + input.wanted / 2).min(total / PAGE_BYTES / 2);
    let wrong = format!(
        "a message to all of {} connections at once passes the pressure",
        count(input.wanted)
    );
    let value = format!("{} {} {pages}", pages / 2, pages / 3 * 2);
    Some(check.wrong(wrong, [sysctl("net.ipv4.tcp_mem", value)]))
}

/// The buffers of a device's socket.
pub(super) fn tcp_buffers(input: &Input<'_>) -> Option<Check> {
    let tcp = &input.settings.gateway.tcp;
    let max = |name| input.machine.number(name).unwrap_or(u64::MAX);
    let (send_max, recv_max) =
        (max("proc/sys/net/core/wmem_max"), max("proc/sys/net/core/rmem_max"));
    let (send, recv) = (tcp.send_buffer_bytes as u64, tcp.recv_buffer_bytes as u64);
    let granted = input.started.buffers;
    let autotuned = |name| input.machine.text(name).unwrap_or_default().replace('\t', " ");
    let found = format!(
        "{} to send, {} to receive, as granted; tcp_wmem {} and tcp_rmem {} do not count, as the \
         gateway sets both",
        size(granted.send_bytes as u64),
        size(granted.recv_bytes as u64),
        autotuned("proc/sys/net/ipv4/tcp_wmem"),
        autotuned("proc/sys/net/ipv4/tcp_rmem"),
    );
    let why = "with a shorter buffer than configured, large messages wait in our memory instead";
    let check = Check::new("tcp_buffers", why, found);
    let mut mend = Vec::new();
    if send_max < send {
        mend.push(sysctl("net.core.wmem_max", send));
    }
    if recv_max < recv {
        mend.push(sysctl("net.core.rmem_max", recv));
    }
    if mend.is_empty() {
        return Some(check);
    }
    Some(check.wrong("the kernel cuts tcp.send_buffer_bytes or tcp.recv_buffer_bytes", mend))
}

/// The buffers of the sockets for datagrams.
pub(super) fn udp_buffers(input: &Input<'_>) -> Option<Check> {
    if input.settings.gateway.listen.udp.is_empty() {
        return None;
    }
    let udp = &input.settings.gateway.udp;
    let recv_max = input.machine.number("proc/sys/net/core/rmem_max")?;
    let send_max = input.machine.number("proc/sys/net/core/wmem_max")?;
    let found =
        format!("net.core.rmem_max {}, net.core.wmem_max {}", size(recv_max), size(send_max));
    let why = "datagrams that arrive while a thread is busy are lost if the buffer is full";
    let check = Check::new("udp_buffers", why, found);
    let mut mend = Vec::new();
    for (key, max, wanted) in [
        ("net.core.rmem_max", recv_max, udp.recv_buffer_bytes as u64),
        ("net.core.wmem_max", send_max, udp.send_buffer_bytes as u64),
    ] {
        if max < wanted {
            mend.push(sysctl(key, wanted));
        }
    }
    if mend.is_empty() {
        return Some(check);
    }
    Some(check.wrong("the kernel cuts udp.recv_buffer_bytes or udp.send_buffer_bytes", mend))
}

/// The table of a firewall that remembers connections.
pub(super) fn conntrack(input: &Input<'_>) -> Option<Check> {
    let max = input.machine.number("proc/sys/net/netfilter/nf_conntrack_max")?;
    let tracked = input.machine.number("proc/sys/net/netfilter/nf_conntrack_count").unwrap_or(0);
    let found = format!("nf_conntrack_max {}, of which {} are used", count(max), count(tracked));
    let why = "when the table is full, the kernel drops the packets of new connections";
    if tracked == 0 {
        // The self-test's own connections would be there.
        let found = format!("{found}: loaded, but no rule uses it");
        return Some(Check::new("conntrack", why, found).bites_at(max));
    }
    let mend = [
        sysctl("net.netfilter.nf_conntrack_max", input.wanted * 2),
        format!("echo {} > /sys/module/nf_conntrack/parameters/hashsize", input.wanted / 2),
        "or exempt the gateway's ports: nft … notrack".to_owned(),
    ];
    let room = max.saturating_sub(tracked);
    Some(Check::new("conntrack", why, found).holds((room, input.wanted), mend))
}

fn port_range(input: &Input<'_>) -> Option<[u64; 2]> {
    input.machine.numbers("proc/sys/net/ipv4/ip_local_port_range")
}

/// The kernel counts buffers in pages of this size on all machines that we know of.
const PAGE_BYTES: u64 = 4_096;
