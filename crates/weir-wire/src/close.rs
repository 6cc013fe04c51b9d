//! Why a connection ended: a closed set, shared by everyone who says it or hears it.

use std::fmt;

/// Why a connection ended.
///
/// Shape: one byte. Every end of a connection has exactly one reason; it is counted under [`CloseReason::name`] and,
/// where the socket still takes bytes, told to the device in `Goodbye` with [`CloseReason::code`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum CloseReason {
    /// The peer closed its side in an orderly way (FIN).
    PeerClosed,
    /// The peer reset the connection (`ECONNRESET`, `EPIPE`).
    PeerReset,
    /// The kernel gave up: sent bytes stayed unacknowledged for `user_timeout` (`ETIMEDOUT`).
    KernelTimeout,
    /// Another error of the socket, such as an unreachable host.
    SocketError,
    /// Nothing whole was heard for two heartbeats.
    HeartbeatMissed,
    /// No whole `Hello` within `hello_timeout`.
    HelloTimeout,
    /// A frame that had begun was not complete within `frame_timeout`.
    FrameTimeout,
    /// A frame announced more bytes than `frame_bytes_max`.
    FrameTooLarge,
    /// Bytes that are no frame or no message, or a first message that is not `Hello`.
    Malformed,
    /// The device did not take what was sent to it for `stall_timeout`.
    Stalled,
    /// The byte budget was used up and this connection was the one to give way.
    BudgetExhausted,
    /// A newer connection of the same device took its place.
    Replaced,
    /// The token is wrong or does not permit the device id, or anonymous mode is off.
    Unauthorized,
    /// The device's permission was withdrawn.
    Revoked,
    /// The credentials have ended, and no new ones came.
    Expired,
    /// What keeps the tokens could not be asked.
    StoreUnavailable,
    /// An operator closed it.
    ClosedByOperator,
    /// A limit on connections was reached.
    TooManyConnections,
    /// It published faster than `limits.publishes_per_second`, after having been told so.
    RateLimited,
    /// The TLS handshake failed, or was refused.
    TlsHandshake,
    /// A record that TLS does not permit, or an alert that ended it.
    TlsRecord,
    /// As many records as the cipher permits were sent under keys that TLS 1.2 cannot change.
    TlsKeysSpent,
    /// The server shuts down.
    Draining,
    /// A fault of the server's own.
    Internal,
}

/// What a device should do after a close: the meaning of the code's range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Reconnect now (codes 4000 to 4099).
    ReconnectNow,
    /// Reconnect after the delay in `Goodbye` (codes 4100 to 4199).
    ReconnectLater,
    /// Reconnect with other credentials (codes 4200 to 4299).
    FixCredentials,
    /// Do not come back: the same would happen again (codes 4300 to 4399).
    DoNotReturn,
}

impl CloseReason {
    /// Every reason, in the order of [`CloseReason::index`].
    pub const ALL: [CloseReason; 24] = [
        CloseReason::PeerClosed,
        CloseReason::PeerReset,
        CloseReason::KernelTimeout,
        CloseReason::SocketError,
        CloseReason::HeartbeatMissed,
        CloseReason::HelloTimeout,
        CloseReason::FrameTimeout,
        CloseReason::FrameTooLarge,
        CloseReason::Malformed,
        CloseReason::Stalled,
        CloseReason::BudgetExhausted,
        CloseReason::Replaced,
        CloseReason::Unauthorized,
        CloseReason::Revoked,
        CloseReason::Expired,
        CloseReason::StoreUnavailable,
        CloseReason::ClosedByOperator,
        CloseReason::TooManyConnections,
        CloseReason::RateLimited,
        CloseReason::TlsHandshake,
        CloseReason::TlsRecord,
        CloseReason::TlsKeysSpent,
        CloseReason::Draining,
        CloseReason::Internal,
    ];

    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// Position in [`CloseReason::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The code in `Goodbye`, from 4000 to 4399: also valid as a WebSocket close code (RFC 6455 §7.4.2).
    pub const fn code(self) -> u16 {
        match self {
            CloseReason::PeerClosed => 4000,
            CloseReason::PeerReset => 4001,
            CloseReason::KernelTimeout => 4002,
            CloseReason::SocketError => 4003,
            CloseReason::HeartbeatMissed => 4004,
            CloseReason::Stalled => 4005,
            CloseReason::ClosedByOperator => 4006,
            CloseReason::TlsKeysSpent => 4007,
            CloseReason::Draining => 4100,
            CloseReason::TooManyConnections => 4101,
            CloseReason::BudgetExhausted => 4102,
            CloseReason::Internal => 4103,
            CloseReason::HelloTimeout => 4104,
            CloseReason::RateLimited => 4105,
            CloseReason::StoreUnavailable => 4106,
            CloseReason::Unauthorized => 4200,
            CloseReason::Revoked => 4201,
            CloseReason::Expired => 4202,
            CloseReason::Malformed => 4300,
            CloseReason::FrameTooLarge => 4301,
            CloseReason::FrameTimeout => 4302,
            CloseReason::Replaced => 4303,
            CloseReason::TlsHandshake => 4304,
            CloseReason::TlsRecord => 4305,
        }
    }

    /// The reason as a metric label and in logs.
    pub const fn name(self) -> &'static str {
        match self {
            CloseReason::PeerClosed => "peer_closed",
            CloseReason::PeerReset => "peer_reset",
            CloseReason::KernelTimeout => "kernel_timeout",
            CloseReason::SocketError => "socket_error",
            CloseReason::HeartbeatMissed => "heartbeat_missed",
            CloseReason::HelloTimeout => "hello_timeout",
            CloseReason::FrameTimeout => "frame_timeout",
            CloseReason::FrameTooLarge => "frame_too_large",
            CloseReason::Malformed => "malformed",
            CloseReason::Stalled => "stalled",
            CloseReason::BudgetExhausted => "budget_exhausted",
            CloseReason::Replaced => "replaced",
            CloseReason::Unauthorized => "unauthorized",
            CloseReason::Revoked => "revoked",
            CloseReason::Expired => "expired",
            CloseReason::StoreUnavailable => "store_unavailable",
            CloseReason::ClosedByOperator => "closed_by_operator",
            CloseReason::TooManyConnections => "too_many_connections",
            CloseReason::RateLimited => "rate_limited",
            CloseReason::TlsHandshake => "tls_handshake",
            CloseReason::TlsRecord => "tls_record",
            CloseReason::TlsKeysSpent => "tls_keys_spent",
            CloseReason::Draining => "draining",
            CloseReason::Internal => "internal",
        }
    }

    /// The reason whose code this is, if any.
    pub fn from_code(code: u32) -> Option<CloseReason> {
        Self::ALL.into_iter().find(|reason| u32::from(reason.code()) == code)
    }

    /// Whether the device may still hear why. After its own end, a reset or a failure there is nobody to tell.
    pub const fn can_be_told(self) -> bool {
        !matches!(
            self,
            CloseReason::PeerClosed
                | CloseReason::PeerReset
                | CloseReason::KernelTimeout
                | CloseReason::SocketError
        )
    }

    /// What the device should do next.
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
