//! The verdict as an HTTP response, rendered once and served many times.

use crate::{
    verdict::Verdict,
    view::{View, Watch},
};
use hyper::{
    HeaderMap, StatusCode,
    body::Bytes,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue},
};
use jiff::{Timestamp, Unit};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Load balancers with weights read this; kube-proxy's health check port sends the same name.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");
const CONTENT_TYPE_OPTIONS: HeaderName = HeaderName::from_static("x-content-type-options");

/// Whose node this is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Namespace of the `IngressDaemonSet`.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The node.
    pub node: String,
}

/// A verdict, ready to be served.
#[derive(Clone, Debug)]
pub struct Answer {
    /// 200 or 503.
    pub status: StatusCode,
    /// All but what the server adds itself.
    pub headers: HeaderMap,
    /// JSON.
    pub body: Bytes,
    /// What it says.
    pub verdict: Verdict,
    /// Since when it is served or not for this reason.
    pub since: Timestamp,
    /// Age of each watch, `None` before its first list.
    pub ages: Vec<(Watch, Option<Duration>)>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    service: Service<'a>,
    local_endpoints: u32,
    service_proxy_healthy: bool,
    reason: &'static str,
    desired: u32,
    phase: Option<&'static str>,
    grant: Option<u64>,
    revision: Option<&'a str>,
    node: &'a str,
    since: Timestamp,
    view_age_seconds: Option<u64>,
}

#[derive(Serialize)]
struct Service<'a> {
    namespace: &'a str,
    name: &'a str,
}

/// Renders the verdict on a view.
pub fn render(identity: &Identity, view: &View, verdict: Verdict, since: Timestamp, now: Instant) -> Answer {
    let since = since.round(Unit::Second).unwrap_or(since);
    let body = Body {
        service: Service { namespace: &identity.namespace, name: &identity.name },
        local_endpoints: verdict.ready,
        service_proxy_healthy: verdict.serving(),
        reason: verdict.reason.as_str(),
        desired: verdict.desired,
        phase: verdict.phase.map(crds::token::Phase::as_str),
        grant: verdict.grant,
        revision: verdict.revision.as_deref(),
        node: &identity.node,
        since,
        view_age_seconds: verdict.age.map(|age| age.as_secs()),
    };
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(WEIGHT, HeaderValue::from(verdict.ready));
    Answer {
        status: if verdict.serving() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE },
        headers,
        body: serde_json::to_vec(&body).unwrap_or_default().into(),
        since,
        ages: view.watches.iter().map(|watch| (*watch, view.age_of(*watch, now))).collect(),
        verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        verdict::verdict,
        view::{DeploymentFacts, ObjectChange, PodFacts, ReadyPolicy, Update},
    };

    #[test]
    fn the_body_is_that_of_kube_proxy_and_more() {
        let now = Instant::now();
        let mut view = View::new(ReadyPolicy::All);
        let token = "0a1b2c3d.7.Closed.1700000000".parse().ok();
        let deployment = DeploymentFacts { desired: 1, token, to_be_updated: false, deleting: false };
        let pod = PodFacts {
            uid: "u".into(),
            ready: true,
            disowned: false,
            terminating: false,
            revision: Some("45cf7efe84".into()),
            probes: vec![],
        };
        view.apply(Update::Deployments(ObjectChange::Replaced(vec![("d".into(), deployment)])), now);
        view.apply(Update::Pods(ObjectChange::Replaced(vec![("p".into(), pod)])), now);
        view.apply(Update::Node(ObjectChange::Replaced(vec![])), now);
        let identity = Identity { namespace: "edge".into(), name: "contour".into(), node: "n1".into() };
        let since = "2026-01-02T03:04:05.6Z".parse().expect("a time");
        let answer = render(&identity, &view, verdict(&view, now), since, now);
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.headers["x-load-balancing-endpoint-weight"], "1");
        assert_eq!(
            std::str::from_utf8(&answer.body).expect("UTF-8"),
            concat!(
                r#"{"service":{"namespace":"edge","name":"contour"},"localEndpoints":1,"serviceProxyHealthy":true,"#,
                r#""reason":"Serving","desired":1,"phase":"Closed","grant":7,"revision":"45cf7efe84","node":"n1","#,
                r#""since":"2026-01-02T03:04:06Z","viewAgeSeconds":0}"#
            )
        );
    }
}
