//! Values that are made from the configuration.

use std::ops::Deref;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use super::config::Config;

/// A value that is made from the configuration in use, and made anew when that has changed.
///
/// Cost: reading is two loads without a lock. The first readers after a reload may make it several
/// times.
pub(crate) struct Derived<T> {
    made: ArcSwap<Made<T>>,
    make: fn(&Config) -> T,
}

/// The value of this moment.
pub(crate) struct Made<T> {
    of: Arc<Config>,
    value: T,
}

impl<T> Derived<T> {
    pub(crate) fn new(config: &Arc<Config>, make: fn(&Config) -> T) -> Derived<T> {
        let made = Made { of: Arc::clone(config), value: make(config) };
        Derived { made: ArcSwap::from_pointee(made), make }
    }

    /// The value for the configuration in use.
    pub(crate) fn of(&self, config: &Arc<Config>) -> Guard<Arc<Made<T>>> {
        let made = self.made.load();
        if Arc::ptr_eq(&made.of, config) {
            return made;
        }
        let value = (self.make)(config);
        self.made.store(Arc::new(Made { of: Arc::clone(config), value }));
        self.made.load()
    }
}

impl<T> Deref for Made<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
