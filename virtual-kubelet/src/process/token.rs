//! Service account tokens of a pod.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::api::{Api, PostParams};
use serde::Deserialize;
use serde_json::json;

use super::volumes::TokenWish;
use crate::api_call::{ApiCallError, within};
use crate::pod::PodId;

/// When a token has to be renewed: after 80 % of its life, and after a day at the latest.
pub fn renew_at(issued: Timestamp, expires: Timestamp) -> Timestamp {
    let life = expires.duration_since(issued);
    let wait = (life * 4 / 5).min(SignedDuration::from_hours(24));
    issued.saturating_add(wait).unwrap_or(expires)
}

/// The tokens of one pod.
#[derive(Debug, Default)]
pub struct Tokens {
    held: BTreeMap<TokenWish, (String, Timestamp)>,
}

impl Tokens {
    /// When the next token has to be renewed.
    pub fn next_renewal(&self) -> Option<Timestamp> {
        self.held.values().map(|(_, renew)| *renew).min()
    }

    /// Requests what is missing or old, and returns all values.
    pub async fn refresh(&mut self, client: &Client, pod: &Pod, wishes: &[TokenWish]) -> Result<BTreeMap<TokenWish, String>, ApiCallError> {
        for wish in wishes {
            let fresh = self.held.get(wish).is_some_and(|(_, renew)| *renew > Timestamp::now());
            if !fresh {
                let issued = Timestamp::now();
                match request(client, pod, wish).await {
                    Ok((token, expires)) => {
                        self.held.insert(wish.clone(), (token, renew_at(issued, expires)));
                    }
                    Err(error) if self.held.contains_key(wish) => tracing::warn!(%error, "renewing a service account token failed"),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(self.held.iter().map(|(wish, (token, _))| (wish.clone(), token.clone())).collect())
    }
}

/// The answer to a `TokenRequest`, whose type differs between versions of the API.
#[derive(Deserialize)]
struct Answer {
    status: Option<Granted>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Granted {
    token: String,
    expiration_timestamp: Time,
}

async fn request(client: &Client, pod: &Pod, wish: &TokenWish) -> Result<(String, Timestamp), ApiCallError> {
    let id = PodId::of(pod);
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref()).unwrap_or("default");
    let mut body = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "expirationSeconds": wish.seconds,
            "boundObjectRef": { "apiVersion": "v1", "kind": "Pod", "name": id.name, "uid": id.uid },
        },
    });
    if !wish.audience.is_empty() {
        body["spec"]["audiences"] = json!([wish.audience]);
    }
    let api = Api::<ServiceAccount>::namespaced(client.clone(), &id.namespace);
    let parameters = PostParams::default();
    let answer: Answer = within(api.create_subresource("token", account, &parameters, &body)).await?;
    let granted = answer.status.map(|granted| (granted.token, granted.expiration_timestamp));
    let (token, expires) = granted.ok_or_else(|| ApiCallError::Transient("token request without an answer".into()))?;
    Ok((token, expires.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_after_four_fifths_or_one_day() {
        let issued = Timestamp::UNIX_EPOCH;
        let after = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        assert_eq!(renew_at(issued, after(3600)), after(2880));
        assert_eq!(renew_at(issued, after(365 * 86_400)), after(86_400));
    }
}
