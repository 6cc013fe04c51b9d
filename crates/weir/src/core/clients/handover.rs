//! Names of client programs that another process takes over.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::{Clients, FIRST, NAME_BYTES_MAX, NAMES_MAX, Names, Place};
use crate::base::handover::{narrow, refused};

impl Clients {
    /// The names. What changes here afterwards stays here.
    pub(crate) fn export(&self) -> v1::ClientNames {
        let names = self.lock();
        let name = |place: &Option<Place>| match place {
            Some(place) => place.name.to_string(),
            None => String::new(),
        };
        v1::ClientNames {
            names: names.places.iter().map(name).collect(),
            free: names.free.iter().map(|number| (number - FIRST).into()).collect(),
            others: self.others(),
        }
    }

    /// Goes on with the names of another process. There were none here so far. No connection uses
    /// one yet: see [`Clients::take_over`].
    pub(crate) fn import(&self, names: v1::ClientNames) -> Result<(), NotUnderstood> {
        let v1::ClientNames { names, free, others } = names;
        self.others.store(others, Ordering::Relaxed);
        *self.lock() = Names::restore(names, &free)?;
        Ok(())
    }

    /// Counts one more connection of the other process that uses a name.
    ///
    /// Errors: there is no such name.
    pub(crate) fn take_over(&self, number: u16) -> Result<(), NotUnderstood> {
        if number < FIRST {
            return Ok(());
        }
        let mut names = self.lock();
        let place = names.place(number).ok_or_else(|| refused("connection.client", number))?;
        place.connections += 1;
        Ok(())
    }

    /// Forgets the names that no connection uses. Those that used them stayed behind.
    pub(crate) fn end_take_over(&self) {
        let mut names = self.lock();
        let mut unused = Vec::new();
        for (place, number) in names.places.iter_mut().zip(FIRST..) {
            if place.as_ref().is_some_and(|place| place.connections == 0) {
                unused.extend(place.take().map(|place| (place.name, number)));
            }
        }
        for (name, number) in unused {
            names.index.remove(&name);
            names.free.push(number);
        }
    }
}

impl Names {
    fn restore(texts: Vec<String>, free: &[u32]) -> Result<Names, NotUnderstood> {
        if texts.len() > NAMES_MAX {
            return Err(refused("client_names.names", texts.len() as u64));
        }
        let mut names = Names::default();
        for (text, number) in texts.into_iter().zip(FIRST..) {
            if text.len() > NAME_BYTES_MAX {
                return Err(refused("client_names.names: bytes", text.len() as u64));
            }
            if text.is_empty() {
                names.places.push(None);
                continue;
            }
            let name: Arc<str> = text.into();
            if names.index.insert(Arc::clone(&name), number).is_some() {
                return Err(refused("client_names.names: a repeated one", number));
            }
            names.places.push(Some(Place { name, connections: 0 }));
        }
        let mut is_free = vec![false; names.places.len()];
        for place in free {
            let index = *place as usize;
            if names.places.get(index).is_none_or(Option::is_some)
                || std::mem::replace(&mut is_free[index], true)
            {
                return Err(refused("client_names.free", *place));
            }
            names.free.push(FIRST + narrow::<u16>("client_names.free", *place)?);
        }
        let unused = names.places.iter().filter(|place| place.is_none()).count();
        if unused != free.len() {
            return Err(refused("client_names.free", free.len() as u64));
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_wire::ProstMessage;

    use super::*;

    fn moved(clients: &Clients, used: &[u16]) -> Arc<Clients> {
        let bytes = clients.export().encode_to_vec();
        let other = Arc::new(Clients::default());
        other.import(v1::ClientNames::decode(&*bytes).unwrap()).unwrap();
        used.iter().for_each(|number| other.take_over(*number).unwrap());
        other.end_take_over();
        other
    }

    proptest! {
        #[test]
        fn names_that_move_agree_with_those_that_stay(
            before in proptest::collection::vec((0u8..3, 0usize..9), 0..100),
            after in proptest::collection::vec((0u8..3, 0usize..9), 0..100),
        ) {
            let clients = Arc::new(Clients::default());
            let run = |clients: &Arc<Clients>, used: &mut Vec<u16>, (what, which): (u8, usize)| {
                if what > 0 {
                    let client = clients.enter(&format!("c{which}"));
                    used.push(client.number());
                    client.settle();
                } else if !used.is_empty() {
                    clients.leave(used.swap_remove(which % used.len()));
                }
            };
            let mut used = Vec::new();
            before.into_iter().for_each(|step| run(&clients, &mut used, step));
            let other = moved(&clients, &used);
            let mut used_there = used.clone();
            for step in after {
                run(&clients, &mut used, step);
                run(&other, &mut used_there, step);
                prop_assert_eq!(&used, &used_there);
                prop_assert_eq!(clients.count(), other.count());
                for number in &used {
                    prop_assert_eq!(clients.name(*number), other.name(*number));
                }
            }
        }
    }

    #[test]
    fn names_of_those_that_stay_behind_are_forgotten() {
        let clients = Arc::new(Clients::default());
        let [_left, moves, _stays] = ["left", "moves", "stays"].map(|name| clients.enter(name));
        drop(_left);
        let other = moved(&clients, &[moves.number(), 0, 1]);
        assert_eq!(other.count(), 1);
        assert_eq!(other.name(moves.number()).as_deref(), Some("moves"));
        let new: Vec<u16> = ["a", "b", "c"].map(|name| other.enter(name).number()).into();
        assert!(!new.contains(&moves.number()));
        assert!(other.take_over(99).is_err());
    }

    #[test]
    fn damaged_names_are_refused() {
        let names = |names: &[&str], free: &[u32]| v1::ClientNames {
            names: names.iter().map(ToString::to_string).collect(),
            free: free.into(),
            others: 0,
        };
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let many: Vec<String> = (0..=NAMES_MAX).map(|number| number.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for damaged in [
            names(&["a", "a"], &[]),
            names(&["a", ""], &[]),
            names(&["a", ""], &[0]),
            names(&["a", ""], &[1, 1]),
            names(&["a", ""], &[2]),
            names(&["a", ""], &[u32::MAX]),
            names(&[&long], &[]),
            names(&many, &[]),
        ] {
            assert!(Clients::default().import(damaged).is_err());
        }
        assert!(Clients::default().import(names(&["a", "", ""], &[2, 1])).is_ok());
    }
}
