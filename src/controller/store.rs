//! The last complete lists of both kinds, while newer ones come in. Pure.
