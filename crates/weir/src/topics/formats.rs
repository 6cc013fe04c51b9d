//! The formats that a topic's subscribers read.

use std::sync::atomic::{AtomicU8, Ordering};

use weir_engine::Message;
use weir_engine::handover::NotUnderstood;
use weir_wire::format::Format;

use crate::base::handover::{narrow, refused};
use crate::observe::counters::Counters;

/// Formats, other than frames of a stream, that some subscriber has asked for since the topic
/// began.
///
/// Shape: one bit each. A bit stays set: a format that left often returns, and a topic without
/// subscribers ends.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Formats(u8);

/// The same for all connections.
#[derive(Debug, Default)]
pub(crate) struct SharedFormats(AtomicU8);

impl Formats {
    pub(crate) fn add(&mut self, format: Format) {
        if format != Format::Stream {
            self.0 |= 1 << format.index();
        }
    }

    pub(super) fn export(self) -> u32 {
        self.0.into()
    }

    pub(super) fn import(formats: u32) -> Result<Formats, NotUnderstood> {
        let mut known = Formats::default();
        Format::ALL.into_iter().for_each(|format| known.add(format));
        match narrow::<u8>("topic.formats", formats)? {
            formats if formats & !known.0 == 0 => Ok(Formats(formats)),
            formats => Err(refused("topic.formats", formats)),
        }
    }

    /// Encodes a message in all these formats; `false` if the budget has no room.
    pub(crate) fn encode_ahead(self, message: &Message, counters: &Counters) -> bool {
        let wanted = |format: &Format| self.0 & (1 << format.index()) != 0;
        Format::ALL.into_iter().filter(wanted).all(|format| {
            let is_made = message.encode_ahead(format);
            if is_made {
                counters.count_encoded(format);
            }
            is_made
        })
    }
}

impl SharedFormats {
    pub(crate) fn add(&self, format: Format) {
        let mut formats = Formats::default();
        formats.add(format);
        self.0.fetch_or(formats.0, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Formats {
        Formats(self.0.load(Ordering::Relaxed))
    }
}
