//! Requests to the API server with a deadline each.

use std::future::Future;
use std::time::Duration;

/// Longest wait for one answer. A request on a connection that died silently ends here, and its
/// connection with it.
///
/// ```
/// use virtual_kubelet::api_call::TIMEOUT;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// // A request to somebody else, with the same patience.
/// let answer = tokio::time::timeout(TIMEOUT, std::future::pending::<()>()).await;
/// assert!(answer.is_err());
/// # }
/// ```
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// A failed request, sorted by what the caller does next.
///
/// ```
/// use virtual_kubelet::api_call::ApiCallError;
///
/// let answer = |code| kube::Error::Api(Box::new(kube::core::Status::failure("told why", "").with_code(code)));
/// assert!(matches!(ApiCallError::from(answer(409)), ApiCallError::Conflict(_)));
/// assert!(matches!(ApiCallError::from(answer(503)), ApiCallError::Transient(_)));
/// assert_eq!(ApiCallError::from(answer(404)).to_string(), "not found: told why");
/// ```
#[derive(Debug, thiserror::Error)]
pub enum ApiCallError {
    /// The object does not exist (404).
    #[error("not found: {0}")]
    NotFound(String),
    /// The object is another one, or was changed meanwhile, or exists already (409).
    #[error("conflict: {0}")]
    Conflict(String),
    /// Not allowed (401, 403). For a node this may be a moment's lag of the node authorizer.
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// The server refuses the content (400, 422).
    #[error("invalid: {0}")]
    Invalid(String),
    /// The server was not reached, or answered with a fault of its own.
    #[error("transient: {0}")]
    Transient(String),
}

impl From<kube::Error> for ApiCallError {
    fn from(error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) => match status.code {
                404 => Self::NotFound(status.message.clone()),
                409 => Self::Conflict(status.message.clone()),
                401 | 403 => Self::Forbidden(status.message.clone()),
                400 | 422 => Self::Invalid(status.message.clone()),
                _ => Self::Transient(error.to_string()),
            },
            _ => Self::Transient(error.to_string()),
        }
    }
}

/// Awaits `request`, at most [`TIMEOUT`] long; without an answer by then it is [`ApiCallError::Transient`].
///
/// ```no_run
/// # use k8s_openapi::api::core::v1::Pod;
/// # use virtual_kubelet::api_call::{ApiCallError, within};
/// # async fn example(pods: kube::Api<Pod>) -> Result<(), ApiCallError> {
/// match within(pods.get("a")).await {
///     Err(ApiCallError::NotFound(_)) => println!("there is none"),
///     answer => drop(answer?),
/// }
/// # Ok(())
/// # }
/// ```
pub async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, ApiCallError> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => answer.map_err(ApiCallError::from),
        Err(_) => Err(ApiCallError::Transient(format!("no answer within {} s", TIMEOUT.as_secs()))),
    }
}

/// Delay before attempt `failures + 1`: `first` doubled per failure, never above `cap`. Without a failure it is `first` too.
///
/// ```
/// use std::time::Duration;
/// use virtual_kubelet::api_call::retry_delay;
///
/// let delay = |failures| retry_delay(failures, Duration::from_secs(1), Duration::from_secs(30)).as_secs();
/// assert_eq!([1, 2, 3, 9].map(delay), [1, 2, 4, 30]);
/// ```
pub fn retry_delay(failures: u32, first: Duration, cap: Duration) -> Duration {
    first.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1))).min(cap)
}

/// Counts recoveries of the connection to the API server, so that watches whose connection died
/// silently are opened anew at once instead of after TCP's own patience. All controllers of a program share one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let recoveries = virtual_kubelet::api_call::Recoveries::default();
/// let mut recovered = recoveries.subscribe();
/// recoveries.report();
/// assert!(recovered.changed().await.is_ok());
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Recoveries(tokio::sync::watch::Sender<u64>);

impl Default for Recoveries {
    fn default() -> Self {
        Self(tokio::sync::watch::Sender::new(0))
    }
}

impl Recoveries {
    /// Reports that the server answers again after it did not.
    pub fn report(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// A receiver that changes at each recovery.
    pub fn subscribe(&self) -> tokio::sync::watch::Receiver<u64> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_retry_delay_doubles_up_to_the_cap() {
        let (first, cap) = (Duration::from_millis(250), Duration::from_secs(30));
        assert_eq!(retry_delay(1, first, cap), first);
        assert_eq!(retry_delay(2, first, cap), first * 2);
        assert_eq!(retry_delay(200, first, cap), cap);
    }
}
