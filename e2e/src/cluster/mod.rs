//! What is made on the cluster of a bed and read there: the resource, its workload, gates, operators, detachers, nodes without machines.
//! Scenarios, benchmarks and the demo use it, and it uses none of them.
//! It reads the API, and the history of the recorder. It writes to the API, and returns what it read, or an error if that never came true.

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
