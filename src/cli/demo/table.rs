//! The table of the demonstration: a line per prompt, a column per instance.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::cli::sim::check::InstanceAnswer;

/// One prompt and its answer.
#[derive(Debug)]
pub(super) struct Row {
    /// Content ids.
    pub prompt: Vec<u64>,
    /// Length in tokens.
    pub tokens: usize,
    /// By instance.
    pub instances: BTreeMap<String, InstanceAnswer>,
    /// Time of the query.
    pub took: Duration,
}

/// All lines.
#[derive(Debug)]
pub(super) struct Table {
    /// In order.
    pub rows: Vec<Row>,
    /// Columns, in order.
    pub instances: Vec<String>,
}

/// Content ids shown of a long prompt.
const IDS_SHOWN: usize = 4;

impl fmt::Display for Table {
    /// Cells are `gpu + host` in tokens: what the device holds, and what host memory adds to it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![self.header()];
        lines.extend(self.rows.iter().map(|row| self.line(row)));
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..lines[0].len()).map(width).collect();
        writeln!(f, "Leading tokens of a prompt that each worker holds, as gpu + cpu (host memory):")?;
        for line in &lines {
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "  {cell:<width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl Table {
    fn header(&self) -> Vec<String> {
        let mut header = vec!["prompt (content ids)".to_owned(), "tokens".to_owned()];
        header.extend(self.instances.iter().map(|instance| format!("worker {instance}")));
        header.push("query".to_owned());
        header
    }

    fn line(&self, row: &Row) -> Vec<String> {
        let ids: Vec<_> = row.prompt.iter().take(IDS_SHOWN).map(ToString::to_string).collect();
        let more = if row.prompt.len() > IDS_SHOWN { " .." } else { "" };
        let mut line = vec![format!("{}{more}", ids.join(" ")), row.tokens.to_string()];
        line.extend(self.instances.iter().map(|instance| match row.instances.get(instance) {
            Some(answer) if answer.cpu > answer.gpu => format!("{} + {}", answer.gpu, answer.cpu - answer.gpu),
            Some(answer) => answer.gpu.to_string(),
            None => "missing".to_owned(),
        }));
        line.push(format!("{} us", row.took.as_micros()));
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_show_the_device_and_what_host_memory_adds() {
        let answer = |gpu, cpu| InstanceAnswer { gpu, cpu, ..InstanceAnswer::default() };
        let row = Row {
            prompt: vec![0, 4, 5, 6, 7],
            tokens: 320,
            instances: [("1".to_owned(), answer(64, 64)), ("b".to_owned(), answer(16, 96))].into(),
            took: Duration::from_micros(120),
        };
        let table = Table { rows: vec![row], instances: vec!["1".into(), "b".into(), "c".into()] };
        expect_test::expect![[r"
            Leading tokens of a prompt that each worker holds, as gpu + cpu (host memory):
              prompt (content ids)  tokens  worker 1  worker b  worker c   query
              0 4 5 6 ..               320        64   16 + 80   missing  120 us
        "]]
        .assert_eq(&table.to_string());
    }
}
