//! Questions to the health ports of nodes: what would a load balancer be told now?

use crate::turns::ASKED_AT_ONCE;
use crds::token::Phase;
use futures::{FutureExt as _, StreamExt as _, stream};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{Request, StatusCode, body::Bytes, header::HOST};
use hyper_util::rt::TokioIo;
use planner::{plan::Question, snapshot::PortAnswer};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use tokio::{net::TcpStream, sync::Semaphore, time::timeout};

/// Longest wait for a connection: a pass in which a node is asked that cannot be reached takes so much longer.
const CONNECT: Duration = Duration::from_millis(500);
/// Longest wait for the answer of a port that is there. A starved health checker that is slow to say 200 may still be heard by a load
/// balancer, most of which wait for some seconds; silence holds the node, so it must not come from impatience.
const ANSWER: Duration = Duration::from_secs(2);
/// Longest body that is read; a health checker's has some 300 bytes.
const LONGEST: usize = 4096;

/// Asks all ports, as many at once as there are `places`. Every node is in the outcome, with an empty list where nothing answers; ports
/// that do not answer are left out.
pub async fn ask(questions: &BTreeMap<String, Question>, places: &Semaphore) -> BTreeMap<String, Vec<PortAnswer>> {
    let mut answers: BTreeMap<String, Vec<PortAnswer>> = questions.keys().map(|node| (node.clone(), Vec::new())).collect();
    let all: Vec<_> =
        questions.iter().flat_map(|(node, question)| question.ports.iter().map(|port| (node.clone(), *port)).collect::<Vec<_>>()).collect();
    // What is asked takes memory, and a resource may have thousands of ports.
    let asked = stream::iter(all).map(|(node, port)| {
        let question = questions.get(&node).cloned();
        let answer = async move {
            // Closed by nobody.
            let _place = places.acquire().await.ok();
            let answer = match question {
                Some(question) => ask_one(&question, port).await,
                None => None,
            };
            (node, answer)
        };
        answer.boxed()
    });
    let mut heard = asked.buffer_unordered(ASKED_AT_ONCE);
    while let Some((node, answer)) = heard.next().await {
        answers.entry(node).or_default().extend(answer);
    }
    answers
}

async fn ask_one(question: &Question, port: u16) -> Option<PortAnswer> {
    let address: IpAddr = question.address.parse().ok()?;
    let address = SocketAddr::new(address, port);
    let stream = timeout(CONNECT, TcpStream::connect(address)).await.ok()?.ok()?;
    timeout(ANSWER, exchange(stream, question, address)).await.ok().flatten()
}

async fn exchange(stream: TcpStream, question: &Question, address: SocketAddr) -> Option<PortAnswer> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
    let request = Request::get("/").header(HOST, address.to_string()).body(Empty::<Bytes>::new()).ok()?;
    let answer = async {
        let response = sender.send_request(request).await.ok()?;
        let healthy = response.status() == StatusCode::OK;
        let body = Limited::new(response.into_body(), LONGEST).collect().await.ok().map(http_body_util::Collected::to_bytes);
        let body = body.and_then(|body| serde_json::from_slice::<Body>(&body).ok());
        let body = body.filter(|body| body.service.namespace == question.namespace && body.service.name == question.name);
        let phase = body.and_then(|body| body.phase);
        Some(PortAnswer { port: address.port(), healthy, phase: phase.and_then(|phase| Phase::from_word(&phase)) })
    };
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection is driven here; the answer may be complete when it ends.
        _ = connection => answer.await,
    }
}

/// The part of a health checker's body that matters here.
#[derive(Deserialize)]
struct Body {
    service: Service,
    phase: Option<String>,
}

#[derive(Deserialize)]
struct Service {
    namespace: String,
    name: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// A server that says one thing to one client.
    async fn server(answer: &'static str) -> anyhow::Result<u16> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await?;
            let mut request = [0; 512];
            let _ = stream.read(&mut request).await?;
            stream.write_all(answer.as_bytes()).await
        });
        Ok(port)
    }

    async fn heard(ports: Vec<u16>) -> Vec<PortAnswer> {
        let questions =
            BTreeMap::from([("n1".to_owned(), Question { address: "127.0.0.1".into(), ports, namespace: "a".into(), name: "b".into() })]);
        ask(&questions, &Semaphore::new(1)).await.remove("n1").unwrap_or_default()
    }

    #[tokio::test]
    async fn only_a_health_checkers_answer_is_read_beyond_its_status() -> anyhow::Result<()> {
        let body = r#"{"service":{"namespace":"a","name":"b"},"phase":"Claimed"}"#;
        let checker: &'static str = format!("HTTP/1.1 503 No\r\nContent-Length: {}\r\n\r\n{body}", body.len()).leak();
        let port = server(checker).await?;
        assert_eq!(heard(vec![port]).await, [PortAnswer { port, healthy: false, phase: Some(Phase::Claimed) }]);
        let port = server(
            r#"HTTP/1.1 503 No
Content-Length: 70
Connection: close

{"service":{"namespace":"a","name":"another"},"phase":"Claimed"}      "#,
        )
        .await?;
        assert_eq!(heard(vec![port]).await, [PortAnswer { port, healthy: false, phase: None }], "the checker of another resource");
        let port = server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").await?;
        assert_eq!(heard(vec![port]).await, [PortAnswer { port, healthy: true, phase: None }]);
        Ok(())
    }

    #[tokio::test]
    async fn a_closed_or_non_http_port_counts_as_unanswered() -> anyhow::Result<()> {
        let closed = tokio::net::TcpSocket::new_v4()?;
        closed.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let strange = server("SSH-2.0-OpenSSH_9.2\r\n").await?;
        assert_eq!(heard(vec![closed.local_addr()?.port(), strange]).await, []);
        Ok(())
    }
}
