//! Completion: scripts for `kubectl-ids`, and candidates for `kubectl ids`, which asks a program `kubectl_complete-ids`.

use std::{fmt::Write as _, time::Duration};

use anyhow::Result;
use clap::{Arg, Command as Clap, CommandFactory as _};
use clap_complete::{Shell, generate};
use kube::ResourceExt as _;

use crate::{
    arguments::{Arguments, Global},
    cluster::Cluster,
};

/// How long a person waits for candidates.
const PATIENCE: Duration = Duration::from_secs(3);
/// cobra's directive `ShellCompDirectiveNoFileComp`: no file names.
const NO_FILES: &str = ":4";
/// cobra's directive `ShellCompDirectiveDefault`: file names.
const FILES: &str = ":0";

/// The script for a shell.
pub fn script(shell: Shell) -> Result<String> {
    let mut script = Vec::new();
    // kubectl calls plugins by this name; `kubectl ids` itself is completed by `kubectl_complete-ids`.
    generate(shell, &mut Arguments::command().bin_name("kubectl-ids"), "kubectl-ids", &mut script);
    Ok(String::from_utf8(script)?)
}

/// The kind of word that is wanted next.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CompletionKind {
    /// One of these words.
    Words(Vec<(String, String)>),
    /// A file.
    File,
    /// A resource's name.
    Resource,
    /// A node's name.
    Node,
    /// Nothing that is known.
    Nothing,
}

/// Candidates for the last of the words, in cobra's form: one line each, then a directive.
pub async fn candidates(global: &Global, words: &[String]) -> String {
    let (before, last) = words.split_last().map_or((&[][..], ""), |(last, before)| (before, last.as_str()));
    let wanted = wanted(before, last);
    if wanted == CompletionKind::File {
        return format!("{FILES}\n");
    }
    let words = match wanted {
        CompletionKind::Words(words) => words,
        CompletionKind::Resource => names(&with_options(global, before), false).await,
        CompletionKind::Node => names(&with_options(global, before), true).await,
        CompletionKind::File | CompletionKind::Nothing => Vec::new(),
    };
    let mut text = String::new();
    for (word, help) in words.iter().filter(|(word, _)| word.starts_with(last)) {
        // Writing into a String cannot fail.
        let _ = if help.is_empty() { writeln!(text, "{word}") } else { writeln!(text, "{word}\t{help}") };
    }
    text + NO_FILES + "\n"
}

/// The kind of word that the definition of the command line allows behind `before`.
fn wanted(before: &[String], last: &str) -> CompletionKind {
    let mut command = Arguments::command();
    command.build();
    let (mut at, mut positional, mut rest) = (&command, 0, before.iter());
    while let Some(word) = rest.next() {
        if let Some(option) = option(at, &command, word) {
            if takes_value(option) && !word.contains('=') && rest.next().is_none() {
                return value(option);
            }
        } else if let Some(next) = at.find_subcommand(word) {
            (at, positional) = (next, 0);
        } else {
            positional += 1;
        }
    }
    if last.starts_with('-') {
        let options = at.get_arguments().chain(command.get_arguments().filter(|option| option.is_global_set()));
        let mut words: Vec<_> = options.filter_map(|option| Some((format!("--{}", option.get_long()?), help(option.get_help())))).collect();
        words.sort();
        words.dedup_by(|one, other| one.0 == other.0);
        return CompletionKind::Words(words);
    }
    if at.has_subcommands() {
        let shown = at.get_subcommands().filter(|command| !command.is_hide_set());
        return CompletionKind::Words(shown.map(|command| (command.get_name().to_owned(), help(command.get_about()))).collect());
    }
    at.get_positionals().nth(positional).map_or(CompletionKind::Nothing, value)
}

fn help(text: Option<&clap::builder::StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.split([';', ':', '.']).next().unwrap_or_default().to_owned()
}

fn option<'a>(at: &'a Clap, root: &'a Clap, word: &str) -> Option<&'a Arg> {
    let name = word.split('=').next().unwrap_or(word);
    let is = |option: &&Arg| {
        option.get_long().is_some_and(|long| name.strip_prefix("--") == Some(long))
            || option.get_short().is_some_and(|short| name.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4])))
    };
    at.get_opts().find(is).or_else(|| at.get_arguments().find(is)).or_else(|| root.get_arguments().find(is))
}

fn takes_value(option: &Arg) -> bool {
    option.get_action().takes_values()
}

fn value(argument: &Arg) -> CompletionKind {
    let possible = argument.get_possible_values();
    if !possible.is_empty() && takes_value(argument) {
        return CompletionKind::Words(possible.iter().map(|value| (value.get_name().to_owned(), help(value.get_help()))).collect());
    }
    match argument.get_id().as_str() {
        "name" => CompletionKind::Resource,
        "node" => CompletionKind::Node,
        "filename" | "kubeconfig" => CompletionKind::File,
        _ => CompletionKind::Nothing,
    }
}

/// The options that say which cluster is meant, as far as they are complete.
fn with_options(global: &Global, words: &[String]) -> Global {
    let mut global = global.clone();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, inline) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value.to_owned())));
        let mut value = || inline.clone().or_else(|| words.next().cloned());
        match name {
            "-n" | "--namespace" => global.namespace = value(),
            "--context" => global.context = value(),
            "--kubeconfig" => global.kubeconfig = value().map(Into::into),
            _ => {}
        }
    }
    global
}

/// Names out of the cluster; none when it does not answer at once.
async fn names(global: &Global, nodes: bool) -> Vec<(String, String)> {
    let ask = async {
        let cluster = Cluster::connect(global).await.ok()?;
        let resources = cluster.list_resources().await.ok()?;
        if !nodes {
            return Some(resources.iter().map(|resource| (resource.name_any(), String::new())).collect());
        }
        let api = kube::Api::<k8s_openapi::api::core::v1::Node>::all(cluster.client.clone());
        let listed = api.list_metadata(&kube::api::ListParams::default()).await.ok()?;
        let states: Vec<_> = resources.iter().flat_map(|resource| resource.status.iter().flat_map(|status| &status.node_states)).collect();
        let said = |name: &str| states.iter().find(|state| state.name == name).map(|state| format!("{} {}", state.phase, state.reason));
        Some(listed.items.iter().map(|node| (node.name_any(), said(&node.name_any()).unwrap_or_default())).collect())
    };
    tokio::time::timeout(PATIENCE, ask).await.ok().flatten().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(line: &str, last: &str) -> CompletionKind {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        wanted(&words, last)
    }

    fn has(wanted: &CompletionKind, word: &str) -> bool {
        matches!(wanted, CompletionKind::Words(words) if words.iter().any(|(one, _)| one == word))
    }

    #[test]
    fn each_place_of_the_line_has_its_candidates() {
        assert!(has(&after("", ""), "status") && !has(&after("", ""), "__complete"));
        assert!(has(&after("-n web", ""), "why"), "an option before the command takes its value with it");
        assert!(has(&after("status", "--"), "--until-complete") && has(&after("status", "--"), "--namespace"));
        assert!(has(&after("status -o", ""), "json"));
        assert!(has(&after("completion", ""), "zsh"));
        assert_eq!(after("status", ""), CompletionKind::Resource);
        assert_eq!(after("why", ""), CompletionKind::Node);
        assert_eq!(after("why n1", ""), CompletionKind::Resource);
        assert_eq!(after("plan -f", ""), CompletionKind::File);
        assert_eq!(after("why n1 edge", ""), CompletionKind::Nothing);
    }

    #[test]
    fn completion_asks_the_cluster_named_on_the_line() {
        let words: Vec<_> = ["status", "-n", "web", "--context=prod"].map(str::to_owned).into();
        let global = with_options(&Global::default(), &words);
        assert_eq!((global.namespace.as_deref(), global.context.as_deref()), (Some("web"), Some("prod")));
    }

    #[test]
    fn every_shell_has_a_script() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            assert!(script(shell).unwrap().contains("kubectl-ids"), "{shell}");
        }
    }
}
