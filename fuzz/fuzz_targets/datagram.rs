//! Feeds `targets::datagram` from libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::targets::datagram(data));
