//! The scripts that run in Redis. Each does what must happen at once, or not at all.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use redis::Cmd;

/// A script, and the hash by which Redis knows it.
pub(super) struct Script {
    /// The name of its own file.
    pub(super) name: &'static str,
    code: &'static str,
    hash: LazyLock<String>,
}

/// All of them: a new connection loads them.
pub(super) static SCRIPTS: [&Script; 17] = [
    &PUBLISH,
    &READ,
    &TOPS,
    &ADOPT,
    &SEND,
    &CLAIM,
    &ANNOUNCE,
    &NODES,
    &RETIRE,
    &REVOKE,
    &REVOCATIONS,
    &PRESENCE,
    &MEMBERS,
    &FORGET,
    &DEAD,
    &ATTEND,
    &PROBE,
];

macro_rules! script {
    ($name:ident, $($file:literal),+) => {
        pub(super) static $name: Script = Script {
            name: {
                let files = [$($file),+];
                files[files.len() - 1]
            },
            code: concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+),
            hash: LazyLock::new(|| $name.hash()),
        };
    };
}

script!(PUBLISH, "primary", "publish");
script!(READ, "primary", "read");
script!(TOPS, "primary", "tops");
script!(ADOPT, "primary", "adopt");
script!(SEND, "send");
script!(CLAIM, "claim");
script!(ANNOUNCE, "announce");
script!(NODES, "nodes");
script!(RETIRE, "retire");
script!(REVOKE, "primary", "log", "revoke");
script!(REVOCATIONS, "primary", "log", "revocations");
script!(PRESENCE, "late", "presence");
script!(MEMBERS, "members");
script!(FORGET, "forget");
script!(DEAD, "dead");
script!(ATTEND, "late", "attend");
script!(PROBE, "primary", "probe");

impl Script {
    /// Runs it on these keys. Its arguments follow.
    pub(super) fn run<'a>(&self, keys: impl ExactSizeIterator<Item = &'a String>) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(self.hash.as_str()).arg(keys.len());
        for key in keys {
            cmd.arg(key);
        }
        cmd
    }

    /// Whether Redis knows it by this hash.
    pub(super) fn has_hash(&self, hash: &[u8]) -> bool {
        self.hash.as_bytes() == hash
    }

    /// Makes it known to Redis.
    pub(super) fn load(&self) -> Cmd {
        let mut cmd = redis::cmd("SCRIPT");
        cmd.arg("LOAD").arg(self.code);
        cmd
    }

    fn hash(&self) -> String {
        let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, self.code.as_bytes());
        hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A number that no epoch had before: by chance, as two Redis may not know of each other.
pub(super) fn new_epoch() -> u64 {
    rand::random::<u64>().max(1)
}
