//! Generates the `weir.v1` messages and their JSON from the .proto, without a `protoc` on the machine.

use std::error::Error;

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let parts = ["v1", "callers", "front", "link", "topics"];
    let parts = parts.map(|part| format!("weir/handover/{part}.proto"));
    let files = std::iter::once("weir/v1.proto".to_owned()).chain(parts);
    let descriptors = protox::compile(files, ["proto"])?;
    pbjson_build::Builder::new()
        .register_descriptors(&descriptors.encode_to_vec())?
        // What a later version adds is passed over, as in the protobuf form.
        .ignore_unknown_fields()
        .build(&[".weir.v1"])?;
    let mut config = prost_build::Config::new();
    // Most connections have none of these, and then they need not be moved about.
    for field in ["partial", "outbox", "positions", "tls"] {
        config.boxed(format!(".weir.handover.v1.Connection.{field}"));
    }
    config.compile_fds(descriptors)?;
    Ok(())
}
