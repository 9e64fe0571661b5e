//! Tests of the structure of the other crates: `layers.yaml` orders their modules, `names.yaml` lists names with two
//! definitions.

#[cfg(test)]
mod layers;
#[cfg(test)]
mod names;
#[cfg(test)]
mod source;
