//! The machine: processes, namespaces, network, terminals, certificates, and the programs that stand for images.
//! Nothing here asks an API server or starts a part of a bed.
//! It reads the checkout, and calls the kernel and tools such as `ip`. What it makes is gone when the namespaces of the bed are gone,
//! but for control groups.

pub mod archives;
pub mod certificates;
pub mod cgroups;
pub mod images;
pub mod machine;
pub mod namespaces;
pub mod network;
pub mod process;
pub mod process_figures;
pub mod terminal;
