//! Many scenarios in one run: in groups that share beds, several at once (`make test`), or each alone, one after the other (`make soak`).
//! A scenario runs once. What failed has failed, and the others run all the same.
//! Nothing here runs in the namespaces of a bed: each run starts the program `bed`.
//! It reads the verdicts that `bed` prints. They go to the terminal and to files in `target/bed`.

mod compiler;
mod groups;
mod kubelets;
mod soak;
mod verdict;
mod versions;

pub use groups::test;
pub use kubelets::kubelets;
pub use soak::soak;
pub use versions::versions;
