//! A check: what was found, what is wrong with it, and how to mend it.

use std::fmt::Write as _;

use serde::Serialize;

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    /// Whether nothing is wrong.
    pub(super) ok: bool,
    pub(super) found: String,
    /// `None` if nothing is wrong.
    pub(super) wrong: Option<String>,
    pub(super) why: &'static str,
    /// The number of connections from which it matters; `None` if it matters at any number.
    pub(super) bites_at_connections: Option<u64>,
    /// Lines that mend it: for the shell, for a unit of systemd, for our configuration.
    pub(super) mend: Vec<String>,
}

impl Check {
    /// A check that has found nothing wrong.
    pub(super) fn new(name: &'static str, why: &'static str, found: impl Into<String>) -> Check {
        let found = found.into();
        Check {
            name,
            ok: true,
            found,
            wrong: None,
            why,
            bites_at_connections: None,
            mend: Vec::new(),
        }
    }

    /// Matters from so many connections on.
    pub(super) fn bites_at(mut self, connections: u64) -> Check {
        self.bites_at_connections = Some(connections);
        self
    }

    /// Something is wrong.
    pub(super) fn wrong<Line: Into<String>>(
        mut self,
        wrong: impl Into<String>,
        mend: impl IntoIterator<Item = Line>,
    ) -> Check {
        (self.ok, self.wrong) = (false, Some(wrong.into()));
        self.mend = mend.into_iter().map(Into::into).collect();
        self
    }

    /// Wrong if there is room for fewer connections than wanted.
    pub(super) fn holds<Line: Into<String>>(
        self,
        (room, wanted): (u64, u64),
        mend: impl IntoIterator<Item = Line>,
    ) -> Check {
        let check = self.bites_at(room);
        if room >= wanted {
            return check;
        }
        let wrong = format!("room for {} of {} connections", count(room), count(wanted));
        check.wrong(wrong, mend)
    }

    /// As text: one line if nothing is wrong, else all of it.
    pub(super) fn text(&self) -> String {
        let Check { name, found, .. } = self;
        let Some(wrong) = &self.wrong else {
            return format!("ok    {name:<NAME_COLUMNS$} {found}");
        };
        let mut out = format!("MEND  {name:<NAME_COLUMNS$} {found}\n      wrong: {wrong}");
        let bites = self.bites_at_connections.map_or("any number of".to_owned(), count);
        let _ = write!(out, "\n      bites: at {bites} connections");
        let _ = write!(out, "\n      why:   {}", self.why);
        for (index, line) in self.mend.iter().enumerate() {
            let _ = write!(out, "\n      {}{line}", if index == 0 { "mend:  " } else { "       " });
        }
        out
    }
}

/// A command that sets a key of the kernel until the next boot.
pub(super) fn sysctl(key: &str, value: impl std::fmt::Display) -> String {
    format!("sysctl -w {key}='{value}'")
}

/// A number with commas between its thousands.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number of bytes, in the unit that suits it.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} B"),
        10_000..=10_239_999 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", count(bytes >> 20)),
    }
}

/// The longest name of a check.
const NAME_COLUMNS: usize = 21;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        let counts = [0, 999, 1_000, 20_000, 1_000_000].map(count);
        assert_eq!(counts, ["0", "999", "1,000", "20,000", "1,000,000"]);
        let sizes = [1, 9_999, 65_536, 512 << 20, 24_000 << 20].map(size);
        assert_eq!(sizes, ["1 B", "9999 B", "64 KiB", "512 MiB", "24,000 MiB"]);
    }

    #[test]
    fn a_check_shows_how_to_mend_what_is_wrong() {
        let check = Check::new("backlog", "devices wait.", "128");
        assert_eq!(check.text(), "ok    backlog               128");
        assert!(check.clone().holds((7, 7), ["x"]).ok);
        let check = check.holds((7, 2_000), ["first", "second"]);
        assert_eq!(
            check.text(),
            "MEND  backlog               128\n      wrong: room for 7 of 2,000 connections\n      \
             bites: at 7 connections\n      why:   devices wait.\n      mend:  first\n             second"
        );
    }
}
