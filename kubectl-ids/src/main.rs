//! `kubectl-ids`: on the PATH, `kubectl ids` runs it.

use std::process::ExitCode;

use clap::Parser as _;
use kubectl_ids::{arguments::Arguments, commands, output};

#[tokio::main]
async fn main() -> ExitCode {
    match commands::run(Arguments::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", output::harmless(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}
