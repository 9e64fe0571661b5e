//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Inspect and control `IngressDaemonSet` rollouts.
#[derive(Debug, Parser)]
#[command(name = "kubectl-ids", bin_name = "kubectl ids", version, max_term_width = 100)]
pub struct Arguments {
    /// Where the cluster is, and how to print.
    #[command(flatten)]
    pub global: Global,
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Default, Args)]
pub struct Global {
    /// Namespace of the resource. Default: that of the context.
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
    /// Context of the kubeconfig. Default: the current one.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// File of the kubeconfig. Default: $KUBECONFIG, else ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the operator, to check whether it runs and to read its flags.
    #[arg(long, global = true, value_name = "NAMESPACE", default_value = "ingress-daemonset-system")]
    pub operator_namespace: String,
    /// Print without colours. Colours are off by default if `NO_COLOR` is set, and if the output is not a terminal.
    #[arg(long, global = true)]
    pub no_color: bool,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show progress, budget and grants, and the phase and reason of each unfinished node.
    Status(StatusOptions),
    /// Forecast the order of nodes, the time and the obstacles of an update. It changes nothing.
    Plan(PlanOptions),
    /// Explain the state of a node.
    Why(OnNode),
    /// Start no new node. Nodes that are being updated finish.
    Pause(One),
    /// Continue after `pause`.
    Resume(One),
    /// Replace all pods with new pods of the same template, within the budget.
    Restart(One),
    /// List recorded revisions of the template.
    History(One),
    /// Return to an earlier revision, within the budget, and stay there until `undo --clear`.
    Undo(UndoOptions),
    /// Continue after a canary step that pauses.
    Promote(PromoteOptions),
    /// Exclude a node from updates and repairs. With --undo, include it again.
    Skip(SkipOptions),
    /// Retry a node on which the revision failed. With --all, accept all failures, end suspicions, and retry a revision that was rolled back.
    Retry(RetryOptions),
    /// Abandon the current operation on a node and end its grant.
    Release(ReleaseOptions),
    /// Watch the cluster and check whether the operator keeps its promises. Exits with 1 after a violation.
    Audit(AuditOptions),
    /// Print a completion script of `kubectl-ids`, to be sourced. For `kubectl ids`, see docs/kubectl-ids.md.
    Completion {
        /// Name of the shell.
        shell: Shell,
    },
    /// Print candidates for the last word, for `kubectl_complete-ids`.
    #[command(name = "__complete", hide = true, disable_help_flag = true)]
    Complete {
        /// The words so far.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

/// A resource.
#[derive(Clone, Debug, Default, Args)]
pub struct One {
    /// Name of the resource. Optional if the namespace has only one.
    pub name: Option<String>,
}

/// A node of a resource.
#[derive(Clone, Debug, Args)]
pub struct OnNode {
    /// Name of the node.
    pub node: String,
    /// Name of the resource. Optional if the namespace has only one.
    pub name: Option<String>,
}

/// Options of `status`.
#[derive(Clone, Debug, Args)]
pub struct StatusOptions {
    /// The resource.
    #[command(flatten)]
    pub one: One,
    /// Follow changes: on a terminal the table stays up to date, elsewhere each change is one line. Ends with Ctrl-C.
    #[arg(short, long)]
    pub watch: bool,
    /// Follow changes until every node runs the newest revision and no update is in progress. Exits with 1 if somebody must act first.
    #[arg(long)]
    pub until_complete: bool,
    /// Maximum time of --until-complete, such as 10m.
    #[arg(long, value_parser = duration, requires = "until_complete")]
    pub timeout: Option<Duration>,
    /// Format of the output.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Format,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Options of `plan`.
#[derive(Clone, Debug, Args)]
pub struct PlanOptions {
    /// File with the resource to be applied, or - for standard input. Without it: the rest of the current update.
    #[arg(short, long, value_name = "FILE")]
    pub filename: Option<PathBuf>,
    /// Name of the resource. Optional if the namespace has only one, or if the file names it.
    pub name: Option<String>,
    /// Seconds from the creation of a pod until it is ready. Default: measured from the resource's present pods.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub pod_seconds: Option<u32>,
}

/// Options of `undo`.
#[derive(Clone, Debug, Args)]
pub struct UndoOptions {
    /// The resource.
    #[command(flatten)]
    pub one: One,
    /// Number of the revision, as in `history`. Default: the newest other than that of spec.template.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(1..))]
    pub to_revision: Option<i64>,
    /// Run the revision of spec.template again.
    #[arg(long, conflicts_with = "to_revision")]
    pub clear: bool,
}

/// Options of `promote`.
#[derive(Clone, Debug, Args)]
pub struct PromoteOptions {
    /// The resource.
    #[command(flatten)]
    pub one: One,
    /// Continue after this step and all earlier steps. Default: the present step.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub step: Option<u32>,
    /// Continue after all steps.
    #[arg(long, conflicts_with = "step")]
    pub all: bool,
}

/// Options of `release`.
#[derive(Clone, Debug, Args)]
pub struct ReleaseOptions {
    /// Node and resource.
    #[command(flatten)]
    pub on: OnNode,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub yes: bool,
}

/// Options of `skip`.
#[derive(Clone, Debug, Args)]
pub struct SkipOptions {
    /// Node and resource.
    #[command(flatten)]
    pub on: OnNode,
    /// Include the node again.
    #[arg(long)]
    pub undo: bool,
}

/// Options of `retry`.
#[derive(Clone, Debug, Args)]
pub struct RetryOptions {
    /// Name of the node.
    #[arg(required_unless_present = "all")]
    pub node: Option<String>,
    /// Name of the resource. Optional if the namespace has only one.
    pub name: Option<String>,
    /// Accept all failures of the resource of this name. The name is optional if the namespace has only one.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["node", "name"])]
    pub all: Option<String>,
}

/// Options of `audit`.
#[derive(Clone, Debug, Args)]
pub struct AuditOptions {
    /// Name of the resource. Default: all in the namespace.
    pub name: Option<String>,
    /// Duration of the audit, such as 10m. Default: until Ctrl-C.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub duration: Option<Duration>,
}

/// A duration as Go writes it.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration such as 30s, 10m or 1h30m");
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(parsed).ok().filter(|duration| !duration.is_zero()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn refused(line: &str) -> String {
        Arguments::try_parse_from(line.split_whitespace()).unwrap_err().to_string()
    }

    #[test]
    fn the_definition_contradicts_itself_nowhere() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_of_every_command_may_stand_before_and_after_it() {
        for line in ["kubectl-ids -n web status edge", "kubectl-ids status edge -n web"] {
            let arguments = Arguments::try_parse_from(line.split_whitespace()).unwrap();
            assert_eq!(arguments.global.namespace.as_deref(), Some("web"));
            assert!(matches!(arguments.command, Command::Status(status) if status.one.name.as_deref() == Some("edge")));
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        assert!(refused("kubectl-ids why").contains("<NODE>"));
        assert!(refused("kubectl-ids audit --for 10").contains("such as 30s, 10m or 1h30m"));
        assert!(refused("kubectl-ids audit --for 0s").contains("such as 30s"));
        assert!(refused("kubectl-ids status --timeout 10m").contains("--until-complete"));
        assert!(refused("kubectl-ids status -o yaml").contains("[possible values: table, json]"));
        assert!(refused("kubectl-ids plan --pod-seconds 0").contains("1..=86400"));
        assert!(refused("kubectl-ids undo --to-revision 0").contains("1.."));
        assert!(refused("kubectl-ids undo --to-revision 3 --clear").contains("--clear"));
        assert!(refused("kubectl-ids promote --all --step 2").contains("--step"));
        assert!(refused("kubectl-ids statsu").contains("status"), "a command like it is suggested");
        assert!(refused("kubectl-ids completion tcsh").contains("bash"));
    }
}
