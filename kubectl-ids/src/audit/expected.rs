//! What a resource's own words promise, as far as the history does not show it.

use auditor::{Expectations, Property};
use crds::IngressDaemonSet;
use planner::spec::resolve;

/// What to hold the operator to; nothing where the spec is not valid.
pub fn expectations(resource: &IngressDaemonSet) -> Option<Expectations> {
    let settings = resolve(&resource.spec).ok()?;
    let chosen = resource.status.as_ref().map_or(0, |status| usize::try_from(status.nodes.desired).unwrap_or(0));
    // What had been granted before the audit, or the budget, was there goes on.
    let granted = resource.ledger().map_or(0, |ledger| ledger.grants.len());
    Some(Expectations {
        budget: settings.budget.of(chosen).max(granted),
        from_afar: true,
        except: [Property::History].into(),
        ..Expectations::default()
    })
}

/// What both allow: the operator may still be carrying out what it began under an earlier spec.
#[must_use]
pub fn loosened(one: &Expectations, other: Expectations) -> Expectations {
    Expectations { budget: one.budget.max(other.budget), ..other }
}
