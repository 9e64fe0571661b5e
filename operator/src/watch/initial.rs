//! How a watch begins: with a stream of all objects, or with pages of a list where the API server has no such streams.
//!
//! A stream costs both sides one object at a time, and the API server takes it from its cache; pages of thousands of objects
//! cost seconds and memory that is not given back.

use super::WATCH_SECONDS;
use futures::{Stream, StreamExt as _};
use http::{Request, Uri};
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Error, Event, InitialListStrategy},
    },
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, time::Duration};
use tokio::time::Instant;

/// What the API server answers that has no streams: it does not know the option, or forbids it (validation of `ListOptions`).
const REFUSALS: [u16; 2] = [400, 422];
/// What the client asks for: whatever the API server's cache holds, however old.
const ANY: &str = "resourceVersion=0";
/// What is meant: nothing older than what was written before the request.
const MOST_RECENT: &str = "resourceVersion=";
/// The API server's clock of a watch starts before the answer is here, so one that lasted its time seems to have lasted a little less.
const WAY_OF_ANSWER: Duration = Duration::from_secs(2);

/// Events of a watch for ever. It begins with a stream until the API server has shown that it has none.
///
/// One that does not know the option never says that all has been shown, and ends the watch when its time is over. One that ends sooner
/// has broken off, which tells nothing of what the API server can do.
pub(super) fn events<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = watcher::Result<Event<K>>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let lasts = Duration::from_secs(config.timeout.unwrap_or(WATCH_SECONDS).into());
    let streaming = config.clone().streaming_lists();
    let pages = attempt(api.clone(), watcher::Config { initial_list_strategy: InitialListStrategy::ListWatch, ..config });
    let stream = attempt(api.clone(), streaming).scan(None, move |begun: &mut Option<Instant>, event| {
        let in_vain = begun.is_some_and(|begun| begun.elapsed() + WAY_OF_ANSWER >= lasts);
        let is_over = refuses_streams(event.as_ref(), in_vain);
        match event {
            Ok(Event::Init) => *begun = Some(Instant::now()),
            Ok(Event::InitDone) | Err(_) => *begun = None,
            Ok(_) => {}
        }
        if is_over {
            tracing::info!(kind = %api.resource_url(), "the API server has no streams of lists; listing by pages");
        }
        std::future::ready((!is_over).then_some(event))
    });
    // The former stream is let go before the latter makes a request.
    stream.chain(pages)
}

fn attempt<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = watcher::Result<Event<K>>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher::watcher(api, config).default_backoff()
}

/// The API server refuses the option, or a watch begins again after one that has lasted its time `in_vain`.
fn refuses_streams<K>(event: Result<&Event<K>, &Error>, in_vain: bool) -> bool {
    match event {
        Ok(event) => in_vain && matches!(event, Event::Init),
        Err(Error::WatchStartFailed(kube::Error::Api(status)) | Error::WatchFailed(kube::Error::Api(status))) => {
            REFUSALS.contains(&status.code)
        }
        Err(_) => false,
    }
}

/// A stream of all objects is to be no older than the request for it, as pages are.
pub fn be_recent<B>(mut request: Request<B>) -> Request<B> {
    if let Some(uri) = recent(request.uri()) {
        *request.uri_mut() = uri;
    }
    request
}

fn recent(uri: &Uri) -> Option<Uri> {
    let query = uri.query().filter(|query| query.split('&').any(|pair| pair == "sendInitialEvents=true"))?;
    let pairs: Vec<_> = query.split('&').map(|pair| if pair == ANY { MOST_RECENT } else { pair }).collect();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{}?{}", uri.path(), pairs.join("&")).parse().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;
    use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
    use hyper::body::{Bytes, Frame};
    use k8s_openapi::api::core::v1::Node;
    use kube::client::{Body, ClientBuilder};
    use serde_json::{Value, json};
    use std::convert::Infallible;

    fn node(name: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "resourceVersion": "7" } })
    }

    /// What an API server says to one request: a code, a text, and for how long the connection stays open after it.
    type Said = (u16, String, Duration);

    /// Names of the nodes when all is shown, with an API server that answers so. More requests than anybody needs are an error.
    async fn shown(mut answer: impl FnMut(&str) -> Said + Send + 'static) -> Vec<String> {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<UnsyncBoxBody<Bytes, Infallible>>>();
        let serve = async move {
            for _ in 0..10 {
                let (request, send) = server.next_request().await.expect("the client lives");
                let (code, text, stays) = answer(&request.uri().to_string());
                let text = futures::stream::once(async move { Ok(Frame::data(text.into())) });
                let rest = futures::stream::once(async move {
                    // How long a watch lasts is the fact; the clock of these tests is paused, and goes on when nobody has work.
                    tokio::time::sleep(stays).await;
                    Ok::<_, Infallible>(Frame::data(Bytes::new()))
                });
                let body = StreamBody::new(text.chain(rest)).boxed_unsync();
                send.send_response(Response::builder().status(code).body(body).expect("a response"));
            }
            panic!("request after request, and nothing is shown")
        };
        let client = crate::client::layered(ClientBuilder::new(service, "default"), Duration::from_secs(1), crate::trim::trim).build();
        let api: Api<Node> = Api::all(client);
        let mut names = Vec::new();
        let mut events = events(api, watcher::Config::default()).boxed();
        let show = async {
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Init) => names.clear(),
                    Ok(Event::InitApply(node)) => names.extend(node.metadata.name),
                    Ok(Event::InitDone) => break,
                    Ok(_) | Err(_) => {}
                }
            }
        };
        tokio::select! {
            () = show => names,
            never = serve => never,
        }
    }

    const AT_ONCE: Duration = Duration::ZERO;

    fn line(kind: &str, object: &Value) -> String {
        format!("{}\n", json!({ "type": kind, "object": object }))
    }

    fn end() -> String {
        let annotations = json!({ "k8s.io/initial-events-end": "true" });
        line("BOOKMARK", &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "resourceVersion": "9", "annotations": annotations } }))
    }

    fn pages(uri: &str) -> Said {
        assert!(uri.contains("limit="), "{uri}");
        let list =
            json!({ "apiVersion": "v1", "kind": "NodeList", "metadata": { "resourceVersion": "9" }, "items": [node("n1"), node("n2")] });
        (200, list.to_string(), AT_ONCE)
    }

    #[tokio::test(start_paused = true)]
    async fn the_initial_stream_is_no_older_than_its_request() {
        let names = shown(|uri| {
            assert!(uri.contains("sendInitialEvents=true") && uri.ends_with("resourceVersion="), "{uri}");
            (200, line("ADDED", &node("n1")) + &line("ADDED", &node("n2")) + &end(), AT_ONCE)
        });
        assert_eq!(names.await, ["n1", "n2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_refuses_streams_is_asked_for_pages() {
        let refusal =
            json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422, "message": "forbidden", "reason": "Invalid" });
        let names = shown(move |uri| if uri.contains("sendInitialEvents") { (422, refusal.to_string(), AT_ONCE) } else { pages(uri) });
        assert_eq!(names.await, ["n1", "n2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_ignores_streams_is_asked_for_pages() {
        let its_time = Duration::from_secs(WATCH_SECONDS.into()).saturating_sub(Duration::from_millis(20));
        let names =
            shown(move |uri| if uri.contains("sendInitialEvents") { (200, line("ADDED", &node("n1")), its_time) } else { pages(uri) });
        assert_eq!(names.await, ["n1", "n2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_broke_off_is_asked_for_again() {
        let mut breaks = 3;
        let names = shown(move |uri| {
            assert!(uri.contains("sendInitialEvents=true"), "{uri}");
            let begun = line("ADDED", &node("n1"));
            if breaks > 0 {
                breaks -= 1;
                return (200, begun, AT_ONCE);
            }
            (200, begun + &line("ADDED", &node("n2")) + &end(), AT_ONCE)
        });
        assert_eq!(names.await, ["n1", "n2"]);
    }

    #[test]
    fn only_a_stream_of_all_objects_gets_an_empty_version() {
        let changed = |uri: &str| be_recent(Request::get(uri).body(()).expect("a request")).uri().to_string();
        for same in ["/api/v1/nodes?watch=true&resourceVersion=0", "/api/v1/nodes?limit=100&resourceVersion=0", "/api/v1/nodes"] {
            assert_eq!(changed(same), same);
        }
        assert_eq!(
            changed(
                "https://host:6443/api/v1/nodes?&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0"
            ),
            "https://host:6443/api/v1/nodes?&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion="
        );
    }
}
