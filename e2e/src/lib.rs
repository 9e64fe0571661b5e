//! API types, names and tokens.
