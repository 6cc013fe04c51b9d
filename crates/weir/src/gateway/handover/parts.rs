//! The parts of a hand-over: what they are called on the link, and what they are in each version of
//! the format.

use weir_engine::{Engine, Transport};
use weir_wire::ProstMessage as _;
use weir_wire::handover::v1;
use zeroize::Zeroizing;

use crate::handover::NotMoved;

/// The listening sockets, and those for datagrams, with their names.
pub(super) const LISTENERS_PART: &str = "listeners";
/// Sockets that a shard lends before the pause.
pub(super) const LENT_PART: &str = "lent";
/// Of a lent socket: the id of its connection, and its priority.
pub(super) const LENT_BYTES: usize = 9;
/// Everything that a shard knows.
pub(super) const SHARD_PART: &str = "shard";
/// Everything that the front knows.
pub(super) const FRONT_PART: &str = "front";
/// Retained messages that come before the pause.
pub(super) const RINGS_PART: &str = "rings";

/// Encodes the front in a version of the format that this program writes.
pub(super) fn encode(front: &v1::Front, format: u32) -> Vec<u8> {
    let mut bytes = front.encode_to_vec();
    if is_of_tests(format) {
        bytes.reverse();
    }
    bytes
}

/// Decodes the front from a version of the format that this program reads.
pub(super) fn decode(mut bytes: Zeroizing<Vec<u8>>, format: u32) -> Result<v1::Front, NotMoved> {
    if is_of_tests(format) {
        bytes.reverse();
    }
    v1::Front::decode(&**bytes).map_err(NotMoved::because)
}

/// Whether this is the version that only a test build knows: the fields of version 1, and the bytes
/// backwards.
fn is_of_tests(format: u32) -> bool {
    cfg!(feature = "next-format") && format == 2
}

/// Settled connections by transport.
pub(super) fn settled(engine: &Engine) -> Vec<(&'static str, u64)> {
    let of = |transport: Transport| -> u64 {
        let shards = 0..engine.shard_count();
        shards.map(|shard| engine.stats(shard).connections.of(transport).get()).sum()
    };
    Transport::ALL.map(|transport| (transport.name(), of(transport))).into()
}
