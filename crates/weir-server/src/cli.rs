//! The command line.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use weir::AdminScope;

use crate::look::args::{
    ClosesArgs, ConnectionsArgs, DeviceArgs, EventsArgs, TopArgs, TopicsArgs, UpstreamsArgs,
};
use crate::options::{AdminArgs, TlsArgs};

/// A gateway that keeps connections to devices open and pushes messages to them.
#[derive(Debug, Parser)]
#[command(name = "weir", version, after_long_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Configuration file [default: the file in WEIR_CONFIG; without it, all keys have their
    /// defaults].
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the gateway (the default command).
    Serve(ServeArgs),
    // Its own description is longer.
    Demo(DemoArgs),
    /// Publish a message through the admin API of a running gateway.
    Publish(PublishArgs),
    /// Connect as a device and print the messages that arrive, one line each.
    Subscribe(SubscribeArgs),
    // Its own description is longer.
    Drain(DrainArgs),
    // Its own description is longer.
    Reload(ReloadArgs),
    // Its own description is longer.
    Upgrade(UpgradeArgs),
    /// Tell where the memory of a running gateway is, or what keeps it.
    Memory(MemoryArgs),
    /// List the connections of a running gateway.
    Connections(ConnectionsArgs),
    /// List the topics of a running gateway by name.
    Topics(TopicsArgs),
    // Its own description is longer.
    Upstreams(UpstreamsArgs),
    /// Show a device: its connections, its record in the store, and its last ends.
    Device(DeviceArgs),
    // Its own description is longer.
    Closes(ClosesArgs),
    /// Print what happens to connections from now on, one line each.
    Events(EventsArgs),
    // Its own description is longer.
    Top(TopArgs),
    // Its own description is longer.
    Token(TokenArgs),
    /// Import, list and revoke devices in the `[store]` of the configuration.
    Devices(DevicesArgs),
    // Its own description is longer.
    Doctor(DoctorArgs),
    /// Check a configuration, or print the reference of its keys.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the completions of the command line for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the man pages of all commands into a directory, which must exist.
    Man {
        /// The directory.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Print the version.
    Version,
}

/// The end of the help and of the first man page.
const EXIT_CODES: &str = "Exit codes: 0 if the command has done its work, also if its reader has \
                          closed the pipe. 1 if it has failed, or the gateway refuses. 2 if the \
                          command line or the configuration is refused. `weir doctor` exits with 1 \
                          if something is to mend.";

#[derive(Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// Create an empty store if the key file exists but its store is gone. An existing store stays as
    /// it is.
    #[arg(long)]
    pub(crate) new_store: bool,
}

/// Run a gateway with a simulated world: a game room, a chat, phones that sleep and return, meters,
/// and a live page. Its last line is the address of the dashboard; `/demo` there is a chat and a map.
///
/// It listens on loopback only, and needs no configuration. Its certificate, its store and its log
/// are in a directory that is removed at the end.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Phones that connect with TLS; at most 2000.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = phones)]
    pub(crate) connections: usize,
}

/// Each phone takes two descriptors and some 50 KB in this process: the demo stays below 5,000
/// descriptors and 100 MB.
const PHONES_MAX: usize = 2_000;

fn phones(text: &str) -> Result<usize, String> {
    let number = text.parse::<usize>().ok().filter(|number| *number <= PHONES_MAX);
    number.ok_or_else(|| format!("a number of 0 to {PHONES_MAX}"))
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("to").required(true), group = ArgGroup::new("payload").required(true))]
pub(crate) struct PublishArgs {
    /// Publish to the subscribers of this topic.
    #[arg(long, group = "to")]
    pub(crate) topic: Option<String>,
    /// Publish to the connections of this device.
    #[arg(long, value_name = "ID", group = "to")]
    pub(crate) device: Option<String>,
    /// Publish to every connection.
    #[arg(long, group = "to")]
    pub(crate) all: bool,
    /// Send this text.
    #[arg(long, group = "payload")]
    pub(crate) text: Option<String>,
    /// Send these bytes, given in base64.
    #[arg(long, value_name = "BASE64", group = "payload")]
    pub(crate) data: Option<String>,
    /// Send the content of this file; "-" is standard input.
    #[arg(long, group = "payload")]
    pub(crate) file: Option<PathBuf>,
    /// Media type of the message.
    #[arg(long, value_name = "TYPE")]
    pub(crate) content_type: Option<String>,
    /// Conflation key of the message.
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Milliseconds for which the message is valid. After that time the gateway does not begin to
    /// send it.
    #[arg(long, value_name = "MS")]
    pub(crate) ttl_ms: Option<u64>,
    /// Print the gateway's answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: AdminArgs,
}

/// Empty a running gateway, or send a share of its connections elsewhere. The gateway goes on, and
/// serves the connections that are left.
///
/// First /readyz answers 503, so that a load balancer sends no more connections. After the lead,
/// connections are told to come back later, spread evenly over a time. With a share below 1 the
/// gateway is ready again afterwards. Without a share it admits no connection until --cancel.
///
/// The exit code is 0 if the drain has begun, or is cancelled as asked; with --wait, if it is over.
/// It is 1 if the gateway refuses, or if the drain is cancelled while the command waits.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("instead").args(["cancel", "status"]))]
pub(crate) struct DrainArgs {
    /// Share of the connections to close: more than 0, at most 1 [default: 1].
    #[arg(long, conflicts_with = "instead")]
    pub(crate) share: Option<f64>,
    /// Time over which connections are told to leave, such as 60s; at most 24h [default: 60s].
    #[arg(long, value_name = "TIME", conflicts_with = "instead")]
    pub(crate) over: Option<String>,
    /// Time from the first 503 of /readyz until the first connection is told, such as 5s; at most
    /// 1h [default: 5s].
    #[arg(long, value_name = "TIME", conflicts_with = "instead")]
    pub(crate) lead: Option<String>,
    /// Cancel the drain: no further connection is closed, and new ones are admitted.
    #[arg(long)]
    pub(crate) cancel: bool,
    /// Only print how far the drain is.
    #[arg(long)]
    pub(crate) status: bool,
    /// Wait until the drain is over, and print its progress.
    #[arg(long, conflicts_with = "cancel")]
    pub(crate) wait: bool,
    /// Print the gateway's answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: AdminArgs,
}

/// Make a running gateway read its configuration again, and use what needs no restart. It prints
/// the keys that have changed, and those that still need a restart.
///
/// The gateway reads its own file and its own environment, not those of this command. It checks all
/// of it first: if a value is refused, nothing changes.
///
/// The exit code is 0 if the configuration is applied, and 2 if it is refused. It is 1 if the
/// gateway cannot be asked.
#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    /// Print the gateway's answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: AdminArgs,
}

/// Replace the running gateway by a new process, which takes its listeners and its connections over.
/// It prints a line for each stage, then a table of what has moved.
///
/// The running gateway starts the new process, and serves until that is ready to take over. If
/// anything fails before that, it serves on, and this command says why.
///
/// The command finds the gateway by its socket, which the configuration names (`upgrade.socket`).
/// Only the gateway's own user and root may use it.
///
/// The exit code is 0 if the new process serves alone; with --dry-run, if an upgrade would begin. It
/// is 1 if the upgrade has failed, and 2 if this command refuses the configuration.
#[derive(Debug, Args)]
pub(crate) struct UpgradeArgs {
    /// Program to start [default: the path by which the running gateway was started].
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
    /// The gateway's socket [default: that of the configuration].
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Start the new process and let it check its configuration, say what would move, and end it.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON object for each line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check this machine for the configuration that would be used: limits, kernel settings, memory,
/// clocks, disk and stores. For each it tells what is wrong, why it matters, and what mends it.
///
/// A self-test on loopback takes some seconds. It measures what a connection and a delivery cost
/// here, and forecasts how many connections this machine holds.
///
/// The exit code is 0 if nothing is to mend, 1 if something is, and 2 if the command line or the
/// configuration is refused.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Skip the self-test: bytes are assumed, and nothing is said about pushes.
    #[arg(long)]
    pub(crate) no_self_test: bool,
    /// Connections that the machine should hold [default: `limits.connections_max` of the
    /// configuration].
    #[arg(long, value_name = "N", value_parser = connections)]
    pub(crate) connections: Option<usize>,
    /// Messages a second to each connection, for the forecast of connections that are pushed to.
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = rate)]
    pub(crate) rate: f64,
}

fn connections(text: &str) -> Result<usize, String> {
    let number = text.parse::<usize>().ok().filter(|number| (1..=1 << 24).contains(number));
    number.ok_or_else(|| format!("a number of 1 to {}", 1 << 24))
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| (0.001..=1_000.0).contains(rate));
    rate.ok_or_else(|| "a number of 0.001 to 1000".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// List what has kept memory for longest: outboxes, messages that one connection keeps, begun
    /// frames, subscriptions and rings.
    #[arg(long)]
    pub(crate) oldest: bool,
    /// List at most this many of each kind.
    #[arg(long, value_name = "N", default_value_t = 10, requires = "oldest")]
    pub(crate) limit: usize,
    /// Print the gateway's answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) api: AdminArgs,
}

/// Make a token for the admin API, and print the lines of the configuration with its hash.
///
/// The lines for `[[admin.tokens]]` go to standard output, and the token to standard error. So `weir
/// token --name ci --may publish >> weir.toml` adds the lines and shows the token. It is kept
/// nowhere, and is not shown again.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Name of the token, in the audit log and in refusals.
    #[arg(long, default_value = "NAME")]
    pub(crate) name: String,
    /// What the token opens: read, publish, operate, devices; several are separated by commas.
    #[arg(long, value_name = "SCOPES", default_value = "read", value_delimiter = ',', value_parser = scope)]
    pub(crate) may: Vec<AdminScope>,
    /// Hash a token that exists, instead of making one. "-" reads it from standard input; other
    /// users see command lines, so it cannot be given there.
    #[arg(long, value_name = "-", value_parser = ["-"])]
    pub(crate) token: Option<String>,
}

fn scope(text: &str) -> Result<AdminScope, String> {
    AdminScope::ALL
        .into_iter()
        .find(|scope| scope.name() == text)
        .ok_or_else(|| format!("one of {}", AdminScope::ALL.map(AdminScope::name).join(", ")))
}

#[derive(Debug, Args)]
pub(crate) struct SubscribeArgs {
    /// Topics to subscribe to. Without a topic, only messages to the device or to all connections
    /// arrive.
    pub(crate) topics: Vec<String>,
    /// Address where the gateway listens for devices [default: the first of `listen.tcp` in the
    /// configuration; with --tls, the first of `listen.tls`].
    #[arg(long)]
    pub(crate) addr: Option<String>,
    /// The device's token. Other users see command lines, so rather set WEIR_TOKEN [default:
    /// without --addr, and where the configuration admits no anonymous devices, that of
    /// `auth.tokens` for this device, or for any].
    #[arg(long)]
    pub(crate) token: Option<String>,
    /// The device's id [default: the id that the token is bound to; without a token, a random id].
    #[arg(long, value_name = "ID")]
    pub(crate) device: Option<String>,
    /// Print each message as a JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print which connections enter the topics and which leave them too.
    #[arg(long)]
    pub(crate) presence: bool,
    /// Stop after this many messages.
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    #[command(subcommand)]
    pub(crate) command: DevicesCommand,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// The store that a command works on.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// Address of a gateway's admin API, through which the command then works. Without it, the
    /// command opens the `[store]` of the configuration. If a gateway already holds that store, the
    /// command uses the gateway's admin API.
    #[arg(long, value_name = "ADDR", global = true)]
    pub(crate) admin: Option<String>,
    /// Bearer token of the admin API. Other users see command lines, so rather set
    /// WEIR_ADMIN_TOKEN.
    #[arg(long, global = true)]
    pub(crate) token: Option<String>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DevicesCommand {
    /// Import devices. A known device changes only if its key or labels differ. So the same file
    /// can be imported again, whole or from a line on.
    Import(ImportArgs),
    /// Print all devices, each as a JSON object on one line.
    Export,
    /// Print devices in the order of their serial numbers, one per line.
    List {
        /// Start after this serial number.
        #[arg(long, value_name = "SERIAL")]
        after: Option<String>,
        /// Print at most this many devices.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Print everything that the store knows about a device.
    Show {
        /// The device's serial number.
        serial: String,
    },
    /// Revoke devices for good. With --admin, or through the gateway that holds the store, their
    /// connections close too.
    Revoke {
        /// The devices' serial numbers.
        #[arg(required = true)]
        serials: Vec<String>,
    },
    /// Write a copy of the store's file, also while a gateway serves from it. Everything that the
    /// store answered before is in the copy. The key file is not.
    Backup {
        /// The new file.
        file: PathBuf,
    },
    /// Put a copy in the place of the store's file, while no gateway holds it. The copy is checked
    /// first.
    Restore {
        /// The copy.
        file: PathBuf,
        /// Replace the store that is there. Its files are kept, with names that contain `.old`.
        #[arg(long)]
        replace: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// File to import; "-" is standard input. It is CSV with the header devSn,devKey, or has one
    /// JSON object with these members per line. Further columns or members become labels.
    pub(crate) file: PathBuf,
    /// Format of the file [default: by the file's extension].
    #[arg(long)]
    pub(crate) format: Option<ImportFormat>,
    /// Skip the lines before this one.
    #[arg(long, value_name = "LINE", default_value_t = 1)]
    pub(crate) from_line: u64,
    /// Create an empty store if the key file exists but its store is gone. An existing store stays as
    /// it is.
    #[arg(long)]
    pub(crate) new_store: bool,
}

/// The format of a file of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportFormat {
    /// A header, then one row per device.
    Csv,
    /// One JSON object per line.
    Json,
}

impl From<ImportFormat> for weir::RowFormat {
    fn from(format: ImportFormat) -> weir::RowFormat {
        match format {
            ImportFormat::Csv => weir::RowFormat::Csv,
            ImportFormat::Json => weir::RowFormat::JsonLines,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a configuration file and the WEIR_ variables, and the files that they name for TLS and
    /// `[auth.jwt]`. The exit code is 2 if one of them is refused.
    Check {
        /// The file; the same as --config FILE [default: the file in WEIR_CONFIG; without it, only
        /// the defaults and the variables are checked].
        #[arg(conflicts_with = "config")]
        file: Option<PathBuf>,
    },
    /// Print every key with its default, its allowed values and its meaning.
    Reference {
        /// Print Markdown: the content of docs/configuration.md.
        #[arg(long)]
        markdown: bool,
        /// Print a configuration file with every key at its default, commented out.
        #[arg(long, conflicts_with = "markdown")]
        toml: bool,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn tls_needs_a_ca() {
        for line in ["weir subscribe t --tls", "weir subscribe t --ca ca.pem"] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn the_configuration_may_be_named_anywhere() {
        for line in [
            "weir --config F",
            "weir --config F serve",
            "weir serve --config F --new-store",
            "weir --config F devices list",
            "weir devices --config F list",
            "weir devices list --config F",
            "weir --config F config check",
            "weir --config F subscribe news",
            "weir publish --all --text t --config F",
        ] {
            let cli = Cli::try_parse_from(line.split(' '));
            let cli = cli.unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(cli.config, Some(PathBuf::from("F")), "{line}");
        }
        let twice = Cli::try_parse_from("weir config check F --config G".split(' '));
        assert!(twice.is_err());
    }

    #[test]
    fn the_command_line_fits_together() {
        Cli::command().debug_assert();
    }
}
