//! The look that the gateway takes into a ClientHello; what is demanded of it stands in its file.

#[path = "../../crates/weir/src/tls/hello.rs"]
#[expect(dead_code, reason = "the gateway uses the rest")]
mod hello;

/// No panic, and no other answer when more bytes have come.
pub fn client_hello(data: &[u8]) {
    hello::check(data);
}
