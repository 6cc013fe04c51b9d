//! Generates the `weir.v1` messages from the .proto, without a `protoc` on the machine.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/weir/v1.proto");
    let descriptors = protox::compile(["weir/v1.proto"], ["proto"])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
