//! Watches the resident memory of the process against a limit, and tells every index when it is over it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::interval;
use tracing::{info, warn};

use crate::config::MemoryLimit;
use crate::ingest::{Clock, SystemClock};
use crate::registry::Registry;

/// Rhythm of looking: a flood of 200,000 blocks a second takes some 20 MB in this time.
const POLL: Duration = Duration::from_secs(1);

/// Pressure ends below this part of the limit, so that it does not flap.
const RELEASE_PERCENT: u64 = 95;

/// Part of the cgroup's limit that `auto` takes: the rest is for sockets, requests in flight and the allocator.
const CGROUP_PERCENT: u64 = 85;

/// Takes memory from the system in small pages only, from here on. The allocator asks for huge ones, which are cleared as
/// a whole however little of them is used: ingest of a fresh process took up to a tenth more processor time with them, and
/// growing an index to 10 and 50 million blocks 16 and 3 % more (measured on a virtual machine).
pub(super) fn refuse_huge_pages() {
    // Where the system refuses, it is as it was.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_thp_disable(true);
}

/// The limit in bytes, if there is one.
pub(super) fn limit_bytes(limit: MemoryLimit) -> Option<u64> {
    match limit {
        MemoryLimit::Off => None,
        MemoryLimit::Bytes(bytes) => Some(bytes),
        MemoryLimit::Auto => cgroup_limit_bytes().map(|bytes| percent(bytes, CGROUP_PERCENT)),
    }
}

/// Watches for ever; without a limit it waits for ever.
pub(super) async fn watch(registry: &Arc<Registry>, limit: Option<u64>) {
    let Some(limit) = limit else {
        return std::future::pending().await;
    };
    let mut ticks = interval(POLL);
    let mut over = false;
    loop {
        ticks.tick().await;
        let Some(resident) = fs::read_to_string("/proc/self/status").ok().as_deref().and_then(resident_bytes) else {
            continue;
        };
        let was_over = over;
        over = is_over(was_over, resident, limit);
        match (was_over, over) {
            (false, true) => warn!(resident, limit, "over the memory limit: blocks are not taken"),
            (true, false) => info!(resident, limit, "below the memory limit: blocks are taken"),
            (false, false) => continue,
            // Indexes that were created meanwhile must know too.
            (true, true) => {}
        }
        for (_, index) in registry.indexes() {
            index.write().set_memory_pressure(over, SystemClock.now_ms());
        }
    }
}

fn is_over(was_over: bool, resident: u64, limit: u64) -> bool {
    resident > if was_over { percent(limit, RELEASE_PERCENT) } else { limit }
}

fn percent(bytes: u64, percent: u64) -> u64 {
    bytes / 100 * percent
}

/// `VmRSS` of `/proc/self/status`.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest limit on the way from the process's cgroup to the root.
fn cgroup_limit_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let (root, path, file) = cgroup(&groups)?;
    path.ancestors()
        .filter_map(|group| fs::read_to_string(Path::new(root).join(group).join(file)).ok())
        .filter_map(|text| limit_of(&text))
        .min()
}

/// Where the memory group of a process is: mount point, path below it, and the file with the limit.
fn cgroup(groups: &str) -> Option<(&'static str, PathBuf, &'static str)> {
    let path = |path: &str| PathBuf::from(path.trim_start_matches('/'));
    groups.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        match controllers {
            // Version 1 names its controllers, and counts when it has the memory.
            names if names.split(',').any(|name| name == "memory") => {
                Some(("/sys/fs/cgroup/memory", path(group), "memory.limit_in_bytes"))
            }
            "" => Some(("/sys/fs/cgroup", path(group), "memory.max")),
            _ => None,
        }
    })
}

/// A limit file; `max`, and the huge number with which version 1 says the same, are none.
fn limit_of(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        assert_eq!(resident_bytes("VmPeak:\t 9 kB\nVmRSS:\t   12 kB\nVmData: 1 kB\n"), Some(12 << 10));
        assert_eq!(resident_bytes("VmPeak:\t 9 kB\n"), None);
        assert!(resident_bytes(&fs::read_to_string("/proc/self/status").unwrap()).unwrap() > 0);
        for (text, want) in [("1048576\n", Some(1 << 20)), ("max\n", None), ("9223372036854771712\n", None), ("", None)]
        {
            assert_eq!(limit_of(text), want, "{text:?}");
        }
        for (groups, want) in [
            ("0::/a/b\n", Some(("/sys/fs/cgroup", PathBuf::from("a/b"), "memory.max"))),
            ("0::/\n", Some(("/sys/fs/cgroup", PathBuf::new(), "memory.max"))),
            (
                "4:cpu:/x\n2:memory,hugetlb:/y\n0::/z\n",
                Some(("/sys/fs/cgroup/memory", PathBuf::from("y"), "memory.limit_in_bytes")),
            ),
            ("", None),
        ] {
            assert_eq!(cgroup(groups), want, "{groups:?}");
        }
    }

    #[test]
    fn pressure_begins_at_the_limit_and_ends_well_below_it() {
        for (was_over, resident, want) in
            [(false, 1000, false), (false, 1001, true), (true, 999, true), (true, 951, true), (true, 950, false)]
        {
            assert_eq!(is_over(was_over, resident, 1000), want, "{was_over} {resident}");
        }
    }
}
