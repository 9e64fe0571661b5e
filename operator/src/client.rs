//! What every request to the API server goes through.

use crate::{trim::trim, watch::be_recent};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{self, Bytes};
use kube::client::{Body, ClientBuilder};
use std::time::Duration;
use tower::{
    BoxError, Service,
    timeout::{Timeout, TimeoutLayer},
    util::{MapRequest, MapRequestLayer, MapResponse, MapResponseLayer},
};

/// A service with the layers of this module.
pub type Layered<S, B> = MapRequest<Timeout<Trimming<S, B>>, fn(Request<Body>) -> Request<Body>>;
/// A service whose answers are [trimmed](crate::trim).
pub type Trimming<S, B> = MapResponse<S, Trim<B>>;
/// What is left of an answer.
pub type Trim<B> = fn(Response<B>) -> Response<UnsyncBoxBody<Bytes, BoxError>>;

/// Adds to a client that it waits for the beginning of an answer for `patience` at most, and that streams of all objects are no older
/// than the request for them. Of each answer there is what `trim` leaves.
pub fn layered<S, B>(builder: ClientBuilder<S>, patience: Duration, trim: Trim<B>) -> ClientBuilder<Layered<S, B>>
where
    S: Service<Request<Body>, Response = Response<B>>,
    B: body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let recent: fn(Request<Body>) -> Request<Body> = be_recent;
    let trimming = builder.with_layer(&MapResponseLayer::new(trim));
    trimming.with_layer(&TimeoutLayer::new(patience)).with_layer(&MapRequestLayer::new(recent))
}

/// Adds to a client that no object of a list or watch takes so much, or is nested so deep, that it does harm to who decodes it.
pub fn trimming<S, B>(builder: ClientBuilder<S>) -> ClientBuilder<Trimming<S, B>>
where
    S: Service<Request<Body>, Response = Response<B>>,
    B: body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let trim: Trim<B> = trim;
    builder.with_layer(&MapResponseLayer::new(trim))
}
