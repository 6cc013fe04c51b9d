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
    /// How often another panel was asked for, where the lowest part has no room for all of them.
    pub(super) turns: usize,
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

    /// Shards, upstreams if there are any, and ends; or one of them where not all have room.
    fn draw_bottom(&self, frame: &mut Frame<'_>, area: Rect, change: &Change<'_>) {
        let (upstreams, ends) = (change.upstreams(), change.ends());
        let mut panels = vec![change.shards()];
        panels.extend(upstreams);
        let height = |panel: &Panel| u16::try_from(panel.lines.len() + 1).unwrap_or(u16::MAX);
        let heights: Vec<u16> = panels.iter().map(height).collect();
        let height =
            heights.iter().fold(ENDS_HEIGHT_MIN, |sum, height| sum.saturating_add(*height));
        panels.push(ends);
        if area.height >= height {
            let parts = heights.into_iter().map(Constraint::Length).chain([Constraint::Min(0)]);
            let areas = Layout::vertical(parts).split(area);
            return panels.iter().zip(&*areas).for_each(|(panel, area)| show(frame, *area, panel));
        }
        let shown = self.turns % panels.len();
        let next = &panels[(shown + 1) % panels.len()];
        show(frame, area, &panels[shown]);
        let [title, _] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
        let key = Line::from(format!("Tab shows {}", next.title)).right_aligned();
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
            "Tab shows upstreams",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        screen.turns += 1;
        assert!(drawn(&screen, (80, 24), None).contains("api 127.0.0.1:80"));
        screen.turns += 1;
        assert!(drawn(&screen, (80, 24), None).contains("ended: peer_closed"));
    }

    #[test]
    fn other_terminals_do_not_break_it() {
        let screen = Screen::default();
        let high = drawn(&screen, (120, 40), Some("the stream broke"));
        assert!(high.contains("OLD FIGURES: the stream broke"), "{high}");
        for part in ["ended: peer_closed", "25 %", "api 127.0.0.1:80"] {
            assert!(high.contains(part), "{part}\n{high}");
        }
        for size in [(1, 1), (20, 5), (79, 12), (200, 3)] {
            drawn(&screen, size, None);
        }
    }
}
