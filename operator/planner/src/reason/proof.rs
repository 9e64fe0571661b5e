//! What is said of a revision that is not proved yet, and of nodes that broke after their update.

use super::{Reason, clock};

/// Seconds for which a pod may be not ready without a fall: a kubelet that starts anew takes all its pods for unready until it has probed
/// them.
pub(crate) const FALLS_AFTER: i64 = 10;
/// Word of a fall: a container restarted.
pub(crate) const RESTARTED: &str = "CrashLoop";
/// Word of a fall: a pod was not ready.
pub(crate) const UNREADY: &str = "Flapping";
/// Word of a fall: the kubelet evicted the pod.
pub(crate) const EVICTED: &str = "Evicted";
/// Word of a fall: the machine died or restarted.
pub(crate) const LOST: &str = "NodeLost";
/// All words of a fall.
pub const FALLS: [&str; 4] = [RESTARTED, UNREADY, EVICTED, LOST];

impl Reason {
    /// Why nodes keep their slots, until when, and what to do.
    pub(super) fn message_of_proof(&self) -> String {
        match self {
            Self::Proving { unproved, suspects: 0, budget, seconds } => format!(
                "waiting until the revision is proved: its nodes must serve {seconds} s without a break (provenAfterSeconds); until then {unproved} nodes keep their slots (budget: {budget})"
            ),
            Self::Proving { unproved, suspects, budget, seconds } => format!(
                "{suspects} nodes broke after their update and keep their slots, {unproved} others keep theirs until the revision is proved (budget: {budget}): look at the logs of the nodes in nodeStates. A node counts as good after {seconds} s without a break (provenAfterSeconds)"
            ),
            Self::Suspect { falls, outages, last, since, seconds, until } => {
                let until = match until {
                    Some(at) => format!("at {}, after {seconds} s without a break", clock(*at)),
                    None => format!("after it serves {seconds} s without a break"),
                };
                let todo = match falls {
                    0 if *outages > 0 => {
                        "repair what its machine has in common with the others, or roll back if the revision may be the cause"
                    }
                    0 => "if nobody deleted or drained its pods, look at their logs",
                    _ => "look at the logs of its pods and of their previous containers, correct the template, or roll back",
                };
                format!("suspect since {}: {}; the node counts as good {until}: {todo}", clock(*since), fell(*falls, *outages, last))
            }
            Self::WithoutPods => {
                "podsPerNode is 0: the node keeps its template and gets the newest one in its turn once it has pods".into()
            }
            _ => "a node that joins or gets its pods back runs the former revision until the newest revision has served long enough".into(),
        }
    }
}

/// What fell, and how often.
fn fell(falls: u32, outages: u32, last: &str) -> String {
    let what = match last {
        RESTARTED => "a container restarted".to_owned(),
        EVICTED => "the kubelet evicted a pod".to_owned(),
        LOST => "its machine died or restarted".to_owned(),
        _ => format!("a pod was not ready for more than {FALLS_AFTER} s"),
    };
    let outage = format!("its machine was lost together with others, {outages} times in all");
    let fell = match falls {
        0 if outages > 0 => return outage,
        0 => "a pod was gone or not ready for a moment after the update".to_owned(),
        1 => format!("it fell once: {what}"),
        _ => format!("it fell {falls} times, the last time {what}"),
    };
    if outages > 0 { format!("{fell}; and {outage}") } else { fell }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Falls, losses together with others, what the last fall was, whether it serves, and what the sentence has to say.
    type Row<'r> = (u32, u32, &'r str, Option<i64>, &'r [&'r str]);

    #[test]
    fn the_message_of_a_suspect_names_causes_and_remedies() {
        let good_at = Some(1_000_060);
        let rows: [Row<'_>; 8] = [
            (0, 2, "", good_at, &["lost together with others, 2 times in all", "repair what its machine has in common", "roll back"]),
            (0, 0, "", good_at, &["gone or not ready for a moment", "good at 1970-01-12T13:47:40Z", "if nobody deleted or drained"]),
            (1, 0, "CrashLoop", good_at, &["fell once: a container restarted", "good at 1970-01-12T13:47:40Z", "look at the logs"]),
            (
                1,
                1,
                "NodeLost",
                good_at,
                &["fell once: its machine died", "lost together with others, 1 times", "after 60 s without a break"],
            ),
            (1, 3, "CrashLoop", good_at, &["fell once: a container restarted", "and its machine was lost together with others, 3 times"]),
            (
                2,
                0,
                "Evicted",
                good_at,
                &["fell 2 times, the last time the kubelet evicted a pod", "after 600 s without a break", "roll back"],
            ),
            (2, 0, "Flapping", None, &["not ready for more than 10 s", "good after it serves 600 s", "correct the template"]),
            (1, 0, "Flapping", None, &["fell once", "good after it serves 60 s"]),
        ];
        for (falls, outages, last, until, words) in rows {
            let (last, seconds) = (last.to_owned(), if falls > 1 { 600 } else { 60 });
            let reason = Reason::Suspect { falls, outages, last, since: 1_000_000, seconds, until };
            let said = reason.message();
            assert!(said.starts_with("suspect since 1970-01-12T13:46:40Z: "), "{said}");
            assert!(words.iter().all(|words| said.contains(words)), "{said} lacks one of {words:?}");
            let failed = Reason::failed("CrashLoop", reason);
            assert_eq!(failed.word(), "CrashLoop");
            assert!(failed.message().starts_with("failed (CrashLoop)") && failed.message().contains(&said), "{}", failed.message());
        }
    }
}
