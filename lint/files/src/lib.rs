//! Tests of files that follow from other files: what is generated is compared with its source, and the chart and the manifests are read as
//! far as that needs no Helm and no API server.

#[cfg(test)]
mod chart;
#[cfg(test)]
mod deploy;
#[cfg(test)]
mod errors;
#[cfg(test)]
mod generated;
#[cfg(test)]
mod licences;

/// The checkout that this crate is in.
#[cfg(test)]
fn repository() -> &'static std::path::Path {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
