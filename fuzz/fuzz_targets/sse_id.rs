//! Feeds `targets::sse_id` from libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::targets::sse_id(data));
