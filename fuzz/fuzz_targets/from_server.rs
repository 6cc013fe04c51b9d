//! Feeds `targets::from_server` from libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::targets::from_server(data));
