//! Who holds a pod out of readiness: a list in an annotation, of which each owner writes its own entries only.
//!
//! A hold is an owner and a key: an owner may hold one pod for several reasons at once. Holding twice is holding once, and
//! releasing what is not held changes nothing, so a write whose answer was lost may be made again.

use crate::patch::{JsonPatch, annotation};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// An owner's hold: it keeps the pod from being ready.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodHold {
    /// Who holds the pod.
    pub owner: String,
    /// What for; one of several of the owner.
    #[serde(default)]
    pub key: String,
}

/// The annotation is no list of holds. Whoever wrote it meant to hold the pod: nobody writes over it.
#[derive(Debug)]
pub struct UnreadableHolds(
    /// What is wrong with it.
    pub String,
);

/// The holds, each once, in order; none where there is no annotation or an empty one.
pub fn parse(annotation: Option<&str>) -> Result<Vec<PodHold>, UnreadableHolds> {
    let Some(text) = annotation.map(str::trim).filter(|text| !text.is_empty()) else { return Ok(Vec::new()) };
    let mut holds: Vec<PodHold> = serde_json::from_str(text).map_err(|error| UnreadableHolds(error.to_string()))?;
    holds.sort();
    holds.dedup();
    Ok(holds)
}

/// The annotation with this hold, and those of others as they were.
pub fn hold(annotation: Option<&str>, owner: &str, key: &str) -> Result<String, UnreadableHolds> {
    let mut holds = parse(annotation)?;
    let wanted = PodHold { owner: owner.to_owned(), key: key.to_owned() };
    if let Err(place) = holds.binary_search(&wanted) {
        holds.insert(place, wanted);
    }
    Ok(text(&holds))
}

/// The annotation without this hold; nothing where it was the last: the annotation goes.
pub fn release(annotation: Option<&str>, owner: &str, key: &str) -> Result<Option<String>, UnreadableHolds> {
    let mut holds = parse(annotation)?;
    holds.retain(|hold| (hold.owner.as_str(), hold.key.as_str()) != (owner, key));
    Ok((!holds.is_empty()).then(|| text(&holds)))
}

/// Whether this hold is there; one that cannot be read may be it.
pub fn is_held(annotation: Option<&str>, owner: &str, key: &str) -> bool {
    parse(annotation).map_or(true, |holds| holds.iter().any(|hold| (hold.owner.as_str(), hold.key.as_str()) == (owner, key)))
}

/// The patch of a pod that changes the annotation `name` from `before` to `after`. It fails when the pod is another one, or when
/// somebody else wrote the annotation meanwhile: their hold would be lost. `None` when nothing changes. `has_annotations`: the
/// pod has any.
pub fn patch(uid: &str, has_annotations: bool, name: &str, before: Option<&str>, after: Option<&str>) -> Option<Value> {
    if before == after {
        return None;
    }
    let at = annotation(name);
    let patch = JsonPatch::of(uid);
    let patch = match (before, after) {
        (None, Some(after)) if !has_annotations => {
            patch.test("/metadata/annotations", Value::Null).add("/metadata/annotations", json!({ name: after }))
        }
        (_, Some(after)) => patch.test(&at, before.map_or(Value::Null, Value::from)).add(&at, after),
        (_, None) => patch.test(&at, before.map_or(Value::Null, Value::from)).remove(&at),
    };
    Some(patch.into_value())
}

fn text(holds: &[PodHold]) -> String {
    json!(holds).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_holds_and_unheld_releases_change_nothing() {
        let once = hold(None, "in-place", "web/7").unwrap();
        assert_eq!(once, r#"[{"key":"web/7","owner":"in-place"}]"#);
        assert_eq!(hold(Some(&once), "in-place", "web/7").unwrap(), once);
        assert_eq!(release(Some(&once), "in-place", "web/8").unwrap().as_deref(), Some(once.as_str()));
        assert_eq!(release(Some(&once), "in-place", "web/7").unwrap(), None);
        assert_eq!(release(None, "in-place", "web/7").unwrap(), None);
        assert!(is_held(Some(&once), "in-place", "web/7") && !is_held(Some(&once), "in-place", "") && !is_held(None, "in-place", ""));
    }

    #[test]
    fn an_owner_touches_no_hold_but_its_own() {
        let both = hold(Some(&hold(None, "b", "").unwrap()), "a", "1").unwrap();
        assert_eq!(parse(Some(&both)).unwrap().len(), 2);
        assert_eq!(parse(release(Some(&both), "a", "1").unwrap().as_deref()).unwrap(), [PodHold { owner: "b".into(), key: String::new() }]);
        let by_hand = r#" [ {"owner": "b"}, {"owner": "a", "key": "1"}, {"owner": "b"} ] "#;
        assert_eq!(parse(Some(by_hand)).unwrap(), parse(Some(&both)).unwrap(), "order, spaces and repetitions mean nothing");
    }

    #[test]
    fn what_is_no_list_of_holds_is_never_written_over() {
        for text in ["{}", "held by me", "[{\"key\": \"x\"}]", "[\"a\"]", "true"] {
            assert!(parse(Some(text)).is_err(), "{text}");
            assert!(hold(Some(text), "a", "").is_err() && release(Some(text), "a", "").is_err(), "{text}");
            assert!(is_held(Some(text), "a", ""), "{text}");
        }
        for empty in ["", " ", "[]"] {
            assert!(parse(Some(empty)).unwrap().is_empty(), "{empty:?}");
        }
    }
}
