//! `bed`: runs scenarios and the demo, each inside namespaces of its own.

use std::{ffi::OsString, io::Write as _, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use e2e::{
    bed::rights,
    bench,
    demo::{
        self, Ports,
        front::{Door, Front},
    },
    host::{
        cgroups::{self, JOIN_ARGUMENT},
        machine::{self, MACHINE_ARGUMENT},
        namespaces::{self, INIT_ARGUMENT, INSIDE_ARGUMENT, Outside},
    },
    runs,
    scenario::{self, Group},
    scenarios,
};

#[derive(Parser)]
#[command(name = "bed", about = "A real Kubernetes control plane with nodes, HAProxy and load, inside namespaces")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one scenario in its own bed.
    Scenario {
        /// Name of the scenario; `bed list` lists them.
        name: String,
    },
    /// Run the scenarios of a group in one bed, up to the first that fails. `test` does so for all groups.
    Group {
        /// Name of the group; `bed list --groups` lists them.
        name: String,
        /// Number of scenarios to skip at the beginning.
        #[arg(long, default_value_t = 0)]
        first: usize,
    },
    /// Run all groups, as `make test` does.
    Test {
        /// Number of beds at once. A bed waits more than it works.
        #[arg(long, default_value_t = 4)]
        beds: usize,
    },
    /// Run every scenario and the demo, each in its own bed. Continues where it was stopped.
    Soak {
        /// Run only scenarios whose names contain this text.
        only: Option<String>,
        /// Number of runs.
        #[arg(long, default_value_t = 1)]
        repeat: u32,
        /// Number of beds at once. Undisturbed means one; the demo is always alone.
        #[arg(long, default_value_t = 1)]
        beds: usize,
    },
    /// Run some scenarios on each supported version of Kubernetes, and write docs/kubernetes-versions.md. `make versions` builds the
    /// control planes before.
    Versions {
        /// Run only this version, and write its row.
        only: Option<String>,
    },
    /// Run scenarios on machines with real kubelets and containerd. `make kubelet-bed` builds what they need before.
    Kubelets {
        /// Run only scenarios whose names contain this text.
        only: Option<String>,
        /// Where something is missing, name what did not run, and succeed.
        #[arg(long)]
        if_possible: bool,
    },
    /// List the scenarios.
    List {
        /// List the scenarios of `bed test`, by group.
        #[arg(long)]
        groups: bool,
    },
    /// Run one benchmark in its own bed.
    Bench {
        /// Name of the benchmark, for example `health-checker`.
        name: String,
    },
    /// Run the yardstick of `bed bench fleet`, which starts it itself.
    #[command(hide = true)]
    FleetLimit(bench::fleet::limit::Arguments),
    /// Run the yardstick of `bed bench gates`, which starts it itself.
    #[command(hide = true)]
    GatesLimit(bench::gates::limit::Arguments),
    /// Compare the rights that all scenarios used with the rights in `deploy/`. Run all scenarios before.
    Rights,
    /// Show rolling updates under load, beside a plain `DaemonSet`.
    Demo {
        /// Keep everything running and reachable from outside.
        #[arg(long)]
        keep: bool,
        /// Port of 127.0.0.1 for the API server. Default: any free port.
        #[arg(long, default_value_t = 0, env = "API_PORT")]
        api_port: u16,
        /// Port of 127.0.0.1 for `HAProxy`. Default: any free port.
        #[arg(long, default_value_t = 0, env = "WEB_PORT")]
        web_port: u16,
    },
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
    if let Some(rest) = namespaces::after(&arguments, JOIN_ARGUMENT) {
        return cgroups::join(rest);
    }
    if let Some(rest) = namespaces::after(&arguments, MACHINE_ARGUMENT) {
        return machine::init(rest);
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
        Command::List { groups } => {
            let lines: Vec<_> = if *groups {
                let of_group =
                    |group: &Group| group.scenarios.iter().map(|scenario| format!("{}: {}", group.name, scenario.name)).collect();
                scenarios::GROUPS.iter().flat_map::<Vec<_>, _>(of_group).collect()
            } else {
                scenarios::ALL.iter().map(|scenario| scenario.name.to_owned()).collect()
            };
            // A reader that has seen enough is no error.
            let _ = writeln!(std::io::stdout(), "{}", lines.join("\n"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Test { beds } => runs::test(*beds),
        Command::Soak { only, repeat, beds } => runs::soak(only.as_deref(), *repeat, *beds),
        Command::Versions { only } => runs::versions(only.as_deref()),
        Command::Kubelets { only, if_possible } => runs::kubelets(only.as_deref(), *if_possible),
        Command::Rights => rights::check(&scenarios::names()).map(|()| ExitCode::SUCCESS),
        Command::FleetLimit(limit) => {
            let runtime = tokio::runtime::Runtime::new().context("starting the async runtime")?;
            runtime.block_on(bench::fleet::limit::run(limit.clone())).map(|()| ExitCode::SUCCESS)
        }
        Command::GatesLimit(limit) => {
            let runtime = tokio::runtime::Runtime::new().context("starting the async runtime")?;
            runtime.block_on(bench::gates::limit::run(limit.clone())).map(|()| ExitCode::SUCCESS)
        }
        Command::Scenario { name } => {
            // It has printed why.
            if scenario::prepare(name, scenarios::prepare).is_err() { Ok(ExitCode::FAILURE) } else { Outside::start(arguments)?.wait() }
        }
        Command::Group { .. } | Command::Bench { .. } | Command::Demo { keep: false, .. } => Outside::start(arguments)?.wait(),
        Command::Demo { keep: true, api_port, web_port } => demo_with_front(*api_port, *web_port),
    }
}

/// Takes the ports first, so that one in use is said at once and not after minutes.
fn demo_with_front(api_port: u16, web_port: u16) -> Result<ExitCode> {
    let (api, web) = (Front::take(Door::Api, api_port)?, Front::take(Door::Web, web_port)?);
    let ports = [format!("--api-port={}", api.port()?), format!("--web-port={}", web.port()?)];
    let arguments: Vec<OsString> = ["demo".to_owned(), "--keep".to_owned()].into_iter().chain(ports).map(OsString::from).collect();
    let outside = Outside::start(&arguments)?;
    for front in [api, web] {
        front.forward(&outside.root());
    }
    outside.wait()
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
                let scenario = scenarios::find(&name)?;
                // The scenario has printed why.
                Ok(if scenario::run(scenario).await.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            }
            Command::Group { name, first } => {
                let group = scenarios::find_group(&name)?;
                Ok(if scenario::run_group(group, first).await.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            }
            Command::Bench { name } => {
                bench::run(&name).await?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Demo { keep, api_port, web_port } => {
                let outcome = demo::run(keep.then_some(Ports { api: api_port, web: web_port })).await;
                Ok(if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            }
            Command::List { .. }
            | Command::Test { .. }
            | Command::Soak { .. }
            | Command::Versions { .. }
            | Command::Kubelets { .. }
            | Command::Rights
            | Command::FleetLimit(_)
            | Command::GatesLimit(_) => Ok(ExitCode::SUCCESS),
        }
    })
}
