//! `kvindexer crd`: the CustomResourceDefinition that `deploy/` installs.

use std::io::{self, Write};

use crate::controller;

/// Prints it.
///
/// # Errors
/// Nobody reads.
pub fn main() -> io::Result<()> {
    io::stdout().write_all(controller::yaml().as_bytes())
}
