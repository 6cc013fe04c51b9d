//! Sections `[admin]` and `[[admin.tokens]]`.

use super::{HOSTS_MAX, HOSTS_REASON, TOKEN_BYTES_MAX};

crate::config_table! {
    /// Section `[admin]`.
    pub struct AdminConfig {
        /// Bearer token of the admin API, with all scopes. Empty, and without `[[admin.tokens]]`:
        /// none is needed.
        token: String, secret(), reload(),
            allowed(
                "at most {TOKEN_BYTES_MAX} bytes; not empty if listen.admin is not on loopback and there \
                 are no admin.tokens"
            );
        /// Host names that requests to the admin API may have, beside the listen address and the
        /// names of loopback. Other names are refused: a web page could reach the admin API through
        /// a host name of its own. Health checks may have any name.
        hosts: Vec<String>, range(0..=HOSTS_MAX), unit("names"), reason(HOSTS_REASON), reload();
        /// Whether `GET /v1/debug/heap` can tell which calls have allocated the memory in use. The
        /// program then starts itself once more with `MALLOC_CONF=prof:true,lg_prof_sample:19`.
        /// About one allocation in 512 KiB is sampled.
        heap_profile: bool;
        /// Further tokens of the admin API, each with a name and the scopes that it opens. `weir
        /// token` makes one. Only the file can set them.
        tokens: Vec<AdminTokenConfig>, secret(), range(0..=ADMIN_TOKENS_MAX), unit("tokens"),
            reason(": enough for each program and each operator"), reload();
    }
}

crate::config_table! {
    /// One of `[[admin.tokens]]`.
    pub struct AdminTokenConfig in "tables [[admin.tokens]], each with a name, a hash and scopes" {
        /// The name of the token in the audit log and in refusals.
        name: String, needed(), example("\"dashboard\""), allowed(
                "1 to {ADMIN_NAME_CHARS_MAX} visible ASCII characters, no two alike, not the name of a service, \
                 and not admin, anyone or nobody"
            );
        /// The token's hash, as `weir token` prints it. The file does not hold the token.
        // Hidden in messages: somebody may have put the token itself there. Of the example, nobody
        // knows the token.
        hash: String, secret(), needed(), example(HASH_EXAMPLE),
            allowed("sha256: and the 64 hexadecimal digits of the token's SHA-256, no two alike");
        /// What the token opens. `read`: every list, view, stream and metric. `publish`: `POST
        /// /v1/publish`. `operate`: closing connections, draining, profiles and the audit log.
        /// `devices`: importing, exporting and revoking stored devices.
        may: Vec<AdminScope>, needed(), allowed("at least one"),
            example("[\"read\", \"operate\"]");
    }
}

impl AdminConfig {
    /// Whether callers of the admin API need a token.
    pub fn needs_token(&self) -> bool {
        !self.token.is_empty() || !self.tokens.is_empty()
    }
}

weir_wire::named_enum! {
    /// What a token of the admin API opens.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum AdminScope {
        /// Looking at everything, but for the audit log and exports.
        Read = "read",
        /// Publishing.
        Publish = "publish",
        /// Closing connections, draining, reloading, profiles, and the audit log.
        Operate = "operate",
        /// Importing, exporting and revoking stored devices.
        Devices = "devices",
    }
}

crate::config_words!(AdminScope);

const HASH_EXAMPLE: &str =
    "\"sha256:0000000000000000000000000000000000000000000000000000000000000000\"";
/// More than one for each program and operator of a large site. A session ends with its token, and
/// as many sessions are kept.
pub(crate) const ADMIN_TOKENS_MAX: u64 = 64;
/// It stands in each line of the audit log.
pub(crate) const ADMIN_NAME_CHARS_MAX: usize = 64;
/// The audit log has these names for the owner of `admin.token`, for callers where no token is
/// needed, and for callers without a valid token.
pub(crate) const ADMIN_NAMES_TAKEN: [&str; 3] = ["admin", "anyone", "nobody"];
