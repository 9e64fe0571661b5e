//! How many nodes may lose their release: over a fleet that ceases to be ready all at once.

use super::*;
use crds::NodeReadinessGateStatus;

const NODES: usize = 40;

fn name(index: usize) -> String {
    format!("node-{index:02}")
}

/// All of these say so, and every node is looked at.
async fn all_say(engine: &mut Engine, server: &Mutex<Server>, names: impl IntoIterator<Item = String>, status: &str) {
    for name in names {
        say(engine, server, &name, status);
    }
    look_at_all(engine).await;
}

/// What was counted of the budget a second ago is counted anew, and every node is looked at.
async fn look_at_all(engine: &mut Engine) {
    engine.retaint_budgets.clear();
    engine.sweep();
    settle(engine).await;
}

/// A fleet that has passed.
async fn fleet(server: &Arc<Mutex<Server>>, more: &Value) -> Engine {
    server.lock().unwrap().nodes = (0..NODES).map(|index| (name(index), fresh(&name(index)))).collect();
    let mut engine = started(server, continuous(more)).await;
    all_say(&mut engine, server, (0..NODES).map(name), "True").await;
    assert!(tainted(server).is_empty());
    assert_eq!(said(&mut engine).await.nodes.released, u32::try_from(NODES).unwrap());
    engine
}

async fn said(engine: &mut Engine) -> NodeReadinessGateStatus {
    engine.status_due = true;
    report(engine).await;
    engine.reported["g1"].clone()
}

/// The condition `BudgetExhausted`: status, reason, and how many nodes the message speaks of.
fn exhausted(status: &NodeReadinessGateStatus) -> (&str, &str, Option<usize>) {
    let said = status.conditions.iter().find(|condition| condition.type_ == "BudgetExhausted").unwrap();
    (&said.status, &said.reason, said.message.split(' ').next().and_then(|word| word.parse().ok()))
}

#[tokio::test]
async fn mass_unreadiness_taints_only_as_many_nodes_as_budgeted() {
    let evicting = json!({"key": "edge", "effect": "NoExecute"});
    let with = |budget: Value| json!({"retaint": {"failingFor": "0s", "budget": budget}});
    for (more, room) in [
        (json!({}), 8),
        (json!({"taint": evicting}), 2),
        (with(json!({"maxNodes": "50%"})), 20),
        (with(json!({"maxNodes": 3})), 3),
        (with(json!({"maxNodes": 0})), 0),
        (with(json!({"maxNodes": "100%"})), 30),
        (with(json!({"maxNodes": "100%", "perMinute": 5})), 5),
        (with(json!({"maxNodes": "100%", "perMinute": 1000})), NODES),
    ] {
        let server = Arc::new(Mutex::new(Server::default()));
        let mut engine = fleet(&server, &more).await;
        all_say(&mut engine, &server, (0..NODES).map(name), "False").await;
        let first = tainted(&server);
        assert_eq!(first.len(), room, "{more}");
        look_at_all(&mut engine).await;
        assert_eq!(tainted(&server), first, "and it stays so: {more}");
        let status = said(&mut engine).await;
        let count = |count: u32| usize::try_from(count).unwrap();
        assert_eq!((count(status.nodes.held), count(status.nodes.released)), (room, NODES - room), "{more}");
        let expected = if room == NODES { ("False", "WithinBudget", None) } else { ("True", "TooManyRegressions", Some(NODES - room)) };
        assert_eq!(exhausted(&status), expected, "{more}");
        let shown = engine.metrics.nodes.value(&crate::metrics::node_gates::Nodes { gate: "edge".into(), state: "budget_blocked" });
        assert_eq!(usize::try_from(shown.unwrap()).unwrap(), NODES - room, "{more}");
    }
}

#[tokio::test]
async fn recovered_nodes_make_room_and_new_nodes_need_none() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = fleet(&server, &json!({})).await;
    all_say(&mut engine, &server, (0..NODES).map(name), "False").await;
    let first = tainted(&server);
    server.lock().unwrap().nodes.insert("new".into(), fresh("new"));
    all_say(&mut engine, &server, ["new".to_owned()], "False").await;
    let mut with_new = first.clone();
    with_new.insert("new".into());
    assert_eq!(tainted(&server), with_new, "it has no release to lose");

    let recovered = first.first().unwrap().clone();
    all_say(&mut engine, &server, [recovered.clone()], "True").await;
    look_at_all(&mut engine).await;
    let second = tainted(&server);
    assert!(second.len() == with_new.len() && !second.contains(&recovered), "{second:?} after {with_new:?}");
    assert_eq!(second.difference(&with_new).count(), 1);

    let (held, kept): (Vec<_>, Vec<_>) = (0..NODES).map(name).partition(|name| second.contains(name));
    all_say(&mut engine, &server, kept.into_iter().chain(held), "True").await;
    assert_eq!(tainted(&server), ["new".to_owned()].into());
    assert_eq!(exhausted(&said(&mut engine).await), ("False", "WithinBudget", None));
}

#[tokio::test]
async fn recovery_frees_no_budget_until_the_minute_is_over() {
    let server = Arc::new(Mutex::new(Server::default()));
    let mut engine = fleet(&server, &json!({"retaint": {"failingFor": "0s", "budget": {"maxNodes": "100%", "perMinute": 5}}})).await;
    all_say(&mut engine, &server, (0..NODES).map(name), "False").await;
    let first = tainted(&server);
    all_say(&mut engine, &server, first.clone(), "True").await;
    look_at_all(&mut engine).await;
    assert_eq!((first.len(), tainted(&server).len()), (5, 0));
    for at in engine.regressed.get_mut("g1").unwrap() {
        *at -= 60;
    }
    look_at_all(&mut engine).await;
    let second = tainted(&server);
    assert!(second.len() == 5 && second.is_disjoint(&first), "{second:?} after {first:?}");
}

#[tokio::test]
async fn a_restarted_operator_counts_earlier_taints_against_the_budget() {
    for (more, room) in [(json!({}), 8), (json!({"retaint": {"failingFor": "0s", "budget": {"maxNodes": 6}}}), 6)] {
        let server = Arc::new(Mutex::new(Server::default()));
        let mut engine = fleet(&server, &more).await;
        // Those come last that are tainted already.
        all_say(&mut engine, &server, (NODES - room..NODES).map(name), "False").await;
        let before = tainted(&server);
        assert_eq!(before.len(), room);
        for index in 0..NODES {
            say(&engine, &server, &name(index), "False");
        }
        let mut engine = started(&server, continuous(&more)).await;
        settle(&mut engine).await;
        assert_eq!(tainted(&server), before, "{more}");
        assert_eq!(exhausted(&said(&mut engine).await), ("True", "TooManyRegressions", Some(NODES - room)));
    }
}
