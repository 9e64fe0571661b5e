//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Looks at rolling updates of `IngressDaemonSets` and steers them.
#[derive(Debug, Parser)]
#[command(name = "kubectl-ids", bin_name = "kubectl ids", version, max_term_width = 100)]
pub struct Arguments {
    /// Where the cluster is, and how to print.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Default, Args)]
pub struct Global {
    /// Namespace of the resource; default: the context's.
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
    /// Context of the kubeconfig; default: the current one.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// The kubeconfig; default: $KUBECONFIG, else ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace in which the operator runs, to tell whether it does.
    #[arg(long, global = true, value_name = "NAMESPACE", default_value = "ingress-daemonset-system")]
    pub operator_namespace: String,
    /// Without colours. So it is, too, where `NO_COLOR` is set, and where output goes to no terminal.
    #[arg(long, global = true)]
    pub no_color: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show nodes with their phase and the reason why they are not further; progress, budget and permissions.
    Status(Status),
    /// Say in which order nodes would be updated, how long that takes, and what would hold each; nothing is changed.
    Plan(Plan),
    /// Say why a node is as it is.
    Why(OnNode),
    /// Let no new node start; nodes under way finish.
    Pause(One),
    /// Go on after `pause`.
    Resume(One),
    /// Replace every pod by one of the same template, within the budget.
    Restart(One),
    /// List the recorded revisions of the template.
    History(One),
    /// Go back to a former revision, within the budget, and stay there until `undo --clear`.
    Undo(Undo),
    /// Go on after a step of a canary that pauses.
    Promote(Promote),
    /// Leave a node as it is, neither updated nor repaired; with --undo, no more.
    Skip(Skip),
    /// Try a node again on which the revision failed; with --all, let pass all that failed, and try again what was rolled back.
    Retry(Retry),
    /// Give up what goes on on a node, and free its place in the budget.
    Release(Release),
    /// Watch the cluster and judge whether the operator keeps its promises; ends with 1 when it did not.
    Audit(Audit),
    /// Print a completion script: source it, see docs/kubectl-ids.md for the completion of `kubectl ids`.
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// What `kubectl_complete-ids` prints: candidates for the last word.
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
    /// Name of the resource; not needed where there is one only.
    pub name: Option<String>,
}

/// A node of a resource.
#[derive(Clone, Debug, Args)]
pub struct OnNode {
    /// The node.
    pub node: String,
    /// Name of the resource; not needed where there is one only.
    pub name: Option<String>,
}

/// Options of `status`.
#[derive(Clone, Debug, Args)]
pub struct Status {
    /// The resource.
    #[command(flatten)]
    pub one: One,
    /// Follow it: a table that is kept up to date on a terminal, else a line for every change. Ends with Ctrl-C.
    #[arg(short, long)]
    pub watch: bool,
    /// Follow it until every node runs the newest revision and nothing is under way; ends with 1 when somebody has to act first.
    #[arg(long)]
    pub until_complete: bool,
    /// With --until-complete: give up after this time, such as 10m.
    #[arg(long, value_parser = duration, requires = "until_complete")]
    pub timeout: Option<Duration>,
    /// How to print it.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Format,
}

/// How to print something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Options of `plan`.
#[derive(Clone, Debug, Args)]
pub struct Plan {
    /// The resource as it would be applied, a file or - for standard input. Without it: what is left of the present update.
    #[arg(short, long, value_name = "FILE")]
    pub filename: Option<PathBuf>,
    /// Name of the resource; not needed where there is one only, or with a file that names it.
    pub name: Option<String>,
    /// Seconds from the making of a pod to its readiness; default: what the resource's present pods took.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub pod_seconds: Option<u32>,
}

/// Options of `undo`.
#[derive(Clone, Debug, Args)]
pub struct Undo {
    /// The resource.
    #[command(flatten)]
    pub one: One,
    /// Number of the revision, as in `history`; default: the newest but that of spec.template.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(1..))]
    pub to_revision: Option<i64>,
    /// Run the revision of spec.template again.
    #[arg(long, conflicts_with = "to_revision")]
    pub clear: bool,
}

/// Options of `promote`.
#[derive(Clone, Debug, Args)]
pub struct Promote {
    /// The resource.
    #[command(flatten)]
    pub one: One,
    /// Go on after this step, and after those before it; default: the present one.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub step: Option<u32>,
    /// Go on after all steps.
    #[arg(long, conflicts_with = "step")]
    pub all: bool,
}

/// Options of `release`.
#[derive(Clone, Debug, Args)]
pub struct Release {
    /// Node and resource.
    #[command(flatten)]
    pub on: OnNode,
    /// Do not ask.
    #[arg(short, long)]
    pub yes: bool,
}

/// Options of `skip`.
#[derive(Clone, Debug, Args)]
pub struct Skip {
    /// Node and resource.
    #[command(flatten)]
    pub on: OnNode,
    /// Take the node in again.
    #[arg(long)]
    pub undo: bool,
}

/// Options of `retry`.
#[derive(Clone, Debug, Args)]
pub struct Retry {
    /// The node.
    #[arg(required_unless_present = "all")]
    pub node: Option<String>,
    /// Name of the resource; not needed where there is one only.
    pub name: Option<String>,
    /// All that failed, of the resource of this name; it needs none where there is one only.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["node", "name"])]
    pub all: Option<String>,
}

/// Options of `audit`.
#[derive(Clone, Debug, Args)]
pub struct Audit {
    /// Name of the resource; without it, all in the namespace.
    pub name: Option<String>,
    /// How long, such as 10m; default: until Ctrl-C.
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
