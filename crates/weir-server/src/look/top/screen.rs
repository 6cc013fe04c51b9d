//! The screen of `weir top`. It fits 80 columns and 24 lines; a higher one shows more.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Sparkline};

use super::figures::{Change, Panel};

/// The choices of the person who looks, and the recent past.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// Whether ends are shown where there is no room for both ends and shards.
    pub(super) shows_ends: bool,
    /// Messages delivered in each of the last seconds, the newest last.
    delivered: VecDeque<u64>,
}

impl Screen {
    /// Keeps the newest value of the curve.
    pub(super) fn note(&mut self, change: &Change<'_>) {
        if self.delivered.len() == CURVE_MAX {
            self.delivered.pop_front();
        }
        self.delivered.push_back(change.delivered());
    }

    /// Draws the figures. `trouble` tells why they are old.
    pub(super) fn draw(&self, frame: &mut Frame<'_>, change: &Change<'_>, trouble: Option<&str>) {
        let rows = [Constraint::Length(1), Constraint::Length(17), Constraint::Min(0)];
        let [top, middle, bottom] = Layout::vertical(rows).areas(frame.area());
        let (head, is_well) = change.head();
        let head = trouble.map_or(head, |trouble| format!("OLD FIGURES: {trouble}"));
        let is_well = is_well && trouble.is_none();
        let colour = if is_well { Color::Green } else { Color::Red };
        let keys = Line::from("q quits").right_aligned();
        frame.render_widget(Paragraph::new(Line::from(head).fg(colour).bold()), top);
        frame.render_widget(Paragraph::new(keys), top);

        let halves = [Constraint::Length(39), Constraint::Min(0)];
        let [left, right] = Layout::horizontal(halves).areas(middle);
        let [connections, delays] =
            Layout::vertical([Constraint::Length(11), Constraint::Length(6)]).areas(left);
        show(frame, connections, &change.connections());
        show(frame, delays, &change.delays());
        let parts = [Constraint::Length(7), Constraint::Length(6), Constraint::Min(0)];
        let [messages, process, curve] = Layout::vertical(parts).areas(right);
        show(frame, messages, &change.messages());
        show(frame, process, &change.process());
        self.draw_curve(frame, curve);
        self.draw_bottom(frame, bottom, change);
    }

    fn draw_curve(&self, frame: &mut Frame<'_>, area: Rect) {
        let [title, area] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
        frame.render_widget(Line::from("delivered, last minutes").style(TITLE), title);
        let newest = self.delivered.iter().rev().take(area.width.into());
        let data: Vec<u64> = newest.rev().copied().collect();
        frame.render_widget(Sparkline::default().data(&data), area);
    }

    /// Shards and ends, or one of them where both have no room.
    fn draw_bottom(&self, frame: &mut Frame<'_>, area: Rect, change: &Change<'_>) {
        let (shards, ends) = (change.shards(), change.ends());
        let shards_height = u16::try_from(shards.lines.len() + 1).unwrap_or(u16::MAX);
        if area.height >= shards_height.saturating_add(ENDS_HEIGHT_MIN) {
            let parts = [Constraint::Length(shards_height), Constraint::Min(0)];
            let [first, second] = Layout::vertical(parts).areas(area);
            show(frame, first, &shards);
            return show(frame, second, &ends);
        }
        let (shown, other) = if self.shows_ends { (ends, shards) } else { (shards, ends) };
        show(frame, area, &shown);
        let [title, _] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
        let key = Line::from(format!("Tab shows {}", other.title)).right_aligned();
        frame.render_widget(Paragraph::new(key), title);
    }
}

fn show(frame: &mut Frame<'_>, area: Rect, panel: &Panel) {
    let title = std::iter::once(Line::from(panel.title).style(TITLE));
    let lines = panel.lines.iter().map(|line| Line::from(line.as_str()));
    frame.render_widget(Paragraph::new(title.chain(lines).collect::<Vec<_>>()), area);
}

const TITLE: Style = Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD);
/// Values of the curve: more than a wide terminal shows.
const CURVE_MAX: usize = 300;
/// Title and four lines.
const ENDS_HEIGHT_MIN: u16 = 5;

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::figures::tests::documents;
    use super::*;

    fn drawn(screen: &Screen, (width, height): (u16, u16), trouble: Option<&str>) -> String {
        let [before, now] = documents();
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let change = Change::new(&before, &now);
        terminal.draw(|frame| screen.draw(frame, &change, trouble)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_usual_terminal_has_room_for_all_figures() {
        let mut screen = Screen::default();
        let [before, now] = documents();
        screen.note(&Change::new(&before, &now));
        let text = drawn(&screen, (80, 24), None);
        for part in [
            "weir 0.1.0  gate  up 120 min  ready",
            "q quits",
            "15 k of 100 k",
            "30 /s",
            "1953 KiB 0 B /s",
            "p99",
            "turn of a shard",
            "15 k of 20 k",
            "25 %",
            "Tab shows ends and refusals",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        screen.shows_ends = true;
        assert!(drawn(&screen, (80, 24), None).contains("ended: peer_closed"));
    }

    #[test]
    fn other_terminals_do_not_break_it() {
        let screen = Screen::default();
        let high = drawn(&screen, (120, 40), Some("the stream broke"));
        assert!(high.contains("OLD FIGURES: the stream broke"), "{high}");
        assert!(high.contains("ended: peer_closed") && high.contains("25 %"), "{high}");
        for size in [(1, 1), (20, 5), (79, 12), (200, 3)] {
            drawn(&screen, size, None);
        }
    }
}
