use super::*;
use crate::tests::AdmissionServer;
use planner::gates_shared::accepted::SETTLES;
use serde_json::json;

const WEBHOOK: &str = policy_objects::WEBHOOK;

fn gate(namespace: &str, on_create: &str, label: &str) -> Arc<Gate> {
    let spec = json!({
        "conditionType": "example.com/open", "source": {"manual": {}}, "selector": {"matchLabels": {"app": label}},
        "admission": {"onCreate": on_create},
    });
    Arc::new(Gate {
        namespace: namespace.into(),
        name: "open".into(),
        uid: format!("{namespace}-uid"),
        generation: 1,
        created: 0,
        deleting: false,
        spec: serde_json::from_value(spec).unwrap(),
    })
}

/// Of an operator that serves a webhook in namespace `system`, or none.
fn sync(server: &AdmissionServer, trusted: Option<&watch::Sender<Option<String>>>) -> (PodPolicySync, Arc<PolicyHandle>) {
    let hook = trusted.map(|trusted| WebhookService {
        namespace: "system".into(),
        service: "hook".into(),
        path: "/mutate-pod",
        trusted: trusted.subscribe(),
    });
    let admission = Arc::new(PolicyHandle::new(hook.as_ref().map(|hook| hook.namespace.clone())));
    (PodPolicySync::new(server.client(), Arc::clone(&admission), hook, policy_sync::versions(true)), admission)
}

fn said(admission: &PolicyHandle, gate: &Gate) -> (&'static str, bool) {
    let (reason, works, _) = admission.condition(gate).unwrap();
    (reason, works)
}

/// What was accepted last is in force afterwards, and conditions say so by the time alone.
async fn settle(admission: &PolicyHandle) {
    admission.has_news();
    tokio::time::advance(SETTLES).await;
    assert!(admission.has_news() && !admission.has_news());
}

fn authority() -> watch::Sender<Option<String>> {
    watch::Sender::new(Some("authority".to_owned()))
}

#[tokio::test(start_paused = true)]
async fn without_policies_the_webhook_is_used_while_gates_exist() {
    let (server, trusted) = (AdmissionServer { without_policies: true, ..AdmissionServer::default() }, watch::Sender::new(None));
    let (mut sync, admission) = sync(&server, Some(&trusted));
    let (web, shop) = (gate("web", "Auto", "web"), gate("shop", "Auto", "shop"));
    assert_eq!(said(&admission, &web), ("Settling", false), "nothing is known yet");
    admission.want(vec![Arc::clone(&web)], false);
    assert!(sync.round(true).await);
    assert_eq!((said(&admission, &web), server.entries()), (("Settling", false), None), "there are no certificates");
    trusted.send_replace(Some("authority".to_owned()));
    assert!(sync.round(false).await && admission.has_news());
    assert_eq!(said(&admission, &web), ("Settling", false), "an API server may not have read it yet");
    settle(&admission).await;
    assert_eq!(said(&admission, &web), ("Webhook", true));
    let entry = server.entries().unwrap().remove(WEBHOOK).unwrap();
    assert_eq!(entry["clientConfig"]["service"]["path"], "/mutate-pod");
    assert_eq!(entry["namespaceSelector"]["matchExpressions"][0]["values"], json!(["web"]));
    assert_eq!(said(&admission, &gate("web", "Auto", "edited")), ("Settling", false), "it was not written yet");
    admission.want(vec![Arc::clone(&web), Arc::clone(&shop)], false);
    assert_eq!(said(&admission, &shop), ("Settling", false));
    assert!(sync.round(false).await);
    assert_eq!((said(&admission, &web), said(&admission, &shop)), (("Webhook", true), ("Settling", false)));
    settle(&admission).await;
    assert_eq!((said(&admission, &web), said(&admission, &shop)), (("Webhook", true), ("Webhook", true)));
    let entry = server.entries().unwrap().remove(WEBHOOK).unwrap();
    assert_eq!(entry["namespaceSelector"]["matchExpressions"][0]["values"], json!(["shop", "web"]));
    server.calls();
    assert!(sync.round(true).await && server.calls().is_empty(), "it is there as it was left");
    admission.want(Vec::new(), true);
    assert!(sync.round(false).await && server.entries().is_some(), "gates that cannot be read may need it");
    admission.want(Vec::new(), false);
    assert!(sync.round(false).await);
    assert_eq!(server.entries(), None);
}

#[tokio::test(start_paused = true)]
async fn with_policies_only_gates_that_request_the_webhook_get_it() {
    let (server, trusted) = (AdmissionServer::default(), authority());
    let (mut sync, admission) = sync(&server, Some(&trusted));
    let (auto, webhook) = (gate("web", "Auto", "web"), gate("shop", "Webhook", "shop"));
    admission.want(vec![Arc::clone(&auto)], false);
    assert!(sync.round(true).await);
    assert_eq!((said(&admission, &auto), server.entries()), (("Settling", false), None));
    settle(&admission).await;
    assert_eq!(said(&admission, &auto), ("Policy", true));
    let policies = || server.objects.lock().unwrap().keys().filter(|path| path.starts_with("mutatingadmissionpolicies/")).count();
    assert_eq!(policies(), 1);
    admission.want(vec![Arc::clone(&webhook)], false);
    assert!(sync.round(false).await);
    settle(&admission).await;
    assert_eq!((said(&admission, &webhook), policies()), (("Webhook", true), 0));
    assert_eq!(server.entries().unwrap().into_keys().collect::<Vec<_>>(), [WEBHOOK]);
}

#[tokio::test(start_paused = true)]
async fn a_gate_without_policy_or_webhook_says_what_is_missing() {
    let server = AdmissionServer { without_policies: true, ..AdmissionServer::default() };
    let (mut without, admission) = sync(&server, None);
    admission.want(vec![gate("web", "Auto", "web")], false);
    assert!(without.round(true).await && server.calls().is_empty());
    for (on_create, reason, advice) in
        [("Auto", "NoPolicies", "--webhook-service"), ("Policy", "NoPolicies", "to Auto"), ("Webhook", "NoWebhook", "--webhook-service")]
    {
        let (said, works, message) = admission.condition(&gate("web", on_create, "web")).unwrap();
        assert_eq!((said, works), (reason, false), "{on_create}");
        assert!(message.contains(advice) && message.contains("templates"), "{message}");
    }
    assert_eq!(admission.condition(&gate("web", "None", "web")), None);
    let trusted = authority();
    let (mut with, admission) = sync(&server, Some(&trusted));
    let own = gate("system", "Auto", "operator");
    admission.want(vec![Arc::clone(&own)], false);
    assert!(with.round(true).await);
    assert_eq!((said(&admission, &own), server.entries()), (("OperatorNamespace", false), None), "its own pods need no answer of it");
}

#[tokio::test(start_paused = true)]
async fn a_refused_webhook_configuration_is_reported_and_retried() {
    let (server, trusted) = (AdmissionServer { without_policies: true, ..AdmissionServer::default() }, authority());
    let (mut sync, admission) = sync(&server, Some(&trusted));
    let web = gate("web", "Auto", "web");
    admission.want(vec![Arc::clone(&web)], false);
    *server.refuses.lock().unwrap() = true;
    assert!(!sync.round(true).await);
    assert_eq!(said(&admission, &web), ("WebhookRefused", false));
    *server.refuses.lock().unwrap() = false;
    assert!(sync.round(false).await && admission.has_news());
    settle(&admission).await;
    assert_eq!(said(&admission, &web), ("Webhook", true));
}

#[tokio::test(start_paused = true)]
async fn an_operator_without_webhook_removes_a_former_webhook_entry() {
    let (server, trusted) = (AdmissionServer { without_policies: true, ..AdmissionServer::default() }, authority());
    let (mut former, admission) = sync(&server, Some(&trusted));
    let web = gate("web", "Auto", "web");
    admission.want(vec![Arc::clone(&web)], false);
    assert!(former.round(true).await && server.entries().is_some());
    let (mut next, admission) = sync(&server, None);
    admission.want(vec![Arc::clone(&web)], false);
    assert!(next.round(true).await);
    assert_eq!((server.entries(), said(&admission, &web)), (None, ("NoPolicies", false)));
}

#[tokio::test(start_paused = true)]
async fn a_policy_older_than_its_gates_edit_does_not_count() {
    let server = AdmissionServer::default();
    let (mut sync, admission) = sync(&server, None);
    let (before, edited) = (gate("web", "Auto", "web"), gate("web", "Auto", "shop"));
    admission.want(vec![Arc::clone(&before)], false);
    assert!(sync.round(true).await);
    settle(&admission).await;
    assert_eq!((said(&admission, &before), said(&admission, &edited)), (("Policy", true), ("Settling", false)));
    admission.want(vec![Arc::clone(&edited)], false);
    assert!(sync.round(false).await);
    assert_eq!((said(&admission, &before), said(&admission, &edited)), (("Settling", false), ("Settling", false)));
    settle(&admission).await;
    assert_eq!(said(&admission, &edited), ("Policy", true));
}

#[tokio::test(start_paused = true)]
async fn a_policy_refused_after_an_edit_gives_its_reason() {
    let server = AdmissionServer::default();
    let (mut sync, admission) = sync(&server, None);
    let (before, edited) = (gate("web", "Auto", "web"), gate("web", "Auto", "shop"));
    admission.want(vec![before], false);
    assert!(sync.round(true).await);
    settle(&admission).await;
    *server.refuses.lock().unwrap() = true;
    admission.want(vec![Arc::clone(&edited)], false);
    assert!(!sync.round(false).await && admission.has_news());
    assert_eq!(said(&admission, &edited), ("PolicyRefused", false));
}

#[tokio::test(start_paused = true)]
async fn a_gate_beyond_the_length_of_its_namespace_settles() {
    let (server, trusted) = (AdmissionServer { without_policies: true, ..AdmissionServer::default() }, authority());
    let (mut sync, admission) = sync(&server, Some(&trusted));
    let mut gates: Vec<_> = (0..60).map(|number| gate("web", "Auto", &format!("web-{number}"))).collect();
    admission.want(gates.clone(), false);
    assert!(sync.round(true).await);
    settle(&admission).await;
    let (entry, further) = (server.entries(), gate("web", "Auto", "further"));
    gates.push(Arc::clone(&further));
    admission.want(gates, false);
    assert!(sync.round(false).await);
    assert_eq!((server.entries(), said(&admission, &further)), (entry, ("Settling", false)), "all pods of the namespace are asked about");
    settle(&admission).await;
    assert_eq!(said(&admission, &further), ("Webhook", true));
}
