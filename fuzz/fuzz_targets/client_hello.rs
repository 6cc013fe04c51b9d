//! Feeds `client_hello` from libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::client_hello::client_hello(data));
