//! The program `weir-bench`.

fn main() {}
