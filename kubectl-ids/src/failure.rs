//! What went wrong, with what to do about it.

use std::fmt;

use anyhow::{Error, anyhow};
use crds::names;

/// A request, in the words of a role's rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleRequest<'a> {
    /// Such as get or patch.
    pub verb: &'a str,
    /// API group; empty for the core.
    pub group: &'a str,
    /// Plural name, with its subresource.
    pub resource: &'a str,
    /// Namespace; none for what belongs to none, or to all.
    pub namespace: Option<&'a str>,
}

impl<'a> RuleRequest<'a> {
    /// On resources of ours.
    pub fn ours(verb: &'a str, namespace: &'a str) -> Self {
        Self { verb, group: names::GROUP, resource: "ingressdaemonsets", namespace: Some(namespace) }
    }

    /// On Nodes.
    pub fn nodes(verb: &'a str) -> Self {
        Self { verb, group: "", resource: "nodes", namespace: None }
    }

    /// On another kind.
    pub fn of(verb: &'a str, group: &'a str, resource: &'a str, namespace: Option<&'a str>) -> Self {
        Self { verb, group, resource, namespace }
    }
}

impl fmt::Display for RuleRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => Ok(()),
        }
    }
}

/// A missing right, by the rule that would give it.
pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// There is no such object, or kind.
pub fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// What the API server, or the way to it, said, and what to do.
pub fn explain(error: kube::Error, request: RuleRequest<'_>) -> Error {
    match error {
        kube::Error::Api(status) => match status.code {
            401 => {
                anyhow!("the API server rejects your credentials ({}): log in again, or choose another user with --context", status.message)
            }
            403 => anyhow!(
                "you may not {request}: ask for a {} with the rule {{apiGroups: [\"{}\"], resources: [\"{}\"], verbs: [\"{}\"]}}\nthe API server says: {}",
                if request.namespace.is_some() { "Role" } else { "ClusterRole" },
                request.group,
                request.resource,
                request.verb,
                status.message
            ),
            404 if request.group == names::GROUP && !status.message.contains('"') => unknown_kind(),
            422 => anyhow!("the API server refuses the change: {}", refusal(&status.message)),
            _ => anyhow!("cannot {request}: {} ({})", status.message, status.code),
        },
        kube::Error::Service(error) => {
            anyhow!("no answer from the API server: {error}; check the context (--context) and the network")
        }
        kube::Error::HyperError(error) => anyhow!("the API server closed the connection: {error}; try again"),
        kube::Error::SerdeError(error) => {
            anyhow!("cannot read the API server's answer: {error}; use the plugin of the operator's version (`kubectl ids --version`)")
        }
        other => anyhow!("cannot {request}: {other}"),
    }
}

/// The CRD is not there.
pub fn unknown_kind() -> Error {
    anyhow!(
        "this cluster does not know IngressDaemonSets: install the operator and its CRDs first, see docs/install.md, or choose another cluster with --context"
    )
}

/// Without the name of the object, which the user knows.
fn refusal(message: &str) -> &str {
    message.split_once(" is invalid: ").map_or(message, |(_, causes)| causes)
}

/// What goes wrong when a resource is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfound {
    /// No resource in the namespace; these are elsewhere, as `namespace/name`.
    None {
        /// The namespace.
        namespace: String,
        /// Resources in other namespaces.
        elsewhere: Vec<String>,
    },
    /// None of this name; these are there.
    NoneNamed {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
        /// Names that are there.
        others: Vec<String>,
    },
    /// Several.
    Several {
        /// The namespace.
        namespace: String,
        /// Their names.
        names: Vec<String>,
    },
}

impl std::error::Error for Unfound {}

impl fmt::Display for Unfound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None { namespace, elsewhere } => {
                write!(f, "there is no IngressDaemonSet in namespace {namespace}")?;
                match elsewhere.first().and_then(|first| first.split_once('/')) {
                    Some((other, _)) => write!(f, "; there is {}: use -n {other}", listed(elsewhere)),
                    None => f.write_str(": choose another namespace with -n, or another cluster with --context"),
                }
            }
            Self::NoneNamed { namespace, name, others } => {
                write!(f, "there is no IngressDaemonSet {name} in namespace {namespace}")?;
                if others.is_empty() {
                    f.write_str(" only: choose another namespace with -n")
                } else {
                    write!(f, "; there is {}", listed(others))
                }
            }
            Self::Several { namespace, names } => {
                write!(f, "there are several IngressDaemonSets in namespace {namespace}: name one of {}", listed(names))
            }
        }
    }
}

/// The first few of a list.
pub fn listed(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let more = names.len().saturating_sub(SHOWN);
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn said(code: u16, message: &str) -> String {
        let error = kube::Error::Api(Box::new(Status { code, message: message.into(), ..Status::default() }));
        explain(error, RuleRequest::ours("patch", "web")).to_string()
    }

    #[test]
    fn every_failure_says_what_to_do() {
        assert_eq!(
            said(403, "ingressdaemonsets is forbidden").lines().next(),
            Some(
                "you may not patch ingressdaemonsets in namespace web: ask for a Role with the rule {apiGroups: [\"ingressdaemonsets.mumoshu.github.io\"], resources: [\"ingressdaemonsets\"], verbs: [\"patch\"]}"
            )
        );
        assert!(said(404, "404 page not found").contains("install the operator and its CRDs first, see docs/install.md"));
        assert!(said(401, "Unauthorized").contains("log in again"));
        let message = "IngressDaemonSet.ingressdaemonsets.mumoshu.github.io \"edge\" is invalid: spec.podsPerNode: Invalid value: -1";
        assert_eq!(said(422, message), "the API server refuses the change: spec.podsPerNode: Invalid value: -1");
    }

    #[test]
    fn a_resource_that_is_not_found_is_looked_for_elsewhere() {
        let none = |elsewhere: &[&str]| {
            Unfound::None { namespace: "default".into(), elsewhere: elsewhere.iter().map(ToString::to_string).collect() }.to_string()
        };
        assert_eq!(none(&["web/edge"]), "there is no IngressDaemonSet in namespace default; there is web/edge: use -n web");
        assert!(none(&[]).ends_with("choose another namespace with -n, or another cluster with --context"));
        let several = Unfound::Several { namespace: "web".into(), names: vec!["edge".into(), "dns".into()] };
        assert_eq!(several.to_string(), "there are several IngressDaemonSets in namespace web: name one of edge, dns");
        let named = Unfound::NoneNamed { namespace: "web".into(), name: "egde".into(), others: vec!["edge".into()] };
        assert_eq!(named.to_string(), "there is no IngressDaemonSet egde in namespace web; there is edge");
    }
}
