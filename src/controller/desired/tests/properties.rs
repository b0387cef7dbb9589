//! What holds for every view.
