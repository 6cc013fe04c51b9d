//! The command line.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

/// Holds connections to devices and pushes to them.
#[derive(Debug, Parser)]
#[command(name = "weir", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Configuration file (or in WEIR_CONFIG); without one the defaults apply.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the gateway (the default).
    Serve(ServeArgs),
    /// Publish a message through the admin API of a running gateway.
    Publish(PublishArgs),
    /// Connect as a device and print what arrives, one line a message.
    Subscribe(SubscribeArgs),
    /// Import, list and revoke the devices that may activate: in the `[store]` of the configuration.
    Devices(DevicesArgs),
    /// Check a configuration, or explain its keys.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the version.
    Version,
}

#[derive(Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// Begin with no devices if the store that the key file belongs to is gone. One that is there stays as it is.
    #[arg(long)]
    pub(crate) new_store: bool,
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
    /// Address of the admin API [default: `listen.admin` of the configuration].
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<String>,
    /// Bearer token of the admin API (better in WEIR_ADMIN_TOKEN: other users see command lines) [default: without --admin,
    /// `admin.token` of the configuration].
    #[arg(long)]
    pub(crate) token: Option<String>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SubscribeArgs {
    /// Topics to be in; none: only what is sent to the device or to everyone.
    pub(crate) topics: Vec<String>,
    /// Address where the gateway listens for devices [default: the first of `listen.tcp` in the configuration; with --tls
    /// the first of `listen.tls`].
    #[arg(long)]
    pub(crate) addr: Option<String>,
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

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    #[command(subcommand)]
    pub(crate) command: DevicesCommand,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Where the devices are.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// Address of the admin API of a gateway, which is asked in any case. Otherwise it is the `[store]` of the
    /// configuration, or the gateway that holds it.
    #[arg(long, value_name = "ADDR", global = true)]
    pub(crate) admin: Option<String>,
    /// Bearer token of the admin API (better in WEIR_ADMIN_TOKEN: other users see command lines).
    #[arg(long, global = true)]
    pub(crate) token: Option<String>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DevicesCommand {
    /// Import devices. What is known stays as it is, but for a key or labels that have changed: so a file may be imported
    /// again, whole or from a line on.
    Import(ImportArgs),
    /// Print all devices, one JSON object a line.
    Export,
    /// Print devices in the order of their serial numbers, one a line.
    List {
        /// Begin behind this one.
        #[arg(long, value_name = "SERIAL")]
        after: Option<String>,
        /// Print so many at most.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Print what is known of a device.
    Show {
        /// Its serial number.
        serial: String,
    },
    /// Shut devices out; a gateway that is asked closes their connections too.
    Revoke {
        /// Their serial numbers.
        #[arg(required = true)]
        serials: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// CSV with the header devSn,devKey, or a JSON object with these members a line; further columns or members become
    /// labels. "-" is standard input.
    pub(crate) file: PathBuf,
    /// How it is written [default: as the name of the file says].
    #[arg(long)]
    pub(crate) format: Option<ImportFormat>,
    /// Skip what stands before this line.
    #[arg(long, value_name = "LINE", default_value_t = 1)]
    pub(crate) from_line: u64,
    /// Begin with no devices if the store that the key file belongs to is gone. One that is there stays as it is.
    #[arg(long)]
    pub(crate) new_store: bool,
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportFormat {
    /// Rows under a header.
    Csv,
    /// An object a line.
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
        /// The file, as by --config; without one the defaults and the variables are checked.
        #[arg(conflicts_with = "config")]
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
