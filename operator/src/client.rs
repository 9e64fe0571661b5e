//! What every request to the API server goes through.

use crate::watch::be_recent;
use http::Request;
use kube::client::{Body, ClientBuilder};
use std::time::Duration;
use tower::{
    timeout::{Timeout, TimeoutLayer},
    util::{MapRequest, MapRequestLayer},
};

/// A service with the layers of this module.
pub type Layered<S> = MapRequest<Timeout<S>, fn(Request<Body>) -> Request<Body>>;

/// Adds to a client that it waits for the beginning of an answer for `patience` at most, and that streams of all objects are no older
/// than the request for them.
pub fn layered<S>(builder: ClientBuilder<S>, patience: Duration) -> ClientBuilder<Layered<S>> {
    let recent: fn(Request<Body>) -> Request<Body> = be_recent;
    builder.with_layer(&TimeoutLayer::new(patience)).with_layer(&MapRequestLayer::new(recent))
}
