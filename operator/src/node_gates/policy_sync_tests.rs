use super::*;
use kube::client::Body;
use planner::gates_shared::accepted::SETTLES;
use serde_json::{Value, json};
use std::sync::Mutex;

/// An API server that keeps what is applied; each call that changes something is noted as `METHOD name`.
#[derive(Clone, Default)]
struct Server {
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    calls: Arc<Mutex<Vec<String>>>,
    /// How often policies were listed.
    listed: Arc<Mutex<u32>>,
    /// Version of the policies that it has.
    policies: Policies,
    /// Whatever is to be applied.
    refuses: Arc<Mutex<bool>>,
}

/// Which policies an API server has.
#[derive(Clone, Copy, Default, PartialEq)]
enum Policies {
    None,
    Beta,
    #[default]
    Stable,
}

impl Server {
    fn client(&self) -> Client {
        let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
        let this = self.clone();
        tokio::spawn(async move {
            while let Some((request, reply)) = handle.next_request().await {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let (code, answer) = this.answer(parts.method.as_str(), parts.uri.path(), &body);
                let body = Body::from(serde_json::to_vec(&answer).unwrap());
                reply.send_response(http::Response::builder().status(code).body(body).unwrap());
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let none = (404, json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "message": "none", "code": 404}));
        let (version, path) = path.strip_prefix("/apis/admissionregistration.k8s.io/").unwrap().split_once('/').unwrap();
        let (path, beta) = (path.to_owned(), version == "v1beta1");
        let wanted = if beta { Policies::Beta } else { Policies::Stable };
        if path.starts_with("mutatingadmission") && wanted != self.policies {
            return none;
        }
        if method == "PATCH" {
            let object: Value = serde_json::from_slice(body).unwrap();
            assert_eq!(object["apiVersion"], format!("admissionregistration.k8s.io/{version}"));
        }
        let mut objects = self.objects.lock().unwrap();
        if method != "GET" {
            self.calls.lock().unwrap().push(format!("{method} {path}"));
        }
        match method {
            "GET" if path.starts_with("mutatingadmission") => {
                *self.listed.lock().unwrap() += 1;
                let items: Vec<_> =
                    objects.iter().filter(|(key, _)| key.starts_with(&format!("{path}/"))).map(|(_, object)| object.clone()).collect();
                (200, json!({"apiVersion": planner::gates_shared::policy_objects::API, "kind": "List", "metadata": {}, "items": items}))
            }
            "GET" => objects.get(&path).map_or(none, |object| (200, object.clone())),
            "PATCH" | "DELETE" if *self.refuses.lock().unwrap() => {
                (403, json!({"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403}))
            }
            "PATCH" => {
                let mut object: Value = serde_json::from_slice(body).unwrap();
                object["metadata"]["resourceVersion"] = self.calls.lock().unwrap().len().to_string().into();
                objects.insert(path, object.clone());
                (200, object)
            }
            _ => objects.remove(&path).map_or(none, |_| (200, json!({"kind": "Status", "status": "Success"}))),
        }
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

fn gate(name: &str) -> Arc<Gate> {
    let spec = json!({
        "nodeSelector": {"matchLabels": {"role": name}}, "taint": {"key": format!("readiness.k8s.io/{name}")},
        "requirements": [{"name": "mark", "nodeAnnotation": {"key": "example.com/ready"}}],
    });
    let (spec, uid) = (serde_json::from_value(spec).unwrap(), format!("{name}-uid"));
    Arc::new(Gate { name: name.into(), uid, generation: 1, created: 0, edited: None, deleting: false, spec, completion_annotation: None })
}

fn wish(gates: &[(&Arc<Gate>, bool)]) -> DesiredPolicies {
    let wanted =
        |(gate, deleting): &(&Arc<Gate>, bool)| Wanted { gate: Arc::clone(gate), deleting: *deleting, enforced: true, owned: true };
    DesiredPolicies { gates: gates.iter().map(|known| (known.0.uid.clone(), wanted(known))).collect(), incomplete: false }
}

fn paths(gate: &Gate) -> (String, String) {
    let name = policy_objects::policy_name(gate);
    (format!("mutatingadmissionpolicies/{name}"), format!("mutatingadmissionpolicybindings/{name}"))
}

fn sync(server: &Server) -> (NodePolicySync, Arc<PolicyHandle>) {
    let admission = Arc::new(PolicyHandle::new(false));
    (NodePolicySync::new(server.client(), Arc::default(), Arc::clone(&admission), None, policy_sync::versions(true)), admission)
}

/// What condition `AdmissionActive` of a gate says: word and value.
fn said(admission: &PolicyHandle, gate: &Gate) -> (&'static str, bool) {
    let (reason, works, _) = admission.condition(gate, true, true).unwrap();
    (reason, works)
}

const SETTLING: (&str, bool) = ("Settling", false);
const IN_FORCE: (&str, bool) = ("Policy", true);
const BY_WEBHOOK: (&str, bool) = ("Webhook", true);
const REACTIVE: (&str, bool) = ("Reactive", false);

#[tokio::test(start_paused = true)]
async fn policies_are_written_once_repaired_and_deleted_with_their_gate() {
    let server = Server::default();
    let (mut sync, admission) = sync(&server);
    let (edge, (policy, binding)) = (gate("edge"), paths(&gate("edge")));
    assert!(sync.round(true).await && server.calls().is_empty(), "nothing was wished yet");
    assert!(!admission.is_present(&edge.uid));
    admission.want(wish(&[(&edge, false)]));
    assert!(sync.round(false).await);
    assert_eq!(server.calls(), [format!("PATCH {policy}"), format!("PATCH {binding}")]);
    assert_eq!(said(&admission, &edge), SETTLING);
    assert!(admission.is_present(&edge.uid));
    assert!(admission.has_news() && !admission.has_news());
    tokio::time::advance(SETTLES).await;
    assert!(admission.has_news() && !admission.has_news(), "by the time alone");
    assert_eq!(said(&admission, &edge), IN_FORCE);
    assert!(sync.round(true).await && server.calls().is_empty(), "it is there as it was left");
    assert_eq!(said(&admission, &edge), IN_FORCE);
    server.objects.lock().unwrap().get_mut(&policy).unwrap()["metadata"]["resourceVersion"] = "somebody".into();
    assert!(sync.round(true).await);
    assert_eq!(server.calls(), [format!("PATCH {policy}")]);
    assert_eq!(said(&admission, &edge), SETTLING, "somebody had changed it");
    admission.want(wish(&[(&edge, true)]));
    assert!(sync.round(false).await);
    assert_eq!(server.calls(), [format!("DELETE {binding}"), format!("DELETE {policy}")]);
    assert!(!admission.is_present(&edge.uid), "its nodes may be released now");
}

#[tokio::test]
async fn orphaned_policies_are_deleted_unless_a_gate_is_unreadable() {
    let server = Server::default();
    let (old, new) = (gate("old"), gate("new"));
    let (mut first, admission) = sync(&server);
    admission.want(wish(&[(&old, false)]));
    assert!(first.round(true).await);
    server.calls();
    let (mut second, admission) = sync(&server);
    admission.want(DesiredPolicies { incomplete: true, ..wish(&[]) });
    assert!(second.round(true).await && server.calls().is_empty());
    admission.want(wish(&[(&new, false)]));
    assert!(second.round(false).await);
    let ((policy, binding), (gone, unbound)) = (paths(&new), paths(&old));
    let calls = [format!("PATCH {policy}"), format!("PATCH {binding}"), format!("DELETE {unbound}"), format!("DELETE {gone}")];
    assert_eq!(server.calls(), calls);
}

#[tokio::test]
async fn an_api_server_without_policies_is_asked_for_none() {
    let server = Server { policies: Policies::None, ..Server::default() };
    let (mut sync, admission) = sync(&server);
    let edge = gate("edge");
    admission.want(wish(&[(&edge, false)]));
    assert_eq!(admission.condition(&edge, true, true), None, "nothing is known yet");
    assert!(sync.round(true).await && server.calls().is_empty());
    let (reason, works, message) = admission.condition(&edge, true, true).unwrap();
    assert_eq!((reason, works), ("Reactive", false));
    assert!(message.contains("--webhook-service"), "{message}");
    assert!(!admission.is_present(&edge.uid));
}

#[tokio::test(start_paused = true)]
async fn policies_are_written_in_beta_until_stable_is_served() {
    let mut server = Server { policies: Policies::Beta, ..Server::default() };
    let (mut sync, admission) = sync(&server);
    let (edge, (policy, binding)) = (gate("edge"), paths(&gate("edge")));
    admission.want(wish(&[(&edge, false)]));
    assert!(sync.round(true).await);
    assert_eq!(server.calls(), [format!("PATCH {policy}"), format!("PATCH {binding}")]);
    tokio::time::advance(SETTLES).await;
    assert_eq!(said(&admission, &edge), IN_FORCE);
    server.policies = Policies::Stable;
    let (mut sync, admission) = self::sync(&server);
    admission.want(wish(&[(&edge, true)]));
    assert!(sync.round(true).await);
    assert_eq!(server.calls(), [format!("DELETE {binding}"), format!("DELETE {policy}")]);
}

#[tokio::test(start_paused = true)]
async fn an_edited_gate_is_unprotected_until_its_new_policy_settles() {
    let server = Server::default();
    let (mut sync, admission) = sync(&server);
    let edge = gate("edge");
    admission.want(wish(&[(&edge, false)]));
    assert!(sync.round(true).await);
    tokio::time::advance(SETTLES).await;
    assert_eq!(said(&admission, &edge), IN_FORCE);
    let mut edited = Gate::clone(&edge);
    (edited.generation, edited.spec.taint.value) = (2, Some("other".into()));
    assert_eq!(said(&admission, &edited), SETTLING, "not written yet");
    let edited = Arc::new(edited);
    admission.want(wish(&[(&edited, false)]));
    assert!(sync.round(false).await);
    assert_eq!(said(&admission, &edited), SETTLING);
    tokio::time::advance(SETTLES).await;
    assert_eq!(said(&admission, &edited), IN_FORCE);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_operator_counts_settling_from_its_own_write() {
    let server = Server::default();
    let (mut first, admission) = sync(&server);
    let edge = gate("edge");
    admission.want(wish(&[(&edge, false)]));
    assert!(first.round(true).await);
    tokio::time::advance(SETTLES).await;
    assert_eq!(said(&admission, &edge), IN_FORCE);
    let (mut second, admission) = sync(&server);
    assert!(second.round(true).await);
    assert_eq!(said(&admission, &edge), SETTLING, "it is there, and may be as another gate wanted it");
    admission.want(wish(&[(&edge, false)]));
    assert!(second.round(false).await);
    assert_eq!(said(&admission, &edge), SETTLING);
    tokio::time::advance(SETTLES).await;
    assert_eq!(said(&admission, &edge), IN_FORCE);
}

#[tokio::test]
async fn an_operator_configured_without_policies_reads_and_writes_none() {
    let server = Server::default();
    let admission = Arc::new(PolicyHandle::new(false));
    let mut sync = NodePolicySync::new(server.client(), Arc::default(), Arc::clone(&admission), None, policy_sync::versions(false));
    let edge = gate("edge");
    admission.want(wish(&[(&edge, false)]));
    assert!(sync.round(true).await);
    assert_eq!((server.calls(), *server.listed.lock().unwrap()), (vec![], 0));
    assert_eq!(said(&admission, &edge), ("Reactive", false));
}

#[tokio::test(start_paused = true)]
async fn a_policy_refused_after_an_edit_is_not_in_force() {
    let server = Server::default();
    let (mut sync, admission) = sync(&server);
    let edge = gate("edge");
    admission.want(wish(&[(&edge, false)]));
    assert!(sync.round(true).await);
    tokio::time::advance(SETTLES).await;
    *server.refuses.lock().unwrap() = true;
    let mut edited = Gate::clone(&edge);
    edited.spec.taint.value = Some("other".into());
    let edited = Arc::new(edited);
    admission.want(wish(&[(&edited, false)]));
    assert!(!sync.round(false).await);
    assert_eq!(said(&admission, &edited), ("Reactive", false));
    tokio::time::advance(SETTLES).await;
    assert_eq!(said(&admission, &edited), ("Reactive", false));
}

#[tokio::test(start_paused = true)]
async fn a_lingering_policy_of_a_deleted_gate_gives_its_reason() {
    let server = Server::default();
    let (mut sync, admission) = sync(&server);
    let edge = gate("edge");
    admission.want(wish(&[(&edge, false)]));
    assert!(sync.round(true).await);
    assert_eq!(admission.lingers(&edge.uid), Some(Lingering::Waits));
    *server.refuses.lock().unwrap() = true;
    admission.want(wish(&[(&edge, true)]));
    assert!(!sync.round(false).await);
    let Some(Lingering::Refused(why)) = admission.lingers(&edge.uid) else { panic!("it was refused") };
    assert!(why.contains("MutatingAdmissionPolicy") && why.contains("no"), "{why}");
    *server.refuses.lock().unwrap() = false;
    assert!(sync.round(false).await);
    assert_eq!(admission.lingers(&edge.uid), None);
}

#[tokio::test(start_paused = true)]
async fn a_webhook_protects_a_gate_only_once_written_and_settled() {
    let server = Server { policies: Policies::None, ..Server::default() };
    let admission = Arc::new(PolicyHandle::new(true));
    let trusted = watch::Sender::new(None);
    let webhook = WebhookService { namespace: "system".into(), service: "webhook".into(), path: "/", trusted: trusted.subscribe() };
    let mut sync = NodePolicySync::new(server.client(), Arc::default(), Arc::clone(&admission), Some(webhook), policy_sync::versions(true));
    let (edge, web) = (gate("edge"), gate("web"));
    admission.want(wish(&[(&edge, false)]));
    assert!(sync.round(true).await);
    assert_eq!((said(&admission, &edge), server.calls()), (SETTLING, Vec::new()), "there are no certificates");
    trusted.send_replace(Some("authority 1".into()));
    let refuses = |refuses: bool| *server.refuses.lock().unwrap() = refuses;
    refuses(true);
    assert!(!sync.round(false).await);
    let (reason, works, why) = admission.condition(&edge, true, true).unwrap();
    assert!((reason, works) == REACTIVE && why.contains("refused the configuration of the webhook: "), "{reason} {why}");
    assert!(sync.list().await);
    assert_eq!(said(&admission, &edge), REACTIVE, "until it is tried again");
    refuses(false);
    server.calls();
    assert!(sync.round(false).await);
    assert_eq!((said(&admission, &edge), server.calls().len()), (SETTLING, 1));
    tokio::time::advance(SETTLES).await;
    assert_eq!(said(&admission, &edge), BY_WEBHOOK);
    assert_eq!(said(&admission, &web), SETTLING);
    admission.want(wish(&[(&edge, false), (&web, false)]));
    refuses(true);
    assert!(!sync.round(true).await);
    assert_eq!((said(&admission, &edge), said(&admission, &web)), (BY_WEBHOOK, REACTIVE), "what was written stays in force");
    refuses(false);
    server.calls();
    assert!(sync.round(true).await);
    assert_eq!((said(&admission, &edge), said(&admission, &web), server.calls().len()), (BY_WEBHOOK, SETTLING, 1));
    tokio::time::advance(SETTLES).await;
    assert_eq!((said(&admission, &edge), said(&admission, &web)), (BY_WEBHOOK, BY_WEBHOOK));
    trusted.send_replace(Some("authority 2".into()));
    assert!(sync.round(false).await);
    assert_eq!((said(&admission, &edge), said(&admission, &web)), (SETTLING, SETTLING), "no server trusts it yet");
    tokio::time::advance(SETTLES).await;
    assert_eq!(said(&admission, &edge), BY_WEBHOOK);
    let path = format!("mutatingwebhookconfigurations/{}", planner::gates_shared::policy_objects::WEBHOOKS);
    server.objects.lock().unwrap().get_mut(&path).unwrap()["metadata"]["resourceVersion"] = "of the other kind of gates".into();
    assert!(sync.round(true).await);
    assert_eq!((said(&admission, &edge), server.calls().len()), (BY_WEBHOOK, 1), "its own entry is as it was");
    server.objects.lock().unwrap().get_mut(&path).unwrap()["webhooks"][0]["timeoutSeconds"] = 30.into();
    assert!(sync.round(true).await);
    assert_eq!((said(&admission, &edge), server.calls().len()), (SETTLING, 1), "somebody had changed it");
}
