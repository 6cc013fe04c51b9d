//! Options that several commands share.

use std::path::PathBuf;

use clap::Args;

/// The admin API of a running gateway.
#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    /// Address of the admin API [default: `listen.admin` of the configuration].
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<String>,
    /// Bearer token of the admin API. Other users see command lines, so rather set WEIR_ADMIN_TOKEN
    /// [default: without --admin, `admin.token` of the configuration].
    #[arg(long)]
    pub(crate) token: Option<String>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// The options of commands that connect with TLS.
#[derive(Debug, Args)]
pub(crate) struct TlsArgs {
    /// Connect with TLS.
    #[arg(long, requires = "ca")]
    pub(crate) tls: bool,
    /// PEM file with the certificates of trusted authorities, or with the server's own certificate.
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub(crate) ca: Option<PathBuf>,
    /// Name that must be in the server's certificate [default: the host of the address].
    #[arg(long, value_name = "NAME", requires = "tls")]
    pub(crate) server_name: Option<String>,
    /// PEM file with the certificate and private key of this client, for servers that ask for one.
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub(crate) certificate: Option<PathBuf>,
}
