//! What stays in the cluster when the operator is uninstalled, for whoever uninstalls it.

use crate::{pages, watch::PAGE};
use crds::{IngressDaemonSet, NodeReadinessGate, PodReadinessGate};
use kube::{Api, Client, Resource, ResourceExt as _, api::ListParams, core::PartialObjectMeta};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Names that are printed of each kind.
const NAMES: usize = 20;

/// Objects of one kind.
#[derive(Debug)]
struct Remaining {
    plural: &'static str,
    /// What their existence means without an operator.
    meaning: &'static str,
    /// Names, with the namespace before a `/` where there is one, or why they are not known.
    names: Result<Vec<String>, String>,
}

/// For whoever uninstalls the operator.
#[derive(Debug)]
pub struct RemainingReport {
    /// What is left, what happens to it without an operator, and how to go on.
    pub text: String,
    /// Something is left, or nobody knows, and `refuse` was asked for.
    pub refused: bool,
}

/// What is left. It has no error: nobody is kept from uninstalling, unless `refuse` is set because the definitions go with the operator.
pub async fn report(client: &Client, refuse: bool) -> RemainingReport {
    let kinds = [
        Remaining {
            plural: "IngressDaemonSets",
            meaning: "Their pods and health checkers keep serving. Nobody updates them, and new nodes get no pods. \
                      Nodes that are out stay out, and new nodes keep the taint of nodeReadinessTaint.",
            names: names::<IngressDaemonSet>(client).await,
        },
        Remaining {
            plural: "NodeReadinessGates",
            meaning: "Nodes keep the taints that they have now, and new nodes still get them: nobody removes them.",
            names: names::<NodeReadinessGate>(client).await,
        },
        Remaining {
            plural: "PodReadinessGates",
            meaning: "New pods stay unready: nobody sets their condition.",
            names: names::<PodReadinessGate>(client).await,
        },
    ];
    of(&kinds, refuse)
}

fn of(kinds: &[Remaining], refuse: bool) -> RemainingReport {
    let refused = refuse && kinds.iter().any(|kind| kind.names.as_ref().map_or(true, |names| !names.is_empty()));
    RemainingReport { text: text(kinds, refused), refused }
}

/// What objects of a kind are called, with the namespace before a `/` where there is one, or why nobody knows. Without the definition there
/// are none.
pub(crate) async fn names<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug>(
    client: &Client,
) -> Result<Vec<String>, String> {
    let named = |object: &PartialObjectMeta<K>| object.namespace().map(|of| of + "/").unwrap_or_default() + &object.name_any();
    match pages::all(&Api::<PartialObjectMeta<K>>::all(client.clone()), ListParams::default(), PAGE).await {
        // The definition has gone, and its objects with it.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        result => result.map(|objects| objects.iter().map(named).collect()).map_err(|error| error.to_string()),
    }
}

fn text(kinds: &[Remaining], refused: bool) -> String {
    let mut lines = Vec::new();
    for Remaining { plural, meaning, names } in kinds {
        match names {
            Err(error) => lines.push(format!("- {plural}: cannot be listed: {error}")),
            Ok(names) if names.is_empty() => {}
            Ok(names) => {
                let more = names.len().saturating_sub(NAMES);
                let more = if more > 0 { format!(", and {more} more") } else { String::new() };
                let meaning = if refused { "" } else { meaning };
                lines.push(format!("- {plural}: {}{more}. {meaning}", names[..names.len().min(NAMES)].join(", ")).trim_end().to_owned());
            }
        }
    }
    if lines.is_empty() {
        return "No IngressDaemonSets, NodeReadinessGates or PodReadinessGates are left.\n".into();
    }
    let (heading, advice) = if refused {
        (
            "Nothing is uninstalled: these resources would be deleted with their definitions, all nodes at once:",
            [
                "Delete them while the operator runs, then uninstall it again: docs/operations.md#uninstall",
                "To keep them, run helm rollback with the release's last revision, and then helm upgrade with crds.keep=true.",
            ],
        )
    } else {
        (
            "These resources stay in the cluster:",
            [
                "To go on, install the operator again. It takes them over.",
                "To remove them, install the operator again, delete them, and only then uninstall it: docs/operations.md#uninstall",
            ],
        )
    };
    lines.insert(0, heading.into());
    lines.extend(advice.map(str::to_owned));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(plural: &'static str, names: Result<Vec<String>, String>) -> Remaining {
        Remaining { plural, meaning: "What that means.", names }
    }

    fn told(kinds: &[Remaining]) -> String {
        text(kinds, false)
    }

    #[test]
    fn remaining_or_unknown_objects_block_uninstalling_only_on_request() {
        let some = || kind("Resources", Ok(vec!["a/one".into()]));
        let refused = of(&[some()], true);
        assert!(refused.refused && refused.text.contains("Nothing is uninstalled") && refused.text.contains("a/one"), "{refused:?}");
        assert!(!refused.text.contains("stay in the cluster") && !refused.text.contains("What that means"), "{refused:?}");
        assert!(of(&[kind("Resources", Err("forbidden".into()))], true).refused);
        assert!(!of(&[kind("Resources", Ok(Vec::new()))], true).refused);
        assert!(!of(&[some()], false).refused);
    }

    #[test]
    fn the_report_names_what_is_left_and_how_to_continue() {
        let some = told(&[kind("Gates", Ok(Vec::new())), kind("Resources", Ok(vec!["a/one".into(), "b/two".into()]))]);
        assert!(some.contains("- Resources: a/one, b/two. What that means.\n"), "{some}");
        assert!(!some.contains("Gates"), "{some}");
        assert!(some.contains("install the operator again"), "{some}");
    }

    #[test]
    fn nothing_left_is_said_in_a_sentence() {
        assert_eq!(told(&[kind("Gates", Ok(Vec::new()))]).lines().count(), 1);
    }

    #[test]
    fn a_thousand_names_are_cut_short() {
        let names = (0..1000).map(|number| format!("ns/name-{number}")).collect();
        let some = told(&[kind("Resources", Ok(names))]);
        assert!(some.contains("ns/name-19, and 980 more. ") && !some.contains("name-20,"), "{some}");
    }

    #[test]
    fn what_cannot_be_listed_is_not_called_gone() {
        let some = told(&[kind("Resources", Err("forbidden".into()))]);
        assert!(some.contains("- Resources: cannot be listed: forbidden\n"), "{some}");
    }
}
