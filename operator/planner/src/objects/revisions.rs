//! Revisions of the template: which one nodes are to run, and which ones are recorded.

use crate::{
    facts::RevisionFacts,
    node_gates::GateLinks,
    objects::render,
    patch::JsonPatch,
    plan::{Action, Plan, Supporting},
    reason::Reason,
    snapshot::Snapshot,
    spec::{ResolvedSpec, SpecProblem, node_rights, resolve_with},
};
use chrono::DateTime;
use crds::{
    hash,
    ledger::{Ledger, RolloutState},
    names,
};
use rollout_windows::Opening;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Why nodes are to run the effective revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevisionOrigin {
    /// Nodes run the template of the spec.
    Spec,
    /// `spec.rollbackTo` pins the template.
    Pinned,
    /// The template of the spec failed and was rolled back.
    RolledBack,
}

/// Template that nodes should run, and where it comes from.
#[derive(Clone, Debug)]
pub struct Targets {
    /// The spec with the template that nodes are to run.
    pub effective: ResolvedSpec,
    /// Where the template of `effective` comes from.
    pub origin: RevisionOrigin,
    /// The revision of the template in the spec.
    pub newest: String,
    /// The last revision that all nodes ran, as far as that is known; empty when there was none yet.
    pub current: String,
    /// Whether a window is open, and until when; nothing where the clock is beyond all calendars.
    pub opening: Option<Opening>,
    /// The spec with former templates, by revision, for nodes that keep what they run.
    former: BTreeMap<String, ResolvedSpec>,
}

impl Targets {
    /// What the spec, the history and the ledger say.
    pub fn of(snapshot: &Snapshot) -> Result<Self, Vec<SpecProblem>> {
        if let Some(withheld) = snapshot.resource.withheld {
            return Err(vec![withheld.invalid()]);
        }
        let spec = &snapshot.resource.spec;
        let newest = hash::revision(&spec.template);
        let (template, origin) = effective(snapshot, &newest).map_err(|invalid| vec![invalid])?;
        let resolved = |template: &Arc<Value>| {
            let GateLinks { mut taints, conditions, .. } = snapshot.gates.clone();
            taints.extend(
                node_rights::forbidden_taint(&snapshot.node_rights, &snapshot.resource)
                    .map(|taint| (taint.key.clone(), taint.effect.as_str().to_owned())),
            );
            resolve_with(spec, template).map(|settings| ResolvedSpec {
                gate_taints: taints,
                gate_conditions: conditions,
                // A resource that is being deleted detaches its nodes although its spec is refused, and not by this.
                node_mark: settings.node_mark.filter(|mark| snapshot.node_rights.allows_mark(&snapshot.resource.namespace, &mark.key)),
                ..settings
            })
        };
        let effective = resolved(&template).map_err(|problems| {
            // What is not to be found in spec.template says where it is.
            let own = if origin == RevisionOrigin::Spec {
                None
            } else {
                Some(resolved(&Arc::new(spec.template.clone())).err().unwrap_or_default())
            };
            let told = |problem: SpecProblem| match &own {
                Some(own) if !own.contains(&problem) => {
                    let message = format!("revision {}, which runs instead of {newest}: {}", hash::revision(&template), problem.message);
                    SpecProblem { message, ..problem }
                }
                _ => problem,
            };
            problems.into_iter().map(told).collect::<Vec<_>>()
        })?;
        let mut running: BTreeSet<&str> = snapshot.deployments.values().map(|deployment| deployment.revision()).collect();
        let stored = snapshot.resource.status.as_ref().map(|status| status.revisions.current.clone()).filter(|stored| !stored.is_empty());
        // Without its status a canary must not reach every node: what others still run was there before.
        let before = || {
            let others = snapshot.history.iter().filter(|known| known.revision != effective.revision);
            others.filter(|known| running.contains(known.revision.as_str())).max_by_key(|known| known.number)
        };
        let current = stored.or_else(|| before().map(|known| known.revision.clone())).unwrap_or_default();
        running.insert(&current);
        let wanted = |known: &&RevisionFacts| known.revision != effective.revision && running.contains(known.revision.as_str());
        let known = snapshot.history.iter().filter(wanted);
        let former = known.filter_map(|known| Some((known.revision.clone(), resolved(&known.template).ok()?))).collect();
        let opening = DateTime::from_timestamp(snapshot.now, 0).map(|now| effective.windows.at(now));
        Ok(Self { effective, origin, newest, current, opening, former })
    }

    /// What the ledger says of the rollout, while it is that of the effective revision.
    pub fn rollout_state<'a>(&self, ledger: &'a Ledger) -> Option<&'a RolloutState> {
        ledger.rollout_state.as_ref().filter(|rollout| rollout.revision == self.effective.revision)
    }

    /// The revision of the spec is on its way to nodes that have not all run it yet.
    pub fn is_not_current(&self) -> bool {
        self.origin == RevisionOrigin::Spec && self.current != self.effective.revision
    }

    /// Why no node is started now, when no window is open.
    pub fn closed(&self) -> Option<Reason> {
        let opening = self.opening.filter(|opening| !opening.open)?;
        Some(Reason::OutsideWindow { opens: opening.changes_at.map(|at| at.timestamp()) })
    }

    /// The spec with this revision of the template, where it is known.
    pub fn at(&self, revision: &str) -> Option<&ResolvedSpec> {
        if revision == self.effective.revision { Some(&self.effective) } else { self.former.get(revision) }
    }
}

/// The template that nodes are to run.
fn effective(snapshot: &Snapshot, newest: &str) -> Result<(Arc<Value>, RevisionOrigin), SpecProblem> {
    let spec = &snapshot.resource.spec;
    if let Some(rollback) = spec.rollback_to {
        let found = match rollback.revision {
            0 => snapshot.history.iter().filter(|known| known.revision != newest).max_by_key(|known| known.number),
            number => snapshot.history.iter().find(|known| known.number == number),
        };
        return match found {
            Some(known) => Ok((Arc::clone(&known.template), RevisionOrigin::Pinned)),
            None => Err(not_found(snapshot, rollback.revision)),
        };
    }
    // A person may ask for another try, also where the rest of the spec contradicts what runs instead.
    let ledger = snapshot
        .resource
        .ledger()
        .filter(|ledger| ledger.rollout_state.as_ref().is_none_or(|rollout| !snapshot.resource.is_retried(rollout)));
    let rolled_back = ledger.and_then(|ledger| ledger.rolled_back.as_ref());
    let Some(rolled_back) = rolled_back.filter(|rolled_back| rolled_back.from == newest) else {
        return Ok((Arc::new(spec.template.clone()), RevisionOrigin::Spec));
    };
    match snapshot.history.iter().find(|known| known.revision == rolled_back.to) {
        Some(known) => Ok((Arc::clone(&known.template), RevisionOrigin::RolledBack)),
        None => Err(SpecProblem {
            reason: "RevisionNotFound",
            message: format!(
                "revision {newest} failed and was rolled back to {}, whose ControllerRevision is gone: change spec.template",
                rolled_back.to
            ),
        }),
    }
}

fn not_found(snapshot: &Snapshot, number: i64) -> SpecProblem {
    let mut known: Vec<_> = snapshot.history.iter().map(|known| known.number).collect();
    known.sort_unstable();
    let known = known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let message = match number {
        0 => "rollbackTo.revision: 0 means the newest revision but that of spec.template, and there is none: remove rollbackTo".into(),
        _ => format!(
            "rollbackTo.revision: {number} is not a recorded revision (recorded: {known}): choose one of them, or remove rollbackTo"
        ),
    };
    SpecProblem { reason: "RevisionNotFound", message }
}

/// Records the revision of the spec as the newest, and forgets those beyond the limit that nothing uses.
pub fn record(snapshot: &Snapshot, targets: &Targets, ledger: &Ledger, plan: &mut Plan) {
    let resource = &snapshot.resource;
    let revision = targets.newest.as_str();
    let highest = snapshot.history.iter().map(|known| known.number).max().unwrap_or(0);
    match snapshot.history.iter().find(|known| known.revision == revision) {
        // What somebody else has under that name is left to them.
        None if snapshot.foreign_names.contains(&object_name(snapshot, revision)) => {}
        None => plan.actions.push(Action::RecordRevision {
            name: object_name(snapshot, revision),
            body: Box::new(body(snapshot, revision, highest.saturating_add(1))),
        }),
        // A number that is pinned stays.
        Some(known) if known.number < highest && resource.spec.rollback_to.is_none_or(|pinned| pinned.revision != known.number) => {
            let patch = JsonPatch::of(&known.uid).test("/revision", known.number).add("/revision", highest.saturating_add(1));
            plan.actions.push(Action::RenumberRevision { name: known.name.clone(), patch: patch.into_value() });
        }
        Some(_) => {}
    }
    let mut used: BTreeSet<&str> = snapshot.deployments.values().map(|deployment| deployment.revision()).collect();
    used.extend([revision, targets.effective.revision.as_str(), targets.current.as_str()]);
    used.extend(ledger.grants.values().map(|grant| grant.revision.as_str()));
    used.extend(ledger.rolled_back.iter().flat_map(|rolled_back| [rolled_back.from.as_str(), rolled_back.to.as_str()]));
    let mut unused: Vec<_> = snapshot.history.iter().filter(|known| !used.contains(known.revision.as_str())).collect();
    unused.sort_by_key(|known| std::cmp::Reverse(known.number));
    for known in unused.into_iter().skip(targets.effective.rollout.history) {
        plan.actions.push(Action::Delete { object: Supporting::ControllerRevision(known.name.clone()), uid: Some(known.uid.clone()) });
    }
}

fn object_name(snapshot: &Snapshot, revision: &str) -> String {
    render::object_name(&snapshot.resource.name, revision, &BTreeSet::new())
}

fn body(snapshot: &Snapshot, revision: &str, number: i64) -> Value {
    let resource = &snapshot.resource;
    json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": object_name(snapshot, revision),
            "namespace": resource.namespace,
            "labels": {names::RESOURCE_LABEL: resource.uid8(), names::REVISION_LABEL: revision},
            "ownerReferences": [render::owner_reference(resource)],
        },
        "revision": number,
        "data": {"spec": {"template": resource.spec.template}},
    })
}
