//! Errors of a node controller.

use super::lease::ErrConflictingLeaseControllerConfiguration;
use crate::api_call::ApiCallError;

/// Why a node controller cannot be made, or could not start.
///
/// ```
/// use virtual_kubelet::node::{ErrConflictingLeaseControllerConfiguration, NodeControllerError};
///
/// /// Whether it is worth while to try the same again.
/// fn is_repairable(error: &NodeControllerError) -> bool {
///     match error {
///         NodeControllerError::ConflictingLease(_) | NodeControllerError::InvalidOption(_) | NodeControllerError::Refused(_) => false,
///         NodeControllerError::Ping(_) => true,
///     }
/// }
///
/// assert!(is_repairable(&NodeControllerError::Ping("connection refused".into())));
/// assert!(!is_repairable(&ErrConflictingLeaseControllerConfiguration.into()));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum NodeControllerError {
    /// More than one option configures the lease.
    #[error("error applying node option: {0}")]
    ConflictingLease(#[from] ErrConflictingLeaseControllerConfiguration),
    /// An option makes no sense.
    #[error("error applying node option: {0}")]
    InvalidOption(String),
    /// The provider's first ping failed.
    #[error("the node's provider does not answer: {0}")]
    Ping(String),
    /// The API server refuses the node; repeating does not help.
    #[error("registering the node: {0}")]
    Refused(#[source] ApiCallError),
}
