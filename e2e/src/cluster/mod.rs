//! What is made on the cluster of a bed, and read there.

pub mod detacher;
pub mod effects;
pub mod former_operator;
pub mod guide;
pub mod joining;
pub mod node_gates;
pub mod operator_process;
pub mod product;
pub mod thin_nodes;
pub mod workload;
