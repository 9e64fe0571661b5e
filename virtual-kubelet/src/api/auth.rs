//! Who asks, and whether that is allowed.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::api_call::within;

/// How long it is remembered whose a token is.
const TOKEN_KNOWN: Duration = Duration::from_mins(2);
/// How long a permission is remembered.
const ALLOWED_KNOWN: Duration = Duration::from_mins(5);
/// How long a refusal is remembered.
const DENIED_KNOWN: Duration = Duration::from_secs(30);
/// Most things remembered of each kind.
const REMEMBERED: usize = 4096;

/// The certificate that a client proved to have, verified by the TLS handshake.
///
/// [`serve`](super::serve) puts it on each request. Another server does so itself:
///
/// ```
/// use std::sync::Arc;
///
/// use virtual_kubelet::api::PeerCertificate;
///
/// /// The router for one connection, whose client showed the certificate `der`.
/// fn known(router: axum::Router, der: &[u8]) -> axum::Router {
///     router.layer(axum::Extension(PeerCertificate(Arc::from(der))))
/// }
/// ```
#[derive(Clone, Debug)]
pub struct PeerCertificate(pub Arc<[u8]>);

/// Who asks.
///
/// ```
/// use virtual_kubelet::api::User;
///
/// let user = User { name: "kube-apiserver".into(), groups: vec!["system:masters".into()], ..User::default() };
/// assert_eq!(user.uid, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// Name.
    pub name: String,
    /// UID, where known.
    pub uid: Option<String>,
    /// Groups.
    pub groups: Vec<String>,
    /// What else the authenticator knows.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What is asked for, in terms of the API: a verb on a subresource of this node.
///
/// ```
/// use virtual_kubelet::api::Access;
///
/// // `kubectl top node` asks for this.
/// let stats = Access { verb: "get", subresource: "stats" };
/// // Commands, logs and port-forwards are all of `proxy`.
/// let exec = Access { verb: "create", subresource: "proxy" };
/// assert_ne!(stats, exec);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// Verb: `get`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    /// Subresource of `nodes`: `proxy`, `stats`, `metrics` or `log`.
    pub subresource: &'static str,
}

/// What a request asks for.
fn access(method: &Method, path: &str) -> Access {
    let verb = match method.as_str() {
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "get",
    };
    let below = |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let subresource = match () {
        () if below("/stats") => "stats",
        () if below("/metrics") => "metrics",
        () if below("/logs") => "log",
        () => "proxy",
    };
    Access { verb, subresource }
}

/// The user that a client certificate names: common name and organizations.
fn certificate_user(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok()).map(str::to_owned).collect();
    Some(User { name, groups, ..User::default() }).filter(|user| !user.name.is_empty())
}

/// Says who has a token and who may do what: the API server ([`ApiReviews`]), or what a test makes up. The error says why
/// that could not be found out.
///
/// ```
/// use futures::future::BoxFuture;
/// use virtual_kubelet::api::{Access, Refusal, Reviews, User, WebhookAuth};
///
/// /// One user, who may read.
/// struct Reader;
///
/// impl Reviews for Reader {
///     fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, String>> {
///         let user = (token == "s3cret").then(|| User { name: "reader".into(), ..User::default() });
///         Box::pin(async { Ok(user) })
///     }
///
///     fn allowed<'a>(&'a self, user: &'a User, access: &'a Access) -> BoxFuture<'a, Result<bool, String>> {
///         Box::pin(async move { Ok(user.name == "reader" && access.verb == "get") })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let auth = WebhookAuth::new(Reader);
/// let (read, write) = (Access { verb: "get", subresource: "stats" }, Access { verb: "create", subresource: "proxy" });
/// assert_eq!(auth.check(None, Some("s3cret"), &read).await.unwrap().name, "reader");
/// assert!(matches!(auth.check(None, Some("s3cret"), &write).await, Err(Refusal::Forbidden(_))));
/// assert_eq!(auth.check(None, Some("guessed"), &read).await, Err(Refusal::Unauthenticated));
/// # }
/// ```
pub trait Reviews: Send + Sync + 'static {
    /// Whose token it is, if anybody's.
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, String>>;

    /// Whether the user may have the access.
    fn allowed<'a>(&'a self, user: &'a User, access: &'a Access) -> BoxFuture<'a, Result<bool, String>>;
}

/// Asks by `TokenReview` and `SubjectAccessReview`.
///
/// ```no_run
/// # use std::sync::Arc;
/// use virtual_kubelet::api::{ApiReviews, Auth, WebhookAuth};
///
/// fn auth(client: kube::Client) -> Auth {
///     Auth::Webhook(Arc::new(WebhookAuth::new(ApiReviews { client, node: "n1".into() })))
/// }
/// ```
pub struct ApiReviews {
    /// Access with the right to create both.
    pub client: Client,
    /// The node, to which access is asked for; empty where all nodes are served: then access to all of them is.
    pub node: String,
}

impl Reviews for ApiReviews {
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, String>> {
        Box::pin(async move {
            // Its type differs between versions of the API.
            let review: TokenReview = serde_json::from_value(json!({ "spec": { "token": token } })).map_err(|error| error.to_string())?;
            let answer = within(Api::all(self.client.clone()).create(&PostParams::default(), &review)).await;
            let status = answer.map_err(|error| error.to_string())?.status.unwrap_or_default();
            let user = status.user.filter(|_| status.authenticated == Some(true));
            Ok(user.map(|user| User {
                name: user.username.unwrap_or_default(),
                uid: user.uid,
                groups: user.groups.unwrap_or_default(),
                extra: user.extra.unwrap_or_default(),
            }))
        })
    }

    fn allowed<'a>(&'a self, user: &'a User, access: &'a Access) -> BoxFuture<'a, Result<bool, String>> {
        Box::pin(async move {
            let attributes = ResourceAttributes {
                verb: Some(access.verb.into()),
                version: Some("v1".into()),
                resource: Some("nodes".into()),
                subresource: Some(access.subresource.into()),
                name: Some(self.node.clone()).filter(|node| !node.is_empty()),
                ..ResourceAttributes::default()
            };
            let spec = SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: user.uid.clone(),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            };
            let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
            let answer = within(Api::all(self.client.clone()).create(&PostParams::default(), &review)).await;
            let status = answer.map_err(|error| error.to_string())?.status.unwrap_or_default();
            Ok(status.allowed && status.denied != Some(true))
        })
    }
}

/// Answers that are remembered for a while.
struct Cache<K, V> {
    entries: Mutex<HashMap<K, (Instant, V)>>,
}

impl<K: Hash + Eq, V: Clone> Cache<K, V> {
    fn new() -> Self {
        Self { entries: Mutex::default() }
    }

    fn get(&self, key: &K) -> Option<V> {
        let entries = self.entries.lock();
        entries.get(key).filter(|(until, _)| *until > Instant::now()).map(|(_, value)| value.clone())
    }

    fn put(&self, key: K, value: V, time: Duration) {
        let mut entries = self.entries.lock();
        let now = Instant::now();
        if entries.len() >= REMEMBERED {
            entries.retain(|_, (until, _)| *until > now);
        }
        if entries.len() >= REMEMBERED {
            entries.clear();
        }
        entries.insert(key, (now + time, value));
    }
}

/// Why a request is refused.
///
/// ```
/// use axum::response::IntoResponse;
/// use virtual_kubelet::api::Refusal;
///
/// assert_eq!(Refusal::Unauthenticated.into_response().status(), 401);
/// assert_eq!(Refusal::Forbidden("Forbidden (user=a)".into()).into_response().status(), 403);
/// assert_eq!(Refusal::Unknown("no answer".into()).into_response().status(), 500);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody we know: 401.
    Unauthenticated,
    /// Somebody who may not: 403.
    Forbidden(String),
    /// It could not be found out: 500.
    Unknown(String),
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()),
            Self::Forbidden(text) => (StatusCode::FORBIDDEN, text),
            Self::Unknown(text) => (StatusCode::INTERNAL_SERVER_ERROR, text),
        }
        .into_response()
    }
}

/// Decides about requests: by certificate or token, then by asking whether the user may. Answers are remembered: whose a token is
/// for 2 minutes, a permission for 5 minutes, a refusal for 30 seconds.
///
/// ```no_run
/// use virtual_kubelet::api::{Access, ApiReviews, WebhookAuth};
///
/// # async fn example(client: kube::Client, token: &str) {
/// let auth = WebhookAuth::new(ApiReviews { client, node: "n1".into() });
/// match auth.check(None, Some(token), &Access { verb: "get", subresource: "stats" }).await {
///     Ok(user) => println!("{} may", user.name),
///     Err(refusal) => println!("no: {refusal:?}"),
/// }
/// # }
/// ```
pub struct WebhookAuth {
    reviews: Box<dyn Reviews>,
    tokens: Cache<[u8; 32], Option<User>>,
    decisions: Cache<(User, Access), bool>,
}

impl WebhookAuth {
    /// Asks `reviews` what it does not remember.
    pub fn new(reviews: impl Reviews) -> Self {
        Self { reviews: Box::new(reviews), tokens: Cache::new(), decisions: Cache::new() }
    }

    /// Whether a client with this certificate (DER) or token may have the access. A certificate that names a user counts; the token
    /// only without one.
    pub async fn check(&self, certificate: Option<&[u8]>, token: Option<&str>, access: &Access) -> Result<User, Refusal> {
        let user = match certificate.and_then(certificate_user) {
            Some(user) => user,
            None => self.token(token.ok_or(Refusal::Unauthenticated)?).await?,
        };
        let text =
            |what: &str| format!("{what} (user={}, verb={}, resource=nodes, subresource={})", user.name, access.verb, access.subresource);
        let key = (user.clone(), access.clone());
        let allowed = if let Some(known) = self.decisions.get(&key) {
            known
        } else {
            let allowed = self.reviews.allowed(&user, access).await.map_err(|error| {
                tracing::warn!(user = user.name, %error, "cannot check whether a user may use the kubelet API");
                Refusal::Unknown(text("Authorization error"))
            })?;
            self.decisions.put(key, allowed, if allowed { ALLOWED_KNOWN } else { DENIED_KNOWN });
            allowed
        };
        if allowed { Ok(user) } else { Err(Refusal::Forbidden(text("Forbidden"))) }
    }

    async fn token(&self, token: &str) -> Result<User, Refusal> {
        // Tokens themselves are not kept.
        let key: [u8; 32] = Sha256::digest(token).into();
        let user = if let Some(known) = self.tokens.get(&key) {
            known
        } else {
            let user = self.reviews.token(token).await.map_err(|error| {
                tracing::warn!(%error, "cannot check the token of a client of the kubelet API");
                Refusal::Unauthenticated
            })?;
            self.tokens.put(key, user.clone(), TOKEN_KNOWN);
            user
        };
        user.ok_or(Refusal::Unauthenticated)
    }
}

/// Who may use the API.
///
/// ```
/// use virtual_kubelet::api::{Auth, Reviews, WebhookAuth};
///
/// /// Whom `reviews` knows, or everybody.
/// fn auth(reviews: Option<impl Reviews>) -> Auth {
///     reviews.map_or(Auth::None, |reviews| Auth::Webhook(WebhookAuth::new(reviews).into()))
/// }
/// ```
#[derive(Clone, Default)]
pub enum Auth {
    /// Everybody, unknown. For tests.
    #[default]
    None,
    /// Whom the API server allows.
    Webhook(Arc<WebhookAuth>),
}

/// Lets requests through that are allowed: middleware for a router. What it needs to know of the connection is its
/// [`PeerCertificate`].
///
/// ```
/// use axum::{Router, middleware::from_fn_with_state};
/// use virtual_kubelet::api::{Auth, authorize};
///
/// fn guarded(router: Router, auth: Auth) -> Router {
///     router.layer(from_fn_with_state(auth, authorize))
/// }
/// ```
pub async fn authorize(State(auth): State<Auth>, request: Request, next: Next) -> Response {
    if let Auth::Webhook(auth) = &auth {
        let certificate = request.extensions().get::<PeerCertificate>().cloned();
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim).filter(|token| !token.is_empty());
        let access = access(request.method(), request.uri().path());
        if let Err(refusal) = auth.check(certificate.as_ref().map(|der| &*der.0), token, &access).await {
            return refusal.into_response();
        }
    }
    next.run(request).await
}

#[cfg(test)]
#[path = "auth_tests.rs"]
mod tests;
