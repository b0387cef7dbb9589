//! Processes and the processors that they may use.

use std::process::Command;

use anyhow::{Result, ensure};

/// As long as it lives, some processes and this one share one processor.
pub(crate) struct Confined {
    pids: Vec<u32>,
    before: String,
}

impl Confined {
    /// Confines them with all their threads to the last processor that this process may use.
    ///
    /// # Errors
    /// There is no `taskset`, or it fails.
    pub(crate) fn new(pids: impl IntoIterator<Item = u32>) -> Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
        let before = list.trim().to_owned();
        let last = before.rsplit([',', '-']).next().unwrap_or_default().to_owned();
        let confined = Self { pids: pids.into_iter().chain([std::process::id()]).collect(), before };
        confined.set(&last)?;
        Ok(confined)
    }

    fn set(&self, processors: &str) -> Result<()> {
        for pid in &self.pids {
            let output = Command::new("taskset").args(["-a", "-p", "-c", processors, &pid.to_string()]).output()?;
            ensure!(output.status.success(), "taskset: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        if let Err(error) = self.set(&self.before) {
            // Only later rows are slower.
            eprintln!("processors not given back: {error}");
        }
    }
}
