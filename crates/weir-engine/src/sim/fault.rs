//! The faults of a run: the kinds, their rates, and their counts.

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
    /// The kernel takes less than it has room for.
    PartialWrite,
    /// The kernel refuses a send several times although it has room.
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
    /// The shard has no free descriptor for a socket in the passage.
    NoDescriptor,
    /// The passage of sockets is full.
    PassageFull,
    /// A new connection takes a slot in the turn after the slot was freed.
    SlotReuse,
    /// A slot has no generation left.
    SlotRetired,
    /// The node gets another number.
    Renumbered,
    /// The front takes no reports for a while.
    FrontFull,
    /// Another user holds nearly all of the byte budget.
    BudgetHeld,
    /// The queue has no credit.
    LaneFull,
    /// The reserved queue is full.
    ReservedFull,
    /// Readiness is announced although nothing is ready.
    SpuriousEdge,
    /// Readiness is announced for a closed socket.
    LateEdge,
    /// Readiness is announced only in part.
    ShortWait,
    /// The peer sends bytes that are no frame or no message.
    Garbage,
    /// The peer announces a frame over the limit.
    Oversized,
    /// The peer sends a frame byte by byte.
    Drip,
    /// The peer falls silent.
    Silence,
    /// The peer changes its keys, and may ask us to change ours.
    KeyUpdate,
    /// A bit of a record flips on its way.
    BitFlip,
    /// The peer sends bytes that are no record.
    NoRecord,
    /// The peer sends a fatal alert.
    FatalAlert,
    /// The peer sends `close_notify`.
    CloseNotify,
    /// The peer ends its WebSocket.
    CloseFrame,
    /// The shard is handed over to another process.
    HandOver,
}

impl Fault {
    /// Every kind, in the order of its number.
    pub const ALL: [Fault; 35] = [
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
        Fault::NoDescriptor,
        Fault::PassageFull,
        Fault::SlotReuse,
        Fault::SlotRetired,
        Fault::Renumbered,
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
        Fault::HandOver,
    ];
}

/// How often the simulated kernel fails by itself, and how often each fault has happened.
///
/// Shape: rates are per call, in 65,536ths; all are 0 at first.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// For a send: it takes only a part.
    pub partial_write: u32,
    /// For a send: it begins a storm of refusals.
    pub refusal_storm: u32,
    /// For any call: it is interrupted.
    pub interrupted: u32,
    /// For an adoption: it fails.
    pub adopt_failed: u32,
    /// For a socket in the passage: the shard has no free descriptor.
    pub no_descriptor: u32,
    /// For a wait: it announces readiness although nothing is ready.
    pub spurious_edge: u32,
    /// For a wait: it announces readiness of a closed socket.
    pub late_edge: u32,
    /// For a wait: it announces only a part of the readiness.
    pub short_wait: u32,
    pub(super) counts: Counts,
}

/// By fault.
#[derive(Debug, Clone)]
pub(super) struct Counts([u64; Fault::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Counts([0; Fault::ALL.len()])
    }
}

impl Faults {
    /// How often `fault` has happened.
    pub fn count(&self, fault: Fault) -> u64 {
        self.counts.0[fault as usize]
    }

    /// Counts one `fault`.
    pub fn note(&mut self, fault: Fault) {
        self.counts.0[fault as usize] += 1;
    }

    /// Adds the counts of other faults.
    pub fn add(&mut self, other: &Faults) {
        for (count, more) in self.counts.0.iter_mut().zip(other.counts.0) {
            *count += more;
        }
    }
}
