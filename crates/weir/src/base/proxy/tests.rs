//! Tests of PROXY headers: byte by byte, cut at every place, and malformed.

use proptest::prelude::*;

use super::*;

fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [V2_START, &[command, family], &length, rest].concat()
}

fn v4_addresses() -> Vec<u8> {
    [&[192, 0, 2, 7][..], &[192, 0, 2, 1], &[0x12, 0x34], &[0x1b, 0x9e]].concat()
}

fn v6_addresses() -> Vec<u8> {
    let [source, destination]: [std::net::Ipv6Addr; 2] =
        ["2001:db8::7", "2001:db8::1"].map(|addr| addr.parse().unwrap());
    [&source.octets()[..], &destination.octets(), &[0x12, 0x34], &[0x1b, 0x9e]].concat()
}

/// The header is read whatever follows it. Cut at any byte, it asks for more.
fn check(header: &[u8], source: Option<&str>) {
    let source = source.map(|addr| addr.parse().unwrap());
    let expected = Announced { source, bytes: header.len() };
    for behind in [&b""[..], b"\x05\x0a\x03\x0a\x01d", &[0xff; 200]] {
        let bytes = [header, behind].concat();
        assert_eq!(decode(&bytes), Ok(Some(expected)), "{}", header.escape_ascii());
    }
    for cut in 0..header.len() {
        assert_eq!(decode(&header[..cut]), Ok(None), "{} cut at {cut}", header.escape_ascii());
    }
}

fn check_refused(bytes: &[u8]) {
    assert_eq!(decode(bytes), Err(NoHeader), "{}", bytes.escape_ascii());
}

#[test]
fn version_1_names_the_source() {
    check(b"PROXY TCP4 192.0.2.7 192.0.2.1 4660 7070\r\n", Some("192.0.2.7"));
    check(b"PROXY TCP6 2001:db8::7 2001:db8::1 4660 7070\r\n", Some("2001:db8::7"));
    check(b"PROXY UNKNOWN\r\n", None);
    check(b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None);
}

#[test]
fn version_1_is_at_most_107_bytes_long() {
    let line = |bytes: usize| {
        let mut line = b"PROXY UNKNOWN ".to_vec();
        line.resize(bytes - 2, b'x');
        [&line[..], b"\r\n"].concat()
    };
    check(&line(107), None);
    check_refused(&line(108));
    check_refused(&line(108)[..107]);
    check_refused(&line(5000));
}

#[test]
fn version_2_names_the_source() {
    check(&v2(V2_PROXY, 0x11, &v4_addresses()), Some("192.0.2.7"));
    check(&v2(V2_PROXY, 0x21, &v6_addresses()), Some("2001:db8::7"));
    // Extensions are skipped: one without a meaning here, and bytes that are none.
    check(
        &v2(V2_PROXY, 0x11, &[&v4_addresses()[..], &[0x04, 0, 1, 7]].concat()),
        Some("192.0.2.7"),
    );
    check(&v2(V2_PROXY, 0x11, &[&v4_addresses()[..], &[0xff]].concat()), Some("192.0.2.7"));
    // An unspecified source, and a local socket's path.
    check(&v2(V2_PROXY, 0x00, b""), None);
    check(&v2(V2_PROXY, 0x00, b"anything"), None);
    check(&v2(V2_PROXY, 0x31, &[0; 216]), None);
}

#[test]
fn a_local_command_of_version_2_says_nothing_whatever_it_says() {
    check(&v2(V2_LOCAL, 0x00, b""), None);
    check(&v2(V2_LOCAL, 0x11, &v4_addresses()), None);
    check(&v2(V2_LOCAL, 0x11, b""), None);
    check(&v2(V2_LOCAL, 0xee, b"anything"), None);
}

#[test]
fn version_2_announces_at_most_so_much() {
    let addresses = v4_addresses();
    let padded = |bytes: usize| [&addresses[..], &vec![0; bytes - addresses.len()]].concat();
    check(&v2(V2_PROXY, 0x11, &padded(V2_REST_BYTES_MAX)), Some("192.0.2.7"));
    for command in [V2_PROXY, V2_LOCAL] {
        let too_long = v2(command, 0x11, &padded(V2_REST_BYTES_MAX + 1));
        check_refused(&too_long);
        check_refused(&too_long[..V2_FIXED_BYTES]);
    }
}

#[test]
fn what_is_no_header_is_refused() {
    // A frame with a `Hello`, and beginnings of signatures that end differently.
    check_refused(b"\x05\x0a\x03\x0a\x01d");
    check_refused(b"GET / HTTP/1.1\r\n");
    check_refused(b"PROXYTCP4 ");
    check_refused(b"PROXX");
    check_refused(b"\r\n\r\n\0\r\nQUIX");
    // Version 1.
    check_refused(b"PROXY TCP5 192.0.2.7 192.0.2.1 4660 7070\r\n");
    check_refused(b"PROXY TCP4 192.0.2.7 192.0.2.1 4660 70700\r\n");
    check_refused(b"PROXY TCP4 192.0.2.7 192.0.2.1 4660\r\n");
    check_refused(b"PROXY TCP4 192.0.2.256 192.0.2.1 4660 7070\r\n");
    check_refused(b"PROXY TCP4 2001:db8::7 2001:db8::1 4660 7070\r\n");
    check_refused(b"PROXY TCP4 192.0.2.7 192.0.2.1 4660 7070 more\r\n");
    check_refused(b"PROXY \r\n");
    // Version 2: another version, another command, an unknown family, addresses cut short,
    // datagrams.
    check_refused(&v2(0x11, 0x11, &v4_addresses()));
    check_refused(&v2(0x22, 0x11, &v4_addresses()));
    check_refused(&v2(V2_PROXY, 0x41, &v4_addresses()));
    check_refused(&v2(V2_PROXY, 0x11, &v4_addresses()[..11]));
    check_refused(&[&v2(V2_PROXY, 0x11, b"")[..], &[7; 64]].concat());
    check_refused(&v2(V2_PROXY, 0x21, &v4_addresses()));
    check_refused(&v2(V2_PROXY, 0x31, &[0; 215]));
    check_refused(&v2(V2_PROXY, 0x12, &v4_addresses()));
}

proptest! {
    #[test]
    fn nothing_is_too_odd(start in 0usize..4, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let starts = [&b""[..], b"PROXY TCP4 ", V2_START, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00"];
        let bytes = [starts[start], &bytes].concat();
        match decode(&bytes) {
            Ok(Some(announced)) => prop_assert!(announced.bytes <= bytes.len()),
            Ok(None) => prop_assert!(bytes.len() < V2_FIXED_BYTES + V2_REST_BYTES_MAX),
            Err(NoHeader) => {}
        }
    }
}
