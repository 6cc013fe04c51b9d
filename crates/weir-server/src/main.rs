//! The program `weir`.

mod addresses;
mod banner;
mod cli;
mod config;
mod demo;
mod devices;
mod doctor;
mod drain;
mod http;
mod log;
mod look;
mod manual;
mod memory;
mod options;
mod output;
mod profile;
mod publish;
mod reload;
mod scratch;
mod serve;
mod sse;
mod store;
mod subscribe;
mod sys;
mod systemd;
mod tls;
mod token;
mod upgrade;

use std::io;
use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command, ConfigCommand, ServeArgs};
use output::{complain, say};
use store::Begin;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("{error:#}"));
            let refused = error.downcast_ref::<config::Refused>().is_some();
            ExitCode::from(if refused { EXIT_CONFIGURATION } else { EXIT_FAILURE })
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let Cli { command, config: file } = cli;
    match command.unwrap_or(Command::Serve(ServeArgs::default())) {
        Command::Serve(args) => return serve::run(file, Begin::of(args.new_store)),
        Command::Demo(args) => return demo::run(&args, file),
        Command::Publish(args) => block_on(publish::run(args, file))?,
        Command::Drain(args) => block_on(drain::run(args, file))?,
        Command::Reload(args) => return block_on(reload::run(args, file)),
        Command::Upgrade(args) => return block_on(upgrade::run(args, file)),
        Command::Memory(args) => block_on(memory::run(args, file))?,
        Command::Connections(args) => block_on(look::connections::run(args, file))?,
        Command::Topics(args) => block_on(look::topics::run(args, file))?,
        Command::Upstreams(args) => block_on(look::upstreams::run(args, file))?,
        Command::Device(args) => block_on(look::device::run(args, file))?,
        Command::Closes(args) => block_on(look::closes::run(args, file))?,
        Command::Events(args) => block_on(look::events::run(args, file))?,
        Command::Top(args) => block_on(look::top::run(args, file))?,
        Command::Subscribe(args) => block_on(subscribe::run(args, file))?,
        Command::Token(args) => token::run(&args)?,
        Command::Devices(args) => block_on(devices::run(args, file))?,
        Command::Doctor(args) => return doctor::run(&args, file),
        Command::Config(ConfigCommand::Check { file: named }) => {
            let settings = config::load(named.or(file))?;
            let config = settings.gateway;
            config.check_files().map_err(|error| config::Refused::file(&error))?;
            config.check_jwt_keys().map_err(|error| config::Refused::file(&error))?;
            say(banner::checked(&config, &settings.from_variables))?;
        }
        Command::Config(ConfigCommand::Reference { markdown, toml }) => {
            let reference = match (markdown, toml) {
                (true, _) => config::markdown(),
                (_, true) => config::example(),
                (false, false) => config::text(),
            };
            say(reference.trim_end())?;
        }
        Command::Completions { shell } => say(manual::completions(shell).trim_end())?,
        Command::Man { directory } => manual::write(&directory)?,
        Command::Version => say(concat!("weir ", env!("CARGO_PKG_VERSION")))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a command on a runtime with one thread.
fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

/// Whether the reader of our output has closed the pipe, as `head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The configuration was refused.
const EXIT_CONFIGURATION: u8 = 2;
/// Any other error.
const EXIT_FAILURE: u8 = 1;
