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
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SubscribeArgs {
    /// Topics to be in; none: only what is sent to the device or to everyone.
    pub(crate) topics: Vec<String>,
    /// Address where the gateway listens for devices [with --tls: 127.0.0.1:7443].
    #[arg(
        long,
        default_value = "127.0.0.1:7070",
        default_value_if("tls", "true", "127.0.0.1:7443")
    )]
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
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// How a command speaks TLS.
#[derive(Debug, Args)]
pub(crate) struct TlsArgs {
    /// Speak TLS.
    #[arg(long, requires = "ca")]
    pub(crate) tls: bool,
    /// Certificates that sign the other side's, or that one itself, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub(crate) ca: Option<PathBuf>,
    /// Name that the other side's certificate must be for [default: the host of the address].
    #[arg(long, value_name = "NAME", requires = "tls")]
    pub(crate) server_name: Option<String>,
    /// Certificate and private key to show where one is asked for, in one PEM file.
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub(crate) certificate: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a file (or that in WEIR_CONFIG) together with the WEIR_ variables, and the files that it names for TLS; exit
    /// code 2 if one is refused.
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
    fn tls_has_an_address_of_its_own_and_needs_a_ca() {
        let addr = |line: &str| match Cli::try_parse_from(line.split(' ')).unwrap().command {
            Some(Command::Subscribe(args)) => args.addr,
            other => panic!("{other:?}"),
        };
        assert_eq!(addr("weir subscribe t"), "127.0.0.1:7070");
        assert_eq!(addr("weir subscribe t --tls --ca ca.pem"), "127.0.0.1:7443");
        assert_eq!(addr("weir subscribe t --tls --ca ca.pem --addr a:1"), "a:1");
        for line in ["weir subscribe t --tls", "weir subscribe t --ca ca.pem"] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn the_command_line_fits_together() {
        Cli::command().debug_assert();
    }
}
