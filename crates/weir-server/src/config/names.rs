//! The names of all keys: to find the key of a variable, and to suggest a name for a misspelt one.

use weir::keys::{self, Value};

use super::Settings;

/// The names in the configuration, by kind.
pub(super) struct Names {
    /// Sections.
    pub(super) sections: Vec<String>,
    /// Keys with their sections, including lists of tables.
    pub(super) keys: Vec<String>,
    /// Lists of tables only.
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

    /// The variables that set keys. No variable sets a list of tables.
    pub(super) fn variables(&self) -> impl Iterator<Item = String> {
        self.keys.iter().filter(|key| !self.lists.contains(key)).map(|key| variable(key))
    }

    /// The key that a variable of this name sets.
    pub(super) fn key_of(&self, name: &str) -> Option<&String> {
        self.keys.iter().find(|key| !self.lists.contains(key) && variable(key) == name)
    }
}

/// The name of the environment variable for a key.
pub(super) fn variable(key: &str) -> String {
    format!("WEIR_{}", key.replace('.', "_")).to_uppercase()
}

pub(super) fn is_list_of_tables(value: &dyn Value) -> bool {
    value.row().is_some()
}

/// Whether a value at this path must be hidden, whether the path is a key or a typing error.
pub(super) fn may_be_secret(path: &str) -> bool {
    let is_within = |section: &str| {
        path.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    path.contains("token")
        || keys::all("", &Settings::default())
            .iter()
            .any(|entry| entry.key.rules.secret && is_within(entry.section()))
}
