//! The observer's watches of nodes and pods are asked for in protobuf, and given to their readers as JSON of the fields that are read.
//!
//! There are thousands of either. The API server writes each event once for all who want one encoding, and its own controllers want
//! protobuf: what is written as JSON is written for the operator alone. An API server that answers in JSON, or in protobuf that cannot be
//! read, is left to JSON. Nothing here knows what a field means.

mod messages;
#[cfg(test)]
mod tests;

use futures::{StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use k8s_openapi::api::core::v1;
use kube::{
    Client,
    client::Body,
    core::{Status, WatchEvent},
};
use messages::{OnlyMeta, RawExtension, StatusMessage, TypeMeta, Unknown};
use prost::{Message, bytes::Bytes};
use serde::Serialize;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio_util::{
    codec::{FramedRead, LengthDelimitedCodec},
    io::StreamReader,
};
use tower::{BoxError, service_fn};

/// What is asked for; Kubernetes' own clients ask so.
const ACCEPT: HeaderValue = HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch,application/json");
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// What is before every object.
const MAGIC: &[u8] = b"k8s\0";
/// The longest event, in bytes: many times the longest object that etcd takes.
const LONGEST: usize = 64 << 20;

type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// A client whose watches of Nodes and Pods have the fields of [`Partial`](super::Partial) objects alone. Other requests are as ever.
pub(super) fn client(client: &Client) -> Client {
    let unreadable = Arc::new(AtomicBool::new(false));
    let namespace = client.default_namespace().to_owned();
    let client = client.clone();
    let send = move |request| send(client.clone(), request, Arc::clone(&unreadable));
    Client::new(service_fn(send), namespace)
}

async fn send(client: Client, mut request: Request<Body>, unreadable: Arc<AtomicBool>) -> kube::Result<Response<ResponseBody>> {
    let path = request.uri().path().to_owned();
    if is_watch(request.uri()) && !unreadable.load(Ordering::Relaxed) {
        request.headers_mut().insert(header::ACCEPT, ACCEPT);
    }
    let (mut head, body) = client.send(request).await?.into_parts();
    if !is_protobuf(&head.headers) {
        return Ok(Response::from_parts(head, body.map_err(Into::into).boxed_unsync()));
    }
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    head.headers.remove(header::CONTENT_LENGTH);
    let give_up = move |error: &dyn std::error::Error| {
        tracing::warn!(path, %error, "the API server's protobuf cannot be read; asking for JSON from now on");
        unreadable.store(true, Ordering::Relaxed);
    };
    let body = if head.status.is_success() { events(body, give_up) } else { refusal(body, head.status, give_up).await? };
    Ok(Response::from_parts(head, body))
}

/// Of whole Nodes or Pods, as they are known here.
fn is_watch(uri: &Uri) -> bool {
    let kind = uri.path().rsplit('/').next();
    matches!(kind, Some("nodes" | "pods")) && uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"))
}

fn is_protobuf(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| value.starts_with(PROTOBUF))
}

/// Each event as a line of JSON.
fn events(body: Body, give_up: impl Fn(&dyn std::error::Error) + Send + 'static) -> ResponseBody {
    let reader = StreamReader::new(body.into_data_stream().map_err(io::Error::other));
    let codec = LengthDelimitedCodec::builder().max_frame_length(LONGEST).new_codec();
    let lines = FramedRead::new(reader, codec).map(move |frame| {
        let line = frame.and_then(|frame| line(frame.freeze()).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)));
        // A connection that breaks off is of another kind.
        if let Some(error) = line.as_ref().err().filter(|error| error.kind() == io::ErrorKind::InvalidData) {
            give_up(error);
        }
        line.map(Frame::data)
    });
    StreamBody::new(lines.map_err(BoxError::from)).boxed_unsync()
}

/// Why the API server refuses, as JSON.
async fn refusal(body: Body, code: StatusCode, give_up: impl Fn(&dyn std::error::Error)) -> kube::Result<ResponseBody> {
    let body = body.collect().await?.to_bytes();
    let status = unwrap(&body).and_then(|(_, raw)| Ok(Status::from(StatusMessage::decode(raw)?)));
    let status = status.unwrap_or_else(|error| {
        give_up(&error);
        Status::failure(&format!("the API server's answer cannot be read: {error}"), "").with_code(code.as_u16())
    });
    let json = serde_json::to_vec(&status).map_err(kube::Error::SerdeError)?;
    Ok(Full::from(json).map_err(|never| match never {}).boxed_unsync())
}

/// Why a message cannot be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error(transparent)]
    Malformed(#[from] prost::DecodeError),
    #[error("an object without its kind")]
    Bare,
    #[error("an event of type {0:?} with an object of kind {1:?}")]
    Unknown(String, String),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// What an object is, and its own bytes.
fn unwrap(bytes: &Bytes) -> Result<(TypeMeta, Bytes), Unreadable> {
    if !bytes.starts_with(MAGIC) {
        return Err(Unreadable::Bare);
    }
    let unknown = Unknown::decode(bytes.slice(MAGIC.len()..))?;
    Ok((unknown.type_meta.ok_or(Unreadable::Bare)?, unknown.raw))
}

fn line(frame: Bytes) -> Result<Bytes, Unreadable> {
    // Whether events themselves are wrapped has changed from version to version.
    let frame = if frame.starts_with(MAGIC) { unwrap(&frame)?.1 } else { frame };
    let event = messages::WatchEvent::decode(frame)?;
    let RawExtension { raw } = event.object.ok_or(Unreadable::Bare)?;
    let (types, raw) = unwrap(&raw)?;
    match (event.type_.as_str(), types.kind.as_str()) {
        ("BOOKMARK", _) => json(&WatchEvent::<()>::Bookmark(OnlyMeta::decode(raw)?.bookmark(types))),
        ("ERROR", "Status") => json(&WatchEvent::<()>::Error(Status::from(StatusMessage::decode(raw)?).boxed())),
        (change, "Node") => json(&changed(change, v1::Node::from(messages::Node::decode(raw)?), &types)?),
        (change, "Pod") => json(&changed(change, v1::Pod::from(messages::Pod::decode(raw)?), &types)?),
        (change, kind) => Err(Unreadable::Unknown(change.to_owned(), kind.to_owned())),
    }
}

fn changed<K>(change: &str, object: K, types: &TypeMeta) -> Result<WatchEvent<K>, Unreadable> {
    match change {
        "ADDED" => Ok(WatchEvent::Added(object)),
        "MODIFIED" => Ok(WatchEvent::Modified(object)),
        "DELETED" => Ok(WatchEvent::Deleted(object)),
        _ => Err(Unreadable::Unknown(change.to_owned(), types.kind.clone())),
    }
}

fn json<K: Serialize>(event: &WatchEvent<K>) -> Result<Bytes, Unreadable> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    Ok(line.into())
}
