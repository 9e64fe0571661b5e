//! What is said of a revision that is not proved yet, and of nodes that broke after their update.

use super::{Reason, clock};
use crate::proof;

impl Reason {
    /// Why nodes keep their places, until when, and what to do.
    pub(super) fn message_of_proof(&self) -> String {
        match self {
            Self::Proving { unproved, suspects: 0, budget, seconds } => format!(
                "the revision counts as good once what runs it has served {seconds} s without a break (provenAfterSeconds): until then {unproved} nodes keep their places in the budget of {budget}"
            ),
            Self::Proving { unproved, suspects, budget, seconds } => format!(
                "{suspects} nodes broke after their update and keep their places in the budget of {budget}, {unproved} others while the revision is not proved: they count as good after {seconds} s without a break (provenAfterSeconds); see nodeStates for which, and the logs of their pods"
            ),
            Self::Suspect { falls, last, since, seconds, until } => {
                let until = match until {
                    Some(at) => format!("at {}, after {seconds} s without a break", clock(*at)),
                    None => format!("once it has served {seconds} s without a break"),
                };
                let todo = match falls {
                    0 => "nothing is to be done if its pods were deleted or drained, else look at their logs",
                    _ => "look at the logs of its pods and of their former containers, correct the template, or roll back",
                };
                format!(
                    "suspect since {}: {}; it keeps its place in the budget and counts as good {until}; {todo}",
                    clock(*since),
                    fell(*falls, last)
                )
            }
            Self::WithoutPods => "podsPerNode is 0: the node keeps the template that it has, and gets the newest in its turn once it has pods".into(),
            _ => "a node that joins or gets its pods back keeps to what nodes ran before, while the newest revision has not served long enough".into(),
        }
    }
}

/// What fell, and how often.
fn fell(falls: u32, last: &str) -> String {
    let what = match last {
        proof::RESTARTED => "a container of it restarted".to_owned(),
        proof::EVICTED => "the kubelet evicted a pod of it".to_owned(),
        proof::LOST => "its machine died or started anew".to_owned(),
        _ => format!("a pod of it was not ready for more than {} s", proof::FALLS_AFTER),
    };
    match falls {
        0 => "a pod of it went or was not ready for a moment after its update".to_owned(),
        1 => format!("it fell once, because {what}"),
        _ => format!("it fell {falls} times, last because {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Falls, what the last was, whether it serves, and what the sentence has to say.
    type Row<'r> = (u32, &'r str, Option<i64>, &'r [&'r str]);

    #[test]
    fn who_is_suspect_is_said_with_since_when_what_fell_how_often_until_when_and_what_to_do() {
        let good_at = Some(1_000_060);
        let rows: [Row<'_>; 6] = [
            (0, "", good_at, &["went or was not ready for a moment", "good at 1970-01-12T13:47:40Z", "nothing is to be done if"]),
            (
                1,
                "CrashLoop",
                good_at,
                &["fell once, because a container of it restarted", "good at 1970-01-12T13:47:40Z", "look at the logs"],
            ),
            (1, "NodeLost", good_at, &["its machine died", "after 60 s without a break"]),
            (2, "Evicted", good_at, &["fell 2 times, last because the kubelet evicted a pod", "after 600 s without a break", "roll back"]),
            (2, "Flapping", None, &["not ready for more than 10 s", "good once it has served 600 s", "correct the template"]),
            (1, "Flapping", None, &["fell once", "good once it has served 60 s"]),
        ];
        for (falls, last, until, words) in rows {
            let (last, seconds) = (last.to_owned(), proof::good_after(falls, 60));
            let reason = Reason::Suspect { falls, last, since: 1_000_000, seconds, until };
            let said = reason.message();
            assert!(said.starts_with("suspect since 1970-01-12T13:46:40Z: "), "{said}");
            assert!(words.iter().all(|words| said.contains(words)), "{said} lacks one of {words:?}");
            let failed = Reason::failed("CrashLoop", reason);
            assert_eq!(failed.word(), "CrashLoop");
            assert!(failed.message().starts_with("failed (CrashLoop)") && failed.message().contains(&said), "{}", failed.message());
        }
    }
}
