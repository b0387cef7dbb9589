//! Values of a fixed size, as bytes. Pairs and triples stand one after the other without a gap.

use crate::ids::{Namespace, Seq};
use crate::image::{ImageRun, RemovalImage};

/// A value of a fixed size.
pub(super) trait Record: Sized {
    /// Its bytes.
    const BYTES: usize;

    /// Appends its bytes.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads it from exactly [`Self::BYTES`] bytes; none if they are no such value.
    fn get(bytes: &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ident),*) => {$(
        impl Record for $number {
            const BYTES: usize = size_of::<Self>();
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }
        }
    )*};
}
numbers!(u8, u32, u64);

/// A byte that says whether the value is there, then the value or zeros.
impl<T: Record> Record for Option<T> {
    const BYTES: usize = 1 + T::BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_some()));
        match self {
            Some(value) => value.put(out),
            None => out.resize(out.len() + T::BYTES, 0),
        }
    }
    fn get(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (0, rest) => rest.iter().all(|byte| *byte == 0).then_some(None),
            (1, rest) => T::get(rest).map(Some),
            _ => None,
        }
    }
}

impl<A: Record, B: Record> Record for (A, B) {
    const BYTES: usize = A::BYTES + B::BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(bytes: &[u8]) -> Option<Self> {
        let (a, b) = bytes.split_at_checked(A::BYTES)?;
        Some((A::get(a)?, B::get(b)?))
    }
}

impl<A: Record, B: Record, C: Record> Record for (A, B, C) {
    const BYTES: usize = A::BYTES + <(B, C)>::BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
        self.2.put(out);
    }
    fn get(bytes: &[u8]) -> Option<Self> {
        let (a, rest) = bytes.split_at_checked(A::BYTES)?;
        let (b, c) = <(B, C)>::get(rest)?;
        Some((A::get(a)?, b, c))
    }
}

impl<A: Record, B: Record, C: Record, D: Record> Record for (A, B, C, D) {
    const BYTES: usize = A::BYTES + <(B, C, D)>::BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
        self.2.put(out);
        self.3.put(out);
    }
    fn get(bytes: &[u8]) -> Option<Self> {
        let (a, rest) = bytes.split_at_checked(A::BYTES)?;
        let (b, c, d) = <(B, C, D)>::get(rest)?;
        Some((A::get(a)?, b, c, d))
    }
}

impl Record for RemovalImage {
    const BYTES: usize = <(u64, u64, u64)>::BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        (self.hash, self.seq.0, self.at_ms).put(out);
    }
    fn get(bytes: &[u8]) -> Option<Self> {
        let (hash, seq, at_ms) = <(u64, u64, u64)>::get(bytes)?;
        Some(Self { hash, seq: Seq(seq), at_ms })
    }
}

const PARENT: u8 = 1;
const LORA: u8 = 2;
const SALT: u8 = 4;

type RunBytes = ((u8, u32), u32, u64, u64);

impl Record for ImageRun {
    const BYTES: usize = RunBytes::BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        let Namespace { lora, salt } = self.namespace;
        let flag = |there: bool, flag: u8| if there { flag } else { 0 };
        let flags = flag(self.parent.is_some(), PARENT) | flag(lora.is_some(), LORA) | flag(salt.is_some(), SALT);
        let run: RunBytes = ((flags, self.parent.unwrap_or(0)), self.len, lora.unwrap_or(0), salt.unwrap_or(0));
        run.put(out);
    }
    fn get(bytes: &[u8]) -> Option<Self> {
        let ((flags, parent), len, lora, salt) = RunBytes::get(bytes)?;
        let has = |flag: u8| flags & flag != 0;
        let clean = (has(PARENT) || parent == 0) && (has(LORA) || lora == 0) && (has(SALT) || salt == 0);
        (clean && flags < 8).then(|| Self {
            parent: has(PARENT).then_some(parent),
            len,
            namespace: Namespace { lora: has(LORA).then_some(lora), salt: has(SALT).then_some(salt) },
        })
    }
}
