//! How the body of an answer gets to the operator.

use std::time::Duration;

use futures::{StreamExt, stream};
use http_body_util::{BodyExt, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Bytes;
use kube::client::Body;
use tokio::sync::watch;

/// Frames that may be under way at once when each is delayed.
const UNDER_WAY: usize = 4096;

/// Passes a body on, each piece so much later, until watches of this number are silenced: then neither a piece nor the
/// end comes any more.
pub(super) fn delivered(body: Body, delay: Duration, number: u64, silent_below: watch::Receiver<u64>) -> UnsyncBoxBody<Bytes, kube::Error> {
    let delayed = BodyStream::new(body)
        .map(move |frame| async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            frame
        })
        .buffered(UNDER_WAY);
    let gated = stream::unfold((Box::pin(delayed), silent_below), move |(mut frames, silent_below)| async move {
        let next = frames.next().await;
        if number < *silent_below.borrow() {
            std::future::pending::<()>().await;
        }
        next.map(|frame| (frame, (frames, silent_below)))
    });
    StreamBody::new(gated).boxed_unsync()
}
