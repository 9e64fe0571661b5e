//! What a resource's own words promise.

use std::time::Duration;

use auditor::{Expectations, Property, Share};
use crds::{IngressDaemonSet, ingress_daemon_set::OnDetachTimeout};
use planner::settings::{Count, Mode, Settings, resolve};

/// What to hold the operator to; nothing where the spec is not valid.
pub fn expectations(resource: &IngressDaemonSet) -> Option<Expectations> {
    let settings = resolve(&resource.spec).ok()?;
    let chosen = resource.status.as_ref().map_or(0, |status| usize::try_from(status.nodes.desired).unwrap_or(0));
    // What had been granted before the audit, or the budget, was there goes on.
    let granted = resource.ledger().map_or(0, |ledger| ledger.grants.len());
    let domain = settings.topology.as_ref().and_then(|topology| Some((topology.key.clone(), share(topology.budget?))));
    let (claim_grace, detach_grace) = graces(&settings);
    Some(Expectations {
        budget: settings.budget.of(chosen).max(granted),
        domain,
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

fn share(count: Count) -> Share {
    let number = |number: i32| usize::try_from(number).unwrap_or(0);
    match count {
        Count::Number(nodes) => Share::Nodes(number(nodes).max(1)),
        Count::Percent(percent) => Share::Percent(number(percent)),
    }
}

/// The greater of both, where that does not depend on what they are shares of.
fn greater(one: Share, other: Share) -> Option<Share> {
    match (one, other) {
        (Share::Nodes(one), Share::Nodes(other)) => Some(Share::Nodes(one.max(other))),
        (Share::Percent(one), Share::Percent(other)) => Some(Share::Percent(one.max(other))),
        (Share::Nodes(_), Share::Percent(_)) | (Share::Percent(_), Share::Nodes(_)) => None,
    }
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
        domain: one
            .domain
            .zip(other.domain)
            .filter(|(one, other)| one.0 == other.0)
            .and_then(|(one, other)| Some((one.0, greater(one.1, other.1)?))),
        claim_grace: shorter(one.claim_grace, other.claim_grace),
        detach_grace: shorter(one.detach_grace, other.detach_grace),
        timestamp_key: one.timestamp_key.filter(|key| other.timestamp_key.as_ref() == Some(key)),
        ..other
    }
}
