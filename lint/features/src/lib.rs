//! It has no code: see its manifest.
