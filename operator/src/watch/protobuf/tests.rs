use super::{super::Partial, *};
use futures::stream;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Resource,
    api::WatchParams,
    client::ClientBuilder,
    core::{DynamicObject, Status},
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, sync::Mutex};

/// What an API server 1.36 wrote of objects with all the fields that are read, and many that are not: the first event of a watch, and
/// the bookmark that ends the initial ones.
const NODE: (&[u8], &[u8]) = (include_bytes!("written/node.pb"), include_bytes!("written/node.json"));
const POD: (&[u8], &[u8]) = (include_bytes!("written/pod.pb"), include_bytes!("written/pod.json"));
/// What it answered to a watch with options that do not go together.
const REFUSAL: &[u8] = include_bytes!("written/refusal.pb");

const STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// What the API server answers: a code, a type of content, and the content in pieces.
type Given = (u16, &'static str, Vec<Vec<u8>>);

/// A client of an API server that answers so, and what has been asked for.
fn server(answer: impl Fn(&str) -> Given + Clone + Send + 'static) -> (Client, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let service = service_fn(move |request: Request<Body>| {
        let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        let (code, content, pieces) = answer(&accept);
        seen.lock().unwrap().push(accept);
        let pieces = pieces.into_iter().map(|piece| Ok::<_, BoxError>(Frame::data(Bytes::from(piece))));
        let body = StreamBody::new(stream::iter(pieces));
        let response = Response::builder().status(code).header(header::CONTENT_TYPE, content).body(body).unwrap();
        async move { Ok::<_, BoxError>(response) }
    });
    (client(&ClientBuilder::new(service, "default").build()), asked)
}

async fn watched<K>(client: Client) -> kube::Result<Vec<kube::Result<WatchEvent<K>>>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let events = Api::<K>::all(client).watch(&WatchParams::default(), "0").await?;
    Ok(events.collect().await)
}

/// The protobuf decodes to the same objects as the JSON, whole and cut into pieces anywhere.
async fn protobuf_equals_json<K>((protobuf, json): (&'static [u8], &'static [u8]))
where
    K: super::super::partial::Partly + Resource<DynamicType = ()> + Clone + Debug + PartialEq,
{
    let (in_json, _) = server(move |_| (200, "application/json", vec![json.to_vec()]));
    let expected = watched::<Partial<K>>(in_json).await.unwrap();
    for size in [protobuf.len(), 1, 3, 7, 1000] {
        let (client, _) = server(move |_| (200, STREAM, protobuf.chunks(size).map(<[u8]>::to_vec).collect()));
        let events = watched::<Partial<K>>(client).await.unwrap();
        assert_eq!(events.len(), 2);
        let [Ok(WatchEvent::Added(object)), Ok(WatchEvent::Bookmark(end))] = &events[..] else { panic!("{events:?}") };
        let [Ok(WatchEvent::Added(meant)), Ok(WatchEvent::Bookmark(meant_end))] = &expected[..] else { panic!("{expected:?}") };
        assert_eq!(object.0, meant.0);
        assert_eq!(end.metadata.annotations, meant_end.metadata.annotations);
        assert!(end.metadata.annotations.contains_key("k8s.io/initial-events-end") && !end.metadata.resource_version.is_empty());
    }
}

#[tokio::test]
async fn nodes_and_pods_decode_alike_from_protobuf_and_json() {
    protobuf_equals_json::<Node>(NODE).await;
    protobuf_equals_json::<Pod>(POD).await;
}

#[tokio::test]
async fn a_refusal_in_protobuf_says_what_it_would_in_json() {
    let (client, asked) = server(|_| (422, PROTOBUF, vec![REFUSAL.to_vec()]));
    let refused = watched::<Partial<Node>>(client).await.expect_err("a refusal");
    let kube::Error::Api(status) = &refused else { panic!("{refused:?}") };
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    assert!(status.message.contains("ListOptions"), "{status:?}");
    assert_eq!(*asked.lock().unwrap(), [ACCEPT.to_str().unwrap()]);
}

#[tokio::test]
async fn an_unreadable_refusal_keeps_its_code_and_switches_to_json() {
    let (client, asked) = server(|_| (403, PROTOBUF, vec![b"no protobuf".to_vec()]));
    for _ in 0..2 {
        let refused = watched::<Partial<Node>>(client.clone()).await.expect_err("a refusal");
        assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused:?}");
    }
    assert!(!asked.lock().unwrap()[1].contains("protobuf"));
}

/// A pod whose container ended with this termination message.
fn last_words(words: &[u8]) -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat();
    // status.containerStatuses[0].state.terminated.message
    [4, 3, 2, 8, 3].into_iter().fold(words.to_vec(), |inner, number| field(number, &inner))
}

#[tokio::test]
async fn invalid_bytes_of_a_termination_message_are_replaced() {
    let pod = Unknown {
        type_meta: Some(TypeMeta { api_version: "v1".to_owned(), kind: "Pod".to_owned() }),
        raw: last_words(b"port \xff is taken").into(),
    };
    let added = frame(&event("ADDED", [MAGIC, &pod.encode_to_vec()].concat()).encode_to_vec());
    let (client, _) = server(move |_| (200, STREAM, vec![added.clone()]));
    let events = watched::<Partial<Pod>>(client).await.unwrap();
    let [Ok(WatchEvent::Added(pod))] = &events[..] else { panic!("{events:?}") };
    let statuses = pod.0.status.as_ref().unwrap().container_statuses.as_ref().unwrap();
    let ended = statuses[0].state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(ended.message.as_deref(), Some("port \u{fffd} is taken"));
}

#[tokio::test]
async fn only_nodes_and_pods_are_watched_in_protobuf() {
    let (client, asked) = server(|_| (200, "application/json", Vec::new()));
    watched::<Partial<k8s_openapi::api::apps::v1::Deployment>>(client.clone()).await.unwrap();
    watched::<Partial<Pod>>(client).await.unwrap();
    assert_eq!(asked.lock().unwrap().iter().map(|accept| accept.contains("protobuf")).collect::<Vec<_>>(), [false, true]);
}

fn wrapped(kind: &str, raw: &impl Message) -> Vec<u8> {
    let types = TypeMeta { api_version: "v1".to_owned(), kind: kind.to_owned() };
    [MAGIC, &Unknown { type_meta: Some(types), raw: raw.encode_to_vec().into() }.encode_to_vec()].concat()
}

fn frame(event: &[u8]) -> Vec<u8> {
    [&u32::try_from(event.len()).unwrap().to_be_bytes(), event].concat()
}

fn event(type_: &str, object: Vec<u8>) -> messages::WatchEvent {
    messages::WatchEvent { type_: type_.to_owned(), object: Some(RawExtension { raw: object.into() }) }
}

#[tokio::test]
async fn a_watch_that_ends_says_why() {
    let refusal = StatusMessage::of("too old resource version", "Expired", 410);
    let ends = frame(&event("ERROR", wrapped("Status", &refusal)).encode_to_vec());
    let (client, _) = server(move |_| (200, STREAM, vec![ends.clone()]));
    let events = watched::<Partial<Node>>(client).await.unwrap();
    let [Ok(WatchEvent::Error(status))] = &events[..] else { panic!("{events:?}") };
    assert_eq!(**status, Status::failure("too old resource version", "Expired").with_code(410));
}

#[tokio::test]
async fn events_may_be_wrapped_as_their_objects_are() {
    let deleted = event("DELETED", wrapped("Pod", &messages::Pod::default()));
    let wrapped = frame(&wrapped("WatchEvent", &deleted));
    let (client, _) = server(move |_| (200, STREAM, vec![wrapped.clone()]));
    let events = watched::<Partial<Pod>>(client).await.unwrap();
    assert!(matches!(&events[..], [Ok(WatchEvent::Deleted(_))]), "{events:?}");
}

#[tokio::test]
async fn unreadable_protobuf_makes_the_next_watch_ask_for_json() {
    let bad: [Vec<u8>; 6] = [
        frame(b"not protobuf"),
        frame(&event("ADDED", b"bare".to_vec()).encode_to_vec()),
        frame(&event("ADDED", [MAGIC, b"\xff\xff"].concat()).encode_to_vec()),
        frame(&event("ADDED", wrapped("Secret", &messages::Node::default())).encode_to_vec()),
        frame(&event("NEWS", wrapped("Node", &messages::Node::default())).encode_to_vec()),
        b"\xff\xff\xff\xff".to_vec(),
    ];
    for bytes in bad {
        let (client, asked) = server(move |accept| {
            if accept.starts_with(PROTOBUF) { (200, STREAM, vec![bytes.clone()]) } else { (200, "application/json", vec![NODE.1.to_vec()]) }
        });
        let first = watched::<Partial<Node>>(client.clone()).await.unwrap();
        assert!(first.iter().all(Result::is_err) && !first.is_empty(), "{first:?}");
        assert_eq!(watched::<Partial<Node>>(client).await.unwrap().len(), 2);
        assert!(!asked.lock().unwrap()[1].contains("protobuf"));
    }
}

#[tokio::test]
async fn a_watch_broken_within_an_event_is_repeated_in_protobuf() {
    let half = NODE.0[..NODE.0.len() / 4].to_vec();
    let (client, asked) = server(move |_| (200, STREAM, vec![half.clone()]));
    for _ in 0..2 {
        let broken = watched::<Partial<Node>>(client.clone()).await.unwrap();
        assert!(matches!(&broken[..], [Err(_)]), "{broken:?}");
    }
    assert!(asked.lock().unwrap()[1].contains("protobuf"));
}

#[tokio::test]
async fn other_requests_are_as_ever() {
    let (client, asked) = server(|_| (200, "application/json", vec![br#"{"metadata":{"name":"n1"}}"#.to_vec()]));
    let api: Api<DynamicObject> = Api::all_with(client, &kube::api::ApiResource::erase::<Node>(&()));
    assert_eq!(api.get("n1").await.unwrap().metadata.name.as_deref(), Some("n1"));
    assert!(!asked.lock().unwrap()[0].contains("protobuf"));
}
