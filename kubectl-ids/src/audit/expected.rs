//! What a resource's own words promise.

use std::time::Duration;

use auditor::{Expectations, Property};
use crds::{IngressDaemonSet, ingress_daemon_set::OnDetachTimeout};
use planner::settings::{Mode, Settings, resolve};

/// What to hold the operator to; nothing where the spec is not valid.
pub fn expectations(resource: &IngressDaemonSet) -> Option<Expectations> {
    let settings = resolve(&resource.spec).ok()?;
    let chosen = resource.status.as_ref().map_or(0, |status| usize::try_from(status.nodes.desired).unwrap_or(0));
    // What had been granted before the audit, or the budget, was there goes on.
    let granted = resource.ledger().map_or(0, |ledger| ledger.grants.len());
    let (claim_grace, detach_grace) = graces(&settings);
    Some(Expectations {
        budget: settings.budget.of(chosen).max(granted),
        claim_grace,
        detach_grace,
        timestamp_key: settings
            .timestamp
            .as_ref()
            .filter(|_| settings.mode == Mode::Detach && settings.on_detach_timeout != OnDetachTimeout::Proceed)
            .map(|timestamp| timestamp.key.clone()),
        marks_alone: true,
        except: [Property::History].into(),
        ..Expectations::default()
    })
}

/// The grace of each mark that is in use.
fn graces(settings: &Settings) -> (Option<Duration>, Option<Duration>) {
    let marks = settings.update_marks();
    let seconds = |seconds: i64| Duration::from_secs(seconds.unsigned_abs());
    (marks.deployment.then(|| seconds(settings.deployment_grace)), marks.node.map(|_| seconds(settings.node_grace)))
}

/// What both allow: the operator may still be carrying out what it began under an earlier spec.
#[must_use]
pub fn loosened(one: Expectations, other: Expectations) -> Expectations {
    let shorter = |one: Option<Duration>, other: Option<Duration>| one.zip(other).map(|(one, other)| one.min(other));
    Expectations {
        budget: one.budget.max(other.budget),
        claim_grace: shorter(one.claim_grace, other.claim_grace),
        detach_grace: shorter(one.detach_grace, other.detach_grace),
        timestamp_key: one.timestamp_key.filter(|key| other.timestamp_key.as_ref() == Some(key)),
        ..other
    }
}
