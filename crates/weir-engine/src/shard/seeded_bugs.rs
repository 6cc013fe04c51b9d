//! The seeded bugs in a shard, and other access for the simulator. The product contains none of it.

#[cfg(any(test, feature = "sim"))]
use std::sync::Arc;

use super::Shard;
#[cfg(any(test, feature = "sim"))]
use super::Slices;
use crate::command::Front;
#[cfg(any(test, feature = "sim"))]
use crate::handover::ShardExport;
use crate::net::Net;
#[cfg(any(test, feature = "sim"))]
use crate::seeded_bug::SeededBug;
use crate::slot::Slot;

#[cfg(any(test, feature = "sim"))]
impl<N: Net, F: Front> Shard<N, F> {
    pub(crate) fn net_mut(&mut self) -> &mut N {
        &mut self.net
    }

    pub(crate) fn front_mut(&mut self) -> &mut F {
        &mut self.front
    }

    pub(crate) fn seed_bug(&mut self, bug: SeededBug) {
        self.seeded_bug = Some(bug);
    }

    pub(crate) fn cut_turns(&mut self, slices: Slices, recv_bytes: usize) {
        self.slices = slices;
        self.recv_buf = vec![0; recv_bytes].into_boxed_slice();
    }

    pub(crate) fn cut_replies(&mut self, bytes: usize) {
        self.slices.replies = bytes;
    }

    pub(crate) fn cut_generations(&mut self, generation_max: u32) {
        self.table.set_generation_max(generation_max);
    }

    /// Puts the bugs of a handover into what was taken out.
    pub(super) fn spoil_export(&self, export: &mut ShardExport<N::Socket>) {
        if self.seeded_bug == Some(SeededBug::RepeatedRemainder) {
            let outboxes = export.connections.iter_mut().filter_map(|one| one.outbox.as_mut());
            outboxes.for_each(|outbox| outbox.sent = 0);
        }
    }

    /// Puts the bugs of a handover into what was put in.
    pub(super) fn spoil_import(&mut self) {
        for slot in Slot::all(0..self.table.slots()) {
            match self.seeded_bug {
                Some(SeededBug::RepeatedNumber) => {
                    if let Some(tls) = self.tls.get_mut(self.table[slot].tls) {
                        tls.repeat_number();
                    }
                }
                Some(SeededBug::LostDeadline) if slot.index() % 8 == 3 => {
                    self.wheel.disarm(&mut self.table, slot);
                }
                Some(SeededBug::PinnedMessage) => {
                    let outbox = self.table[slot].outbox.as_ref();
                    if let Some(message) = outbox.and_then(|outbox| outbox.first_message()) {
                        message.hold_anyway();
                        std::mem::forget(Arc::clone(message));
                        return;
                    }
                }
                _ => {}
            }
        }
    }

    pub(super) fn is_seeded_stale_slot(&self) -> bool {
        self.seeded_bug == Some(SeededBug::StaleSlot)
    }

    pub(super) fn is_seeded_deaf_timer(&self, slot: Slot) -> bool {
        self.seeded_bug == Some(SeededBug::DeafTimer) && slot.index() % 8 == 3
    }

    pub(super) fn is_seeded_lost_remainder(&self) -> bool {
        self.seeded_bug == Some(SeededBug::LostRemainder)
    }

    pub(super) fn is_seeded_skip(&self, cursor: u32) -> bool {
        self.seeded_bug == Some(SeededBug::SkippedSubscriber) && cursor % 16 == 5
    }

    pub(super) fn is_seeded_leak(&self) -> bool {
        self.seeded_bug == Some(SeededBug::LeakedBudget)
    }

    pub(super) fn is_seeded_short_resume(&self) -> bool {
        self.seeded_bug == Some(SeededBug::ShortResume)
    }

    pub(super) fn is_seeded_older_kept(&self) -> bool {
        self.seeded_bug == Some(SeededBug::OlderKept)
    }

    pub(super) fn is_seeded_dropped_committed(&self) -> bool {
        self.seeded_bug == Some(SeededBug::DroppedCommitted)
    }

    /// The bug of a nonce used twice.
    pub(super) fn seed_reused_nonce(&mut self, slot: Slot) {
        if self.seeded_bug == Some(SeededBug::ReusedNonce)
            && let Some(tls) = self.tls.get_mut(self.table[slot].tls)
        {
            tls.repeat_number();
        }
    }

    pub(super) fn is_seeded_early_skip(&self, slot: Slot) -> bool {
        let waiting = self.table[slot].outbox.as_ref().map_or(0, |outbox| outbox.bytes());
        self.seeded_bug == Some(SeededBug::EarlySkip)
            && waiting > self.settings.high_watermark_bytes / 2
    }

    pub(super) fn is_seeded_early_position(&self) -> bool {
        self.seeded_bug == Some(SeededBug::EarlyPosition)
    }

    pub(super) fn is_seeded_forgotten_message(&self) -> bool {
        self.seeded_bug == Some(SeededBug::ForgottenMessage)
    }

    pub(super) fn is_seeded_unmoved_fragment(&self) -> bool {
        self.seeded_bug == Some(SeededBug::UnmovedFragment)
    }

    pub(super) fn is_seeded_left_out_answer(&self) -> bool {
        self.seeded_bug == Some(SeededBug::LeftOutAnswer)
    }
}

#[cfg(not(any(test, feature = "sim")))]
#[expect(
    clippy::unused_self,
    reason = "their counterparts under the simulator look at the seeded bug and count"
)]
impl<N: Net, F: Front> Shard<N, F> {
    pub(super) const fn is_seeded_stale_slot(&self) -> bool {
        false
    }

    pub(super) const fn is_seeded_deaf_timer(&self, _slot: Slot) -> bool {
        false
    }

    pub(super) const fn is_seeded_lost_remainder(&self) -> bool {
        false
    }

    pub(super) const fn is_seeded_skip(&self, _cursor: u32) -> bool {
        false
    }

    pub(super) const fn is_seeded_leak(&self) -> bool {
        false
    }

    pub(super) const fn is_seeded_short_resume(&self) -> bool {
        false
    }

    pub(super) const fn is_seeded_older_kept(&self) -> bool {
        false
    }

    pub(super) const fn is_seeded_dropped_committed(&self) -> bool {
        false
    }

    pub(super) const fn seed_reused_nonce(&self, _slot: Slot) {}

    pub(super) const fn is_seeded_early_skip(&self, _slot: Slot) -> bool {
        false
    }

    pub(super) const fn is_seeded_early_position(&self) -> bool {
        false
    }

    pub(super) const fn is_seeded_forgotten_message(&self) -> bool {
        false
    }

    pub(super) const fn is_seeded_unmoved_fragment(&self) -> bool {
        false
    }

    pub(super) const fn is_seeded_left_out_answer(&self) -> bool {
        false
    }

    pub(super) const fn note_accepted(&self) {}

    pub(super) const fn note_slow(&self, _slot: Slot, _lags: bool) {}

    pub(super) const fn note_sent(&self, _count: u64) {}
}
