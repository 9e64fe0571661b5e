use super::*;
use crate::tests::AdmissionServer;

const NODES: &str = "nodes.example.com";
const PODS: &str = "pods.example.com";

fn sync(server: &AdmissionServer, name: &'static str, trusted: &watch::Sender<Option<String>>) -> WebhookSync {
    let hook = WebhookService { namespace: "system".into(), service: "hook".into(), path: "/", trusted: trusted.subscribe() };
    WebhookSync::new(server.client(), name, name, Some(hook))
}

fn entry(name: &'static str) -> impl FnOnce(&ServedWebhook<'_>) -> Option<Value> {
    move |served| Some(served.entry(name, "things", "Cluster"))
}

fn none(_: &ServedWebhook<'_>) -> Option<Value> {
    None
}

fn names(server: &AdmissionServer) -> Option<Vec<String>> {
    server.entries().map(|entries| entries.into_keys().collect())
}

const WRITTEN: EntryRound = EntryRound::Written { before: false };

#[tokio::test]
async fn kinds_keep_separate_entries_and_the_last_removes_the_object() {
    let (server, trusted) = (AdmissionServer::default(), watch::Sender::new(Some("authority".to_owned())));
    let [mut nodes, mut pods] = [NODES, PODS].map(|name| sync(&server, name, &trusted));
    assert!(nodes.find().await && pods.find().await);
    assert_eq!((nodes.keep(none, false).await, server.calls().len()), (EntryRound::Absent, 0));
    assert_eq!((nodes.keep(entry(NODES), false).await, names(&server)), (WRITTEN, Some(vec![NODES.into()])));
    assert_eq!((pods.keep(entry(PODS), false).await, names(&server)), (WRITTEN, Some(vec![NODES.into(), PODS.into()])));
    server.calls();
    assert!(nodes.find().await && pods.find().await);
    assert_eq!((nodes.keep(entry(NODES), false).await, pods.keep(entry(PODS), false).await), (EntryRound::Same, EntryRound::Same));
    assert!(server.calls().is_empty(), "what the other kind wrote changes nothing here");
    assert_eq!((nodes.keep(none, true).await, names(&server).map(|names| names.len())), (EntryRound::Left, Some(2)), "spared");
    assert_eq!((nodes.keep(none, false).await, names(&server)), (EntryRound::Absent, Some(vec![PODS.into()])));
    assert!(pods.find().await);
    assert_eq!(pods.keep(entry(PODS), false).await, EntryRound::Same);
    assert_eq!((pods.keep(none, false).await, names(&server)), (EntryRound::Absent, None));
}

#[tokio::test]
async fn an_entry_added_while_the_last_is_removed_stays() {
    let (server, trusted) = (AdmissionServer::default(), watch::Sender::new(Some("authority".to_owned())));
    let [mut nodes, mut pods] = [NODES, PODS].map(|name| sync(&server, name, &trusted));
    assert_eq!(nodes.keep(entry(NODES), false).await, WRITTEN);
    let hook = ServedWebhook { namespace: "system", service: "hook", path: "/", trusted: "authority" };
    *server.raced.lock().unwrap() = Some(hook.entry(PODS, "things", "Cluster"));
    assert!(matches!(nodes.keep(none, false).await, EntryRound::Refused(_)));
    assert_eq!((nodes.keep(none, false).await, names(&server)), (EntryRound::Absent, Some(vec![PODS.into()])), "when it is tried again");
    assert!(pods.find().await);
    assert_eq!(pods.keep(entry(PODS), false).await, WRITTEN, "another operator wrote it: it counts from now");
}

#[tokio::test]
async fn a_changed_or_removed_webhook_entry_is_restored() {
    let (server, trusted) = (AdmissionServer::default(), watch::Sender::new(None));
    let mut pods = sync(&server, PODS, &trusted);
    assert_eq!((pods.keep(entry(PODS), false).await, pods.is_written()), (EntryRound::Absent, false), "there are no certificates");
    trusted.send_replace(Some("one".to_owned()));
    pods.changed().await;
    assert_eq!((pods.keep(entry(PODS), false).await, pods.is_written()), (WRITTEN, true));
    server.objects.lock().unwrap().get_mut(crate::tests::WEBHOOKS).unwrap()["webhooks"][0]["timeoutSeconds"] = 30.into();
    assert!(pods.find().await && !pods.is_written());
    assert_eq!((pods.keep(entry(PODS), false).await, pods.is_written()), (WRITTEN, true));
    assert_eq!(server.entries().unwrap()[PODS]["timeoutSeconds"], 2);
    server.objects.lock().unwrap().get_mut(crate::tests::WEBHOOKS).unwrap()["webhooks"] = json!([]);
    assert!(pods.find().await && !pods.is_written());
    assert_eq!(pods.keep(entry(PODS), false).await, WRITTEN);
    trusted.send_replace(Some("two".to_owned()));
    assert_eq!(pods.keep(entry(PODS), false).await, WRITTEN);
    let bundle = json!(k8s_openapi::ByteString(b"two".to_vec()));
    assert_eq!(server.entries().unwrap()[PODS]["clientConfig"]["caBundle"], bundle);
    let narrow = |served: &ServedWebhook<'_>| {
        let mut entry = served.entry(PODS, "things", "Cluster");
        entry["namespaceSelector"] = json!({});
        Some(entry)
    };
    assert_eq!(pods.keep(narrow, false).await, EntryRound::Written { before: true }, "the same authorities as before");
    for renewed in ["two three", "three"] {
        trusted.send_replace(Some(renewed.to_owned()));
        assert_eq!(pods.keep(narrow, false).await, EntryRound::Written { before: true }, "one of them stays all the time");
    }
    for without in ["", "four"] {
        trusted.send_replace(Some(without.to_owned()));
        assert_eq!(pods.keep(narrow, false).await, WRITTEN, "none of them stays");
    }
}

#[tokio::test]
async fn a_configuration_without_entries_is_deleted() {
    let (server, trusted) = (AdmissionServer::default(), watch::Sender::new(None));
    let mut pods = sync(&server, PODS, &trusted);
    let empty = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": {"name": WEBHOOKS, "resourceVersion": "1"}, "webhooks": []});
    server.objects.lock().unwrap().insert(crate::tests::WEBHOOKS.to_owned(), empty);
    assert!(pods.find().await);
    assert_eq!((pods.keep(none, false).await, names(&server)), (EntryRound::Absent, None));
}

#[tokio::test]
async fn an_entry_stays_while_the_certificates_have_not_been_read() {
    let (server, trusted) = (AdmissionServer::default(), watch::Sender::new(Some("authority".to_owned())));
    assert_eq!(sync(&server, PODS, &trusted).keep(entry(PODS), false).await, WRITTEN);
    let mut restarted = sync(&server, PODS, &watch::Sender::new(None));
    assert!(restarted.find().await);
    assert_eq!((restarted.keep(entry(PODS), false).await, restarted.is_written()), (EntryRound::Left, false));
    assert_eq!(names(&server), Some(vec![PODS.into()]), "another replica may serve");
    assert_eq!((restarted.keep(none, false).await, names(&server)), (EntryRound::Absent, None));
}
