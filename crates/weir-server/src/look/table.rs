//! Tables for people: each column is as wide as its content.

/// A table. Writes no space after a line's last cell.
pub(super) struct Table<const COLUMNS: usize> {
    columns: [Column; COLUMNS],
    rows: Vec<[String; COLUMNS]>,
}

/// A column: its head, and whether its cells stand at the right, as numbers do.
pub(super) struct Column {
    head: &'static str,
    is_number: bool,
}

pub(super) const fn text(head: &'static str) -> Column {
    Column { head, is_number: false }
}

pub(super) const fn number(head: &'static str) -> Column {
    Column { head, is_number: true }
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    pub(super) fn new(columns: [Column; COLUMNS]) -> Self {
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row. An empty cell is shown as `-`.
    pub(super) fn add(&mut self, cells: [String; COLUMNS]) {
        self.rows.push(cells.map(|cell| if cell.is_empty() { "-".into() } else { visible(&cell) }));
    }

    /// The lines, with the heads as the first.
    pub(super) fn text(&self) -> String {
        let heads = self.columns.each_ref().map(|column| column.head.to_owned());
        let lines = || std::iter::once(&heads).chain(&self.rows);
        let mut widths = [0; COLUMNS];
        for (width, index) in widths.iter_mut().zip(0..) {
            let cells = lines().map(|line: &[String; COLUMNS]| line[index].chars().count());
            *width = cells.max().unwrap_or(0);
        }
        let mut text = String::new();
        for line in lines() {
            let cells = line.iter().zip(&self.columns).zip(widths);
            let cells = cells.map(|((cell, column), width)| {
                if column.is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// The text without characters that a terminal obeys.
pub(super) fn visible(text: &str) -> String {
    let is_obeyed = |letter: char| {
        letter.is_control() || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .map(|letter| if is_obeyed(letter) { char::REPLACEMENT_CHARACTER } else { letter })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_content() {
        let mut table = Table::new([text("DEVICE"), number("AGE"), text("WHY")]);
        table.add(["é\u{1b}[2J", "7 s", ""].map(str::to_owned));
        table.add(["thermometer", "10 min", "gone"].map(str::to_owned));
        let expected = "DEVICE          AGE  WHY\n\
                        é\u{fffd}[2J           7 s  -\n\
                        thermometer  10 min  gone\n";
        assert_eq!(table.text(), expected);
    }
}
