//! Feeds `targets::client_json` from libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::targets::client_json(data));
