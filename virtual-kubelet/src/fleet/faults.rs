//! What goes wrong with a node of a fleet, by its annotations or by a call; no I/O.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::shard::Look;
use crate::simulated::{ANNOTATION_PREFIX, Delay, PodFault};

/// Longest time that is believed of a fault, so that the clock can tell its end.
pub(super) const LONGEST: Duration = Duration::from_hours(24);

/// What goes wrong with a node.
///
/// ```no_run
/// use std::time::Duration;
/// use virtual_kubelet::fleet::{FleetError, FleetHandle, NodeFault};
///
/// # fn example(handle: &FleetHandle) -> Result<(), FleetError> {
/// handle.inject("sim-3", NodeFault::Lost)?;
/// handle.inject("sim-4", NodeFault::LateLease(Duration::from_secs(45)))?;
/// handle.inject("sim-3", NodeFault::Found)
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFault {
    /// The node renews nothing and says nothing; what runs on it runs on.
    Lost,
    /// It is back, and renews its lease in time.
    Found,
    /// Each renewal of its lease comes so much later.
    LateLease(Duration),
    /// Its kubelet starts again and has forgotten which pods were ready.
    KubeletRestart,
}

/// What a call asks for, or asks.
#[derive(Debug)]
pub(super) enum Told {
    /// Of a node.
    Node(u32, NodeFault),
    /// Of the pods of this namespace and name.
    Pod(Arc<str>, Arc<str>, Option<PodFault>),
    /// What a container went through.
    Look(Look),
}

/// What a node's annotations ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AskedFaults {
    pub lost: bool,
    pub late_lease: Duration,
    /// Each new text is one restart.
    pub restart: Option<Box<str>>,
}

impl AskedFaults {
    /// What is wrong with an annotation is told with what it should be.
    pub fn of(annotations: Option<&BTreeMap<String, String>>) -> (Self, Vec<String>) {
        let (mut asked, mut wrong) = (Self::default(), Vec::new());
        let ours = annotations.into_iter().flatten().filter_map(|(key, value)| Some((key.strip_prefix(ANNOTATION_PREFIX)?, value)));
        for (key, value) in ours {
            let refused = match (key, value.as_str()) {
                ("lost", "true" | "false") => {
                    asked.lost = value == "true";
                    None
                }
                ("lost", _) => Some("write true or false"),
                ("late-lease", text) => match text.parse() {
                    Ok(Delay::Fixed(delay)) => {
                        asked.late_lease = delay;
                        None
                    }
                    _ => Some("write a duration, such as 45s"),
                },
                ("kubelet-restart", text) => {
                    asked.restart = Some(text.into());
                    None
                }
                _ => Some("use lost, late-lease or kubelet-restart"),
            };
            if let Some(remedy) = refused {
                wrong.push(format!("{ANNOTATION_PREFIX}{key}={value}: {remedy}"));
            }
        }
        (asked, wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_ask_for_faults_and_wrong_ones_are_named() {
        let map =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| (format!("{ANNOTATION_PREFIX}{key}"), (*value).to_owned())).collect();
        let (asked, wrong) = AskedFaults::of(Some(&map(&[("lost", "true"), ("late-lease", "45s"), ("kubelet-restart", "1")])));
        assert_eq!(asked, AskedFaults { lost: true, late_lease: Duration::from_secs(45), restart: Some("1".into()) });
        assert!(wrong.is_empty());
        let (asked, wrong) = AskedFaults::of(Some(&map(&[("lost", "maybe"), ("late-lease", "uniform 1s 2s"), ("fire", "1")])));
        assert_eq!((asked, wrong.len()), (AskedFaults::default(), 3));
        assert!(wrong.iter().any(|wrong| wrong.contains("fire") && wrong.contains("kubelet-restart")), "{wrong:?}");
        assert_eq!(AskedFaults::of(None), (AskedFaults::default(), vec![]));
    }
}
