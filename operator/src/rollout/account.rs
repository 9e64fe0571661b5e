//! What a `ServiceAccount` may do that a resource names for its health checkers. The operator binds none but its own: whoever may edit a
//! resource would give rights to every pod that has the account.

use super::{Memory, NamedAccount};
use crate::write::{Error, TIMEOUT, classify};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};
use planner::{Snapshot, objects::health_checker};
use std::time::{Duration, Instant};

/// How long an answer is believed: as long as bindings of the operator's own go without being written again.
const BELIEVED: Duration = Duration::from_mins(10);
/// After how long it is asked again what is missing, or was not answered.
pub const MISSING_AGAIN: Duration = Duration::from_secs(30);

/// Asks the API server which rights the named account lacks, once in a while, and puts that into the snapshot. Without an answer what was
/// said before counts; before the first one the account counts as fit.
pub async fn ask_rights(client: &Client, memory: &mut Memory, snapshot: &mut Snapshot) {
    let Some(name) = health_checker::named_account(snapshot).map(str::to_owned) else {
        memory.account = None;
        return;
    };
    let former = memory.account.take().filter(|account| account.name == name);
    let (lacks, asked_again) = match former {
        Some(account) if account.ask_again > Instant::now() => (account.lacks, account.ask_again),
        former => {
            let answer = tokio::time::timeout(TIMEOUT, lacking(client, snapshot, &name)).await;
            let lacks = match answer.unwrap_or_else(|_| Err(Error::Transient("no answer in time".into()))) {
                Ok(lacks) => Some(lacks),
                Err(error) => {
                    tracing::warn!(account = name, %error, "cannot check the rights of the health checkers' ServiceAccount");
                    None
                }
            };
            let again = if lacks.as_ref().is_some_and(Vec::is_empty) { BELIEVED } else { MISSING_AGAIN };
            (lacks.or(former.map(|account| account.lacks)).unwrap_or_default(), Instant::now() + again)
        }
    };
    snapshot.account_lacks.clone_from(&lacks);
    memory.account = Some(NamedAccount { name, lacks, ask_again: asked_again });
}

async fn lacking(client: &Client, snapshot: &Snapshot, name: &str) -> Result<Vec<String>, Error> {
    let namespace = snapshot.resource.namespace.as_str();
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let mut lacks = Vec::new();
    for (verb, group, resource, everywhere) in health_checker::needed(snapshot) {
        let attributes = ResourceAttributes {
            namespace: (!everywhere).then(|| namespace.to_owned()),
            verb: Some(verb.to_owned()),
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{namespace}:{name}")),
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer = api.create(&PostParams::default(), &review).await.map_err(classify)?;
        if !answer.status.is_some_and(|status| status.allowed) {
            let dot = if group.is_empty() { "" } else { "." };
            lacks.push(format!("{verb} {resource}{dot}{group}"));
        }
    }
    Ok(lacks)
}
