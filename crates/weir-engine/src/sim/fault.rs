//! The faults of a run: which there are, how often they are injected, and how often they came.

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// The peer resets the connection.
    Reset,
    /// The peer ends its side.
    HalfClose,
    /// The kernel gives up: bytes stayed unacknowledged.
    KernelTimeout,
    /// The kernel cannot reach the peer any more.
    Unreachable,
    /// The kernel takes a part of what it has room for.
    PartialWrite,
    /// The kernel refuses a send several times though there would be room.
    RefusalStorm,
    /// A system call is interrupted.
    Interrupted,
    /// The peer stops reading for a while.
    Stall,
    /// The peer reads slowly.
    SlowReader,
    /// The clock jumps forward.
    ClockJump,
    /// The clock stands still.
    ClockStill,
    /// A socket cannot be registered.
    AdoptFailed,
    /// A slot is taken again in the turn after it was freed.
    SlotReuse,
    /// The front takes no reports for a while.
    FrontFull,
    /// Somebody else holds nearly all of the byte budget.
    BudgetHeld,
    /// The queue has no credit.
    LaneFull,
    /// The reserved queue is full.
    ReservedFull,
    /// Readiness is announced for nothing.
    SpuriousEdge,
    /// Readiness is announced for a socket that is closed.
    LateEdge,
    /// Only a part of what is ready is announced at once.
    ShortWait,
    /// The peer sends bytes that are no frame or no message.
    Garbage,
    /// The peer announces a frame over the limit.
    Oversized,
    /// The peer sends a frame byte by byte.
    Drip,
    /// The peer says nothing any more.
    Silence,
    /// The peer changes its keys, and may want ours changed.
    KeyUpdate,
    /// A bit of a record flips on its way.
    BitFlip,
    /// The peer sends what is no record.
    NoRecord,
    /// The peer sends a fatal alert.
    FatalAlert,
    /// The peer ends its records.
    CloseNotify,
    /// The peer ends its WebSocket.
    CloseFrame,
}

impl Fault {
    /// Every kind, in the order of its number.
    pub const ALL: [Fault; 30] = [
        Fault::Reset,
        Fault::HalfClose,
        Fault::KernelTimeout,
        Fault::Unreachable,
        Fault::PartialWrite,
        Fault::RefusalStorm,
        Fault::Interrupted,
        Fault::Stall,
        Fault::SlowReader,
        Fault::ClockJump,
        Fault::ClockStill,
        Fault::AdoptFailed,
        Fault::SlotReuse,
        Fault::FrontFull,
        Fault::BudgetHeld,
        Fault::LaneFull,
        Fault::ReservedFull,
        Fault::SpuriousEdge,
        Fault::LateEdge,
        Fault::ShortWait,
        Fault::Garbage,
        Fault::Oversized,
        Fault::Drip,
        Fault::Silence,
        Fault::KeyUpdate,
        Fault::BitFlip,
        Fault::NoRecord,
        Fault::FatalAlert,
        Fault::CloseNotify,
        Fault::CloseFrame,
    ];
}

/// How often the simulated kernel fails by itself, and how often any fault has happened.
///
/// Shape: rates are per call, in 65,536ths; all are 0 at first.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Of a send: takes only a part.
    pub partial_write: u32,
    /// Of a send: begins a storm of refusals.
    pub refusal_storm: u32,
    /// Of any call: is interrupted.
    pub interrupted: u32,
    /// Of an adoption: fails.
    pub adopt_failed: u32,
    /// Of a wait: announces readiness for nothing.
    pub spurious_edge: u32,
    /// Of a wait: announces readiness of a closed socket.
    pub late_edge: u32,
    /// Of a wait: announces a part of what is ready.
    pub short_wait: u32,
    pub(super) counts: [u64; Fault::ALL.len()],
}

impl Faults {
    /// How often `fault` has happened.
    pub fn count(&self, fault: Fault) -> u64 {
        self.counts[fault as usize]
    }

    /// Takes note that `fault` has happened.
    pub fn note(&mut self, fault: Fault) {
        self.counts[fault as usize] += 1;
    }

    /// Adds what has happened elsewhere.
    pub fn add(&mut self, other: &Faults) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
    }
}
