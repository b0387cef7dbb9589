//! Rows, their targets, and the two forms in which they are printed.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::measure::median;
use super::service::Side;

/// What a row has to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Target {
    /// Shown for the picture only.
    None,
    /// The other side's median must be at least so many times ours.
    TimesLess(f64),
    /// Our median must not be above.
    AtMost(f64),
}

/// One figure of both sides.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) group: &'static str,
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) ours: Vec<f64>,
    /// Empty where there is nothing to compare with. Infinite where it never came.
    pub(crate) reference: Vec<f64>,
    pub(crate) target: Target,
    /// Load averages while the samples were taken.
    pub(crate) loads: Vec<f64>,
    /// What the figures do not say.
    pub(crate) note: String,
}

impl Row {
    /// Without samples.
    pub(crate) fn new(group: &'static str, name: impl Into<String>, unit: &'static str) -> Self {
        Self {
            group,
            name: name.into(),
            unit,
            ours: vec![],
            reference: vec![],
            target: Target::None,
            loads: vec![],
            note: String::new(),
        }
    }

    /// With a target.
    pub(crate) fn target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    /// With a note.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// One more sample.
    pub(crate) fn add(&mut self, side: Side, value: f64) {
        match side {
            Side::Ours => self.ours.push(value),
            Side::Reference => self.reference.push(value),
        }
        self.loads.push(super::measure::load());
    }

    /// Median of the other side over ours.
    pub(crate) fn ratio(&self) -> f64 {
        median(&self.reference) / median(&self.ours)
    }

    /// Whether the target is met; none without a target.
    pub(crate) fn is_met(&self) -> Option<bool> {
        match self.target {
            Target::None => None,
            Target::TimesLess(times) => Some(self.ratio() >= times),
            Target::AtMost(most) => Some(median(&self.ours) <= most),
        }
    }

    fn cells(&self) -> [String; 8] {
        let target = match self.target {
            Target::None => String::new(),
            Target::TimesLess(times) => format!(">= {times}x less"),
            Target::AtMost(most) => format!("<= {}", number(most)),
        };
        let ratio = if self.ours.is_empty() || self.reference.is_empty() {
            "-".to_owned()
        } else if median(&self.reference).is_infinite() {
            "never".to_owned()
        } else if !self.ratio().is_finite() {
            "-".to_owned()
        } else {
            format!("{:.2}x", self.ratio())
        };
        let met = match self.is_met() {
            None => "",
            Some(true) => "met",
            Some(false) => "NOT met",
        };
        [
            self.name.clone(),
            self.unit.to_owned(),
            spread(&self.ours),
            spread(&self.reference),
            ratio,
            target,
            met.to_owned(),
            format!("{:.1}", median(&self.loads)),
        ]
    }

    /// One line for the progress on stderr.
    pub(crate) fn line(&self) -> String {
        let [name, unit, ours, reference, ratio, target, met, load] = self.cells();
        format!("{name} [{unit}]  {ours}  |  {reference}  |  {ratio}  {target}  {met}  (load {load}) {}", self.note)
    }

    /// With every sample.
    pub(crate) fn json(&self) -> Value {
        let values = |values: &[f64]| -> Vec<Value> {
            values.iter().map(|value| if value.is_infinite() { json!("never") } else { json!(value) }).collect()
        };
        let target = match self.target {
            Target::None => Value::Null,
            Target::TimesLess(times) => json!({"times_less": times}),
            Target::AtMost(most) => json!({"at_most": most}),
        };
        json!({
            "group": self.group, "name": self.name, "unit": self.unit, "target": target, "met": self.is_met(),
            "ours": {"median": median(&self.ours), "samples": values(&self.ours)},
            "reference": {"median": median(&self.reference), "samples": values(&self.reference)},
            "ratio": self.ratio(), "load_averages": self.loads, "note": self.note,
        })
    }
}

/// Median and range.
fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match values.len() {
        0 => "-".to_owned(),
        1 => number(least),
        _ => format!("{} ({}..{})", number(median(values)), number(least), number(most)),
    }
}

/// Three or four digits that count.
fn number(value: f64) -> String {
    match value.abs() {
        size if size.is_infinite() => "never".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}

const HEAD: [&str; 8] =
    ["figure", "unit", "ours: median (range)", "reference: median (range)", "ratio", "target", "met", "load"];

/// Aligned text: one block per group, notes below.
pub(crate) fn text(rows: &[Row]) -> String {
    let mut lines: Vec<[String; 8]> = vec![HEAD.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    let widths: [usize; 8] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0));
    let mut out = String::new();
    let mut group = "";
    for (at, line) in lines.iter().enumerate() {
        if let Some(row) = at.checked_sub(1).map(|at| &rows[at])
            && row.group != group
        {
            group = row.group;
            let _ = write!(out, "\n{group}\n");
        }
        for (cell, width) in line.iter().zip(widths) {
            let _ = write!(out, "{cell:width$}  ");
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    let mut notes: Vec<String> =
        rows.iter().filter(|row| !row.note.is_empty()).map(|row| format!("* {}: {}", row.name, row.note)).collect();
    notes.dedup();
    if !notes.is_empty() {
        let _ = write!(out, "\nNotes\n{}\n", notes.join("\n"));
    }
    let with_target: Vec<bool> = rows.iter().filter_map(Row::is_met).collect();
    let met = with_target.iter().filter(|met| **met).count();
    let _ = write!(out, "\n{met} of {} rows with a target met\n", with_target.len());
    out
}
