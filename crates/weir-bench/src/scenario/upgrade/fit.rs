//! A straight line through points, and a plot of both in letters.

use std::fmt::Write as _;

/// `y = a + b · x`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    pub(super) a: f64,
    pub(super) b: f64,
}

/// Columns and rows of a plot.
const WIDTH: usize = 64;
const HEIGHT: usize = 14;
const COLUMNS: f64 = 64.0;

impl Line {
    /// The line with the least squares; `None` if all points have the same `x`.
    pub(super) fn through(points: &[(f64, f64)]) -> Option<Line> {
        let count = points.iter().map(|_| 1.0).sum::<f64>();
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
            points.iter().map(|point| of(point.0 - x, point.1 - y)).sum()
        };
        let (squares, products) = (sum(&|dx, _| dx * dx), sum(&|dx, dy| dx * dy));
        (squares > 0.0).then(|| {
            let b = products / squares;
            Line { a: y - b * x, b }
        })
    }

    /// The height of the line.
    pub(super) fn at(self, x: f64) -> f64 {
        self.a + self.b * x
    }
}

/// Draws points (`o`) and the line (`.`), with the highest point at the top.
pub(super) fn plot(points: &[(f64, f64)], line: Option<Line>) -> Vec<String> {
    let most = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).fold(0.0, f64::max);
    let (x_most, y_most) = (most(|point| point.0), most(|point| point.1));
    if x_most <= 0.0 || y_most <= 0.0 {
        return Vec::new();
    }
    let mut rows = vec![vec![' '; WIDTH + 1]; HEIGHT + 1];
    let mut mark = |x: f64, y: f64, letter: char| {
        let place = |share: f64, of: usize| {
            crate::stats::whole(share.clamp(0.0, 1.0) * f64::from(u32::try_from(of).unwrap_or(0)))
        };
        let column = usize::try_from(place(x / x_most, WIDTH)).unwrap_or(0);
        let row = HEIGHT - usize::try_from(place(y / y_most, HEIGHT)).unwrap_or(0);
        rows[row][column] = letter;
    };
    if let Some(line) = line {
        for column in (0..=WIDTH).step_by(2) {
            let x = x_most * f64::from(u32::try_from(column).unwrap_or(0)) / COLUMNS;
            mark(x, line.at(x), '.');
        }
    }
    points.iter().for_each(|(x, y)| mark(*x, *y, 'o'));
    let mut drawn: Vec<String> = (0..)
        .zip(rows)
        .map(|(row, letters)| {
            let label = if row == 0 { format!("{y_most:.1} ms") } else { String::new() };
            let letters: String = letters.into_iter().collect();
            format!("{label:>10} |{}", letters.trim_end())
        })
        .collect();
    let mut axis = format!("{:>10} +{}", "0", "-".repeat(WIDTH));
    let _ = write!(axis, " {x_most:.0}");
    drawn.push(axis);
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_again() {
        let points: Vec<(f64, f64)> =
            (1..=18).map(|n| (f64::from(n) * 1000.0, 5.0 + f64::from(n) * 2.0)).collect();
        let line = Line::through(&points).unwrap();
        assert!((line.a - 5.0).abs() < 1e-9 && (line.b - 0.002).abs() < 1e-12, "{line:?}");
        assert!((line.at(1e6) - 2005.0).abs() < 1e-6);
        assert_eq!(Line::through(&[(1.0, 2.0), (1.0, 3.0)]), None);
        assert_eq!(Line::through(&[]), None);
        let flat = Line::through(&[(1.0, 2.0), (2.0, 4.0), (3.0, 3.0)]).unwrap();
        assert!((flat.b - 0.5).abs() < 1e-9, "the middle of what scatters: {flat:?}");
    }

    #[test]
    fn the_highest_point_is_at_the_top_right() {
        let points = [(100.0, 1.0), (200.0, 2.0)];
        let drawn = plot(&points, Line::through(&points));
        assert_eq!(drawn.len(), HEIGHT + 2);
        assert!(drawn[0].starts_with("    2.0 ms |") && drawn[0].ends_with('o'), "{drawn:#?}");
        assert!(drawn[HEIGHT / 2].contains('o'), "{drawn:#?}");
        assert!(drawn[HEIGHT + 1].ends_with(" 200"), "{drawn:#?}");
        assert!(plot(&[], None).is_empty());
    }
}
