//! State that leaves an index and enters another: owners as plain values (`image::Image`), and chains of which only hashes
//! are known (`/dump`).
//!
//! * `export` copies owners out of the tree, `check` looks an image over before anything is changed, `content` puts its
//!   blocks into the tree, `import` its owners onto the blocks, `rest` turns what is apart from the common form to
//!   values and back, `load` takes what a dump says.
//!
//! Invariants: an image holds everything that decides later answers of its owners; equal states make equal images,
//! whatever other owners the index has, apart from hashes of blocks that none of the image's owners knows or hangs a
//! block below. Nothing that an image says can end the process or leave the index inconsistent.

mod audit;
mod check;
mod content;
mod export;
mod import;
mod load;
mod rest;

pub use import::ImportError;
pub(super) use import::trust_of;
