//! Sizes with units, and switches.

use std::str::FromStr;

/// Value of `--memory-limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLimit {
    /// 85 % of the limit of the process's cgroup; none without one.
    Auto,
    /// No limit.
    Off,
    /// Resident bytes.
    Bytes(u64),
}

/// Binary units, longest name first so that `MiB` is not read as `B`.
const UNITS: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
];

impl FromStr for MemoryLimit {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.trim() {
            "" | "auto" => Ok(Self::Auto),
            "off" | "0" => Ok(Self::Off),
            size => {
                let (number, unit) = UNITS
                    .iter()
                    .find_map(|(name, unit)| size.strip_suffix(name).map(|number| (number, *unit)))
                    .unwrap_or((size, 1));
                let number: u64 = number.trim_end().parse().map_err(|_| ())?;
                number.checked_mul(unit).filter(|bytes| *bytes > 0).map(Self::Bytes).ok_or(())
            }
        }
    }
}

/// Value of a switch; the default for an empty text, none for an unknown word.
pub(super) fn switch(text: &str, default: bool) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "" => Some(default),
        "on" | "true" | "yes" | "1" => Some(true),
        "off" | "false" | "no" | "0" => Some(false),
        _ => None,
    }
}
