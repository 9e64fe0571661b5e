//! What a feed asks of the API server, and what it makes of the answers.

use futures::{FutureExt, StreamExt};
use health_checker::{
    feed::{Collection, follow},
    view::{News, NodeFacts, ObjectChange, Update},
    watched_objects,
};
use hyper::{
    Request, Response,
    body::{Bytes, Frame},
};
use kube::client::{Body, Client};
use std::{cell::RefCell, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, timeout},
};
use tower_test::mock::{Handle, SendResponse};

type Api = Handle<Request<Body>, Response<Stream>>;

struct Bed {
    api: Api,
    news: mpsc::Receiver<News>,
    refresh: Arc<Notify>,
}

fn start() -> Bed {
    let (service, api) = tower_test::mock::pair::<Request<Body>, Response<Stream>>();
    let (sender, news) = mpsc::channel(64);
    let refresh = Arc::new(Notify::new());
    let fields = Some("metadata.name=n1".into());
    let silence = Duration::from_secs(75);
    let source = Collection { name: "node", path: "/api/v1/nodes".into(), labels: None, fields, watch_seconds: 250, silence };
    tokio::spawn(follow::<watched_objects::Node>(Client::new(service, "default"), source, refresh.clone(), Update::Node, sender));
    Bed { api, news, refresh }
}

impl Bed {
    async fn request(&mut self) -> (String, SendResponse<Response<Stream>>) {
        let (request, answer) = timeout(Duration::from_mins(10), self.api.next_request()).await.expect("asks in time").expect("asks");
        (request.uri().to_string(), answer)
    }

    async fn answer(&mut self, expected: &str, body: String) {
        let (uri, answer) = self.request().await;
        assert_eq!(uri, expected);
        answer.send_response(whole(body));
    }

    /// A watch that says the lines and then stays silent.
    async fn watch(&mut self, expected: &str, lines: Vec<String>) {
        let (uri, answer) = self.request().await;
        assert_eq!(uri, expected);
        answer.send_response(Response::new(Stream(Box::pin(frames(lines).chain(futures::stream::pending())))));
    }

    async fn change(&mut self) -> (ObjectChange<NodeFacts>, std::time::Instant) {
        let news = timeout(Duration::from_mins(10), self.news.recv()).await.expect("news in time");
        let Some(News::Watch { update: Update::Node(change), at }) = news else { unreachable!("{news:?}") };
        (change, at)
    }
}

type Frames = std::pin::Pin<Box<dyn futures::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send>>;

struct Stream(Frames);

fn frames(lines: Vec<String>) -> impl futures::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send {
    futures::stream::iter(lines.into_iter().map(|line| Ok(Frame::data(Bytes::from(line)))))
}

fn whole(text: String) -> Response<Stream> {
    Response::new(Stream(Box::pin(frames(vec![text]))))
}

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.0.as_mut().poll_next(context)
    }
}

const LIST: &str = "/api/v1/nodes?&fieldSelector=metadata.name%3Dn1";

fn watch_from(version: &str) -> String {
    format!(
        "/api/v1/nodes?&watch=true&timeoutSeconds=250&fieldSelector=metadata.name%3Dn1&allowWatchBookmarks=true&resourceVersion={version}"
    )
}

fn list(version: &str) -> String {
    format!(
        r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}},"items":[{{"metadata":{{"name":"n1","uid":"u"}}}}]}}"#
    )
}

fn event(kind: &str, version: &str) -> String {
    format!(
        r#"{{"type":"{kind}","object":{{"kind":"Node","apiVersion":"v1","metadata":{{"name":"n1","resourceVersion":"{version}"}}}}}}{}"#,
        '\n'
    )
}

#[tokio::test(start_paused = true)]
async fn a_feed_lists_once_watches_from_there_and_reports_bookmarks() {
    let mut bed = start();
    bed.answer(LIST, list("5")).await;
    assert!(matches!(bed.change().await.0, ObjectChange::Replaced(nodes) if nodes.len() == 1));
    bed.watch(&watch_from("5"), vec![event("MODIFIED", "6"), event("BOOKMARK", "9"), event("DELETED", "10")]).await;
    assert!(matches!(bed.change().await.0, ObjectChange::Applied(name, _) if name == "n1"));
    assert!(matches!(bed.change().await.0, ObjectChange::Unchanged));
    assert!(matches!(bed.change().await.0, ObjectChange::Deleted(name) if name == "n1"));
    assert!(bed.api.next_request().now_or_never().is_none(), "and asks for nothing else");
}

#[tokio::test(start_paused = true)]
async fn a_list_is_as_old_as_its_request() {
    let mut bed = start();
    let asked = Instant::now().into_std();
    let (_, answer) = bed.request().await;
    tokio::time::advance(Duration::from_secs(4)).await;
    answer.send_response(whole(list("5")));
    let (_, at) = bed.change().await;
    assert!(at < asked + Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_watch_silent_beyond_its_bookmark_interval_is_abandoned() {
    let mut bed = start();
    bed.answer(LIST, list("5")).await;
    bed.watch(&watch_from("5"), vec![]).await;
    let before = Instant::now();
    bed.answer(LIST, list("7")).await;
    assert_eq!(before.elapsed().as_secs(), 75);
    bed.watch(&watch_from("7"), vec![]).await;
}

#[tokio::test(start_paused = true)]
async fn on_request_a_feed_lists_anew_at_once() {
    let mut bed = start();
    bed.answer(LIST, list("5")).await;
    bed.watch(&watch_from("5"), vec![]).await;
    bed.refresh.notify_one();
    let before = Instant::now();
    bed.answer(LIST, list("7")).await;
    assert!(before.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn an_expired_version_leads_to_a_new_list() {
    let mut bed = start();
    bed.answer(LIST, list("5")).await;
    let gone = r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410,"reason":"Expired","message":"too old"}}"#;
    bed.watch(&watch_from("5"), vec![format!("{gone}\n")]).await;
    bed.answer(LIST, list("8")).await;
    bed.watch(&watch_from("8"), vec![]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hung_server_is_asked_again_after_short_pauses() {
    let mut bed = start();
    let mut hung = Vec::new();
    for attempt in 0..10 {
        let before = Instant::now();
        let (uri, answer) = bed.request().await;
        assert_eq!(uri, LIST);
        hung.push(answer);
        assert!(attempt == 0 || before.elapsed() <= Duration::from_secs(7), "{:?}", before.elapsed());
    }
    bed.answer(LIST, list("5")).await;
    assert!(matches!(bed.change().await.0, ObjectChange::Replaced(_)));
}

#[tokio::test(start_paused = true)]
async fn watches_that_always_end_at_once_cause_no_spin() {
    let mut bed = start();
    let before = Instant::now();
    for version in 0..20 {
        bed.answer(LIST, list(&version.to_string())).await;
        bed.answer(&watch_from(&version.to_string()), String::new()).await;
    }
    assert!(before.elapsed() >= Duration::from_secs(10), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_lasted_continues_where_it_ended() {
    let mut bed = start();
    bed.answer(LIST, list("5")).await;
    let (uri, answer) = bed.request().await;
    assert_eq!(uri, watch_from("5"));
    let end = futures::stream::once(tokio::time::sleep(Duration::from_mins(1))).filter_map(async |()| None);
    answer.send_response(Response::new(Stream(Box::pin(frames(vec![event("BOOKMARK", "9")]).chain(end)))));
    bed.watch(&watch_from("9"), vec![]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lasting_watch_resets_the_pause_after_failures() {
    let mut bed = start();
    for _ in 0..10 {
        bed.answer(LIST, "no list".to_owned()).await;
    }
    bed.answer(LIST, list("5")).await;
    let (_, answer) = bed.request().await;
    let breaks = futures::stream::once(tokio::time::sleep(Duration::from_mins(1))).map(|()| Err(std::io::Error::other("broken")));
    answer.send_response(Response::new(Stream(Box::pin(breaks))));
    let breaks_at = Instant::now() + Duration::from_mins(1);
    bed.answer(LIST, list("6")).await;
    // The first pause is 100 ms, and as much again by chance.
    assert!(breaks_at.elapsed() <= Duration::from_millis(250), "{:?}", breaks_at.elapsed());
}

thread_local! {
    /// What this thread logs: each test has a thread of its own.
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct Log;

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.with_borrow_mut(|log| log.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn lines_with(words: &str) -> usize {
    LOG.with_borrow(|log| String::from_utf8_lossy(log).lines().filter(|line| line.contains(words)).count())
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_watches_costs_one_log_line() {
    // For all threads: what one thread alone logs may be left out because another one that logs nothing was there first.
    tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).init();
    let mut bed = start();
    for version in 0..20 {
        bed.answer(LIST, list(&version.to_string())).await;
        let (uri, answer) = bed.request().await;
        assert_eq!(uri, watch_from(&version.to_string()));
        let refused = Response::builder().status(503).body(Stream(Box::pin(frames(vec!["no watch".to_owned()]))));
        answer.send_response(refused.expect("is a response"));
        assert!(matches!(bed.change().await.0, ObjectChange::Replaced(_)));
    }
    let said = || (lines_with("cannot list or watch"), lines_with("answers again"));
    assert_eq!(said(), (1, 0));
    bed.answer(LIST, list("30")).await;
    bed.watch(&watch_from("30"), vec![event("BOOKMARK", "31")]).await;
    assert!(matches!(bed.change().await.0, ObjectChange::Replaced(_)));
    assert!(matches!(bed.change().await.0, ObjectChange::Unchanged));
    assert_eq!(said(), (1, 1));
}
