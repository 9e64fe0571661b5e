//! Why something is held back. The same values become condition reasons, node states, metric labels and log fields.
//!
//! A reason comes in, its word, sentence and class go out. The class says who must act, and what outranks what in a status. A family of
//! reasons with long sentences has a file of its own. What leads to a reason is decided elsewhere.

mod class;
mod health_port;
mod proof;
mod recreate;
mod written;

use crds::UnixSeconds;
pub(crate) use health_port::LEAVES_AFTER;
pub use proof::FALLS;
pub(crate) use proof::{EVICTED, FALLS_AFTER, LOST, RESTARTED, UNREADY};
pub use recreate::RecreateReason;
pub use written::NodeObject;

/// The failure of a canary whose pods restart too often.
pub(crate) const RESTARTS: &str = "Restarts";
/// Machines were lost after they had been given the revision.
pub(crate) const LOST_NODES: &str = "NodesLost";
/// A person freed the slot.
pub(crate) const RELEASED: &str = "Released";
/// The node was out of service when its update was granted: that it is so still says nothing of the revision.
pub(crate) const OUT_BEFORE: &str = "OutBefore";

/// Why a node is not further than it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The spec is not valid; the last good state keeps running.
    InvalidSpec,
    /// The ledger is being rebuilt.
    RebuildingLedger,
    /// `spec.paused` is true.
    Paused,
    /// A detacher did not answer in time; policy Halt.
    Halted,
    /// The budget is used up: grants, unavailable nodes without a grant, budget.
    Budget {
        /// Number of grants.
        grants: usize,
        /// Unavailable nodes without a grant.
        unavailable: usize,
        /// Number of slots.
        budget: usize,
    },
    /// Other nodes, which serve, keep their slots until their revision is proved, or until they are no longer suspect.
    Proving {
        /// Nodes that run a revision which is not proved.
        unproved: usize,
        /// Nodes that broke after they were attached.
        suspects: usize,
        /// The budget, of the fleet or of the domain.
        budget: usize,
        /// Seconds for which they must serve without a break.
        seconds: i64,
    },
    /// The node serves, and broke after it was attached.
    Suspect {
        /// How often a pod of it fell.
        falls: u32,
        /// How often its machine was lost together with others.
        outages: u32,
        /// What the last fall was, in a word.
        last: String,
        /// When it became suspect.
        since: UnixSeconds,
        /// Seconds for which it must serve without a break.
        seconds: i64,
        /// When that is over unless it breaks again; nothing while it does not serve.
        until: Option<UnixSeconds>,
    },
    /// A node that joins gets the last revision that all nodes ran.
    JoinsCurrent,
    /// It has no pods, and gets the newest revision only when it has.
    WithoutPods,
    /// The budget of the node's domain is used up.
    DomainBudget {
        /// Domain, as `key=value`.
        domain: String,
        /// Number of grants in the domain.
        grants: usize,
        /// Unavailable nodes of the domain without a grant.
        unavailable: usize,
        /// Number of slots of the domain.
        budget: usize,
    },
    /// Another domain, as `key=value`, is finished first.
    OtherDomain(String),
    /// So many nodes must stay available, and no more are.
    MinAvailable {
        /// Available nodes without a grant.
        available: usize,
        /// Number of nodes that must stay available.
        minimum: usize,
    },
    /// A person's annotation leaves the node out.
    Skipped,
    /// `partition` keeps the node at its current revision.
    Partition,
    /// It keeps what it runs until somebody deletes a pod of it.
    OnDelete,
    /// It keeps what it runs until a step of the canary is done.
    Step {
        /// Number of the step, from 1.
        step: usize,
        /// Number of steps.
        of: usize,
        /// What the step waits for.
        state: StepState,
    },
    /// No update window is open.
    OutsideWindow {
        /// When the next one opens; none within sight when absent.
        opens: Option<UnixSeconds>,
    },
    /// The revision failed on too many nodes.
    TooManyFailed {
        /// What the revision has done: the rest of a sentence that begins with the revision.
        why: String,
    },
    /// The revision failed on this node before, which has no slot any more.
    FailedBefore(String),
    /// The revision failed on this node.
    Failed {
        /// The word that was noted when it did: it stays while pods change what is wrong with them.
        with: &'static str,
        /// It was out of service before its update, which is not why.
        out_before: bool,
        /// Why it is not complete now.
        now: Box<Self>,
    },
    /// The node is about to be taken away.
    Draining,
    /// The node is about to be taken away, and its pods have ended. It keeps its slot until the Node goes, or the taint of this key.
    /// Without a key the Node is being deleted.
    Drained(Option<String>),
    /// The Node is not Ready.
    NodeNotReady,
    /// Granted; the next write follows.
    Granted,
    /// Granted; a gate that taints nodes before they are updated has not tainted this one.
    WaitingForTaint {
        /// Name of the gate.
        gate: String,
        /// The taint, as `key:effect`.
        taint: String,
        /// When the update goes on without it.
        until: UnixSeconds,
    },
    /// Detached; the grace period runs until this time.
    GracePeriod {
        /// End of the grace period.
        until: UnixSeconds,
    },
    /// The detacher has not written its timestamp.
    WaitingForDetacher {
        /// When the timeout policy applies.
        until: UnixSeconds,
    },
    /// The detacher's timestamp cannot be read: the annotation. Its value is the cluster's, and no matter of the namespace.
    BadTimestamp(String),
    /// The detacher did not answer in time.
    DetachTimeout,
    /// New pods are not all ready yet.
    PodsNotReady {
        /// Number of ready pods.
        ready: i32,
        /// Number of wanted pods.
        wanted: i32,
        /// Trouble of a pod: reason and message.
        trouble: Option<(String, String)>,
    },
    /// The pods change in place.
    UpdatingInPlace {
        /// Pods that run what is wanted, and are ready.
        updated: usize,
        /// Number of pods on the node.
        of: usize,
        /// Trouble of a pod: reason and message.
        trouble: Option<(String, String)>,
        /// Why they have to be re-created after all.
        why: Option<RecreateReason>,
    },
    /// The new images are being pulled; with what is in the way.
    PrePulling(Option<(String, String)>),
    /// `podUpdate` is `InPlaceOnly`, and the pods would have to be re-created.
    NotInPlace(RecreateReason),
    /// Somebody else's annotation or label, of this key, takes the node out of service.
    TakenOut(String),
    /// Old pods are still ending.
    PodsTerminating,
    /// All pods are ready, and do not count as available before `minReadySeconds` are over.
    PodsTooYoung,
    /// Attached again; the soak runs until this time.
    AttachSoak {
        /// End of the soak.
        until: UnixSeconds,
    },
    /// Attached again; the detacher has not removed its timestamp.
    WaitingForAttachment,
    /// The node is new; its pods are not ready yet.
    Joining {
        /// Trouble of a pod: reason and message.
        trouble: Option<(String, String)>,
    },
    /// The kubelet refused the node's pods again and again.
    AdmissionRejected {
        /// When the next try comes.
        until: UnixSeconds,
        /// Message of the kubelet.
        message: String,
    },
    /// The API refuses to create the node's pods, and says why.
    PodsRefused(String),
    /// The pods are there, their Deployment does not carry our labels.
    Relabelled(String),
    /// The API server refused a write, and would refuse it again.
    Refused {
        /// Object that was to be written.
        object: NodeObject,
        /// Message of the API server.
        message: String,
    },
    /// An object of the wanted name belongs to somebody else.
    NameConflict(String),
    /// The holders annotation of the Node cannot be read.
    HoldersUnreadable(String),
    /// The holders annotation of the Node is so long that it takes no further resource in.
    HoldersFull,
    /// Another resource uses the same detach annotation with another value.
    DetachAnnotationConflict(String),
    /// The health port is being asked.
    AskingHealthPort,
    /// The health port still answers 200 though the Deployment's mark says otherwise.
    StillHealthy {
        /// Health port.
        port: u16,
    },
    /// The health port still answers for an earlier phase.
    StillUnhealthy {
        /// Health port.
        port: u16,
        /// Phase of the token that the health checker still sees.
        phase: crds::token::Phase,
    },
    /// The health port does not answer: nobody knows what the load balancer is told.
    HealthPortSilent {
        /// IP address of the node, where it has one.
        address: Option<String>,
        /// Ports that do not answer.
        ports: Vec<u16>,
        /// The node leaves, and does not wait for long.
        leaves: bool,
    },
    /// The way back after a detach timeout; the node keeps its slot until something else is wanted.
    DetachAborted,
    /// An object is being written; its watch has not shown it yet.
    Writing,
}

impl Reason {
    /// The revision failed on a node, for the reason noted then; `now` says why it is not complete.
    pub(crate) fn failed(noted: &str, now: Self) -> Self {
        // None of them says what is wrong with the pods.
        let elsewhere = [RESTARTS, RELEASED, OUT_BEFORE].contains(&noted);
        let with = failure_word(if elsewhere { now.word() } else { noted });
        Self::Failed { with, out_before: noted == OUT_BEFORE, now: Box::new(now) }
    }

    /// The stable word of the reason, for conditions, metrics and logs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::InvalidSpec => "InvalidSpec",
            Self::RebuildingLedger => "RebuildingLedger",
            Self::Paused => "Paused",
            Self::Halted => "Halted",
            Self::Budget { .. } => "Budget",
            Self::DomainBudget { .. } => "DomainBudget",
            Self::Proving { suspects: 0, .. } | Self::JoinsCurrent => "Proving",
            Self::WithoutPods => "ScaledToZero",
            Self::Proving { .. } => "NodesFlapping",
            Self::Suspect { .. } => "Suspect",
            Self::OtherDomain(_) => "OtherDomain",
            Self::MinAvailable { .. } => "MinAvailableNodes",
            Self::Skipped => "Skipped",
            Self::Partition => "Partition",
            Self::OnDelete => "OnDelete",
            Self::Step { state, .. } => state.word(),
            Self::OutsideWindow { .. } => "OutsideWindow",
            Self::TooManyFailed { .. } => "MaxFailedNodes",
            Self::FailedBefore(_) => "FailedBefore",
            Self::Failed { with, .. } => with,
            Self::Draining | Self::Drained(_) => "Draining",
            Self::NodeNotReady => "NodeNotReady",
            Self::Granted => "Granted",
            Self::WaitingForTaint { .. } => "WaitingForTaint",
            Self::GracePeriod { .. } => "GracePeriod",
            Self::WaitingForDetacher { .. } => "WaitingForDetacher",
            Self::BadTimestamp(_) => "BadTimestamp",
            Self::DetachTimeout => "DetachTimeout",
            Self::DetachAborted => "DetachAborted",
            Self::PodsNotReady { trouble: Some((reason, _)), .. }
            | Self::PrePulling(Some((reason, _)))
            | Self::UpdatingInPlace { trouble: Some((reason, _)), .. }
            | Self::Joining { trouble: Some((reason, _)) } => trouble_word(reason),
            Self::PodsNotReady { .. } => "PodsNotReady",
            Self::UpdatingInPlace { .. } => "UpdatingInPlace",
            Self::PrePulling(_) => "PrePulling",
            Self::NotInPlace(_) => "NotInPlace",
            Self::TakenOut(_) => "TakenOut",
            Self::PodsTerminating => "PodsTerminating",
            Self::PodsTooYoung => "MinReadySeconds",
            Self::AttachSoak { .. } => "AttachSoak",
            Self::WaitingForAttachment => "WaitingForAttachment",
            Self::Joining { .. } => "Joining",
            Self::AdmissionRejected { .. } => "AdmissionRejected",
            Self::PodsRefused(_) => "FailedCreate",
            Self::Relabelled(_) => "Relabelled",
            Self::Refused { .. } => "Refused",
            Self::NameConflict(_) => "NameConflict",
            Self::HoldersUnreadable(_) => "HoldersUnreadable",
            Self::HoldersFull => "HoldersFull",
            Self::DetachAnnotationConflict(_) => "DetachAnnotationConflict",
            Self::AskingHealthPort => "AskingHealthPort",
            Self::StillHealthy { .. } | Self::StillUnhealthy { .. } => "HealthPortContradicts",
            Self::HealthPortSilent { .. } => "HealthPortSilent",
            Self::Writing => "Writing",
        }
    }

    /// A sentence, with what to do where something is to be done.
    pub fn message(&self) -> String {
        match self {
            Self::InvalidSpec => "the spec is not valid, see condition Valid; the last good state keeps running".into(),
            Self::RebuildingLedger => "the operator rebuilds the lost grant ledger; no node starts before the ledger is complete".into(),
            Self::Paused => "spec.paused is true: no new node starts".into(),
            Self::Halted => "the detacher did not answer for another node; no new node starts until the detacher answers".into(),
            Self::Budget { grants, unavailable, budget } => no_free_slot("", *grants, *unavailable, *budget),
            Self::DomainBudget { domain, grants, unavailable, budget } => {
                no_free_slot(&format!(" in {domain}"), *grants, *unavailable, *budget)
            }
            Self::Proving { .. } | Self::Suspect { .. } | Self::JoinsCurrent | Self::WithoutPods => self.message_of_proof(),
            Self::OtherDomain(domain) => format!("waiting for the nodes of {domain} to finish first (oneDomainAtATime)"),
            Self::MinAvailable { available, minimum } => {
                format!(
                    "waiting: {available} nodes are available and {minimum} must stay available; if no node is updating, repair a node, or lower minAvailableNodes"
                )
            }
            Self::Skipped => format!("skipped: annotation {} is set; remove it to resume", crds::names::SKIP_ANNOTATION),
            Self::Partition => "partition keeps the node at its current revision".into(),
            Self::OnDelete => "updateStrategy.type is OnDelete: delete a pod of the node to update it".into(),
            Self::Step { step, of, state } => {
                format!("kept at its current revision until step {step} of {of} is done: {}", state.message(*step))
            }
            Self::OutsideWindow { opens: Some(at) } => format!("outside the update windows; the next window opens at {}", clock(*at)),
            Self::OutsideWindow { opens: None } => "outside the update windows; no window opens within a year: check windows".into(),
            Self::TooManyFailed { why } => format!(
                "the revision {why}: correct the template, roll back, or let all failures pass by annotation {} on the IngressDaemonSet",
                crds::names::RETRY_ANNOTATION
            ),
            Self::FailedBefore(reason) => format!(
                "the revision failed on this node before ({reason}): change the template, or change the Node's annotation {} to retry",
                crds::names::RETRY_ANNOTATION
            ),
            Self::Failed { with, out_before: true, now } => format!(
                "does not come up ({with}): {}. The node was out of service before its update, so this does not count as a failure. It uses a slot until it serves: repair the node",
                now.message()
            ),
            Self::Failed { with, out_before: false, now } => format!(
                "failed ({with}) and left unchanged: {}; correct the template, or retry with the Node's annotation {}",
                now.message(),
                crds::names::RETRY_ANNOTATION
            ),
            Self::Draining => "the Node is about to leave: the operator takes it out of the load balancer, then removes its pods".into(),
            Self::Drained(Some(key)) => {
                format!("drained; uses one budget slot until the Node is deleted or taint {key} is removed")
            }
            Self::Drained(None) => {
                "drained and being deleted; uses one budget slot until the Node is gone: check what its finalizers wait for".into()
            }
            Self::NodeNotReady => "the Node is not Ready: repair it, or delete it if the machine is gone".into(),
            Self::Granted => "slot granted; the operator is about to start".into(),
            Self::WaitingForTaint { gate, taint, until } => format!(
                "waiting for gate {gate} to put taint {taint} on the Node (duringUpdate: Taint); the update continues without the taint at {}",
                clock(*until)
            ),
            Self::GracePeriod { until } => format!("marked: the load balancer has until {} to take it out", clock(*until)),
            Self::WaitingForDetacher { until } => format!(
                "waiting for the detacher to write its timestamp on the Node; onDetachTimeout applies at {}",
                clock(*until)
            ),
            Self::BadTimestamp(key) => format!("the Node's annotation {key} is no time as in RFC 3339: correct the detacher"),
            Self::DetachTimeout => {
                "the detacher did not write a newer timestamp in time: repair the detacher, or set onDetachTimeout to Proceed or Abort".into()
            }
            Self::PodsNotReady { .. } | Self::PodsTerminating | Self::PodsTooYoung | Self::Joining { .. } => self.message_of_pods(),
            Self::UpdatingInPlace { .. } | Self::PrePulling(_) | Self::NotInPlace(_) => self.message_in_place(),
            Self::TakenOut(key) => {
                let what = crds::names::mark_in_words(key);
                format!("somebody else's {what} takes the node out of service; the node counts against the budget until you remove that mark")
            }
            Self::AttachSoak { until } => format!("back in rotation; slot is freed at {}", clock(*until)),
            Self::WaitingForAttachment => "the operator has asked to attach the node again; waiting for the detacher to remove its timestamp".into(),
            Self::AdmissionRejected { until, message } => {
                format!("the kubelet rejected the pods repeatedly ({message}); scaled down, next try at {}", clock(*until))
            }
            Self::PodsRefused(message) => format!("the API server refuses to create the pods: {message}"),
            Self::Relabelled(name) => format!("Deployment {name} lost the operator's labels; the operator restores them"),
            Self::Refused { object, message } => format!("the API server refuses {object}: {message}"),
            Self::NameConflict(name) => format!("`{name}` exists and belongs to somebody else: rename or delete it; the operator never adopts it"),
            Self::HoldersUnreadable(error) => format!(
                "annotation {} of the Node is not readable ({error}): if no other resource holds the node, remove this annotation, and the annotation or label that asks for detachment",
                crds::names::HOLDERS_ANNOTATION
            ),
            Self::HoldersFull => format!(
                "annotation {} of the Node is full: choose fewer nodes with other resources, or delete some of them; each resource that detaches the node has an entry there",
                crds::names::HOLDERS_ANNOTATION
            ),
            Self::DetachAnnotationConflict(other) => {
                format!("{other} detaches nodes with the same key and another value: give both the same value, or different keys")
            }
            Self::AskingHealthPort | Self::StillHealthy { .. } | Self::StillUnhealthy { .. } | Self::HealthPortSilent { .. } => {
                self.message_of_health_port()
            }
            Self::DetachAborted => {
                "the detacher did not answer in time, so the operator attached the node again with its old pods: repair the detacher and run `kubectl ids retry` with the node's name, or change the template or onDetachTimeout".into()
            }
            Self::Writing => "waiting for the watch to show the last write".into(),
        }
    }

    /// The same of the rollout rather than of one node.
    pub(crate) fn message_of_rollout(&self) -> String {
        match self {
            Self::Step { step, of, state } => format!("step {step} of {of} is not done: {}", state.message(*step)),
            _ => self.message(),
        }
    }

    /// What the pods of a node wait for.
    fn message_of_pods(&self) -> String {
        match self {
            Self::PodsNotReady { ready, wanted, trouble: Some((reason, message)) } => {
                format!("{ready} of {wanted} pods ready; {reason}: {message}")
            }
            Self::PodsNotReady { ready, wanted, trouble: None } => format!("{ready} of {wanted} pods ready"),
            Self::PodsTerminating => "old pods are still terminating".into(),
            Self::PodsTooYoung => "its pods are ready; waiting for minReadySeconds".into(),
            Self::Joining { trouble: Some((reason, message)) } => format!("joining; {reason}: {message}"),
            Self::Joining { trouble: None } => "joining; its pods are not ready yet".into(),
            _ => String::new(),
        }
    }

    /// Of updates in place, and of what comes before them.
    fn message_in_place(&self) -> String {
        match self {
            Self::UpdatingInPlace { why: Some(why), .. } => format!("the operator is about to re-create the pods instead: {why}"),
            Self::UpdatingInPlace { updated, of, trouble, .. } => match trouble {
                Some((reason, message)) => format!("{updated} of {of} pods updated in place; {reason}: {message}"),
                None => format!("{updated} of {of} pods updated in place"),
            },
            Self::PrePulling(None) => "pulling the new images; the node keeps serving".into(),
            Self::PrePulling(Some((reason, message))) => {
                format!("cannot pull the new images ({reason}: {message}): correct the template or the registry; the node keeps serving")
            }
            Self::NotInPlace(why) => {
                format!("cannot be updated in place: {why}; set podUpdate to InPlaceIfPossible to re-create the pods, or undo the change")
            }
            _ => String::new(),
        }
    }
}

/// What a step of a canary waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepState {
    /// The step waits until its nodes are updated and serve.
    Updating {
        /// How many of them the partition keeps at what they run.
        kept: usize,
    },
    /// The step waits until its nodes have served for its soak.
    Soaking {
        /// End of the soak.
        until: UnixSeconds,
    },
    /// The step waits until somebody promotes it.
    AwaitingPromotion {
        /// The revision to name in `spec.promote`.
        revision: String,
    },
    /// The step has no nodes, so it would prove nothing.
    NoNodes {
        /// The revision to name in `spec.promote`.
        revision: String,
    },
}

impl StepState {
    fn word(&self) -> &'static str {
        match self {
            Self::Updating { .. } => "CanaryUpdating",
            Self::Soaking { .. } => "CanarySoaking",
            Self::AwaitingPromotion { .. } => "AwaitingPromotion",
            Self::NoNodes { .. } => "CanaryWithoutNodes",
        }
    }

    fn message(&self, step: usize) -> String {
        match self {
            Self::Updating { kept: 0 } => "not all of its nodes serve the new revision yet".into(),
            Self::Updating { kept } => {
                format!(
                    "not all of its nodes serve the new revision, since partition keeps {kept} of them at their current revision: lower partition"
                )
            }
            Self::Soaking { until } => format!("its nodes soak until {}", clock(*until)),
            Self::AwaitingPromotion { revision } => {
                format!("set spec.promote to {{revision: {revision:?}, step: {step}}} to continue")
            }
            Self::NoNodes { revision } => format!(
                "no chosen node has the labels of its nodeSelector: correct nodeSelector, label a node, or skip the step with spec.promote {{revision: {revision:?}, step: {step}}}"
            ),
        }
    }
}

/// Nodes that are out for other reasons can be more than the slots.
fn no_free_slot(scope: &str, grants: usize, unavailable: usize, budget: usize) -> String {
    let used = grants + unavailable;
    format!("waiting for a free slot{scope}: {used} of {budget} in use ({grants} updating, {unavailable} unavailable)")
}

/// Why a node failed, in the words of the API.
pub(crate) fn failure_word(reason: &str) -> &'static str {
    match reason {
        "ImagePull" => "ImagePull",
        "CrashLoop" => "CrashLoop",
        "ContainerConfig" => "ContainerConfig",
        "Unschedulable" => "Unschedulable",
        "FailedCreate" => "FailedCreate",
        "AdmissionRejected" => "AdmissionRejected",
        "DetachTimeout" => "DetachTimeout",
        _ => "NotReady",
    }
}

/// A kubelet's word for a container that ended, or could not begin, and waits to be started again.
pub(crate) fn is_crash(reason: &str) -> bool {
    matches!(reason, "CrashLoopBackOff" | "Error" | "OOMKilled" | "RunContainerError" | "StartError")
}

/// Trouble that pods name, cut to the words that are known: reasons become metric labels and must stay few.
fn trouble_word(reason: &str) -> &'static str {
    match reason {
        "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => "ImagePull",
        crash if is_crash(crash) => "CrashLoop",
        "CreateContainerConfigError" | "CreateContainerError" => "ContainerConfig",
        "Unschedulable" => "Unschedulable",
        "NodePorts" | "OutOfcpu" | "OutOfmemory" | "OutOfpods" | "NodeAffinity" => "AdmissionRejected",
        _ => "PodsNotReady",
    }
}

/// A time for people: UTC, to the second.
pub fn clock(time: UnixSeconds) -> String {
    chrono::DateTime::from_timestamp(time, 0).map_or_else(|| time.to_string(), |time| time.format("%Y-%m-%dT%H:%M:%SZ").to_string())
}
