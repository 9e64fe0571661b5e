//! What may happen to a request.

use std::time::Duration;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It passes.
    None,
    /// It passes so much later; what a watch delivers, too.
    Delay(Duration),
    /// The API server does not get it; this status is answered, 429 with `Retry-After: 1`.
    Answer(u16),
    /// The API server answers, and so do we, with another status.
    AnswerInstead(u16),
    /// There is no answer, ever.
    Swallow(Reached),
    /// The connection is reset.
    Reset(Reached),
    /// There is no answer, and nothing else of this operator passes until [`super::FaultProxy::forget_operator`]: the moment to
    /// kill it, which [`super::FaultProxy::caught`] tells.
    Crash(Reached),
    /// It waits, also when nobody waits for its answer any more, until [`super::FaultProxy::let_go`]; [`super::FaultProxy::caught`]
    /// tells.
    Hold,
    /// A list is answered as of this resourceVersion, as by an API server that lags behind.
    Past(u64),
}

/// How far a request got whose answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// Not to the API server.
    Nothing,
    /// The API server has carried it out.
    ApiServer,
}
