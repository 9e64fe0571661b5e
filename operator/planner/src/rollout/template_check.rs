//! Whether the API server would take the template at all: asked before any node is disturbed for it.

use crate::{
    objects::{render, revisions::Targets},
    snapshot::Snapshot,
    spec::SpecProblem,
};
use crds::token::{Phase, Token};
use serde_json::{Value, json};

/// A write that the operator sends as a dry run.
#[derive(Clone, Debug, PartialEq)]
pub enum TemplateCheck {
    /// A JSON Patch of an existing Deployment.
    Patch {
        /// Name of the Deployment.
        name: String,
        /// JSON Patch, as an array of operations.
        patch: Value,
    },
    /// Manifest of a new Deployment, if the resource has none yet.
    Create(Value),
}

/// The dry run to send; none if a node already runs the template, or if the spec is not valid.
pub fn template_check(snapshot: &Snapshot) -> Option<TemplateCheck> {
    let resource = &snapshot.resource;
    let settings = Targets::of(snapshot).ok().filter(|_| !resource.deleting)?.effective;
    let Some((node, deployment)) = snapshot.deployments.iter().next() else {
        let name = render::object_name(&resource.name, "trial", &snapshot.taken_names);
        let token = Token { uid8: resource.uid8().to_owned(), id: 0, phase: Phase::New, since: snapshot.now, keep_annotation: false };
        let template = render::template(resource, &settings, &name, "trial");
        return Some(TemplateCheck::Create(render::deployment(resource, &settings, &name, "trial", &token, &template, 0)));
    };
    if snapshot.deployments.values().any(|deployment| deployment.revision() == settings.revision) {
        return None;
    }
    let patch = json!([
        {"op": "test", "path": "/metadata/uid", "value": deployment.uid},
        {"op": "add", "path": "/spec/template", "value": render::template(resource, &settings, &deployment.name, node)},
    ]);
    Some(TemplateCheck::Patch { name: deployment.name.clone(), patch })
}

/// The API server's refusal of the template, as a problem of the spec.
pub fn refusal(snapshot: &Snapshot) -> Option<SpecProblem> {
    let said = snapshot.template_refusal.as_deref().filter(|_| !snapshot.resource.deleting)?;
    // The name of the Deployment that it was tried with says nothing to the user.
    let said = said.split_once(" is invalid: ").map_or(said, |(_, causes)| causes);
    Some(SpecProblem { reason: "TemplateRefused", message: format!("the API server refuses the template, correct it: {}", cut(said)) })
}

/// Without its middle where it is long: an object that could not be decoded is quoted there, and the reason comes last.
fn cut(said: &str) -> String {
    const HEAD: usize = 100;
    const TAIL: usize = 500;
    let length = said.chars().count();
    if length <= HEAD + TAIL {
        return said.to_owned();
    }
    let (head, tail): (String, String) = (said.chars().take(HEAD).collect(), said.chars().skip(length - TAIL).collect());
    format!("{head} … {tail}")
}
