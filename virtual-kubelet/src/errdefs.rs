//! Errors that a provider reports, sorted by what the caller does next.

/// An error of a provider.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The thing asked for is unknown to the provider; deleting it counts as done.
    #[error("not found: {0}")]
    NotFound(String),
    /// The request can never succeed as it stands; repeating it unchanged is useless.
    #[error("invalid input: {0}")]
    InvalidInput(String),
    /// Anything else: retried for ever with capped back-off.
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl ProviderError {
    /// Whether the thing asked for is unknown.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }

    /// Whether repeating the request unchanged is useless.
    pub fn is_invalid_input(&self) -> bool {
        matches!(self, Self::InvalidInput(_))
    }
}
