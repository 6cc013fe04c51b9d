//! Draws lines and bars, as SVG.

use std::fmt::Write as _;

/// A picture with its own axes.
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
}

/// An axis with its labelled places.
pub(crate) struct Axis {
    label: String,
    from: f64,
    to: f64,
    is_logarithmic: bool,
    ticks: Vec<(f64, String)>,
}

/// A line through points. Lines of the same name look the same in all charts.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) colour: &'static str,
    pub(crate) is_dashed: bool,
    /// Whether each point has a dot: they are measurements.
    pub(crate) has_dots: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Bars from left to right, one below the other.
pub(crate) struct Bars {
    pub(crate) title: String,
    /// What the bars are as long as.
    pub(crate) label: String,
    pub(crate) bars: Vec<Bar>,
}

/// A bar up to the middle of some values, and how far they spread.
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) colour: &'static str,
    pub(crate) value: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Axis {
    /// From 0 to at least `most`.
    pub(crate) fn linear(label: &str, most: f64) -> Axis {
        let step = step(most / 5.0);
        let mut ticks = vec![(0.0, "0".to_owned())];
        let mut at = 0.0;
        while at < most {
            at += step;
            ticks.push((at, number(at)));
        }
        Axis { label: label.to_owned(), from: 0.0, to: at, is_logarithmic: false, ticks }
    }

    /// The same with labels that are given.
    pub(crate) fn with_ticks(label: &str, to: f64, ticks: Vec<(f64, String)>) -> Axis {
        Axis { label: label.to_owned(), from: 0.0, to, is_logarithmic: false, ticks }
    }

    /// From `least` to `most`, each decade as long as the next.
    pub(crate) fn logarithmic(label: &str, least: f64, most: f64) -> Axis {
        let mut ticks = Vec::new();
        let mut decade = 10_f64.powf(least.log10().floor());
        while decade <= most * 1.001 {
            if decade >= least * 0.999 {
                ticks.push((decade, number(decade)));
            }
            decade *= 10.0;
        }
        // Less than two decades: the ends say more than one label.
        if ticks.len() < 2 {
            ticks = vec![(least, number(least)), (most, number(most))];
        }
        Axis { label: label.to_owned(), from: least, to: most, is_logarithmic: true, ticks }
    }

    /// The share of the axis that lies before a value.
    fn place(&self, value: f64) -> f64 {
        let of = |value: f64| if self.is_logarithmic { value.log10() } else { value };
        let length = of(self.to) - of(self.from);
        if length > 0.0 { (of(value) - of(self.from)) / length } else { 0.5 }
    }
}

/// Draws charts beside each other, two in a row, and below them what the lines mean.
pub(crate) fn draw(charts: &[Chart]) -> String {
    let rows = charts.len().div_ceil(2);
    let mut names: Vec<&Line> = Vec::new();
    for line in charts.iter().flat_map(|chart| &chart.lines) {
        if !names.iter().any(|known| known.name == line.name) {
            names.push(line);
        }
    }
    let legend_top = TOP + ROW * count(rows) - 30.0;
    let height = legend_top + LEGEND_ROW * count(names.len().div_ceil(2)) + 10.0;
    let mut svg = begin(height);
    for (index, chart) in charts.iter().enumerate() {
        let frame = Frame { left: left(index % 2), top: TOP + ROW * count(index / 2), chart };
        frame.draw(&mut svg);
    }
    for (index, line) in names.into_iter().enumerate() {
        let (x, y) = (left(index % 2), legend_top + LEGEND_ROW * count(index / 2));
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.0} {y:.0}h40\" {}/>\n<text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            stroke(line),
            x + 50.0,
            y + 4.0,
            escaped(&line.name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Draws groups of bars, two in a row.
pub(crate) fn draw_bars(groups: &[Bars]) -> String {
    let mut tops = Vec::new();
    let mut bottom = 20.0;
    for pair in groups.chunks(2) {
        tops.push(bottom);
        let most = pair.iter().map(|group| group.bars.len()).max().unwrap_or(0);
        bottom += BAR_HEAD + 24.0 + BAR_ROW * count(most);
    }
    let mut svg = begin(bottom);
    for (index, group) in groups.iter().enumerate() {
        draw_group(&mut svg, group, index % 2, tops[index / 2]);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_group(svg: &mut String, group: &Bars, column: usize, top: f64) {
    let edge = COLUMN * count(column) + 20.0;
    let (title, label) = (escaped(&group.title), escaped(&group.label));
    let _ = writeln!(
        svg,
        "<text x=\"{edge:.0}\" y=\"{:.0}\" font-weight=\"bold\">{title}</text>\n\
         <text x=\"{edge:.0}\" y=\"{:.0}\" fill=\"#555\">{label}</text>",
        top + 14.0,
        top + 32.0
    );
    let zero = edge + BAR_NAME;
    let most = group.bars.iter().map(|bar| bar.most.max(bar.value)).fold(1e-9, f64::max);
    for (index, bar) in group.bars.iter().enumerate() {
        let y = top + BAR_HEAD + BAR_ROW * count(index);
        let length = |value: f64| BAR_MAX * value.max(0.0) / most;
        let (least, spread) = (zero + length(bar.least), length(bar.most) - length(bar.least));
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{zero:.0}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"16\" fill=\"{}\"/>\n\
             <path d=\"M{least:.1} {:.0}h{spread:.1}\" stroke=\"#333\" stroke-width=\"2\"/>\n\
             <text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            zero - 8.0,
            y + 13.0,
            escaped(&bar.name),
            length(bar.value),
            bar.colour,
            y + 8.0,
            zero + length(bar.most.max(bar.value)) + 8.0,
            y + 13.0,
            number(bar.value)
        );
    }
}

/// A chart at its place.
struct Frame<'a> {
    left: f64,
    top: f64,
    chart: &'a Chart,
}

impl Frame<'_> {
    fn x(&self, value: f64) -> f64 {
        self.left + WIDTH * self.chart.x.place(value)
    }

    fn y(&self, value: f64) -> f64 {
        self.top + DEPTH * (1.0 - self.chart.y.place(value))
    }

    fn draw(&self, svg: &mut String) {
        self.draw_axes(svg);
        for line in &self.chart.lines {
            self.draw_line(svg, line);
        }
    }

    fn draw_axes(&self, svg: &mut String) {
        let Frame { left, top, chart } = self;
        let (bottom, right) = (top + DEPTH, left + WIDTH);
        let middle = left + WIDTH / 2.0;
        let title = escaped(&chart.title);
        let _ = writeln!(
            svg,
            "<text x=\"{left:.0}\" y=\"{:.0}\" font-weight=\"bold\">{title}</text>",
            top - 26.0
        );
        if !chart.y.label.is_empty() {
            let label = escaped(&chart.y.label);
            let _ = writeln!(
                svg,
                "<text x=\"{left:.0}\" y=\"{:.0}\" fill=\"#555\">{label}</text>",
                top - 8.0
            );
        }
        for (value, label) in &chart.y.ticks {
            let y = self.y(*value);
            let _ = writeln!(
                svg,
                "<path d=\"M{left:.0} {y:.1}H{right:.0}\" stroke=\"#ddd\"/>\n\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                left - 6.0,
                y + 4.0
            );
        }
        for (value, label) in &chart.x.ticks {
            let x = self.x(*value);
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {bottom:.0}v5\" stroke=\"#888\"/>\n\
                 <text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{label}</text>",
                bottom + 20.0
            );
        }
        let label = escaped(&chart.x.label);
        let _ = writeln!(
            svg,
            "<text x=\"{middle:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{label}</text>",
            bottom + 38.0
        );
    }

    fn draw_line(&self, svg: &mut String, line: &Line) {
        let mut path = String::new();
        let mut next = self.left;
        for (index, (x, y)) in line.points.iter().enumerate() {
            let (x, y) = (self.x(*x), self.y(*y));
            let after = line.points.get(index + 1).map_or(f64::INFINITY, |(x, _)| self.x(*x));
            // Nobody would see more; the last point before a gap is a corner.
            if after >= next {
                let verb = if path.is_empty() { "M" } else { "L" };
                let _ = write!(path, "{verb}{x:.1} {y:.1}");
                next = x + PRECISION;
            }
            if line.has_dots {
                let colour = line.colour;
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
                );
            }
        }
        let _ = writeln!(svg, "<path d=\"{path}\" {}/>", stroke(line));
    }
}

/// A number as people read it: three digits that count.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    let places = match size {
        _ if !(1e-9..99.95).contains(&size) => 0,
        _ if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.places$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let rest = rest.trim_end_matches('0').trim_end_matches('.');
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{rest}")
}

/// 1, 2 or 5 times a power of ten, at least `least`.
fn step(least: f64) -> f64 {
    let decade = 10_f64.powf(least.max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * decade);
    steps.into_iter().find(|step| *step >= least).unwrap_or(10.0 * decade)
}

fn begin(height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {PAGE:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{PAGE:.0}\" height=\"{height:.0}\" fill=\"white\"/>\n"
    )
}

fn left(column: usize) -> f64 {
    LEFT + (WIDTH + GAP) * count(column)
}

fn stroke(line: &Line) -> String {
    let dashes = if line.is_dashed { " stroke-dasharray=\"6 4\"" } else { "" };
    format!("fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{dashes}", line.colour)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(0.0, f64::from)
}

const PAGE: f64 = 960.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 54.0;
/// Width and height of a chart.
const WIDTH: f64 = 390.0;
const DEPTH: f64 = 260.0;
const GAP: f64 = 80.0;
/// From the top of a chart to the top of the one below.
const ROW: f64 = DEPTH + 110.0;
const LEGEND_ROW: f64 = 20.0;
/// The distance of two points of a line.
const PRECISION: f64 = 2.0;
/// Bars: the width of a column, of names, and of the longest bar, and the height of a head and of a row.
const COLUMN: f64 = 480.0;
const BAR_NAME: f64 = 130.0;
const BAR_MAX: f64 = 230.0;
const BAR_HEAD: f64 = 42.0;
const BAR_ROW: f64 = 24.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_count() {
        for (value, shown) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1_234_567.0, "1,234,567"),
            (-1234.5, "-1,234"),
            (99.99, "100"),
        ] {
            assert_eq!(number(value), shown);
        }
    }

    #[test]
    fn axes_reach_the_last_value() {
        let axis = Axis::linear("", 37.0);
        assert_eq!(axis.ticks.last().map(|(at, _)| *at), Some(40.0));
        assert!((axis.place(20.0) - 0.5).abs() < 1e-9);
        let axis = Axis::logarithmic("", 1.0, 1e6);
        assert_eq!(axis.ticks.len(), 7);
        assert!((axis.place(1000.0) - 0.5).abs() < 1e-9);
        assert_eq!(Axis::logarithmic("", 2000.0, 5000.0).ticks.len(), 2);
    }

    #[test]
    fn a_thinned_line_keeps_its_corners() {
        let dense = (0..100).map(|at| (f64::from(at) / 100.0, f64::from(at)));
        let line = Line {
            name: "a".to_owned(),
            colour: "red",
            is_dashed: false,
            has_dots: false,
            points: dense.chain([(180.0, 99.0)]).collect(),
        };
        let chart = Chart {
            title: "t".to_owned(),
            x: Axis::linear("x", 180.0),
            y: Axis::linear("y", 99.0),
            lines: vec![line],
        };
        let svg = draw(&[chart]);
        let path = svg.split("d=\"").find(|path| path.contains('L')).expect("a line");
        let path = path.split('"').next().expect("its points");
        let heights: Vec<&str> =
            path.split('L').filter_map(|point| point.split(' ').nth(1)).collect();
        assert!(heights.len() < 10, "{path}");
        assert_eq!(heights[heights.len() - 2], heights[heights.len() - 1], "{path}");
    }

    #[test]
    fn lines_of_one_name_share_a_place_in_the_legend() {
        let line = Line {
            name: "a & b".to_owned(),
            colour: "red",
            is_dashed: false,
            has_dots: true,
            points: vec![(1.0, 1.0), (2.0, 2.0)],
        };
        let chart = || Chart {
            title: "t".to_owned(),
            x: Axis::linear("x", 2.0),
            y: Axis::linear("y", 2.0),
            lines: vec![line.clone()],
        };
        let svg = draw(&[chart(), chart(), chart()]);
        assert_eq!(svg.matches("a &amp; b").count(), 1);
        assert_eq!(svg.matches("<circle").count(), 6);
    }
}
