use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::fleet::fake::{self, Asked};
use crate::fleet::limiter::Limiter;

fn holder(policy: ForeignHolder) -> Holder {
    Holder { node: "sim-0".into(), node_uid: "u".into(), duration: Duration::from_secs(40), policy }
}

fn lease(holder: &str, version: &str) -> Value {
    json!({
        "metadata": { "name": "sim-0", "resourceVersion": version, "annotations": { "theirs": "1" } },
        "spec": { "holderIdentity": holder, "leaseDurationSeconds": 20 },
    })
}

/// Renews once against a server that gives these answers in turn; what it was asked.
async fn renew(record: &mut LeaseRecord, policy: ForeignHolder, answers: Vec<(u16, Value)>) -> (Renewal, Vec<Asked>) {
    let next = AtomicUsize::new(0);
    let (requests, log) = fake::requests(move |_| answers[next.fetch_add(1, Ordering::Relaxed)].clone());
    let slot = Limiter::new(1, 1).slot().await;
    let renewal = record.renew(&requests, &slot, &holder(policy)).await;
    let asked = log.lock().unwrap().clone();
    (renewal, asked)
}

fn whats(asked: &[Asked]) -> Vec<&str> {
    asked.iter().map(|asked| asked.what.split(' ').next().unwrap()).collect()
}

fn written(version: &str) -> (u16, Value) {
    (200, json!({ "metadata": { "resourceVersion": version } }))
}

#[tokio::test]
async fn a_renewal_is_one_request_with_the_known_version() {
    let mut record = LeaseRecord { known: Known::Version("5".into()), ..LeaseRecord::default() };
    let (renewal, asked) = renew(&mut record, ForeignHolder::TakeOver, vec![written("6")]).await;
    assert!(matches!(renewal, Renewal::Done) && matches!(&record.known, Known::Version(version) if &**version == "6"));
    assert_eq!(whats(&asked), ["PUT"]);
    assert_eq!((&asked[0].body["metadata"]["resourceVersion"], &asked[0].body["spec"]["holderIdentity"]), (&json!("5"), &json!("sim-0")));
    assert_eq!(asked[0].body["metadata"]["ownerReferences"][0]["uid"], "u");
}

#[tokio::test]
async fn a_deleted_lease_is_recreated_and_a_changed_one_read() {
    let gone = || (404, json!({}));
    let mut record = LeaseRecord { known: Known::Version("5".into()), ..LeaseRecord::default() };
    let (_, asked) = renew(&mut record, ForeignHolder::TakeOver, vec![gone(), written("9")]).await;
    assert_eq!(whats(&asked), ["PUT", "POST"]);
    let (renewal, asked) =
        renew(&mut record, ForeignHolder::TakeOver, vec![(409, json!({})), (200, lease("sim-0", "12")), written("13")]).await;
    assert!(matches!(renewal, Renewal::Done));
    assert_eq!(whats(&asked), ["PUT", "GET", "PUT"]);
    assert_eq!(asked[2].body["metadata"]["annotations"]["theirs"], "1");
}

#[tokio::test(start_paused = true)]
async fn a_foreign_lease_is_taken_at_once_or_after_expiry() {
    let foreign = || (200, lease("kwok", "7"));
    let mut record = LeaseRecord::default();
    let (renewal, asked) = renew(&mut record, ForeignHolder::TakeOver, vec![foreign(), written("8")]).await;
    assert!(matches!(renewal, Renewal::Done) && whats(&asked) == ["GET", "PUT"]);
    let mut record = LeaseRecord::default();
    for seconds in [0, 19] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        let (renewal, _) = renew(&mut record, ForeignHolder::Wait, vec![foreign()]).await;
        assert!(matches!(renewal, Renewal::Foreign));
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    let (renewal, _) = renew(&mut record, ForeignHolder::Wait, vec![foreign(), written("8")]).await;
    assert!(matches!(renewal, Renewal::Done));
}

#[tokio::test]
async fn repeated_conflicts_end_an_attempt_to_renew_a_lease() {
    let mut record = LeaseRecord { known: Known::Version("5".into()), ..LeaseRecord::default() };
    let conflict = || (409, json!({ "message": "injected" }));
    let answers = vec![conflict(), (200, lease("sim-0", "6")), conflict(), (200, lease("sim-0", "7"))];
    let (renewal, asked) = renew(&mut record, ForeignHolder::TakeOver, answers).await;
    assert!(matches!(&renewal, Renewal::Failed(failure) if failure.message.contains("injected")), "{renewal:?}");
    assert_eq!(asked.len(), MOST_REQUESTS);
    let (renewal, _) = renew(&mut record, ForeignHolder::TakeOver, vec![(403, json!({ "message": "no" }))]).await;
    assert!(matches!(&renewal, Renewal::Failed(failure) if failure.code == Some(403)));
    assert!(matches!(&record.known, Known::Version(version) if &**version == "7"));
}
