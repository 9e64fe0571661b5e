//! Errors that a provider reports, sorted by what the caller does next.
//!
//! What matters is found anywhere in the chain of causes: an error that wraps "not found" is one.
//!
//! ```
//! use virtual_kubelet::errdefs::{ProviderError, is_invalid_input, is_not_found};
//!
//! let error = ProviderError::Other(anyhow::Error::new(ProviderError::not_found("pod web/a")).context("stopping it"));
//! assert!(error.is_not_found() && !error.is_invalid_input());
//! // Any error may be said to mean that something does not exist, and keeps its own text.
//! let error = ProviderError::as_not_found(std::io::Error::other("no such container"));
//! assert!(is_not_found(&error));
//! assert_eq!(error.to_string(), "no such container");
//! ```

use std::error::Error;

/// An error of a provider.
///
/// ```
/// use virtual_kubelet::errdefs::ProviderError;
///
/// let unknown = ProviderError::not_found("pod web/a");
/// assert!(unknown.is_not_found());
/// assert_eq!((unknown.http_status(), unknown.to_string().as_str()), (404, "not found: pod web/a"));
///
/// let refused = ProviderError::invalid_input("no GPU here");
/// assert!(refused.is_invalid_input() && matches!(refused, ProviderError::InvalidInput(_)));
///
/// // Errors of others keep their text and their causes.
/// let number = "many".parse::<u32>().unwrap_err();
/// assert_eq!(ProviderError::as_invalid_input(number).http_status(), 400);
/// assert_eq!(ProviderError::as_not_found(std::io::Error::other("no such container")).http_status(), 404);
/// assert_eq!(ProviderError::Other(anyhow::anyhow!("the disk is full")).http_status(), 500);
/// ```
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The thing asked for is unknown to the provider; deleting it counts as done.
    #[error("not found: {0}")]
    NotFound(String),
    /// The request can never succeed as it stands; repeating it unchanged is useless.
    #[error("invalid input: {0}")]
    InvalidInput(String),
    /// Anything else: retried for ever with capped back-off, unless a cause of it is one of the above.
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

/// An error that somebody said to be of a kind; its text stays.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
struct Marked {
    kind: Kind,
    source: Box<dyn Error + Send + Sync>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    NotFound,
    InvalidInput,
}

impl ProviderError {
    /// The thing asked for is unknown.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::NotFound(message.into())
    }

    /// The request can never succeed as it stands.
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::InvalidInput(message.into())
    }

    /// `error` means that the thing asked for is unknown.
    pub fn as_not_found(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Other(anyhow::Error::new(Marked { kind: Kind::NotFound, source: error.into() }))
    }

    /// `error` means that the request can never succeed as it stands.
    pub fn as_invalid_input(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Other(anyhow::Error::new(Marked { kind: Kind::InvalidInput, source: error.into() }))
    }

    /// Whether the thing asked for is unknown.
    pub fn is_not_found(&self) -> bool {
        is_not_found(self)
    }

    /// Whether repeating the request unchanged is useless.
    pub fn is_invalid_input(&self) -> bool {
        is_invalid_input(self)
    }

    /// The HTTP status with which an API says it: 404, 400 or 500.
    pub fn http_status(&self) -> u16 {
        match kind(self) {
            Some(Kind::NotFound) => 404,
            Some(Kind::InvalidInput) => 400,
            None => 500,
        }
    }
}

/// Whether `error` or one of its causes says that something does not exist; an answer 404 of the API server does.
pub fn is_not_found(error: &(dyn Error + 'static)) -> bool {
    kind(error) == Some(Kind::NotFound)
}

/// Whether `error` or one of its causes says that a request can never succeed as it stands.
///
/// ```
/// use virtual_kubelet::errdefs::{ProviderError, is_invalid_input};
///
/// assert!(is_invalid_input(&ProviderError::invalid_input("no GPU here")));
/// assert!(!is_invalid_input(&std::io::Error::other("the disk is full")));
/// ```
pub fn is_invalid_input(error: &(dyn Error + 'static)) -> bool {
    kind(error) == Some(Kind::InvalidInput)
}

/// The outermost kind in the chain of causes.
fn kind(error: &(dyn Error + 'static)) -> Option<Kind> {
    let mut next = Some(error);
    while let Some(error) = next {
        match error.downcast_ref::<ProviderError>() {
            Some(ProviderError::NotFound(_)) => return Some(Kind::NotFound),
            Some(ProviderError::InvalidInput(_)) => return Some(Kind::InvalidInput),
            // Itself part of the chain, which its own `source` would skip.
            Some(ProviderError::Other(inner)) => return kind(inner.as_ref()),
            None => {}
        }
        if let Some(marked) = error.downcast_ref::<Marked>() {
            return Some(marked.kind);
        }
        match error.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) if status.code == 404 => return Some(Kind::NotFound),
            _ => next = error.source(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Box<dyn Error + Send + Sync>);

    fn other(error: impl Error + Send + Sync + 'static) -> ProviderError {
        ProviderError::Other(anyhow::Error::new(error))
    }

    #[test]
    fn an_error_has_only_the_kind_it_was_made_with() {
        assert!(ProviderError::not_found("a").is_not_found());
        assert!(!ProviderError::not_found("a").is_invalid_input());
        assert!(ProviderError::invalid_input("a").is_invalid_input());
        assert!(!ProviderError::invalid_input("a").is_not_found());
        let plain = other(std::io::Error::other("a"));
        assert!(!plain.is_not_found() && !plain.is_invalid_input());
    }

    #[test]
    fn a_kind_is_found_through_every_way_of_wrapping() {
        for wrapped in [
            ProviderError::as_not_found("gone"),
            ProviderError::as_not_found(Outer("gone".into())),
            other(Outer(Box::new(ProviderError::not_found("gone")))),
            other(Outer(Box::new(Outer(Box::new(ProviderError::as_not_found("gone")))))),
            ProviderError::Other(anyhow::Error::new(ProviderError::not_found("gone")).context("a").context("b")),
        ] {
            assert!(wrapped.is_not_found() && !wrapped.is_invalid_input(), "{wrapped:?}");
            assert_eq!(wrapped.http_status(), 404);
        }
        for wrapped in [
            ProviderError::as_invalid_input("wrong"),
            other(Outer(Box::new(ProviderError::invalid_input("wrong")))),
            ProviderError::Other(anyhow::Error::new(ProviderError::as_invalid_input("wrong")).context("a")),
        ] {
            assert!(wrapped.is_invalid_input() && !wrapped.is_not_found(), "{wrapped:?}");
            assert_eq!(wrapped.http_status(), 400);
        }
    }

    #[test]
    fn the_outer_of_two_kinds_counts() {
        let error = ProviderError::as_invalid_input(Outer(Box::new(ProviderError::not_found("gone"))));
        assert!(error.is_invalid_input() && !error.is_not_found());
    }

    #[test]
    fn a_404_of_the_api_server_is_not_found() {
        let answer = |code| kube::Error::Api(Box::new(kube::core::Status::failure("", "").with_code(code)));
        assert!(other(answer(404)).is_not_found());
        assert!(!other(answer(409)).is_not_found());
        assert_eq!(other(answer(409)).http_status(), 500);
    }

    #[test]
    fn wrapping_keeps_the_text_and_the_cause() {
        let error = ProviderError::as_not_found(Outer("inner".into()));
        assert_eq!(error.to_string(), "outer");
        let ProviderError::Other(error) = error else { panic!("a marked error is one of the others") };
        assert_eq!(error.chain().last().map(ToString::to_string).as_deref(), Some("inner"));
    }
}
