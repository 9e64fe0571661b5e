use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::*;

#[derive(Clone, Default)]
struct Fake {
    tokens: Arc<AtomicUsize>,
    decisions: Arc<AtomicUsize>,
    broken: bool,
}

impl Reviews for Fake {
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, String>> {
        self.tokens.fetch_add(1, SeqCst);
        let user = (token == "good").then(|| User { name: "jo".into(), ..User::default() });
        Box::pin(std::future::ready(Ok(user)))
    }

    fn allowed<'a>(&'a self, user: &'a User, access: &'a Access) -> BoxFuture<'a, Result<bool, String>> {
        self.decisions.fetch_add(1, SeqCst);
        let answer = if self.broken { Err("no API".into()) } else { Ok(user.name == "jo" && access.verb == "get") };
        Box::pin(std::future::ready(answer))
    }
}

#[test]
fn path_and_method_decide_the_subresource_and_verb() {
    let of = |method: Method, path: &str| {
        let access = access(&method, path);
        (access.verb, access.subresource)
    };
    assert_eq!(of(Method::GET, "/stats/summary"), ("get", "stats"));
    assert_eq!(of(Method::GET, "/metrics/resource"), ("get", "metrics"));
    assert_eq!(of(Method::GET, "/logs/"), ("get", "log"));
    assert_eq!(of(Method::POST, "/exec/a/b/c"), ("create", "proxy"));
    assert_eq!(of(Method::GET, "/statsomething"), ("get", "proxy"));
    assert_eq!(of(Method::PUT, "/"), ("update", "proxy"));
    assert_eq!(of(Method::PATCH, "/"), ("patch", "proxy"));
    assert_eq!(of(Method::DELETE, "/"), ("delete", "proxy"));
}

#[tokio::test(start_paused = true)]
async fn answers_of_the_api_server_are_remembered_for_their_time() {
    let fake = Fake::default();
    let auth = WebhookAuth::new(fake.clone());
    let (get, post) = (access(&Method::GET, "/pods"), access(&Method::POST, "/pods"));
    for _ in 0..3 {
        assert!(auth.check(None, Some("good"), &get).await.is_ok());
        assert!(matches!(auth.check(None, Some("good"), &post).await, Err(Refusal::Forbidden(_))));
        assert_eq!(auth.check(None, Some("bad"), &get).await, Err(Refusal::Unauthenticated));
        assert_eq!(auth.check(None, None, &get).await, Err(Refusal::Unauthenticated));
    }
    assert_eq!((fake.tokens.load(SeqCst), fake.decisions.load(SeqCst)), (2, 2));
    tokio::time::advance(DENIED_KNOWN + Duration::from_secs(1)).await;
    let _ = (auth.check(None, Some("good"), &get).await, auth.check(None, Some("good"), &post).await);
    assert_eq!((fake.tokens.load(SeqCst), fake.decisions.load(SeqCst)), (2, 3));
    tokio::time::advance(TOKEN_KNOWN).await;
    let _ = auth.check(None, Some("good"), &get).await;
    assert_eq!((fake.tokens.load(SeqCst), fake.decisions.load(SeqCst)), (3, 3));
    tokio::time::advance(ALLOWED_KNOWN).await;
    let _ = auth.check(None, Some("good"), &get).await;
    assert_eq!((fake.tokens.load(SeqCst), fake.decisions.load(SeqCst)), (4, 4));
}

#[tokio::test]
async fn what_cannot_be_found_out_is_refused_and_not_remembered() {
    let fake = Fake { broken: true, ..Fake::default() };
    let auth = WebhookAuth::new(fake.clone());
    for _ in 0..2 {
        assert!(matches!(auth.check(None, Some("good"), &access(&Method::GET, "/pods")).await, Err(Refusal::Unknown(_))));
    }
    assert_eq!(fake.decisions.load(SeqCst), 2);
}

#[test]
fn a_client_certificate_names_its_user_and_groups() {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "kube-apiserver-kubelet-client");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    let der = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
    let user = certificate_user(der.der()).unwrap();
    assert_eq!((user.name.as_str(), user.groups), ("kube-apiserver-kubelet-client", vec!["system:masters".to_owned()]));
    assert_eq!(certificate_user(b"no certificate"), None);
}
