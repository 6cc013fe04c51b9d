//! Devices with TLS in a run: what they do with records, and the check that no nonce is used twice.

use std::io::IoSlice;

use weir_wire::CloseReason;

use super::driver::Run;
use super::fault::Fault;
use crate::tls::{Alert, seals};

impl Run {
    /// Seals this many of the composed bytes, and writes them.
    pub(super) fn write_sealed(&mut self, index: usize, bytes: usize) {
        let conn = &mut self.conns[index];
        let Some(tls) = &mut conn.tls else { return };
        if tls.end.is_none() {
            let bytes = bytes.min(conn.incoming.unsent.len());
            let plaintext: Vec<u8> = conn.incoming.unsent.drain(..bytes).collect();
            let mut updates = 0;
            tls.seal(&plaintext, &mut self.dice, &mut updates);
            for _ in 0..updates {
                self.faults.note(Fault::KeyUpdate);
            }
        }
        let written = tls.take_unsent(&mut self.dice);
        let peer = conn.peer;
        self.shard.peer_write(peer, &written);
    }

    /// Sends bytes that are no record, or an alert, if the connection has TLS. Returns whether it
    /// has.
    pub(super) fn break_record(&mut self, index: usize) -> bool {
        let kind = self.dice.below(4);
        let at = self.dice.below(1 << 16) as usize;
        let conn = &mut self.conns[index];
        let Some(tls) = &mut conn.tls else { return false };
        if tls.end.is_some() {
            return true;
        }
        match kind {
            0 => {
                self.faults.note(Fault::BitFlip);
                let mut out = Vec::new();
                let sealed = tls.session.seal(&[IoSlice::new(&[7; 16])], &mut out);
                assert_eq!(sealed, Ok(16), "a device's keys are never spent");
                let at = 5 + at % (out.len() - 5);
                out[at] ^= 1;
                tls.enter_bad(&out, out.len());
            }
            1 => {
                self.faults.note(Fault::NoRecord);
                tls.enter_bad(&[99, 3, 3, 0, 40, 1, 2, 3], 5);
            }
            2 => {
                self.faults.note(Fault::NoRecord);
                tls.enter_bad(&[23, 3, 3, 0xff, 0xff], 5);
            }
            _ => {
                self.faults.note(Fault::FatalAlert);
                tls.is_mute = true;
                tls.seal_end(Alert::UnexpectedMessage, CloseReason::TlsRecord);
            }
        }
        conn.asked.push(CloseReason::TlsRecord);
        self.write_sealed(index, 0);
        true
    }

    /// Sends `close_notify`, if the connection has TLS.
    pub(super) fn end_sealed(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        let Some(tls) = &mut conn.tls else { return };
        if tls.end.is_some() {
            return;
        }
        self.faults.note(Fault::CloseNotify);
        tls.seal_end(Alert::CloseNotify, CloseReason::PeerClosed);
        conn.asked.push(CloseReason::PeerClosed);
        self.write_sealed(index, 0);
    }

    /// Checks that no number is used twice under a key, whether the record has left or not.
    pub(super) fn check_seals(&mut self) -> Result<(), String> {
        for seal in seals::take() {
            if !self.sealed.insert((seal.key, seal.nonce)) {
                return Err(format!("sealed twice under one nonce: {seal:?}"));
            }
        }
        Ok(())
    }

    /// Notes which records have left in part.
    pub(super) fn note_sealed(&mut self) {
        let (now, turn) = (self.shard.now(), self.book.turn);
        for index in &self.live {
            let conn = &mut self.conns[*index];
            if let (Some(tls), Some(id)) = (&mut conn.tls, conn.id) {
                tls.note_sealed(self.shard.shard().has_sealed(id), now, turn);
            }
        }
    }
}
