//! The commands: one function for each, which reads the cluster, prints, and for some commands writes.
//!
//! The command line comes from `arguments.rs`, and everything that is read of the cluster comes through `cluster.rs`. Pure functions
//! (`status_view.rs`, `why.rs`, `history.rs`, `forecast`) make text of it for `output.rs`. Only `steer.rs`, `revisions.rs` and `nodes.rs`
//! have commands that change objects. Begin with `run`.

mod audit;
mod nodes;
mod plan;
mod revisions;
mod status;
mod steer;

use std::process::ExitCode;

use anyhow::{Result, bail};
use kube::ResourceExt as _;

use crate::{
    arguments::{Arguments, Command, OnNode},
    cluster::Cluster,
    output::{Style, print, remark, remarks},
    shell_completion,
    why::why,
};

/// Carries a command line out.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let global = &arguments.global;
    match &arguments.command {
        Command::Completion { shell } => return shell_completion::script(*shell).and_then(|text| print(&text)).map(|()| ExitCode::SUCCESS),
        Command::Complete { words } => {
            print(&shell_completion::candidates(global, words).await)?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let cluster = Cluster::connect(global).await?;
    let style = Style::of_stdout(global.no_color);
    match &arguments.command {
        Command::Status(options) => return status::status(&cluster, options, style).await,
        Command::Plan(options) => return plan::plan(&cluster, global.namespace.as_deref(), options, style).await,
        Command::Audit(options) => return audit::audit(&cluster, options, style).await,
        Command::Why(on) => explain(&cluster, on, style).await?,
        Command::Pause(one) => steer::pause(&cluster, one, true).await?,
        Command::Resume(one) => steer::pause(&cluster, one, false).await?,
        Command::Restart(one) => steer::restart(&cluster, one).await?,
        Command::History(one) => revisions::history(&cluster, one, style).await?,
        Command::Undo(options) => revisions::undo(&cluster, options).await?,
        Command::Promote(options) => revisions::promote(&cluster, options).await?,
        Command::Skip(skip) => nodes::skip(&cluster, &skip.on, !skip.undo).await?,
        Command::Retry(options) => nodes::retry(&cluster, options).await?,
        Command::Release(options) => nodes::release(&cluster, options).await?,
        Command::Completion { .. } | Command::Complete { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

async fn explain(cluster: &Cluster, on: &OnNode, style: Style) -> Result<()> {
    let resource = cluster.find(on.name.as_deref()).await?;
    say_if_operator_is_down(cluster, &resource).await;
    let (view, missing) = cluster.observe(Some(&resource)).await?;
    remarks(&missing);
    let snapshot = view.snapshot(&resource)?;
    match why(&resource, &snapshot, &on.node) {
        Ok(answer) => print(&answer.render(&resource, &on.node, style, snapshot.now)),
        Err(message) => bail!(message),
    }
}

async fn say_if_operator_is_down(cluster: &Cluster, resource: &crds::IngressDaemonSet) {
    if let Some(trouble) = cluster.operator_trouble(resource).await {
        remark(&trouble);
    }
}

/// How a resource is called in messages.
fn title(resource: &crds::IngressDaemonSet) -> String {
    format!("ingressdaemonset/{}", resource.name_any())
}
