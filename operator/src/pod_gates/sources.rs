//! Watches of what gates ask for: pods and endpoints by namespace, whatever labels and Services gates name, and single objects. Who makes
//! gates in a namespace costs that namespace's watches and questions, and nobody else's.

use super::{facts, http::follow_answers};
use crate::gates_shared::{
    follow::{Seen, config, follow, settle},
    pod_state::{PodGateFacts, PodGateState, Slices},
};
use k8s_openapi::api::{core::v1::Pod, discovery::v1::EndpointSlice};
use kube::{
    Api, Client, ResourceExt as _,
    api::DynamicObject,
    core::GroupVersionKind,
    discovery::{ApiResource, Scope, pinned_kind},
};
use parking_lot::Mutex;
use planner::{
    gates_shared::{Key, Source},
    pod_gates::{
        World,
        world::{Conditions, ObjectKey, ReadOfPods, Target},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
};

/// How often a kind is looked for again that the API server does not know: what it does not serve cannot be watched for.
const KIND_AGAIN: Duration = Duration::from_secs(15);
/// HTTP servers that gates of one namespace ask at once: servers that do not answer take up their own namespace's places.
const ASKED_AT_ONCE: usize = 32;
/// HTTP servers that gates of one namespace ask.
const ASKED: usize = 2000;
/// Objects that gates of one namespace name and that are read for the first time at once.
const READ_AT_ONCE: usize = 4;
/// How many pods an answer to a list has: each is decoded whole, and a user makes it as large as the API server takes it.
const PODS_PAGE: u32 = 10;
/// Label of the slices of a Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The watches and probes under way.
pub struct Sources {
    client: Client,
    /// For objects that gates name.
    of_named: Client,
    state: Arc<PodGateState>,
    tasks: JoinSet<()>,
    /// By namespace.
    pods: BTreeMap<String, AbortHandle>,
    /// Labels and annotations that are kept of those pods.
    read: BTreeMap<String, ReadOfPods>,
    /// Of Services, by namespace.
    slices: BTreeMap<String, AbortHandle>,
    objects: BTreeMap<ObjectKey, AbortHandle>,
    answers: BTreeMap<Target, AbortHandle>,
    /// By namespace.
    asking: BTreeMap<String, Arc<Semaphore>>,
    /// By namespace.
    reading: BTreeMap<String, Arc<Semaphore>>,
    /// Namespaces whose gates may follow objects of other namespaces, and of none.
    foreign: Vec<String>,
}

impl Sources {
    /// None yet. Gates of the namespaces `foreign` may follow objects of other namespaces, and of none; `*` stands for all. Objects that
    /// gates name are read by the client `of_named`.
    pub fn new(client: Client, of_named: Client, state: Arc<PodGateState>, foreign: Vec<String>) -> Self {
        Self {
            client,
            of_named,
            state,
            tasks: JoinSet::new(),
            pods: BTreeMap::new(),
            read: BTreeMap::new(),
            slices: BTreeMap::new(),
            objects: BTreeMap::new(),
            answers: BTreeMap::new(),
            asking: BTreeMap::new(),
            reading: BTreeMap::new(),
            foreign,
        }
    }

    /// Watches exactly what the gates ask for.
    pub fn adjust(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        let state = Arc::clone(&self.state);
        let known = &mut *state.known();
        let wanted = known.world.wanted_pods();
        self.read.retain(|namespace, _| wanted.contains(namespace));
        for namespace in &wanted {
            let (read, kept) = (known.world.read_of_pods(namespace), self.read.entry(namespace.clone()).or_default());
            if !read.is_in(kept) {
                *kept = read;
                // Nothing was kept of a label or an annotation that no gate read before.
                if let Some(task) = self.pods.remove(namespace) {
                    task.abort();
                }
            }
        }
        settle(&mut self.pods, &mut known.world.pod_sources, wanted, |namespace| {
            let read = self.read.get(&namespace).cloned().unwrap_or_default();
            self.tasks.spawn(follow_pods(self.client.clone(), Arc::clone(&state), namespace, read))
        });
        let World { pods, pod_sources, .. } = &mut known.world;
        pods.retain(|key, _| pod_sources.contains_key(&key.0));
        let wanted = known.world.wanted_services();
        let namespaces = wanted.iter().map(|(namespace, _)| namespace.clone()).collect();
        settle(&mut self.slices, &mut known.slices, namespaces, |namespace| {
            self.tasks.spawn(follow_slices(self.client.clone(), Arc::clone(&state), namespace))
        });
        known.world.services.retain(|key, _| wanted.contains(key));
        for key in wanted {
            let seen = known.slices.get(&key.0).map(|slices| slices.source(&key.1)).unwrap_or_default();
            known.world.services.entry(key).or_insert(seen);
        }
        let wanted = known.world.wanted_objects();
        let namespaces: BTreeSet<_> = wanted.iter().map(|key| key.asked_by.as_str()).collect();
        self.reading.retain(|namespace, _| namespaces.contains(namespace.as_str()));
        settle(&mut self.objects, &mut known.world.objects, wanted, |key| {
            let may_leave = self.foreign.iter().any(|namespace| namespace == "*" || *namespace == key.asked_by);
            let reading = self.reading.entry(key.asked_by.clone()).or_insert_with(|| Arc::new(Semaphore::new(READ_AT_ONCE)));
            self.tasks.spawn(follow_object(self.of_named.clone(), Arc::clone(&state), Arc::clone(reading), key, may_leave))
        });
        self.adjust_answers(&state, known);
    }

    /// Asks exactly the HTTP servers that the pods of gates need.
    pub fn adjust_asked(&mut self) {
        let state = Arc::clone(&self.state);
        let known = &mut *state.known();
        self.adjust_answers(&state, known);
    }

    fn adjust_answers(&mut self, state: &Arc<PodGateState>, known: &mut PodGateFacts) {
        let (wanted, surplus) = at_most(ASKED, known.world.wanted_answers(), |target| self.answers.contains_key(target));
        let namespaces: BTreeSet<_> = wanted.iter().map(|target| target.namespace.as_str()).collect();
        self.asking.retain(|namespace, _| namespaces.contains(namespace.as_str()));
        settle(&mut self.answers, &mut known.world.answers, wanted, |target| {
            let asking = self.asking.entry(target.namespace.clone()).or_insert_with(|| Arc::new(Semaphore::new(ASKED_AT_ONCE)));
            self.tasks.spawn(follow_answers(Arc::clone(state), Arc::clone(asking), target))
        });
        known.world.answers.retain(|target, _| self.answers.contains_key(target));
        let why = format!("gates of this namespace ask more than {ASKED} addresses");
        known.world.answers.extend(surplus.into_iter().map(|target| (target, Source { found: None, broken: Some(why.clone()) })));
    }
}

/// What is asked, at most so many of each namespace, those first that are asked already; and the others.
fn at_most(most: usize, targets: BTreeSet<Target>, is_asked: impl Fn(&Target) -> bool) -> (BTreeSet<Target>, BTreeSet<Target>) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let (asked, new): (Vec<_>, Vec<_>) = targets.into_iter().partition(is_asked);
    asked.into_iter().chain(new).partition(|target| {
        let count = counts.entry(target.namespace.clone()).or_default();
        *count += 1;
        *count <= most
    })
}

async fn follow_pods(client: Client, state: Arc<PodGateState>, namespace: String, read: ReadOfPods) {
    let api: Api<Pod> = Api::namespaced(client, &namespace);
    let seen = |seen: Seen<(Key, planner::pod_gates::Pod)>| {
        let mut known = state.known();
        let changed: BTreeSet<_> = match seen {
            Seen::All(listed) => {
                let changed = known.replace(&namespace, listed.into_iter().collect());
                if let Some(source) = known.world.pod_sources.get_mut(&namespace) {
                    source.found = Some(());
                }
                changed
            }
            Seen::Now((key, pod)) => known.insert(key.clone(), pod).then_some(key).into_iter().collect(),
            Seen::Gone((key, _)) => {
                known.world.pods.remove(&key);
                BTreeSet::from([key])
            }
        };
        drop(known);
        if !changed.is_empty() {
            state.tell(|news| news.pods.extend(changed));
        }
    };
    let broken = |broken: Option<String>| {
        let mut known = state.known();
        let Some(source) = known.world.pod_sources.get_mut(&namespace) else { return };
        let changed = source.broken.is_some() != broken.is_some();
        if changed && let Some(why) = &broken {
            tracing::warn!(why, "the pods of a readiness gate cannot be seen; their conditions stay as they are");
        }
        source.broken = broken;
        drop(known);
        if changed {
            state.tell(|news| news.sight = true);
        }
    };
    follow(api, config().page_size(PODS_PAGE), |pod| facts::pod(pod, &read), seen, broken).await;
}

async fn follow_slices(client: Client, state: Arc<PodGateState>, namespace: String) {
    let api: Api<EndpointSlice> = Api::namespaced(client, &namespace);
    let facts = |slice: EndpointSlice| {
        let service = slice.labels().get(SERVICE_LABEL).cloned().unwrap_or_default();
        (slice.name_any(), (service, facts::ready_endpoints(&slice)))
    };
    let seen = |seen: Seen<(String, (String, usize))>| match seen {
        Seen::All(listed) => {
            let of = listed.into_iter().collect();
            state.slices(&namespace, None, |slices| *slices = Slices { listed: true, of, broken: None });
        }
        Seen::Now((name, (service, ready))) => {
            state.slices(&namespace, Some(&service.clone()), |slices| drop(slices.of.insert(name, (service, ready))));
        }
        Seen::Gone((name, (service, _))) => state.slices(&namespace, Some(&service), |slices| drop(slices.of.remove(&name))),
    };
    let broken = |broken: Option<String>| state.slices(&namespace, None, |slices| slices.broken = broken);
    follow(api, config(), facts, seen, broken).await;
}

/// `may_leave`: what whoever makes gates in the namespace might not read may be followed, too. `reading` has a place for whoever reads the
/// object for the first time.
async fn follow_object(client: Client, state: Arc<PodGateState>, reading: Arc<Semaphore>, key: ObjectKey, may_leave: bool) {
    let refuse = |whose: &str| {
        state.object(
            &key,
            Err(format!(
                "gates of this namespace may not follow objects of {whose}: ask whoever runs the operator for --allowed-foreign-objects={}",
                key.asked_by
            )),
        );
    };
    if key.namespace != key.asked_by && !may_leave {
        return refuse("another namespace");
    }
    let resource = loop {
        match find_kind(&client, &key).await {
            Ok(found) => break found,
            Err(why) => state.object(&key, Err(format!("kind {} of {} cannot be found: {why}", key.kind, key.api_version))),
        }
        tokio::time::sleep(KIND_AGAIN).await;
    };
    if resource.1 == Scope::Cluster && !may_leave {
        return refuse("the whole cluster");
    }
    let api: Api<DynamicObject> = match &resource {
        (resource, Scope::Namespaced) => Api::namespaced_with(client, &key.namespace, resource),
        (resource, Scope::Cluster) => Api::all_with(client, resource),
    };
    let place = Mutex::new(reading.acquire_owned().await.ok());
    let seen = |seen: Seen<Conditions>| {
        drop(place.lock().take());
        let found = match seen {
            Seen::All(mut found) => found.pop(),
            Seen::Now(found) => Some(found),
            Seen::Gone(_) => None,
        };
        state.object(&key, Ok(found));
    };
    let broken = |broken: Option<String>| {
        drop(place.lock().take());
        if let Some(why) = broken {
            state.object(&key, Err(format!("{} {} cannot be seen: {why}", key.kind, key.name)));
        } else {
            let last = state.known().world.objects.get(&key).and_then(|source| source.found.clone());
            if let Some(last) = last {
                state.object(&key, Ok(last));
            }
        }
    };
    let config = config().fields(&format!("metadata.name={}", key.name));
    follow(api, config, |object| facts::conditions(&object), seen, broken).await;
}

async fn find_kind(client: &Client, key: &ObjectKey) -> Result<(ApiResource, Scope), String> {
    let (group, version) = key.api_version.split_once('/').unwrap_or(("", &key.api_version));
    let kind = GroupVersionKind::gvk(group, version, &key.kind);
    let (resource, capabilities) = pinned_kind(client, &kind).await.map_err(|error| error.to_string())?;
    Ok((resource, capabilities.scope))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{api_server, lists};
    use planner::pod_gates::Gate;
    use serde_json::json;

    /// What there is to be seen within a minute.
    async fn eventually<T>(look: impl Fn() -> Option<T>) -> T {
        let seen = async {
            loop {
                if let Some(seen) = look() {
                    return seen;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), seen).await.unwrap()
    }

    fn gate(index: u32) -> Gate {
        let spec = json!({
            "conditionType": "example.com/open", "selector": {"matchLabels": {"app": index.to_string()}},
            "source": {"service": {"name": format!("service-{index}")}},
        });
        Gate {
            namespace: "tenant".into(),
            name: format!("gate-{index}"),
            uid: index.to_string(),
            generation: 1,
            created: i64::from(index),
            deleting: false,
            spec: serde_json::from_value(spec).unwrap(),
        }
    }

    #[tokio::test]
    async fn gates_share_one_pod_and_one_endpoint_watch_per_namespace() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let client = lists(move |path| {
            noted.lock().push(path.to_owned());
            json!([])
        });
        let state = Arc::new(PodGateState::default());
        let all = (0..50).map(gate).map(|gate| (gate.key(), Arc::new(gate))).collect();
        state.known().world.take_gates(all);
        let mut sources = Sources::new(client.clone(), client, Arc::clone(&state), Vec::new());
        sources.adjust();
        let listed = || {
            let known = state.known();
            known.world.pod_sources["tenant"].found.is_some() && known.world.services.values().all(|service| service.found == Some(0))
        };
        eventually(|| listed().then_some(())).await;
        let mut paths = asked.lock().clone();
        paths.sort();
        paths.dedup();
        assert_eq!(paths, ["/api/v1/namespaces/tenant/pods", "/apis/discovery.k8s.io/v1/namespaces/tenant/endpointslices"]);
        assert_eq!(state.known().world.services.len(), 50);
        // Another gate needs no other watch, and knows at once what is known.
        let all = (0..51).map(gate).map(|gate| (gate.key(), Arc::new(gate))).collect();
        state.known().world.take_gates(all);
        sources.adjust();
        assert_eq!((sources.pods.len(), sources.slices.len()), (1, 1));
        assert_eq!(state.known().world.services[&("tenant".into(), "service-50".into())].found, Some(0));
        state.known().world.take_gates(BTreeMap::new());
        sources.adjust();
        assert_eq!((sources.pods.len(), sources.slices.len(), state.known().world.services.len()), (0, 0, 0));
    }

    #[tokio::test]
    async fn gates_follow_only_their_namespaces_objects_unless_allowed_more() {
        let client = api_server(|_, uri, _| {
            let kinds = json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [
                {"name": "nodes", "singularName": "", "namespaced": false, "kind": "Node", "verbs": ["list", "watch"]},
                {"name": "pods", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["list", "watch"]},
            ]});
            let conditions = json!([{"type": "Ready", "status": "True"}]);
            let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [
                {"metadata": {"name": "a", "namespace": "tenant"}, "status": {"conditions": conditions}},
            ]});
            let is_watch = uri.query().unwrap_or_default().contains("watch=");
            (!is_watch).then(|| (200, if uri.path() == "/api/v1" { kinds } else { list }))
        });
        for (kind, namespace, may_leave, seen) in [
            ("Pod", "tenant", false, Ok(())),
            ("Pod", "web", false, Err("another namespace")),
            ("Pod", "web", true, Ok(())),
            ("Node", "tenant", false, Err("the whole cluster")),
            ("Node", "tenant", true, Ok(())),
        ] {
            let key = ObjectKey {
                asked_by: "tenant".into(),
                api_version: "v1".into(),
                kind: kind.into(),
                namespace: namespace.into(),
                name: "a".into(),
            };
            let state = Arc::new(PodGateState::default());
            state.known().world.objects.insert(key.clone(), Source::default());
            let reading = Arc::new(Semaphore::new(1));
            let task = tokio::spawn(follow_object(client.clone(), Arc::clone(&state), reading, key.clone(), may_leave));
            let seen_now = || Some(state.known().world.objects[&key].clone()).filter(|source| *source != Source::default());
            let source = eventually(seen_now).await;
            task.abort();
            match seen {
                Ok(()) => assert!(source.broken.is_none() && source.found.is_some(), "{kind} {namespace} {may_leave}: {source:?}"),
                Err(whose) => assert!(
                    source.found.is_none() && source.broken.as_ref().is_some_and(|why| why.contains(whose)),
                    "{kind} {namespace}: {source:?}"
                ),
            }
        }
    }

    #[tokio::test]
    async fn pods_are_relisted_for_newly_read_labels_and_annotations() {
        let client = lists(|_| {
            json!([{
                "metadata": {"name": "p", "namespace": "tenant", "uid": "u", "resourceVersion": "1", "annotations": {"a": "1", "b": "2", "c": "3"},
                    "labels": {"a": "1", "b": "2", "c": "3"}},
                "spec": {"containers": [], "readinessGates": [{"conditionType": "example.com/open"}]},
            }])
        });
        let state = Arc::new(PodGateState::default());
        let mut sources = Sources::new(client.clone(), client, Arc::clone(&state), Vec::new());
        for (keys, of) in [(vec!["a"], "annotation"), (vec!["a", "b"], "annotation"), (vec!["b"], "label"), (vec!["b", "c"], "label")] {
            let reads = |(index, key): (u32, &str)| {
                let mut gate = gate(index);
                gate.spec.selector = None;
                gate.spec.source = serde_json::from_value(json!({of: {"key": key}})).unwrap();
                (gate.key(), Arc::new(gate))
            };
            state.known().world.take_gates((0..).zip(keys.iter().copied()).map(reads).collect());
            sources.adjust();
            let kept = || {
                let known = state.known();
                let listed = known.world.pod_sources["tenant"].found.is_some();
                let pod = known.world.pods.values().next().filter(|_| listed)?;
                Some(
                    ["a", "b", "c"]
                        .into_iter()
                        .filter(|key| (if of == "label" { &pod.labels } else { &pod.annotations }).contains_key(key))
                        .collect::<Vec<_>>(),
                )
            };
            assert_eq!(eventually(kept).await, keys);
        }
    }

    /// What is refused to the other client counts as a right that the operator lacks.
    #[tokio::test]
    async fn named_objects_are_read_by_their_own_client() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let named = lists(move |path| {
            noted.lock().push(path.to_owned());
            json!([])
        });
        let state = Arc::new(PodGateState::default());
        let mut sources = Sources::new(lists(|_| json!([])), named, Arc::clone(&state), Vec::new());
        let mut gate = gate(0);
        let object = json!({"objectCondition": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "db", "type": "Available"}});
        (gate.spec.selector, gate.spec.source) = (None, serde_json::from_value(object).unwrap());
        state.known().world.take_gates([(gate.key(), Arc::new(gate))].into());
        sources.adjust();
        let is_asked = || !asked.lock().is_empty() && state.known().world.pod_sources["tenant"].found.is_some();
        eventually(|| is_asked().then_some(())).await;
        assert!(asked.lock().iter().all(|path| path.starts_with("/apis/apps/v1")), "{asked:?}");
    }

    #[tokio::test]
    async fn a_namespace_reads_few_new_objects_at_once() {
        let gates = u32::try_from(READ_AT_ONCE).unwrap() + 2;
        let follows = |index: u32| {
            // One is of another namespace, which has places of its own.
            let mut gate = Gate { namespace: if index == gates { "edge".into() } else { "tenant".into() }, ..gate(index) };
            let object = json!({"objectCondition": {"apiVersion": "v1", "kind": "Pod", "name": format!("p{index}"), "type": "Ready"}});
            (gate.spec.selector, gate.spec.source) = (None, serde_json::from_value(object).unwrap());
            (gate.key(), Arc::new(gate))
        };
        for answer in [None, Some(200), Some(403)] {
            let asked = Arc::new(Mutex::new((0, BTreeSet::new())));
            let noted = Arc::clone(&asked);
            let client = api_server(move |_, uri, _| {
                let kinds = json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [
                    {"name": "pods", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["list", "watch"]},
                ]});
                let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []});
                let refused = json!({"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403});
                if uri.path() == "/api/v1" {
                    noted.lock().0 += 1;
                    return Some((200, kinds));
                }
                let is_watch = uri.query().unwrap_or_default().contains("watch=");
                if is_watch {
                    return None;
                }
                noted.lock().1.insert(uri.to_string());
                answer.map(|code| (code, if code == 200 { list } else { refused }))
            });
            let state = Arc::new(PodGateState::default());
            let mut sources = Sources::new(lists(|_| json!([])), client, Arc::clone(&state), Vec::new());
            state.known().world.take_gates((0..=gates).map(follows).collect());
            sources.adjust();
            let (kinds, lists) = (gates + 1, if answer.is_none() { READ_AT_ONCE + 1 } else { gates as usize + 1 });
            eventually(|| Some(asked.lock()).filter(|asked| (asked.0, asked.1.len()) == (kinds, lists)).map(drop)).await;
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
            assert_eq!(asked.lock().1.len(), lists, "the others wait for an answer");
        }
    }

    #[tokio::test]
    async fn silent_servers_of_one_namespace_do_not_delay_another() {
        let state = Arc::new(PodGateState::default());
        let mut sources = Sources::new(lists(|_| json!([])), lists(|_| json!([])), Arc::clone(&state), Vec::new());
        {
            let mut known = state.known();
            let asks = |namespace: &str| {
                let mut gate = Gate { namespace: namespace.into(), ..gate(0) };
                gate.spec.source = serde_json::from_value(json!({"http": {"url": "http://127.0.0.1:9/"}})).unwrap();
                (gate.key(), Arc::new(gate))
            };
            known.world.take_gates(["a", "b"].map(asks).into());
            for namespace in ["a", "b"] {
                let labels = BTreeMap::from([("app".to_owned(), "0".to_owned())]).into();
                let pod = planner::pod_gates::Pod { labels, gates: vec!["example.com/open".into()], ..Default::default() };
                known.world.pods.insert((namespace.to_owned(), "p".to_owned()), pod);
            }
        }
        sources.adjust_asked();
        // As many servers of `a` as there are places do not answer.
        let _silent = Arc::clone(&sources.asking["a"]).try_acquire_many_owned(u32::try_from(ASKED_AT_ONCE).unwrap()).unwrap();
        // That it is the operator's own machine is an answer to whether it had its turn.
        let has_answer = |namespace: &str| {
            state.known().world.answers.iter().any(|(target, source)| target.namespace == namespace && source.broken.is_some())
        };
        eventually(|| has_answer("b").then_some(())).await;
        assert!(!has_answer("a"));
    }

    #[tokio::test]
    async fn a_surplus_address_is_reported_until_another_is_removed() {
        let state = Arc::new(PodGateState::default());
        let mut sources = Sources::new(lists(|_| json!([])), lists(|_| json!([])), Arc::clone(&state), Vec::new());
        {
            let mut known = state.known();
            let mut gate = gate(0);
            gate.spec.source = serde_json::from_value(json!({"http": {"port": 9}})).unwrap();
            known.world.take_gates([(gate.key(), Arc::new(gate))].into());
            for index in 0..=ASKED {
                let labels = BTreeMap::from([("app".to_owned(), "0".to_owned())]).into();
                let address = format!("127.1.{}.{}", index / 256, index % 256);
                let pod = planner::pod_gates::Pod { labels, gates: vec!["example.com/open".into()], address, ..Default::default() };
                known.world.pods.insert(("tenant".to_owned(), format!("pod-{index}")), pod);
            }
        }
        let told = || {
            let known = state.known();
            let is_told = |source: &Source<u16>| source.broken.as_deref().is_some_and(|why| why.contains("more than 2000 addresses"));
            let told = known.world.answers.iter().filter(|(_, source)| is_told(source));
            told.map(|(target, _)| target.clone()).collect::<Vec<_>>()
        };
        sources.adjust_asked();
        let surplus = told();
        assert_eq!((surplus.len(), sources.answers.len()), (1, ASKED));
        state.known().world.pods.remove(&("tenant".to_owned(), "pod-0".to_owned()));
        sources.adjust_asked();
        assert_eq!((told().len(), sources.answers.len()), (0, ASKED));
        assert!(sources.answers.contains_key(&surplus[0]));
    }

    #[test]
    fn a_namespace_that_asks_too_much_takes_nothing_from_another() {
        let target = |namespace: &str, index: u32| Target {
            namespace: namespace.into(),
            url: format!("http://10.0.0.1:{index}"),
            period: 1_000,
            timeout: 100,
        };
        let targets = (1..=5).map(|index| target("a", index)).chain([target("b", 1), target("c", 1)]).collect();
        let (asked, surplus) = at_most(2, targets, |asked| *asked == target("a", 4));
        assert_eq!(asked, BTreeSet::from([target("a", 1), target("a", 4), target("b", 1), target("c", 1)]), "what is asked already stays");
        assert_eq!(surplus.len(), 3);
    }
}
