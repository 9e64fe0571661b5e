//! What is left of the retaint budget of a gate: whether another node may lose its release now.

use crds::UnixSeconds;
use planner::{
    facts::NodeFacts,
    node_gates::{
        Gate,
        decide::GateView,
        record::{Cause, records},
        retaint_budget::RetaintBudget,
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

/// For how long one count of what is left of a gate's retaint budget is used; each node that uses it is subtracted.
const RETAINT_BUDGET_FOR: Duration = Duration::from_secs(1);

/// How many nodes a gate selects, and how many of them are held for having ceased to be ready.
pub(super) fn tally(
    gate: &Gate,
    views: &BTreeMap<String, BTreeMap<String, GateView>>,
    nodes: &BTreeMap<String, Arc<NodeFacts>>,
) -> (usize, usize) {
    let seen = views.values().filter_map(|views| Some(views.get(&gate.uid)?.regressed));
    // Those that were not looked at yet since the start bear what was decided before it.
    let unseen = nodes.iter().filter(|(name, node)| !views.contains_key(*name) && gate.selects(node)).map(|(_, node)| {
        records(&node.annotations).get(&gate.uid).is_some_and(|record| record.is_held() && record.cause == Cause::Regression)
    });
    seen.chain(unseen).fold((0, 0), |(matched, held), regressed| (matched + 1, held + usize::from(regressed)))
}

/// Whether another node may lose its release; if so, that node is taken from the retaint budget.
pub(super) fn use_retaint_budget(
    budgets: &mut BTreeMap<String, (Instant, RetaintBudget)>,
    tally: impl Fn() -> (usize, usize),
    regressed: &mut BTreeMap<String, VecDeque<UnixSeconds>>,
    gate: &Gate,
    now: UnixSeconds,
) -> bool {
    let lately = regressed.entry(gate.uid.clone()).or_default();
    while lately.front().is_some_and(|at| now - at >= 60) {
        lately.pop_front();
    }
    let count = || {
        let (matched, held) = tally();
        RetaintBudget::of(gate, matched, held, lately.len())
    };
    let entry = budgets.entry(gate.uid.clone()).or_insert_with(|| (Instant::now(), count()));
    if entry.0.elapsed() >= RETAINT_BUDGET_FOR {
        *entry = (Instant::now(), count());
    }
    let open = entry.1.is_open();
    if open {
        entry.1.nodes -= 1;
        entry.1.this_minute -= 1;
        lately.push_back(now);
    }
    open
}
