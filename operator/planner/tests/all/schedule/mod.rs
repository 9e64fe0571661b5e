//! What may happen to a cluster and its operators, in any order, and how it happens. `properties` draws the order; `promises.rs` and
//! `world/audit.rs` judge the states.

pub mod breaks;
mod checkers;
mod edits;
pub mod promises;

use super::world::{
    World,
    audit::token,
    cluster::{Detacher, node_of},
    operator::{Operator, Request, STORES},
    pods::{Breaks, Pod},
    wish::{ALL_MARKS, Pool, Unit, Zones},
};
use breaks::Record;
use checkers::Checkers;
use crds::{ledger::RolloutState, names};
use edits::{EDITS, Edit};
use planner::{Action, Reason};
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Whether pods stay when only images change.
pub const POD_UPDATES: [&str; 2] = ["Recreate", "InPlaceIfPossible"];
pub const NODES: u8 = 4;
/// Pods of this image never become ready.
const BAD: u8 = 99;
/// An image that no schedule has.
const NEW: u8 = 4;
/// Pods of this image break by themselves.
pub const BREAKS: u8 = 5;

#[derive(Clone, Debug)]
pub enum Event {
    /// Time passes; the bits say whose Deployment controller keeps up.
    Seconds(u8, u8),
    /// A watch of an operator delivers this many versions.
    Observe {
        who: bool,
        store: u8,
        versions: u8,
    },
    CatchUp(bool),
    /// An operator decides; the bits say which of its writes arrive now. All may arrive later, patches more than once.
    Act {
        who: bool,
        arrives: u16,
    },
    /// Both at once, the usual case.
    CatchUpAndAct(bool),
    /// For so many seconds nothing goes wrong: a step of a canary takes some.
    Calm(bool, u8),
    /// A write of long ago arrives.
    Late(u8),
    Crash {
        who: bool,
        behind: u8,
    },
    /// A load balancer asks the health checker of a node, whose watches have heard of the present where the bits say so.
    Check {
        node: u8,
        hears: u8,
    },
    Image(u8),
    Budget(u8),
    Marks(u8),
    Key(u8),
    Pods(u8),
    Pause(bool),
    OnTimeout(u8),
    PodUpdate(u8),
    /// The budget is said as a percentage, or as a number.
    Percent(bool),
    /// Nodes that must stay available.
    Minimum(u8),
    IgnoreNotReady(bool),
    /// Which nodes are chosen: several leave or return at once.
    Pool(u8),
    Placement(u8),
    /// A field of `rollingUpdate` gets one of its values, or goes.
    Field(usize, usize),
    /// Steps, and an image to take them with.
    Canary(u8),
    /// An image that never comes up, with a short deadline; and whether the rollout goes back by itself.
    Fails(bool),
    /// An image that is good for a while, and then is not, again and again.
    Breaks(Breaks),
    OnDelete(bool),
    /// Zones have a budget of their own, come one by one, or mean nothing.
    Zones(u8),
    RollbackTo(Option<i64>),
    /// Image and step.
    Promote(u8, u32),
    /// A person asks to try the node again.
    Retry(u8, u8),
    /// A person wants the node left alone, or no longer.
    Skip(u8, bool),
    /// A person edits the node's Deployment.
    Edit(u8, Edit),
    /// A person frees the slot of the node's grant, if it has one.
    Release(u8),
    Detacher(u8),
    Leave(u8),
    Return(u8),
    Vanish(u8),
    Recreate(u8),
    /// A Node of a new name joins.
    Join,
    Ready(u8, bool),
    /// A kubelet ends a pod and refuses every other, or no longer.
    Refuse(u8, bool),
    /// The health port of a node does not answer the operator, or does again.
    Silent(u8, bool),
    Unready,
    DeleteDeployment(u8, bool),
    Wipe,
    /// A taint of those that announce the node's departure, or none.
    Taint(u8, Option<usize>),
    /// The Node is being deleted; finalizers of others keep it.
    DeleteNode(u8),
    DeletePod(u8),
    Restart(u8),
    /// The pods of a node cease to be ready for so many seconds.
    Fall(u8, i64),
    /// A machine loses power, and starts again after so many seconds.
    Dies(u8, i64),
    /// A Node is cordoned, or no longer.
    Cordon(u8, bool),
    /// A kubelet evicts a pod.
    Evict(u8),
    /// A person asks to try again all that failed.
    RetryAll(u8),
    /// Somebody sets the clock by so many seconds.
    Clock(i64),
}

const DEPARTURES: [(&str, &str); 3] =
    [(names::CLUSTER_AUTOSCALER_TAINT, "NoSchedule"), (names::KARPENTER_TAINT, "NoSchedule"), (names::OUT_OF_SERVICE_TAINT, "NoExecute")];

/// Fields of `rollingUpdate` that hold a rollout back or let it fail, with values.
fn fields() -> [(&'static str, Vec<Value>); 7] {
    let never = json!([{"schedule": "0 0 1 7 *", "duration": "1m", "timeZone": "Etc/UTC"}]);
    let soaks = json!([{"nodes": 1, "soak": "5s"}, {"nodes": "50%", "maxRestarts": 0}]);
    let pauses = json!([{"nodes": 1, "pause": true}, {"nodes": 2}]);
    [
        ("partition", vec![json!(1), json!("50%"), json!("100%")]),
        ("steps", vec![soaks, pauses]),
        ("windows", vec![never]),
        ("nodeDeadlineSeconds", vec![json!(8), json!(20)]),
        ("maxFailedNodes", vec![json!(2), json!(3)]),
        ("autoRollback", vec![json!(true)]),
        ("provenAfterSeconds", vec![json!(4), json!(15), json!(60)]),
    ]
}

/// What operators and networks do.
fn rollout() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => (1..6u8, any::<u8>()).prop_map(|(seconds, synced)| Event::Seconds(seconds, synced)),
        4 => (3..9u8).prop_map(|seconds| Event::Seconds(seconds, u8::MAX)),
        12 => (any::<bool>(), 0..4u8, 1..8u8).prop_map(|(who, store, versions)| Event::Observe { who, store, versions }),
        6 => any::<bool>().prop_map(Event::CatchUp),
        14 => (any::<bool>(), any::<u16>()).prop_map(|(who, arrives)| Event::Act { who, arrives }),
        22 => any::<bool>().prop_map(Event::CatchUpAndAct),
        4 => any::<u8>().prop_map(Event::Late),
        2 => (any::<bool>(), 0..60u8).prop_map(|(who, behind)| Event::Crash { who, behind }),
        6 => (0..NODES).prop_map(|node| Event::Check { node, hears: u8::MAX }),
        6 => (0..NODES, any::<u8>()).prop_map(|(node, hears)| Event::Check { node, hears }),
    ]
}

/// What users change.
fn order() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1..NEW).prop_map(Event::Image),
        2 => (1..3u8).prop_map(Event::Budget),
        1 => (0..6u8).prop_map(Event::Marks),
        1 => (0..4u8).prop_map(Event::Key),
        2 => (0..4u8).prop_map(Event::Pods),
        2 => any::<bool>().prop_map(Event::Pause),
        1 => (0..3u8).prop_map(Event::OnTimeout),
        1 => (0..2u8).prop_map(Event::PodUpdate),
        1 => any::<bool>().prop_map(Event::Percent),
        5 => (0..8u8).prop_map(Event::Minimum),
        1 => any::<bool>().prop_map(Event::IgnoreNotReady),
        4 => (0..3u8).prop_map(Event::Pool),
        1 => (0..3u8).prop_map(Event::Placement),
    ]
}

/// What befalls the cluster.
fn accident() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (0..3u8).prop_map(Event::Detacher),
        3 => (0..NODES).prop_map(Event::Leave),
        3 => (0..NODES).prop_map(Event::Return),
        1 => (0..NODES).prop_map(Event::Vanish),
        2 => (0..NODES).prop_map(Event::Recreate),
        2 => (0..NODES, any::<bool>()).prop_map(|(node, ready)| Event::Ready(node, ready)),
        1 => Just(Event::Unready),
        3 => (0..NODES).prop_map(|node| Event::Refuse(node, true)),
        1 => (0..NODES).prop_map(|node| Event::Refuse(node, false)),
        2 => (0..NODES, any::<bool>()).prop_map(|(node, orphan)| Event::DeleteDeployment(node, orphan)),
        1 => Just(Event::Wipe),
        6 => (0..NODES, 0..EDITS.len()).prop_map(|(node, edit)| Event::Edit(node, EDITS[edit])),
    ]
}

/// What users say about the course of a rollout.
fn guidance() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..7usize, 0..3usize).prop_map(|(field, value)| Event::Field(field, value)),
        4 => (0..3usize).prop_map(|value| Event::Field(6, value)),
        3 => (0..7usize).prop_map(|field| Event::Field(field, 3)),
        3 => (1..NEW).prop_map(Event::Canary),
        3 => any::<bool>().prop_map(Event::Fails),
        3 => breaks::flaps(1..30).prop_map(|flaps| Event::Breaks(Breaks::Pods(flaps))),
        1 => Just(Event::OnDelete(true)),
        2 => (0..3u8).prop_map(Event::Zones),
        2 => Just(Event::OnDelete(false)),
        1 => (0..5i64).prop_map(|number| Event::RollbackTo(Some(number))),
        2 => Just(Event::RollbackTo(None)),
        2 => (1..NEW, 1..3u32).prop_map(|(image, step)| Event::Promote(image, step)),
        2 => (0..NODES, 0..3u8).prop_map(|(node, value)| Event::Retry(node, value)),
        1 => (0..3u8).prop_map(Event::RetryAll),
        2 => (0..NODES).prop_map(Event::Release),
        4 => (0..NODES, 0..4u8).prop_map(|(node, silent)| Event::Silent(node, silent > 0)),
        3 => (0..NODES).prop_map(|node| Event::Skip(node, true)),
        3 => (0..NODES).prop_map(|node| Event::Skip(node, false)),
    ]
}

/// What autoscalers and people do to nodes and pods.
fn departure() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..NODES, 0..3usize).prop_map(|(node, taint)| Event::Taint(node, Some(taint))),
        4 => (0..NODES).prop_map(|node| Event::Taint(node, None)),
        1 => (0..NODES).prop_map(Event::DeleteNode),
        1 => (0..NODES).prop_map(Event::DeletePod),
        1 => (0..NODES).prop_map(Event::Restart),
        2 => (0..NODES, 2..20i64).prop_map(|(node, seconds)| Event::Fall(node, seconds)),
        1 => (0..NODES, select(vec![10, 60])).prop_map(|(node, seconds)| Event::Dies(node, seconds)),
        1 => (0..NODES).prop_map(Event::Evict),
        1 => select(vec![-3600, -5, 5, 3600]).prop_map(Event::Clock),
        3 => (0..NODES).prop_map(|node| Event::Refuse(node, true)),
        1 => (0..NODES).prop_map(|node| Event::Refuse(node, false)),
    ]
}

/// What befalls a fleet whose revision is sound: time without an operator, clocks that are set, pods that are deleted, machines that are
/// cordoned and rebooted; and noise, which is two falls at most.
pub fn sound() -> impl Strategy<Value = Vec<Event>> {
    let harmless = prop_oneof![
        4 => (1..NEW).prop_map(|image| vec![Event::Image(image)]),
        1 => (1..3u8).prop_map(|budget| vec![Event::Budget(budget)]),
        1 => any::<bool>().prop_map(|paused| vec![Event::Pause(paused)]),
        2 => (0..NODES).prop_map(|node| vec![Event::DeletePod(node)]),
        // A kubelet starts anew: until it has probed its pods they are unready, which is no fall, however often it comes.
        3 => (0..NODES, 1..=10i64).prop_map(|(node, seconds)| vec![Event::Fall(node, seconds), Event::Calm(false, 15)]),
        1 => any::<bool>().prop_map(|on_delete| vec![Event::OnDelete(on_delete)]),
        2 => select(vec![-3600, -5, 5, 3600]).prop_map(|by| vec![Event::Clock(by)]),
        2 => (0..NODES).prop_map(|node| vec![Event::Cordon(node, true), Event::Dies(node, 10)]),
        1 => (0..NODES, select(vec![60, 90])).prop_map(|(node, seconds)| vec![Event::Cordon(node, true), Event::Dies(node, seconds)]),
        2 => (0..NODES).prop_map(|node| vec![Event::Cordon(node, false)]),
        4 => (any::<bool>(), 10..60u8).prop_map(|(who, seconds)| vec![Event::Calm(who, seconds)]),
    ];
    let fall = || {
        prop_oneof![
            (0..NODES).prop_map(Event::Restart),
            (0..NODES).prop_map(Event::Evict),
            (0..NODES, 2..20i64).prop_map(|(node, seconds)| Event::Fall(node, seconds)),
        ]
    };
    let machine = (0..NODES, select(vec![10, 30, 60, 90])).prop_map(|(node, seconds)| Event::Dies(node, seconds));
    let noise = prop_oneof![[fall(), fall()].prop_map(Vec::from), machine.prop_map(|dies| vec![dies.clone(), dies])];
    let event = prop_oneof![5 => rollout().prop_map(|event| vec![event]), 1 => harmless];
    (prop::collection::vec(event, 10..60), noise, any::<[prop::sample::Index; 2]>()).prop_map(|(events, noise, at)| {
        let mut events = events.concat();
        for (what, at) in noise.into_iter().zip(at) {
            events.insert(at.index(events.len() + 1), what);
        }
        events
    })
}

/// Anything, but the template goes to all nodes alike.
pub fn plain() -> impl Strategy<Value = Event> {
    prop_oneof![30 => rollout(), 2 => order(), 1 => accident()]
}

/// Anything.
pub fn guided() -> impl Strategy<Value = Event> {
    let calm = (any::<bool>(), 10..30u8).prop_map(|(who, seconds)| Event::Calm(who, seconds));
    prop_oneof![60 => rollout(), 2 => calm, 5 => order(), 1 => accident(), 6 => guidance(), 2 => departure()]
}

/// Something is held against the revision.
pub fn has_failed(rollout: &RolloutState) -> bool {
    !rollout.failed.is_empty() || !rollout.failed_nodes.is_empty() || rollout.lost.len() > 1
}

fn name(node: u8) -> String {
    format!("n{node}")
}

pub struct Run {
    pub world: World,
    operators: [Operator; 2],
    checkers: Checkers,
    late: Vec<Request>,
    decisions: u32,
    /// What the world knows of a revision that breaks.
    pub record: Option<Record>,
}

/// Every so many decisions one is made twice.
const TWICE: u32 = 8;

impl Run {
    pub fn new(mut world: World) -> Self {
        let mut operators = [Operator::default(), Operator::default()];
        for operator in &mut operators {
            operator.catch_up(&world);
        }
        world.audit.seen.clear();
        Self { world, operators, checkers: Checkers::new(), late: Vec::new(), decisions: 0, record: None }
    }

    fn act(&mut self, who: bool, arrives: u16) {
        if let Some(record) = &mut self.record {
            record.look(&self.world.cluster);
        }
        let Some(planned) = self.operators[usize::from(who)].plan(&self.world) else { return };
        let audit = &mut self.world.audit;
        audit.violations.extend(promises::broken(&planned.snapshot, &planned.plan));
        self.decisions += 1;
        if self.decisions.is_multiple_of(TWICE) {
            audit.violations.extend(promises::depends_on_order(&planned.snapshot, &planned.plan));
        }
        audit.seen.extend(planned.plan.node_states.values().filter_map(|state| match state.reason {
            Reason::Skipped => Some("skipped"),
            Reason::MinAvailable { .. } => Some("kept available"),
            // The port was asked before.
            Reason::AskingHealthPort | Reason::HealthPortSilent { .. } => Some("waited for a silent port"),
            _ => None,
        }));
        let before = self.templates();
        for (index, request) in planned.requests.into_iter().enumerate() {
            let now = arrives >> (index % 16) & 1 == 1;
            if now {
                self.operators[usize::from(who)].send(&mut self.world, &request);
            }
            // A creation is sent once; anything else may come again.
            if !now || !matches!(request.action, Action::CreateDeployment { .. }) {
                self.late.push(request);
            }
        }
        self.changes_out_of_service(&before);
        let wrong = self.record.as_mut().map(|record| record.judge(&self.world.cluster));
        self.world.audit.violations.extend(wrong.into_iter().flatten());
    }

    /// What the pods of each node are made of.
    fn templates(&self) -> BTreeMap<String, Value> {
        let deployments = self.world.cluster.deployments.values();
        deployments.map(|deployment| (node_of(deployment).to_owned(), deployment["spec"]["template"].clone())).collect()
    }

    /// Where the health check is what takes a node out, it has failed by the time at which pods begin to change.
    fn changes_out_of_service(&mut self, before: &BTreeMap<String, Value>) {
        for (node, template) in self.templates() {
            let changed = before.get(&node).is_some_and(|before| *before != template);
            let token = self.world.cluster.deployment_on(&node).filter(|_| changed).and_then(token);
            let grant = token.and_then(|token| self.world.audit.grants.get(&token.id));
            if grant.is_some_and(|(_, grant)| grant.marks.deployment) && Checkers::would_serve(&self.world, &node) {
                self.world.audit.violations.push(format!("P10: {node} says 200 while its pods begin to change"));
            }
        }
    }

    fn late(&mut self, which: u8) {
        if self.late.is_empty() {
            return;
        }
        let index = usize::from(which) % self.late.len();
        let request = self.late[index].clone();
        if matches!(request.action, Action::CreateDeployment { .. }) {
            self.late.remove(index);
        }
        let before = self.templates();
        self.world.apply(&request);
        self.changes_out_of_service(&before);
    }

    fn check(&mut self, node: u8, hears: u8) {
        let mut seen = std::mem::take(&mut self.world.audit.seen);
        let wrong = self.checkers.ask(&self.world, node, hears, &mut seen);
        self.world.audit.seen = seen;
        self.world.audit.violations.extend(wrong);
    }

    /// P10 when all is done: health checkers let traffic in everywhere.
    pub fn all_serve(&mut self) {
        let wrong = self.checkers.kept_out(&self.world);
        self.world.audit.violations.extend(wrong);
    }

    pub fn happen(&mut self, event: &Event) {
        match *event {
            Event::Seconds(seconds, synced) => {
                for _ in 0..seconds {
                    self.world.change(|cluster| cluster.tick(|index| synced >> (index % 8) & 1 == 1));
                }
            }
            Event::Observe { who, store, versions } => {
                self.operators[usize::from(who)].advance(&self.world, STORES[usize::from(store)], usize::from(versions));
            }
            Event::CatchUp(who) => self.operators[usize::from(who)].catch_up(&self.world),
            Event::Act { who, arrives } => self.act(who, arrives),
            Event::CatchUpAndAct(who) => {
                self.operators[usize::from(who)].catch_up(&self.world);
                self.act(who, u16::MAX);
            }
            Event::Calm(who, seconds) => {
                for _ in 0..seconds {
                    self.happen(&Event::CatchUpAndAct(who));
                    self.world.tick();
                }
            }
            Event::Late(which) => self.late(which),
            Event::Crash { who, behind } => self.operators[usize::from(who)].crash(&self.world, usize::from(behind)),
            Event::Check { node, hears } => self.check(node, hears),
            Event::Wipe => {
                // An id that was reserved from a ledger must not outlive it.
                self.operators.iter_mut().for_each(Operator::forget_reserved);
                self.late.retain(|request| !matches!(request.action, Action::CreateDeployment { .. }));
                self.world.change(|cluster| cluster.edit_resource(|resource| resource.status = None));
            }
            Event::Image(_)
            | Event::Budget(_)
            | Event::Marks(_)
            | Event::Key(_)
            | Event::Pods(_)
            | Event::Pause(_)
            | Event::OnTimeout(_)
            | Event::PodUpdate(_)
            | Event::Percent(_)
            | Event::Minimum(_)
            | Event::IgnoreNotReady(_)
            | Event::Pool(_)
            | Event::Placement(_)
            | Event::Field(..)
            | Event::Canary(_)
            | Event::Fails(_)
            | Event::Breaks(_)
            | Event::OnDelete(_)
            | Event::Zones(_)
            | Event::RollbackTo(_)
            | Event::Promote(..) => self.order(event),
            Event::Edit(node, edit) => edit.make(&mut self.world, &name(node)),
            _ => self.befall(event),
        }
    }

    /// Changes the spec.
    fn order(&mut self, event: &Event) {
        self.world.change(|cluster| {
            if let Event::Breaks(breaks) = *event {
                cluster.breaks = Some((format!("app:{BREAKS}"), breaks));
            }
            cluster.edit_wish(|wish| match *event {
                Event::Image(image) => wish.image = image,
                Event::Budget(budget) => wish.budget = budget.into(),
                Event::Marks(marks) => wish.marks = ALL_MARKS[usize::from(marks)],
                Event::Key(key) => wish.key = key.into(),
                Event::Pods(pods) => wish.pods = pods.into(),
                Event::Pause(paused) => wish.paused = paused,
                Event::PodUpdate(which) => wish.pod_update = POD_UPDATES[usize::from(which)],
                Event::Percent(percent) => wish.unit = if percent { Unit::Percent } else { Unit::Nodes },
                Event::Minimum(minimum) => {
                    wish.minimum = minimum.into();
                    wish.minimum_share = usize::from(minimum).checked_sub(5).map(|share| ["25%", "50%", "75%"][share]);
                }
                Event::IgnoreNotReady(ignores) => wish.ignores_not_ready = ignores,
                Event::Pool(pool) => wish.pool = [Pool::All, Pool::Spec, Pool::Template][usize::from(pool)],
                Event::Placement(placement) => wish.placement = ["Auto", "NodeName", "NodeAffinity"][usize::from(placement)],
                Event::OnTimeout(policy) => wish.on_timeout = ["Halt", "Proceed", "Abort"][usize::from(policy)],
                Event::Field(field, value) => {
                    let (field, values) = &fields()[field];
                    set(&mut wish.rollout, field, values.get(value).cloned());
                }
                Event::Canary(image) => {
                    wish.image = image;
                    set(&mut wish.rollout, "steps", Some(json!([{"nodes": 1, "soak": "2s"}, {"nodes": "50%", "maxRestarts": 0}])));
                }
                Event::Fails(goes_back) => {
                    wish.image = BAD;
                    set(&mut wish.rollout, "nodeDeadlineSeconds", Some(json!(8)));
                    set(&mut wish.rollout, "autoRollback", goes_back.then_some(json!(true)));
                }
                Event::Breaks(_) => wish.image = BREAKS,
                Event::OnDelete(on_delete) => wish.on_delete = on_delete,
                Event::Zones(zones) => wish.zones = [Zones::Ignored, Zones::OneEach, Zones::OneAtATime][usize::from(zones)],
                Event::RollbackTo(number) => wish.rollback_to = number,
                Event::Promote(image, step) => wish.promote = Some((image, step)),
                _ => unreachable!("{event:?} is no order"),
            });
        });
    }

    /// What happens to nodes, Deployments and pods.
    fn befall(&mut self, event: &Event) {
        if let (Event::Recreate(_), Some(record)) = (event, &mut self.record) {
            record.replaced += 1;
        }
        let disturbed = &mut self.world.audit.disturbed;
        match *event {
            Event::Vanish(node)
            | Event::Recreate(node)
            | Event::DeleteDeployment(node, _)
            | Event::DeletePod(node)
            | Event::Dies(node, _)
            | Event::Evict(node)
            | Event::Refuse(node, true) => {
                disturbed.insert(name(node));
            }
            _ => {}
        }
        self.world.audit.seen.extend(match *event {
            Event::Evict(_) => Some("evicted"),
            Event::Recreate(_) => Some("replaced"),
            Event::Clock(_) => Some("clock set"),
            Event::Dies(_, 40..) => Some("machine down"),
            _ => None,
        });
        self.world.change(|cluster| match *event {
            Event::Detacher(kind) => cluster.detacher = [Detacher::Good, Detacher::Silent, Detacher::Stale][usize::from(kind)],
            Event::Leave(node) => cluster.edit_node(&name(node), |node| node["metadata"]["labels"]["ingress"] = "false".into()),
            Event::Return(node) => cluster.edit_node(&name(node), |node| node["metadata"]["labels"]["ingress"] = "true".into()),
            Event::Vanish(node) | Event::Recreate(node) => {
                cluster.version += 1;
                cluster.nodes.remove(&name(node));
                if matches!(event, Event::Recreate(_)) {
                    cluster.join(&name(node));
                }
            }
            Event::Join => {
                let index = cluster.nodes.len();
                cluster.join(&format!("n{index}"));
            }
            Event::Ready(node, ready) => cluster.edit_node(&name(node), |node| node["status"]["ready"] = ready.into()),
            Event::Refuse(node, refuses) => cluster.refuse(&name(node), refuses),
            Event::Silent(node, true) => drop(cluster.silent.insert(name(node))),
            Event::Silent(node, false) => drop(cluster.silent.remove(&name(node))),
            Event::Unready => {
                let later = cluster.now + 8;
                cluster.pods.iter_mut().for_each(|pod| pod.ready_at = pod.ready_at.max(later));
            }
            Event::DeleteDeployment(node, orphan) => cluster.delete_deployment(&format!("edge-n{node}"), orphan),
            Event::Taint(node, taint) => {
                let taint = taint.map(|taint| DEPARTURES[taint]).map(|(key, effect)| json!({"key": key, "effect": effect}));
                let taints: Vec<_> = taint.into_iter().collect();
                cluster.edit_node(&name(node), |node| node["spec"]["taints"] = taints.into());
            }
            Event::DeleteNode(node) => {
                cluster.edit_node(&name(node), |node| node["metadata"]["deletionTimestamp"] = "1970-01-12T13:46:40Z".into());
            }
            Event::DeletePod(node) => {
                let now = cluster.now;
                if let Some(pod) = cluster.pods.iter_mut().find(|pod| pod.node == name(node)) {
                    pod.ends_at.get_or_insert(now + 1);
                }
            }
            Event::Clock(by) => cluster.set_clock(by),
            Event::Restart(node) => cluster.pods.iter_mut().filter(|pod| pod.node == name(node)).for_each(Pod::crash),
            Event::Fall(node, seconds) => {
                let until = cluster.now + seconds;
                cluster.pods.iter_mut().filter(|pod| pod.node == name(node)).for_each(|pod| pod.ready_at = pod.ready_at.max(until));
            }
            Event::Cordon(node, cordoned) => cluster.edit_node(&name(node), |node| node["spec"]["unschedulable"] = cordoned.into()),
            Event::Dies(node, seconds) => cluster.machine_restarts(&name(node), seconds),
            Event::Evict(node) => {
                let now = cluster.now;
                if let Some(pod) = cluster.pods.iter_mut().find(|pod| pod.node == name(node) && pod.is_active()) {
                    pod.evict(now);
                }
            }
            Event::RetryAll(value) => cluster.retry(&value.to_string()),
            Event::Retry(node, value) => annotate(cluster, node, names::RETRY_ANNOTATION, value.to_string()),
            Event::Skip(node, true) => annotate(cluster, node, names::SKIP_ANNOTATION, "default/other, default/edge".to_owned()),
            Event::Skip(node, false) => cluster.edit_node(&name(node), |node| forget_annotations(node, &[names::SKIP_ANNOTATION])),
            Event::Release(node) => {
                let id = cluster.ledger().and_then(|ledger| ledger.grants.get(&name(node))).map(|grant| grant.id);
                if let Some(id) = id {
                    annotate(cluster, node, names::RELEASE_ANNOTATION, format!("default/edge:{id}"));
                }
            }
            _ => unreachable!("{event:?} is none of these"),
        });
    }

    /// Nobody disturbs the fleet or holds the rollout back any more.
    pub fn is_left_alone(&mut self) -> Operator {
        self.world.change(|cluster| {
            cluster.edit_wish(|wish| (wish.paused, wish.on_delete) = (false, false));
            // A timestamp that was written by a clock which was set since is compared with one that was not.
            cluster.answered.clear();
            (0..NODES).for_each(|node| cluster.edit_node(&name(node), |node| node["spec"]["unschedulable"] = false.into()));
        });
        Operator::default()
    }

    /// The faults end, and what held the rollout back: one operator, fresh watches, a detacher that works, Nodes that are Ready.
    pub fn faults_end(&mut self) -> Operator {
        let gone = |node: &Value| node["metadata"]["deletionTimestamp"].is_string();
        let world = &mut self.world;
        let leaving: Vec<_> = world.cluster.nodes.iter().filter(|(_, node)| gone(node)).map(|(name, _)| name.clone()).collect();
        world.audit.disturbed.extend(leaving.iter().cloned());
        world.change(|cluster| {
            for name in leaving {
                cluster.version += 1;
                cluster.nodes.remove(&name);
                cluster.join(&name);
            }
            cluster.detacher = Detacher::Good;
            cluster.answered.clear();
            cluster.refusing.clear();
            cluster.breaks = None;
            cluster.back.clear();
            cluster.silent.clear();
            // What failed, and what was given up, is tried again only when somebody changes the template or the policy.
            let failed = cluster.ledger().is_some_and(|ledger| {
                let noted = ledger.rollout_state.as_ref().is_some_and(has_failed);
                noted || ledger.rolled_back.is_some() || ledger.grants.values().any(|grant| grant.released)
            });
            cluster.edit_wish(|wish| {
                (wish.paused, wish.on_delete, wish.rollback_to, wish.promote) = (false, false, None, None);
                wish.on_timeout = "Halt";
                (wish.minimum, wish.minimum_share) = (0, None);
                // Grants may be as old as the schedule.
                wish.rollout = json!({"nodeDeadlineSeconds": 3600});
                wish.image = if failed || [BAD, BREAKS].contains(&wish.image) { NEW } else { wish.image };
            });
            for name in cluster.nodes.keys().cloned().collect::<Vec<_>>() {
                cluster.edit_node(&name, |node| {
                    node["status"]["ready"] = true.into();
                    node["spec"]["taints"] = json!([]);
                    forget_annotations(node, &[names::RETRY_ANNOTATION, names::RELEASE_ANNOTATION, names::SKIP_ANNOTATION]);
                });
            }
        });
        Operator::default()
    }
}

fn set(rollout: &mut Value, field: &str, value: Option<Value>) {
    if rollout.is_null() {
        *rollout = json!({});
    }
    let Some(fields) = rollout.as_object_mut() else { return };
    match value {
        Some(value) => fields.insert(field.to_owned(), value),
        None => fields.remove(field),
    };
}

fn annotate(cluster: &mut super::world::cluster::Cluster, node: u8, key: &str, value: String) {
    cluster.edit_node(&name(node), |node| node["metadata"]["annotations"][key] = value.into());
}

fn forget_annotations(node: &mut Value, keys: &[&str]) {
    if let Some(annotations) = node["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !keys.contains(&key.as_str()));
    }
}
