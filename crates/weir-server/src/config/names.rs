//! The names of all keys: to find what is set, and to guess what a wrong name was meant to be.

use weir::keys::{self, Value};

use super::Settings;

/// The names of a kind of things in the configuration.
pub(super) struct Names {
    /// Sections.
    pub(super) sections: Vec<String>,
    /// Keys, with their sections; lists of tables are among them.
    pub(super) keys: Vec<String>,
    /// Lists of tables alone.
    pub(super) lists: Vec<String>,
}

impl Names {
    pub(super) fn all() -> Names {
        let mut names = Names { sections: Vec::new(), keys: Vec::new(), lists: Vec::new() };
        for entry in keys::all("", &Settings::default()) {
            if entry.value.as_table().is_some() {
                names.sections.push(entry.path);
                continue;
            }
            if is_list_of_tables(entry.value) {
                names.lists.push(entry.path.clone());
            }
            names.keys.push(entry.path);
        }
        names
    }

    /// The variables that set keys; none holds tables.
    pub(super) fn variables(&self) -> impl Iterator<Item = String> {
        self.keys.iter().filter(|key| !self.lists.contains(key)).map(|key| variable(key))
    }

    /// The key that a variable of this name sets.
    pub(super) fn key_of(&self, name: &str) -> Option<&String> {
        self.keys.iter().find(|key| !self.lists.contains(key) && variable(key) == name)
    }
}

/// The variable of the environment that sets the key, or would.
pub(super) fn variable(key: &str) -> String {
    format!("WEIR_{}", key.replace('.', "_")).to_uppercase()
}

pub(super) fn is_list_of_tables(value: &dyn Value) -> bool {
    value.row().is_some()
}

/// Whether a value that stands at this path, be it a key or a typing error, must not be shown.
pub(super) fn may_be_secret(path: &str) -> bool {
    let is_within = |section: &str| {
        path.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    path.contains("token")
        || keys::all("", &Settings::default())
            .iter()
            .any(|entry| entry.key.rules.secret && is_within(entry.section()))
}
