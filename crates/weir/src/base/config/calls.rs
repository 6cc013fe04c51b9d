//! Sections `[calls]` and `[[calls.routes]]`.

use std::time::Duration;

use super::Actor;
use super::keys::HOUR;

crate::config_table! {
    /// Section `[calls]`: calls of devices to backends, and of backends to devices.
    pub struct CallsConfig {
        /// Calls at the same time, in both directions together. One more is refused with `busy`.
        // A call takes some two kilobytes beside its payload.
        calls_max: usize = 65_536, range(1..=CALLS_MAX), unit("calls"), reload();
        /// Calls of one connection at the same time, in each direction. One more is refused with
        /// `busy`.
        calls_per_connection_max: usize = 16, range(1..=1_024), unit("calls"), reload();
        /// Bytes of the payloads of all calls that wait, with the answers that come in. A call that
        /// finds no room is refused with `busy`.
        // They are outside the byte budget.
        payload_bytes_max: usize = 64 << 20, range(128 << 10..=16 << 30), unit("bytes"), reload();
        /// How long a call waits that names no time, at most `calls.deadline_max`.
        deadline: Duration = Duration::from_secs(10), range(1..=HOUR), reload();
        /// The longest time that a call may wait. A device that asks for more gets this much.
        deadline_max: Duration = Duration::from_secs(60), range(1..=HOUR), reload();
        /// Where calls of devices go, by their method. Without a fitting route, the answer is
        /// `unsupported`. Only the file can set them.
        routes: Vec<CallRouteConfig>, range(0..=ROUTES_MAX), unit("routes"),
            reason(": a call's method is compared with them all"), reload();
    }
}

crate::config_table! {
    /// One of `[[calls.routes]]`: the upstream for calls of devices whose method fits.
    pub struct CallRouteConfig
        in "tables [[calls.routes]], each with a method and an upstream"
    {
        /// The method, or the beginning of methods and `*`, as in `orders/*`. The longest one that
        /// fits a call counts.
        method: String, needed(), example("\"orders/*\""),
            allowed(
                "1 to {METHOD_BYTES_MAX} bytes: letters, digits, \".\", \"_\" and \"-\", in segments \
                 joined by \"/\"; a \"*\" may stand at the end; no two alike"
            );
        /// The name of one of `[[upstreams]]`.
        upstream: String, needed(), example("\"api\""), allowed("the name of one of [[upstreams]]");
        /// How the upstream is asked. `http`: by POST. `grpc`: by a unary call of gRPC; the
        /// upstream speaks `http2`, and the payload is the message's bytes.
        protocol: CallProtocol, allowed("\"grpc\" only for an upstream with protocol = \"http2\"");
        /// The path before the method: with `/rpc`, the method `orders/price` is asked at
        /// `/rpc/orders/price`.
        path: String = "/".to_owned(), allowed("a path that begins with \"/\", without \"..\"");
        /// Callers that may use the route: every device, services with the right `call`, devices
        /// whose token has the label.
        callers: Vec<Actor> = vec![Actor::Devices, Actor::Services],
            allowed("labels that a token carries");
        /// Whether a call may reach the upstream twice. If so, it is tried again where the first try
        /// has no answer. Otherwise it is tried again only if no byte of it was sent.
        idempotent: bool;
        /// Calls of the route at the same time. One more is refused with `busy`.
        calls_max: usize = 16_384, range(1..=CALLS_MAX), unit("calls");
        /// Longest payload of a call, and of its answer. 0: as `limits.frame_bytes_max` permits.
        payload_bytes_max: usize, range(0..=16 << 20), unit("bytes");
    }
}

weir_wire::named_enum! {
    /// How an upstream is asked for calls.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum CallProtocol {
        /// A POST for each call.
        #[default]
        Http = "http",
        /// A unary call of gRPC.
        Grpc = "grpc",
    }
}

crate::config_words!(CallProtocol);

/// As many take some two gigabytes beside their payloads.
const CALLS_MAX: u64 = 1 << 20;
const ROUTES_MAX: u64 = 256;
/// It stands in the path of a request.
pub(crate) const METHOD_BYTES_MAX: usize = 255;
