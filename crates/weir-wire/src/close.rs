//! Why a connection ended. All parts of Weir and its clients share this closed set.

use std::fmt;

crate::named_enum! {
    /// Why a connection ended.
    ///
    /// Shape: one byte. Every end of a connection has exactly one reason. It is counted under
    /// [`CloseReason::name`]. Where the socket still takes bytes, `Goodbye` tells the device its
    /// [`CloseReason::code`], from 4000 to 4399: also a WebSocket close code (RFC 6455 §7.4.2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[repr(u8)]
    pub enum CloseReason {
        /// The peer closed its side in an orderly way (FIN).
        PeerClosed = ("peer_closed", 4000),
        /// The peer reset the connection (`ECONNRESET`, `EPIPE`).
        PeerReset = ("peer_reset", 4001),
        /// The kernel gave up: sent bytes stayed unacknowledged for `user_timeout` (`ETIMEDOUT`).
        KernelTimeout = ("kernel_timeout", 4002),
        /// Another error of the socket, such as an unreachable host.
        SocketError = ("socket_error", 4003),
        /// Nothing whole came for two heartbeats.
        HeartbeatMissed = ("heartbeat_missed", 4004),
        /// No whole `Hello` within `hello_timeout`.
        HelloTimeout = ("hello_timeout", 4104),
        /// A begun frame was not complete within `frame_timeout`.
        FrameTimeout = ("frame_timeout", 4302),
        /// A frame announced more bytes than `frame_bytes_max`.
        FrameTooLarge = ("frame_too_large", 4301),
        /// Bytes that are no frame or no message, or a first message that is not `Hello`.
        Malformed = ("malformed", 4300),
        /// For `stall_timeout` the device did not take the bytes sent to it.
        Stalled = ("stalled", 4005),
        /// The byte budget was used up, and this connection had to end.
        BudgetExhausted = ("budget_exhausted", 4102),
        /// A newer connection of the same device took its place.
        Replaced = ("replaced", 4303),
        /// The token is wrong or does not permit the device id, or anonymous mode is off.
        Unauthorized = ("unauthorized", 4200),
        /// The device's permission was withdrawn.
        Revoked = ("revoked", 4201),
        /// The credentials have ended, and no new ones came.
        Expired = ("expired", 4202),
        /// The store of tokens could not be asked.
        StoreUnavailable = ("store_unavailable", 4106),
        /// An operator closed it.
        ClosedByOperator = ("closed_by_operator", 4006),
        /// A limit on connections was reached.
        TooManyConnections = ("too_many_connections", 4101),
        /// It published faster than `limits.publishes_per_second`, although an error had told it
        /// so.
        RateLimited = ("rate_limited", 4105),
        /// The TLS handshake failed, or was refused.
        TlsHandshake = ("tls_handshake", 4304),
        /// The peer sent a record that TLS does not permit, or an alert that ended the connection.
        TlsRecord = ("tls_record", 4305),
        /// The keys of TLS 1.2, which cannot change, have sealed as many records as the cipher
        /// permits.
        TlsKeysSpent = ("tls_keys_spent", 4007),
        /// The server shuts down.
        Draining = ("draining", 4100),
        /// A fault of the server.
        Internal = ("internal", 4103),
    }
}

/// The advice to a device after a close: the meaning of the code's range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Reconnect now (codes 4000 to 4099).
    ReconnectNow,
    /// Reconnect after the delay in `Goodbye` (codes 4100 to 4199).
    ReconnectLater,
    /// Reconnect with other credentials (codes 4200 to 4299).
    FixCredentials,
    /// Do not come back, because the same would happen again (codes 4300 to 4399).
    DoNotReturn,
}

impl CloseReason {
    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// Position in [`CloseReason::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The reason with this code, if any.
    pub fn from_code(code: u32) -> Option<CloseReason> {
        Self::ALL.into_iter().find(|reason| u32::from(reason.code()) == code)
    }

    /// Whether the device can still be told the reason. After its own end, a reset or a failure it
    /// cannot.
    pub const fn can_be_told(self) -> bool {
        !matches!(
            self,
            CloseReason::PeerClosed
                | CloseReason::PeerReset
                | CloseReason::KernelTimeout
                | CloseReason::SocketError
        )
    }

    /// The advice to the device.
    pub fn advice(self) -> Advice {
        Advice::from_code(u32::from(self.code())).unwrap_or(Advice::ReconnectLater)
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Advice {
    /// The advice for a close code, known or not; `None` outside the four ranges.
    pub const fn from_code(code: u32) -> Option<Advice> {
        match code {
            4000..=4099 => Some(Advice::ReconnectNow),
            4100..=4199 => Some(Advice::ReconnectLater),
            4200..=4299 => Some(Advice::FixCredentials),
            4300..=4399 => Some(Advice::DoNotReturn),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_stands_at_its_index_and_has_a_code_of_its_own() {
        for (index, reason) in CloseReason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index);
            assert_eq!(CloseReason::from_code(u32::from(reason.code())), Some(reason));
            assert!(Advice::from_code(u32::from(reason.code())).is_some());
        }
    }

    #[test]
    fn codes_outside_the_ranges_carry_no_advice() {
        for code in [0, 1000, 3999, 4400] {
            assert_eq!(Advice::from_code(code), None);
        }
    }
}
