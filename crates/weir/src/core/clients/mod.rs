//! The names of client programs. A name is kept once for all connections that use it.

mod handover;

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use weir_engine::{Footprint, Origin, rounded, rounded_table};

/// The names that connections use, by number. A shard carries the number in a connection's origin,
/// where it costs no byte.
///
/// Limits: [`NAMES_MAX`] names at a time, of [`NAME_BYTES_MAX`] bytes. A further name is [`OTHER`].
/// A place is free again when the last connection with its name has ended. Strangers choose names,
/// so the index hashes with a random key.
/// Cost: one lock and one look-up for each connection, and one lock for its end.
pub(crate) struct Clients {
    names: Mutex<Names>,
    other: Arc<str>,
    others: AtomicU64,
}

#[derive(Default)]
struct Names {
    index: HashMap<Arc<str>, u16, RandomState>,
    /// By number, from [`FIRST`] on.
    places: Vec<Option<Place>>,
    free: Vec<u16>,
}

struct Place {
    name: Arc<str>,
    connections: usize,
}

/// A connection's use of a name, until its end gives that back with [`Clients::leave`].
pub(crate) struct Client {
    clients: Arc<Clients>,
    number: u16,
}

impl Default for Clients {
    fn default() -> Self {
        Self { names: Mutex::default(), other: OTHER.into(), others: AtomicU64::new(0) }
    }
}

impl Clients {
    /// Counts one more connection with this name. An empty name is none.
    pub(crate) fn enter(self: &Arc<Self>, name: &str) -> Client {
        let name = readable(name, NAME_BYTES_MAX);
        let number = if name.is_empty() { NONE } else { self.lock().enter(&name) };
        if number == OTHERS {
            self.others.fetch_add(1, Ordering::Relaxed);
        }
        Client { clients: Arc::clone(self), number }
    }

    /// Counts one less.
    pub(crate) fn leave(&self, number: u16) {
        if number < FIRST {
            return;
        }
        // The memory of a name is freed without the lock.
        let left = self.lock().leave(number);
        drop(left);
    }

    /// The name with this number, while a connection uses it.
    pub(crate) fn name(&self, number: u16) -> Option<Arc<str>> {
        match number {
            NONE => None,
            OTHERS => Some(Arc::clone(&self.other)),
            _ => self.lock().place(number).map(|place| Arc::clone(&place.name)),
        }
    }

    /// Names in use.
    pub(crate) fn count(&self) -> usize {
        self.lock().index.len()
    }

    /// Connections so far whose name had no place.
    pub(crate) fn others(&self) -> u64 {
        self.others.load(Ordering::Relaxed)
    }

    /// The names and their tables.
    pub(crate) fn footprint(&self) -> Footprint {
        let names = self.lock();
        let each = names.index.keys().map(|name| rounded(name.len() + ARC_BYTES));
        let bytes = each.sum::<usize>()
            + rounded_table(names.index.capacity(), size_of::<(Arc<str>, u16)>())
            + rounded(names.places.capacity() * size_of::<Option<Place>>())
            + rounded(names.free.capacity() * size_of::<u16>());
        Footprint::new(names.index.len(), bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.names.lock().expect("no panic happens under the names' lock")
    }
}

impl Names {
    fn enter(&mut self, name: &str) -> u16 {
        if let Some(number) = self.index.get(name).copied() {
            if let Some(place) = self.place(number) {
                place.connections += 1;
            }
            return number;
        }
        let Some(number) = self.take_place() else { return OTHERS };
        let name: Arc<str> = name.into();
        self.places[usize::from(number - FIRST)] =
            Some(Place { name: Arc::clone(&name), connections: 1 });
        self.index.insert(name, number);
        number
    }

    fn take_place(&mut self) -> Option<u16> {
        let unused = self.free.pop();
        if unused.is_none() && self.places.len() < NAMES_MAX {
            let number = FIRST + u16::try_from(self.places.len()).ok()?;
            self.places.push(None);
            return Some(number);
        }
        unused
    }

    /// Returns a name that no connection uses any more.
    fn leave(&mut self, number: u16) -> Option<Place> {
        let place = self.place(number)?;
        place.connections -= 1;
        if place.connections > 0 {
            return None;
        }
        let place = self.places[usize::from(number - FIRST)].take()?;
        self.index.remove(&place.name);
        self.free.push(number);
        Some(place)
    }

    fn place(&mut self, number: u16) -> Option<&mut Place> {
        self.places.get_mut(usize::from(number.checked_sub(FIRST)?))?.as_mut()
    }
}

impl Client {
    /// The number that the shard carries.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// The name.
    pub(crate) fn name(&self) -> Option<Arc<str>> {
        self.clients.name(self.number)
    }

    /// The shard has the connection, whose end will give the name back.
    pub(crate) fn settle(mut self) {
        self.number = NONE;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.clients.leave(self.number);
    }
}

/// The beginning of a text that a stranger chose, for the operator's eyes: at most that many bytes,
/// cut between two characters. Instead of a character that a terminal or a page could obey, it has
/// U+FFFD.
pub(crate) fn readable(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max && !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(bytes_max.min(text.len()));
    for letter in text.chars() {
        let letter = if is_obeyed(letter) { char::REPLACEMENT_CHARACTER } else { letter };
        if shown.len() + letter.len_utf8() > bytes_max {
            break;
        }
        shown.push(letter);
    }
    Cow::Owned(shown)
}

/// Control characters, and those that change the direction of a line, join or break it, or show
/// nothing.
fn is_obeyed(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
        )
}

/// The longest name of a client program: some bytes more than a name with its version and platform.
pub(crate) const NAME_BYTES_MAX: usize = 64;
/// Names at a time. A fleet has some dozens of programs and versions; this is room for mistakes.
const NAMES_MAX: usize = 1024;
/// The connection names no client program.
const NONE: u16 = 0;
/// The name has no place.
const OTHERS: u16 = 1;
const FIRST: u16 = 2;
/// What a name without a place is shown as.
const OTHER: &str = "other";
/// The two counts of an `Arc`.
const ARC_BYTES: usize = 2 * size_of::<usize>();
const _: () = assert!(NAMES_MAX + FIRST as usize - 1 <= Origin::CLIENT_MAX as usize);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_cut_and_cannot_be_obeyed() {
        let long = "ä".repeat(40);
        for (name, shown) in [
            ("weir-client/1.0", "weir-client/1.0"),
            ("", ""),
            ("a\u{1b}[2Jb\r\n", "a\u{fffd}[2Jb\u{fffd}\u{fffd}"),
            ("abc\u{202e}def", "abc\u{fffd}def"),
            (long.as_str(), &long[..64]),
            (&format!("x{long}"), &format!("x{}", &long[..62])),
        ] {
            assert_eq!(readable(name, NAME_BYTES_MAX), shown, "{name:?}");
        }
    }

    #[test]
    fn a_name_too_many_is_other_until_a_place_is_free() {
        let clients = Arc::new(Clients::default());
        let mut entered: Vec<Client> =
            (0..NAMES_MAX).map(|number| clients.enter(&format!("client/{number}"))).collect();
        assert_eq!((clients.count(), clients.others()), (NAMES_MAX, 0));
        let late = clients.enter("late");
        assert_eq!(late.name().as_deref(), Some("other"));
        let known = clients.enter("client/7");
        assert_eq!((known.number(), clients.others()), (entered[7].number(), 1));
        drop(entered.swap_remove(9));
        assert_eq!(clients.enter("late").name().as_deref(), Some("late"));
        drop((late, known, entered));
        assert_eq!((clients.count(), clients.others()), (0, 1));
    }

    proptest! {
        #[test]
        fn agrees_with_its_twin(steps in proptest::collection::vec((0u8..3, 0usize..6), 0..200)) {
            let clients = Arc::new(Clients::default());
            let (mut twin, mut used) = (BTreeMap::<String, usize>::new(), Vec::new());
            for (what, which) in steps {
                if what > 0 {
                    let name = format!("c{which}");
                    let client = clients.enter(&name);
                    used.push((name.clone(), client.number()));
                    client.settle();
                    *twin.entry(name).or_default() += 1;
                } else if !used.is_empty() {
                    let (name, number) = used.swap_remove(which % used.len());
                    clients.leave(number);
                    *twin.entry(name).or_default() -= 1;
                    twin.retain(|_, count| *count > 0);
                }
                prop_assert_eq!(clients.count(), twin.len());
                for (name, number) in &used {
                    let shown = clients.name(*number);
                    prop_assert_eq!(shown.as_deref(), Some(name.as_str()));
                }
            }
        }
    }
}
