//! Draws shares of clients against time, as SVG.

use std::fmt::Write as _;

/// A line: a share of 0 to 1 for each sample.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) colour: &'static str,
    pub(super) is_dashed: bool,
    pub(super) shares: Vec<f64>,
}

/// A picture with its own axes; `left` is its left edge.
struct Panel<'a> {
    title: &'a str,
    left: f64,
    /// Seconds on the axis.
    seconds: u32,
    sample_s: f64,
}

/// Two panels with the same time axis, and what the lines mean.
pub(super) fn draw(panels: [(&str, &[Line]); 2], seconds: u32, sample_s: f64) -> String {
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>"
    );
    for ((title, lines), left) in panels.into_iter().zip([LEFT, LEFT + PANEL + GAP]) {
        let panel = Panel { title, left, seconds, sample_s };
        panel.draw_axes(&mut svg);
        for line in lines {
            panel.draw_line(&mut svg, line);
        }
    }
    let [(_, lines), _] = panels;
    for (line, row) in lines.iter().zip(0_u32..) {
        let left = LEFT + f64::from(row % 2) * (PANEL + GAP);
        let y = TOP + DEPTH + 62.0 + f64::from(row / 2) * 20.0;
        let (right, text) = (left + 40.0, left + 50.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{left:.0} {y:.0}H{right:.0}\" {}/>\n<text x=\"{text:.0}\" y=\"{:.0}\">{}</text>",
            stroke(line),
            y + 4.0,
            line.name
        );
    }
    svg.push_str("</svg>\n");
    svg
}

impl Panel<'_> {
    fn x(&self, seconds: f64) -> f64 {
        self.left + PANEL * seconds / f64::from(self.seconds)
    }

    fn draw_axes(&self, svg: &mut String) {
        let Panel { title, left, seconds, .. } = self;
        let (bottom, right) = (TOP + DEPTH, left + PANEL);
        let _ = writeln!(
            svg,
            "<text x=\"{left:.0}\" y=\"{:.0}\" font-weight=\"bold\">{title}</text>",
            TOP - 16.0
        );
        for percent in [0_u32, 25, 50, 75, 100] {
            let y = y(f64::from(percent) / 100.0);
            let _ = writeln!(
                svg,
                "<path d=\"M{left:.0} {y:.1}H{right:.0}\" stroke=\"#ddd\"/>\n\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{percent} %</text>",
                left - 6.0,
                y + 4.0
            );
        }
        for tick in 0..=TICKS {
            let at = seconds * tick / TICKS;
            let x = self.x(f64::from(at));
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {bottom:.0}v5\" stroke=\"#888\"/>\n\
                 <text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{at}</text>",
                bottom + 20.0
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">seconds after the loss</text>",
            left + PANEL / 2.0,
            bottom + 38.0
        );
    }

    fn draw_line(&self, svg: &mut String, line: &Line) {
        let mut path = String::new();
        let mut next = self.left;
        for (share, number) in line.shares.iter().zip(0_u32..) {
            let seconds = f64::from(number) * self.sample_s;
            let x = self.x(seconds);
            // Nobody would see more.
            let is_last = is_last_sample(number, line.shares.len());
            if (x >= next || is_last) && seconds <= f64::from(self.seconds) {
                let verb = if path.is_empty() { "M" } else { "L" };
                let _ = write!(path, "{verb}{x:.0} {:.1}", y(*share));
                next = x + PRECISION;
            }
        }
        // From the last sample on nothing changes.
        let _ = writeln!(svg, "<path d=\"{path}H{:.0}\" {}/>", self.left + PANEL, stroke(line));
    }
}

/// Whether this is the last of so many samples.
fn is_last_sample(number: u32, count: usize) -> bool {
    usize::try_from(number).is_ok_and(|number| number + 1 == count)
}

fn y(share: f64) -> f64 {
    TOP + DEPTH * (1.0 - share)
}

fn stroke(line: &Line) -> String {
    let dashes = if line.is_dashed { " stroke-dasharray=\"6 4\"" } else { "" };
    format!("fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{dashes}", line.colour)
}

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 44.0;
/// Width and height of a panel.
const PANEL: f64 = 390.0;
const DEPTH: f64 = 270.0;
const GAP: f64 = 80.0;
const TICKS: u32 = 6;
/// The distance of two points of a line.
const PRECISION: f64 = 2.0;
