//! `bed`: runs scenarios and the demo, each inside namespaces of its own.

use std::{ffi::OsString, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use e2e::{
    namespaces::{self, INIT_ARGUMENT, INSIDE_ARGUMENT, Outside},
    scenario, scenarios,
};

#[derive(Parser)]
#[command(name = "bed", about = "A real Kubernetes control plane with nodes, HAProxy and load, inside namespaces")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs one scenario in a bed of its own.
    Scenario {
        /// Its name; `bed list` lists them.
        name: String,
    },
    /// Lists the scenarios.
    List,
}

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(rest) = namespaces::after(&arguments, INIT_ARGUMENT) {
        return namespaces::init(rest);
    }
    if let Some(rest) = namespaces::after(&arguments, INSIDE_ARGUMENT) {
        let program = OsString::from("bed");
        return inside(Arguments::parse_from(std::iter::once(&program).chain(rest)).command);
    }
    outside(&Arguments::parse().command, &arguments)
}

/// In the user's shell.
fn outside(command: &Command, arguments: &[OsString]) -> Result<ExitCode> {
    match command {
        Command::List => {
            for scenario in scenarios::ALL {
                println!("{}", scenario.name);
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Scenario { .. } => Outside::start(arguments)?.wait(),
    }
}

/// In the namespaces.
fn inside(command: Command) -> Result<ExitCode> {
    // Polling an API server that is not there yet is not worth a line each time.
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "warn,kube_client=off".to_owned());
    tracing_subscriber::fmt().with_env_filter(filter).init();
    let runtime = tokio::runtime::Runtime::new().context("starting the async runtime")?;
    runtime.block_on(async {
        match command {
            Command::Scenario { name } => {
                // The scenario has printed why.
                Ok(if scenario::run(&name).await.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            }
            Command::List => Ok(ExitCode::SUCCESS),
        }
    })
}
