//! Tests of the structure of the other crates: `layers.yaml` orders their modules, `names.yaml` lists names with two
//! definitions. Another one writes messages to files, which the linter of prose reads.

#[cfg(test)]
mod layers;
#[cfg(test)]
mod messages;
#[cfg(test)]
mod names;
#[cfg(test)]
mod source;
