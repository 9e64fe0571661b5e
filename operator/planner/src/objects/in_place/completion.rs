//! Whether a container runs the image that its pod was given.

use crate::facts::{ContainerFacts, InPlacePod};
use crds::{UnixSeconds, in_place::Instance};

/// Seconds beyond the pod's termination grace period after which a kubelet has ended whatever it was to end: it looks at each pod
/// once in its `syncFrequency`, by default a minute, whatever it is told.
const MARGIN: i64 = 60;

/// All containers run what the pod says, and what the kubelet reports is of after it said so.
///
/// The kubelet must have seen the pod as it is now, and the run must be another than the one before the change. A new run alone
/// proves nothing, even of a pod that the kubelet has seen: the one before may have crashed just before, and its successor has the
/// former image and is about to be ended. So something must tell the run from such a one: another image ID, or a name that was not
/// shown before. Two tags of one image have neither (containerd shows the first name that it knows). Then it is a run that began
/// after the change, or, because clocks differ, one that lives on when the kubelet would long have ended it.
pub fn is_complete(pod: &InPlacePod, now: UnixSeconds) -> bool {
    // Kubelets before 1.34 do not say what they have seen; then a time of theirs proves nothing, either.
    let silent = pod.observed_generation == 0;
    (silent || pod.observed_generation >= pod.generation) && pod.containers.iter().all(|container| runs(pod, container, silent, now))
}

/// When a run counts that nothing else tells from one of before the change; `None` when there was no change.
pub fn settles_at(pod: &InPlacePod) -> Option<UnixSeconds> {
    let record = pod.record.as_ref()?;
    Some(record.at.saturating_add(pod.termination_grace).saturating_add(MARGIN))
}

fn runs(pod: &InPlacePod, container: &ContainerFacts, silent: bool, now: UnixSeconds) -> bool {
    let before = pod.record.as_ref().and_then(|record| record.before.get(&container.name));
    let begun = before.is_none_or(|before| {
        let settled = settles_at(pod).is_none_or(|at| now >= at);
        let is_before = before.container == container.id;
        if before.image == container.image {
            // What was changed back before anybody noticed goes on as it was. Another run may be of the image in between, and about
            // to be ended, whenever it began.
            let has_former = !before.image_id.is_empty() && before.image_id == container.image_id;
            return settled || if is_before { !silent || container.shown == container.image } else { has_former };
        }
        let is_later = settled || !silent && pod.record.as_ref().is_some_and(|record| container.started_at >= record.at);
        !is_before && (is_told(before, container) || is_later)
    });
    container.running && container.ready && !container.id.is_empty() && begun
}

/// What its status shows of the image is not what it showed before.
fn is_told(before: &Instance, container: &ContainerFacts) -> bool {
    let other_id = !before.image_id.is_empty() && !container.image_id.is_empty() && before.image_id != container.image_id;
    other_id || container.shown == container.image && before.shown != container.image
}
