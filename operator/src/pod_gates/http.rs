//! HTTP servers that gates ask.

use crate::gates_shared::pod_state::PodGateState;
use http_body_util::Empty;
use hyper::{
    Request, Uri,
    body::Bytes,
    header::{HOST, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use planner::pod_gates::world::Target;
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
};

/// How many times in a row a server that has answered before must not answer to count as one that does not: as often as a
/// kubelet's probe must fail by default.
const FAILURES: u32 = 3;

/// Asks a server again and again, for ever.
pub async fn follow_answers(state: Arc<PodGateState>, asking: Arc<Semaphore>, target: Target) {
    let mut ticks = tokio::time::interval(Duration::from_millis(target.period));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut answering = Answering::default();
    loop {
        ticks.tick().await;
        // Closed by nobody.
        let Ok(permit) = Arc::clone(&asking).acquire_owned().await else { return };
        let seen = ask(&target, permit).await;
        if let Some(news) = answering.after(seen) {
            state.answer(&target, news.map_err(|why| format!("{} does not answer: {why}", target.url)));
        }
    }
}

/// Whether a server answers, by all that came of asking it.
#[derive(Debug, Default)]
struct Answering {
    /// It has, ever.
    answered: bool,
    /// How many times in a row it has not.
    failures: u32,
}

impl Answering {
    /// What counts after one more question; nothing where a server that has answered before is silent for a moment.
    fn after(&mut self, seen: Result<u16, String>) -> Option<Result<u16, String>> {
        if seen.is_ok() {
            (self.answered, self.failures) = (true, 0);
            return Some(seen);
        }
        self.failures = self.failures.saturating_add(1);
        (!self.answered || self.failures >= FAILURES).then_some(seen)
    }
}

/// The status that a server answers now.
async fn ask(target: &Target, permit: OwnedSemaphorePermit) -> Result<u16, String> {
    let timeout = Duration::from_millis(target.timeout);
    tokio::time::timeout(timeout, ask_at_length(&target.url, permit)).await.unwrap_or_else(|_| Err(format!("nothing within {timeout:?}")))
}

async fn ask_at_length(url: &str, permit: OwnedSemaphorePermit) -> Result<u16, String> {
    let uri: Uri = url.parse().map_err(|error| format!("{error}"))?;
    let host = uri.host().ok_or("no host")?.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = uri.port_u16().unwrap_or(80);
    // A thread looks the name up, and nobody can stop it: for as long as it does, the namespace has one place less.
    let name = host.clone();
    let lookup = async move { (tokio::net::lookup_host((name.as_str(), port)).await.map(Iterator::collect::<Vec<_>>), permit) };
    let (found, _permit) = tokio::spawn(lookup).await.map_err(|error| error.to_string())?;
    let found = found.map_err(|error| error.to_string())?;
    let (allowed, refused): (Vec<_>, Vec<_>) = found.into_iter().partition(|address| may_be_asked(address.ip()));
    if allowed.is_empty() && !refused.is_empty() {
        return Err("addresses of the operator's own machine, of its link and of the cloud's metadata are not asked".into());
    }
    let stream = connect(&allowed).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let authority = uri.authority().map_or(host, ToString::to_string);
    let path = uri.path_and_query().map_or("/", hyper::http::uri::PathAndQuery::as_str);
    let request = Request::get(path)
        .header(HOST, authority)
        .header(USER_AGENT, "ingress-daemonset-operator")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let answer = async { sender.send_request(request).await.map(|response| response.status().as_u16()).map_err(|error| error.to_string()) };
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection is driven here; the answer may be complete when it ends.
        _ = connection => answer.await,
    }
}

async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, String> {
    TcpStream::connect(addresses).await.map_err(|error| error.to_string())
}

/// Where clouds answer machines about themselves, credentials included, beside 169.254.169.254: Alibaba, Azure, Oracle, and by IPv6 Amazon
/// (machines, and pods of EKS), Google, Oracle and Scaleway.
const METADATA: [IpAddr; 8] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
];

/// What a network translates to IPv4 is asked there: by the prefix of RFC 6052, or of RFC 8215.
fn translated(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if address.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] || address.segments()[..3] == [0x64, 0xff9b, 1] => {
            let [.., a, b, c, d] = address.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        other => other,
    }
}

/// Who may make gates must not reach by them what answers only to the machine that the operator runs on, or to its link, as the
/// metadata of a cloud does.
fn may_be_asked(address: IpAddr) -> bool {
    let address = translated(address);
    if METADATA.contains(&address) {
        return false;
    }
    match address {
        IpAddr::V4(address) => !(address.is_loopback() || address.is_link_local() || address.is_unspecified() || address.is_multicast()),
        IpAddr::V6(address) => {
            !(address.is_loopback() || address.is_unicast_link_local() || address.is_unspecified() || address.is_multicast())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_the_operators_machine_nor_its_link_is_asked() {
        for (address, asked) in [
            ("127.0.0.1", false),
            ("169.254.169.254", false),
            ("::ffff:169.254.169.254", false),
            ("0.0.0.0", false),
            ("::1", false),
            ("fe80::1", false),
            ("64:ff9b::169.254.169.254", false),
            ("64:ff9b::7f00:1", false),
            ("64:ff9b:1::169.254.169.254", false),
            ("64:ff9b::8.8.8.8", true),
            ("fd00:ec2::23", false),
            ("fd20:ce::254", false),
            ("fd00:c1::a9fe:a9fe", false),
            ("fd00:42::42", false),
            ("100.100.100.200", false),
            ("168.63.129.16", false),
            ("::ffff:192.0.0.192", false),
            ("fd00:ec2::254", false),
            ("100.100.100.201", true),
            ("10.0.0.1", true),
            ("198.18.1.1", true),
            ("fd00::1", true),
        ] {
            assert_eq!(may_be_asked(address.parse().unwrap()), asked, "{address}");
        }
    }

    #[tokio::test]
    async fn a_server_on_the_operators_own_machine_is_not_asked() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let places = Arc::new(Semaphore::new(1));
        for host in ["127.0.0.1", "localhost", "0.0.0.0"] {
            let target = Target { namespace: "a".into(), url: format!("http://{host}:{port}/"), period: 1_000, timeout: 5_000 };
            let permit = Arc::clone(&places).acquire_owned().await.unwrap();
            let refused = ask(&target, permit).await.unwrap_err();
            assert!(refused.contains("own machine"), "{host}: {refused}");
        }
        let connected = tokio::time::timeout(Duration::ZERO, listener.accept()).await;
        assert!(connected.is_err(), "nobody has connected");
    }

    #[test]
    fn an_answering_server_counts_as_silent_only_after_three_failures() {
        let silence = || Err("no answer".to_owned());
        let mut answering = Answering::default();
        assert_eq!(answering.after(silence()), Some(silence()), "it never has answered");
        for _ in 0..2 {
            assert_eq!(answering.after(Ok(503)), Some(Ok(503)));
            assert_eq!([answering.after(silence()), answering.after(silence())], [None, None]);
        }
        assert_eq!(answering.after(silence()), Some(silence()));
    }
}
