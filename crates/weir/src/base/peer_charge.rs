//! Charges to a share of the byte budget, for connections of unknown peers.

use std::sync::Arc;

use weir_engine::{Budget, Share};

/// Bytes of a share that stay taken as long as this lives.
///
/// Limits: the share's limit; less of the share for a connection with more bytes (see [`eighths`]).
/// So a few peers that send much cannot keep out the peers that send little.
#[derive(Debug)]
pub(crate) struct PeerCharge {
    budget: Arc<Budget>,
    share: Share,
    bytes: usize,
}

/// The share has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

impl PeerCharge {
    /// A charge of zero bytes.
    pub(crate) fn none(budget: &Arc<Budget>, share: Share) -> PeerCharge {
        PeerCharge { budget: Arc::clone(budget), share, bytes: 0 }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the charge to `bytes`. Without room it stays as it is.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), NoRoom> {
        match bytes.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) => {
                self.take(more, eighths(self.share, bytes))?;
            }
            None => self.budget.give(self.share, self.bytes - bytes),
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Another charge to the same share, for data of our own in addition to the peer's bytes.
    pub(crate) fn of_ours(&self, bytes: usize) -> Result<PeerCharge, NoRoom> {
        self.take(bytes, OUR_EIGHTHS)?;
        Ok(PeerCharge { budget: Arc::clone(&self.budget), share: self.share, bytes })
    }

    fn take(&self, bytes: usize, eighths: usize) -> Result<(), NoRoom> {
        let max = self.budget.bytes_max_of(self.share) / 8 * eighths;
        self.budget.take_within(self.share, bytes, max).then_some(()).ok_or(NoRoom)
    }

    /// Charges the same bytes to another share instead.
    pub(crate) fn move_to(&mut self, share: Share) -> Result<(), NoRoom> {
        let mut moved = PeerCharge::none(&self.budget, share);
        moved.set(self.bytes)?;
        *self = moved;
        Ok(())
    }
}

impl Drop for PeerCharge {
    fn drop(&mut self) {
        self.budget.give(self.share, self.bytes);
    }
}

/// The eighths of a share that are open to a connection with this many bytes in it.
///
/// Most `Hello` have less than 512 bytes. With a signed token they have 1 or 2 KiB, and so has a
/// ClientHello. Peers that send as much as they may can fill half of the share and no more.
///
/// Requests and answers of HTTP have up to six eighths of its share (see `limits/http_ledger.rs`).
/// The remaining part is for pieces of large bodies.
fn eighths(share: Share, bytes: usize) -> usize {
    match bytes {
        1025.. if share == Share::Http => 7,
        0..=512 => 8,
        513..=1024 => 7,
        1025..=2048 => 6,
        2049..=4096 => 5,
        _ => 4,
    }
}

/// The same for data of our own, so that full handshakes do not fill the share.
const OUR_EIGHTHS: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    /// A budget with 32 KiB for unsettled connections.
    fn budget() -> Arc<Budget> {
        let budget = Budget::new(1 << 20);
        assert_eq!(budget.bytes_max_of(Share::Unsettled), 32 * 1024);
        budget
    }

    #[test]
    fn what_is_charged_is_given_back() {
        let budget = budget();
        let mut charge = PeerCharge::none(&budget, Share::Unsettled);
        assert_eq!(charge.set(3_000), Ok(()));
        assert_eq!(charge.set(1_000), Ok(()));
        assert_eq!(budget.used_of(Share::Unsettled), 1_000);
        assert_eq!(charge.set(32 * 1024), Err(NoRoom));
        assert_eq!((charge.bytes(), budget.used_of(Share::Unsettled)), (1_000, 1_000));
        drop(charge);
        assert_eq!((budget.used(), budget.refused_of(Share::Unsettled)), (0, 1));
    }

    #[test]
    fn those_that_send_much_leave_room_for_those_that_send_little() {
        let budget = budget();
        let mut charges = Vec::new();
        // As many of each size as find room, the largest first.
        for (bytes, filled) in [(8_192, 16), (4_096, 20), (2_048, 24), (1_024, 28), (512, 32)] {
            loop {
                let mut charge = PeerCharge::none(&budget, Share::Unsettled);
                if charge.set(bytes).is_err() {
                    break;
                }
                charges.push(charge);
            }
            assert_eq!(budget.used_of(Share::Unsettled), filled * 1024, "by {bytes} each");
        }
    }

    #[test]
    fn one_that_grows_finds_less_and_less() {
        let budget = budget();
        let mut charge = PeerCharge::none(&budget, Share::Unsettled);
        assert_eq!(charge.set(16 * 1024), Ok(()));
        assert_eq!(charge.set(16 * 1024 + 1), Err(NoRoom));
        let ours = charge.of_ours(8 * 1024).map(|ours| ours.bytes());
        assert_eq!(ours, Ok(8 * 1024));
        assert!(charge.of_ours(8 * 1024 + 1).is_err());
        assert_eq!(budget.used(), 16 * 1024);
    }

    #[test]
    fn a_charge_moves_as_a_whole_or_not_at_all() {
        let budget = budget();
        let mut charge = PeerCharge::none(&budget, Share::Http);
        assert_eq!(charge.set(20 * 1024), Ok(()));
        assert_eq!(charge.move_to(Share::Unsettled), Err(NoRoom));
        assert_eq!(budget.used(), 20 * 1024);
        assert_eq!(charge.set(10 * 1024), Ok(()));
        assert_eq!(charge.move_to(Share::Unsettled), Ok(()));
        let used = [Share::Http, Share::Unsettled].map(|share| budget.used_of(share));
        assert_eq!(used, [0, 10 * 1024]);
    }
}
