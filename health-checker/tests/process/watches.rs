//! An API server that hangs while all its connections stay open.

use crate::{
    agent::{Agent, ask, free_port, verdict},
    api::Api,
};
use std::time::{Duration, Instant};

/// Given to the process; a real API server speaks once a minute.
const SILENCE: u64 = 8;
/// A watch that is silent for longer is given up; then come the list and, where that hangs, its 5 s and a pause.
const NOTICED: Duration = Duration::from_secs(SILENCE + 5 + 2);

/// The age that the answer gives its view, in seconds.
async fn age(port: u16) -> Option<u64> {
    let answer = ask(port).await.ok()?;
    answer.split(r#""viewAgeSeconds":"#).nth(1)?.split('}').next()?.parse().ok()
}

async fn until(deadline: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < deadline, "not within {deadline:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until it is told what changes from now on: it is ready after its lists.
async fn watches(api: &Api) {
    until(Duration::from_secs(5), "three lists and three watches", async || api.requests().len() == 6).await;
}

#[tokio::test]
async fn a_hung_watch_shows_its_age_and_is_replaced() {
    let (api, port) = (Api::start().await, free_port());
    let agent = Agent::start(&api, port, &[&format!("--watch-silence={SILENCE}")]);
    agent.ready().await;
    watches(&api).await;
    api.hang(true);
    let hung = Instant::now();
    api.write_token("Claimed");
    until(Duration::from_secs(20), "the answer says that its view is old", async || age(port).await >= Some(3)).await;
    assert_eq!(verdict(port).await, ("200".to_owned(), "Serving".to_owned()), "what was true stays until something is known");
    // The server works again, but the watches of before will never say a word.
    api.hang(false);
    until(NOTICED, "a new list tells the truth", async || verdict(port).await.1 == "DetachRequested").await;
    assert!(hung.elapsed() > Duration::from_secs(SILENCE / 2), "the old watches spoke");
    assert!(age(port).await < Some(10));
}

#[tokio::test]
async fn an_old_view_does_not_bring_a_node_back() {
    let (api, port) = (Api::start().await, free_port());
    let agent = Agent::start(&api, port, &["--probe-after=0"]);
    agent.ready().await;
    watches(&api).await;
    api.write_token("Updating");
    until(Duration::from_secs(5), "it is out", async || verdict(port).await.1 == "Updating").await;
    until(Duration::from_secs(20), "the view is old", async || age(port).await > Some(10)).await;
    // Only this watch speaks; the lists that would confirm the others hang.
    api.hang_lists();
    api.write_token("Closed");
    until(Duration::from_secs(5), "it waits for a fresh view", async || verdict(port).await.1 == "StaleView").await;
    api.hang(false);
    until(Duration::from_secs(20), "it serves", async || verdict(port).await.0 == "200").await;
}

#[tokio::test]
async fn a_health_checker_without_node_watch_serves_by_its_namespace() {
    let (api, port) = (Api::start().await, free_port());
    let agent = Agent::start(&api, port, &["--watch-node=false"]);
    agent.ready().await;
    until(Duration::from_secs(5), "two lists and two watches", async || api.requests().len() == 4).await;
    assert_eq!(verdict(port).await.0, "200");
    api.write_token("Updating");
    until(Duration::from_secs(5), "it is out", async || verdict(port).await.1 == "Updating").await;
    api.write_token("Closed");
    until(Duration::from_secs(5), "it serves", async || verdict(port).await.0 == "200").await;
    assert!(!api.requests().iter().any(|path| path.contains("/nodes")), "{:?}", api.requests());
}
