//! Asks engines to describe themselves. Reading their answers is pure.
