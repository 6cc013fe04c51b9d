//! The program `weir-bench`.
mod clock; mod floor; mod http; mod lines; mod metrics; mod payload; mod peer; mod process; mod protocol; mod stats; mod sys; mod worker; mod workers;
fn main() {}
