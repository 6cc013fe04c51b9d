//! The program `weir-bench`: measures a gateway, and next to it a baseline on the same machine.
//!
//! Begin with `scenario/`: each file starts the servers, directs the load and fills the report.
//! - `run` carries out a command; `cli` and `report` are its input and output: they measure nothing.
//! - `spawn` starts `weir` and other servers, `embedded` hosts a gateway through the public
//!   library; neither makes load. `http` and `metrics` query the admin API, `publish` publishes
//!   there. `redis` queries Redis.
//! - `worker` holds the client sockets, `workers` directs it, `holder` holds many of them for little
//!   memory, `attack` attacks: they know no scenario.
//! - `explained` asks a server where its memory is.
//! - `backend` answers what a gateway asks.
//! - `baseline` does the same work with a minimal program, and contains no code of the gateway.
//! - `protocol` and `peer` are the messages between the processes; `payload`, `activations` and
//!   `stages` are the content that is sent and checked, without I/O. `sys` has the only unsafe
//!   code.

mod activations;
mod attack;
mod backend;
mod baseline;
mod cli;
mod clock;
mod embedded;
mod explained;
mod holder;
mod http;
mod metrics;
mod payload;
mod peer;
mod process;
mod protocol;
mod publish;
mod redis;
mod report;
mod run;
mod scenario;
mod spawn;
mod stages;
mod stats;
mod sys;
mod tls;
mod worker;
mod workers;

fn main() -> std::process::ExitCode {
    run::main()
}
