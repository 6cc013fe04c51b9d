//! What nodes write each other about calls to devices.

use serde::{Deserialize, Serialize};
use weir_wire::v1;

use crate::backends::calls::NoAnswer;

/// What nodes write each other about calls.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum CallLetter {
    /// Whether a device is there.
    Find {
        ask: u64,
        from: u16,
        device: String,
    },
    Found {
        ask: u64,
        node: u16,
        found: Found,
    },
    /// A call to a device that is there.
    Call {
        ask: u64,
        from: u16,
        device: String,
        call: v1::Call,
    },
    Answered {
        ask: u64,
        answer: Result<v1::Answer, NoAnswer>,
    },
    /// The caller does not wait any more.
    Cancel {
        ask: u64,
        from: u16,
    },
}

/// What a node knows of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Found {
    /// It is not connected there.
    Nothing,
    /// It is connected, and answers no calls.
    Unsupported,
    AnswersCalls,
}
