//! The command line.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};

/// Holds connections to devices and pushes to them.
#[derive(Debug, Parser)]
#[command(name = "weir", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the gateway (the default).
    Serve(ServeArgs),
    /// Publish a message through the admin API of a running gateway.
    Publish(PublishArgs),
    /// Connect as a device and print what arrives, one line a message.
    Subscribe(SubscribeArgs),
    /// Check a configuration, or explain its keys.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the version.
    Version,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Configuration file (or in WEIR_CONFIG); without one the defaults apply.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("to").required(true), group = ArgGroup::new("payload").required(true))]
pub(crate) struct PublishArgs {
    /// To the subscribers of this topic.
    #[arg(long, group = "to")]
    pub(crate) topic: Option<String>,
    /// To the connections of this device.
    #[arg(long, value_name = "ID", group = "to")]
    pub(crate) device: Option<String>,
    /// To every connection.
    #[arg(long, group = "to")]
    pub(crate) all: bool,
    /// The message is this text.
    #[arg(long, group = "payload")]
    pub(crate) text: Option<String>,
    /// The message is these bytes, in base64.
    #[arg(long, value_name = "BASE64", group = "payload")]
    pub(crate) data: Option<String>,
    /// The message is the content of this file; "-" is standard input.
    #[arg(long, group = "payload")]
    pub(crate) file: Option<PathBuf>,
    /// Media type of the message.
    #[arg(long, value_name = "TYPE")]
    pub(crate) content_type: Option<String>,
    /// Conflation key of the message.
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// After this many milliseconds the message is not begun any more.
    #[arg(long, value_name = "MS")]
    pub(crate) ttl_ms: Option<u64>,
    /// Print the gateway's answer as it is.
    #[arg(long)]
    pub(crate) json: bool,
    /// Address of the admin API.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7090")]
    pub(crate) admin: String,
    /// Bearer token of the admin API (better in WEIR_ADMIN_TOKEN: other users see command lines).
    #[arg(long)]
    pub(crate) token: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SubscribeArgs {
    /// Topics to be in; none: only what is sent to the device or to everyone.
    pub(crate) topics: Vec<String>,
    /// Address where the gateway listens for devices.
    #[arg(long, default_value = "127.0.0.1:7070")]
    pub(crate) addr: String,
    /// The device's token (better in WEIR_TOKEN: other users see command lines).
    #[arg(long)]
    pub(crate) token: Option<String>,
    /// The device's id. Otherwise the one that the token is bound to; without a token, a random one.
    #[arg(long, value_name = "ID")]
    pub(crate) device: Option<String>,
    /// One JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// End after this many messages.
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a file (or that in WEIR_CONFIG) together with the WEIR_ variables; exit code 2 if it is refused.
    Check {
        /// The file; without one the defaults and the variables are checked.
        file: Option<PathBuf>,
    },
    /// Print every key with its default, what is allowed, and what it means.
    Reference {
        /// As Markdown, the way docs/configuration.md is written.
        #[arg(long)]
        markdown: bool,
        /// As a file with every key at its default, commented out.
        #[arg(long, conflicts_with = "markdown")]
        toml: bool,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_fits_together() {
        Cli::command().debug_assert();
    }
}
