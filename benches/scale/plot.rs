//! Lines over logarithmic axes, as SVG.

use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;

/// One line: its name, and its points.
pub(crate) type Line = (String, Vec<(f64, f64)>);

/// A picture.
pub(crate) struct Picture<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
    pub(crate) lines: &'a [Line],
}

const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(90, 90, 90),
];

impl Picture<'_> {
    /// Writes the picture.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::new(path, (760, 440)).into_drawing_area();
        root.fill(&WHITE)?;
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let (x, y) = (range(points().map(|point| point.0)), range(points().map(|point| point.1)));
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(x.log_scale(), y.log_scale())?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&short)
            .y_label_formatter(&short)
            .draw()?;
        for ((name, points), colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let style = colour.stroke_width(2);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.2))
            .draw()?;
        root.present()?;
        Ok(())
    }
}

/// All values with some room around them.
fn range(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let most = values.fold(0.0, f64::max);
    least / 1.3..most * 1.6
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that the plotting library asks for")]
fn short(value: &f64) -> String {
    match *value {
        value if value >= 1e6 => format!("{} M", value / 1e6),
        value if value >= 1e3 => format!("{} k", value / 1e3),
        value => format!("{value}"),
    }
}
