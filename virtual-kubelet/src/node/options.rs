//! How a node controller works: the options of the original, with its defaults.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use super::error::NodeControllerError;
use super::lease::{DEFAULT_LEASE_DURATION, DEFAULT_RENEW_INTERVAL_FRACTION, ErrConflictingLeaseControllerConfiguration, ForeignHolder};
use crate::api_call::{ApiCallError, Recoveries};

/// Time between two pings, unless told otherwise; without a lease also between two writes of the status.
pub const DEFAULT_PING_INTERVAL: Duration = Duration::from_secs(10);
/// Time that a ping may take, unless told otherwise.
pub const DEFAULT_PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two writes of an unchanged status while a lease is kept, unless told otherwise.
pub const DEFAULT_STATUS_UPDATE_INTERVAL: Duration = Duration::from_mins(1);

/// Decides what becomes of a failed write of the status; see [`with_node_status_update_error_handler`], which takes any function: this is
/// how one is kept and handed on.
///
/// ```
/// use std::sync::Arc;
/// use virtual_kubelet::node::{ErrorHandler, NodeControllerOpt, with_node_status_update_error_handler};
///
/// /// The same for several nodes.
/// fn option(handler: ErrorHandler) -> NodeControllerOpt {
///     with_node_status_update_error_handler(move |error| handler(error))
/// }
/// let once_more: ErrorHandler = Arc::new(|_| Box::pin(async { Ok(()) }));
/// let options = [option(once_more.clone()), option(once_more)];
/// ```
pub type ErrorHandler = Arc<dyn Fn(ApiCallError) -> Pin<Box<dyn Future<Output = Result<(), ApiCallError>> + Send>> + Send + Sync>;

/// One option of a node controller. Where two set the same thing the last one wins, except for leases.
///
/// ```
/// use std::time::Duration;
/// use virtual_kubelet::node::{NodeControllerOpt, with_node_enable_lease_v1, with_node_ping_interval};
///
/// fn options(with_lease: bool) -> Vec<NodeControllerOpt> {
///     let mut options = vec![with_node_ping_interval(Duration::from_secs(5))];
///     if with_lease {
///         options.push(with_node_enable_lease_v1(Duration::ZERO));
///     }
///     options
/// }
/// assert_eq!(options(true).len(), 2);
/// ```
pub struct NodeControllerOpt(Box<Set>);

type Set = dyn FnOnce(&mut Settings) -> Result<(), NodeControllerError> + Send;

impl fmt::Debug for NodeControllerOpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeControllerOpt")
    }
}

/// How the lease is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseSettings {
    pub duration: Duration,
    pub renew_interval: Duration,
}

/// All options together.
#[derive(Clone)]
pub(super) struct Settings {
    pub ping_interval: Duration,
    pub ping_timeout: Duration,
    pub status_interval: Duration,
    pub lease: Option<LeaseSettings>,
    pub lease_client: Option<Api<Lease>>,
    pub foreign_holder: ForeignHolder,
    pub error_handler: Option<ErrorHandler>,
    pub reconcile_spec: bool,
    pub recoveries: Recoveries,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ping_interval: DEFAULT_PING_INTERVAL,
            ping_timeout: DEFAULT_PING_TIMEOUT,
            status_interval: DEFAULT_STATUS_UPDATE_INTERVAL,
            lease: None,
            lease_client: None,
            foreign_holder: ForeignHolder::default(),
            error_handler: None,
            reconcile_spec: false,
            recoveries: Recoveries::default(),
        }
    }
}

impl Settings {
    pub fn of(options: impl IntoIterator<Item = NodeControllerOpt>) -> Result<Self, NodeControllerError> {
        let mut settings = Self::default();
        for option in options {
            (option.0)(&mut settings)?;
        }
        Ok(settings)
    }

    /// Time between two writes of an unchanged status: without a lease they are the heartbeat.
    pub fn heartbeat(&self) -> Duration {
        if self.lease.is_some() { self.status_interval } else { self.ping_interval }
    }
}

/// Longer than any program runs: a time that ends would otherwise not be one that the clock can tell.
const LONGEST: Duration = Duration::from_hours(24 * 365);

fn option(set: impl FnOnce(&mut Settings) -> Result<(), NodeControllerError> + Send + 'static) -> NodeControllerOpt {
    NodeControllerOpt(Box::new(set))
}

/// Time between two pings of the provider; zero means [`DEFAULT_PING_INTERVAL`]. Without a lease, the status is written as
/// often.
///
/// ```
/// use std::time::Duration;
/// use virtual_kubelet::node::with_node_ping_interval;
///
/// // A provider whose pings cost something.
/// let option = with_node_ping_interval(Duration::from_secs(60));
/// ```
pub fn with_node_ping_interval(interval: Duration) -> NodeControllerOpt {
    option(move |settings| {
        settings.ping_interval = or_default(interval, DEFAULT_PING_INTERVAL).min(LONGEST);
        Ok(())
    })
}

/// Time after which a ping without an answer counts as failed; [`DEFAULT_PING_TIMEOUT`] when it is not given. Zero is
/// [`NodeControllerError::InvalidOption`].
///
/// ```
/// use std::time::Duration;
/// use virtual_kubelet::node::with_node_ping_timeout;
///
/// // A provider next door: what takes longer is broken.
/// let option = with_node_ping_timeout(Duration::from_secs(1));
/// ```
pub fn with_node_ping_timeout(timeout: Duration) -> NodeControllerOpt {
    option(move |settings| {
        if timeout.is_zero() {
            return Err(NodeControllerError::InvalidOption("the ping timeout must not be zero".into()));
        }
        settings.ping_timeout = timeout.min(LONGEST);
        Ok(())
    })
}

/// Time between two writes of an unchanged status while a lease is kept; zero means [`DEFAULT_STATUS_UPDATE_INTERVAL`].
/// Without a lease this has no effect.
///
/// ```
/// use std::time::Duration;
/// use virtual_kubelet::node::with_node_status_update_interval;
///
/// // A kubelet's `nodeStatusReportFrequency`.
/// let option = with_node_status_update_interval(Duration::from_secs(5 * 60));
/// ```
pub fn with_node_status_update_interval(interval: Duration) -> NodeControllerOpt {
    option(move |settings| {
        settings.status_interval = or_default(interval, DEFAULT_STATUS_UPDATE_INTERVAL).min(LONGEST);
        Ok(())
    })
}

/// Keeps a lease of this duration in whole seconds, renewed at a quarter of it; zero means [`DEFAULT_LEASE_DURATION`].
/// A part of a second is [`NodeControllerError::InvalidOption`].
///
/// A second option about the lease is [`ErrConflictingLeaseControllerConfiguration`].
///
/// ```
/// use std::time::Duration;
/// use virtual_kubelet::node::with_node_enable_lease_v1;
///
/// // 40 s, renewed every 10 s.
/// let usual = with_node_enable_lease_v1(Duration::ZERO);
/// // 20 s, renewed every 5 s: the control plane notices sooner.
/// let shorter = with_node_enable_lease_v1(Duration::from_secs(20));
/// ```
pub fn with_node_enable_lease_v1(duration: Duration) -> NodeControllerOpt {
    let duration = or_default(duration, DEFAULT_LEASE_DURATION);
    with_node_enable_lease_v1_with_renew_interval(duration, duration.mul_f64(DEFAULT_RENEW_INTERVAL_FRACTION))
}

/// Keeps a lease of this duration in whole seconds (zero means [`DEFAULT_LEASE_DURATION`]), renewed at this interval, which
/// must be shorter and not zero; anything else is [`NodeControllerError::InvalidOption`].
///
/// A second option about the lease is [`ErrConflictingLeaseControllerConfiguration`].
///
/// ```
/// use std::time::Duration;
/// use virtual_kubelet::node::with_node_enable_lease_v1_with_renew_interval;
///
/// // Seven renewals may fail.
/// let option = with_node_enable_lease_v1_with_renew_interval(Duration::from_secs(40), Duration::from_secs(5));
/// ```
pub fn with_node_enable_lease_v1_with_renew_interval(duration: Duration, renew_interval: Duration) -> NodeControllerOpt {
    option(move |settings| {
        if settings.lease.is_some() {
            return Err(ErrConflictingLeaseControllerConfiguration.into());
        }
        let duration = or_default(duration, DEFAULT_LEASE_DURATION);
        let invalid = |text: String| Err(NodeControllerError::InvalidOption(text));
        if duration.subsec_nanos() != 0 || i32::try_from(duration.as_secs()).is_err() {
            return invalid(format!("a lease must last whole seconds, not {duration:?}"));
        }
        if renew_interval.is_zero() || renew_interval >= duration {
            return invalid(format!("a lease of {duration:?} cannot be renewed every {renew_interval:?}"));
        }
        settings.lease = Some(LeaseSettings { duration, renew_interval });
        Ok(())
    })
}

/// Keeps the lease through this client and in its namespace, instead of in `kube-node-lease` through the controller's: with rights of its
/// own, or past what the Nodes' requests wait for. There is a lease only with one of the two options before.
///
/// ```no_run
/// use std::time::Duration;
///
/// use k8s_openapi::api::coordination::v1::Lease;
/// use kube::{Api, Client};
/// use virtual_kubelet::node::{NodeControllerOpt, with_node_enable_lease_v1, with_node_lease_client};
///
/// fn options(heartbeats: Client) -> [NodeControllerOpt; 2] {
///     let leases = Api::<Lease>::namespaced(heartbeats, "kube-node-lease");
///     [with_node_enable_lease_v1(Duration::ZERO), with_node_lease_client(leases)]
/// }
/// ```
pub fn with_node_lease_client(leases: Api<Lease>) -> NodeControllerOpt {
    option(move |settings| {
        settings.lease_client = Some(leases);
        Ok(())
    })
}

/// What is done about a lease that somebody else holds; [`ForeignHolder::TakeOver`] when it is not given.
///
/// ```
/// use virtual_kubelet::node::{ForeignHolder, with_node_lease_foreign_holder};
///
/// let option = with_node_lease_foreign_holder(ForeignHolder::Wait);
/// ```
pub fn with_node_lease_foreign_holder(policy: ForeignHolder) -> NodeControllerOpt {
    option(move |settings| {
        settings.foreign_holder = policy;
        Ok(())
    })
}

/// Is asked about each write of the status that failed after the registration. When it returns an error, that is the
/// write's; when it returns `Ok`, the write is tried once more, and the second failure is final. In either case the
/// controller goes on: to end it, cancel it. It is also asked, with [`ApiCallError::NotFound`], when the Node was deleted:
/// `Ok` registers it again, as happens without a handler, and an error leaves it deleted until the next write.
///
/// ```
/// use virtual_kubelet::api_call::ApiCallError;
/// use virtual_kubelet::node::with_node_status_update_error_handler;
/// # use tokio_util::sync::CancellationToken;
///
/// # let cancel = CancellationToken::new();
/// // A program that ends with its Node.
/// let option = with_node_status_update_error_handler(move |error| {
///     let cancel = cancel.clone();
///     async move {
///         if matches!(error, ApiCallError::NotFound(_)) {
///             cancel.cancel();
///         }
///         Err(error)
///     }
/// });
/// ```
pub fn with_node_status_update_error_handler<F>(handler: impl Fn(ApiCallError) -> F + Send + Sync + 'static) -> NodeControllerOpt
where
    F: Future<Output = Result<(), ApiCallError>> + Send + 'static,
{
    option(move |settings| {
        settings.error_handler = Some(Arc::new(move |error| Box::pin(handler(error))));
        Ok(())
    })
}

/// Also puts the node's taints and its `providerID` on a Node that exists already, and takes away taints that it put on
/// and has no more; those of others stay. Needs the right to patch Nodes, and an identity that the admission plugin
/// `NodeRestriction` does not keep from changing taints, as it keeps `system:node:<name>`. Without this option they are
/// written when the Node is created and never afterwards, as a kubelet does.
///
/// ```
/// use std::time::Duration;
/// use virtual_kubelet::node::{with_node_enable_lease_v1, with_node_reconcile_spec};
///
/// let options = [with_node_enable_lease_v1(Duration::ZERO), with_node_reconcile_spec()];
/// ```
pub fn with_node_reconcile_spec() -> NodeControllerOpt {
    option(|settings| {
        settings.reconcile_spec = true;
        Ok(())
    })
}

/// Shares the knowledge that the API server answers again, so that all watches of a program are opened anew then. With
/// [`NodeController::pods`](super::NodeController::pods) that is done already.
///
/// ```no_run
/// # use std::sync::Arc;
/// use virtual_kubelet::api_call::Recoveries;
/// use virtual_kubelet::node::{NodeController, with_recoveries};
/// use virtual_kubelet::pod::PodControllerConfig;
/// # use virtual_kubelet::node::NodeProvider;
///
/// # use k8s_openapi::api::core::v1::Node;
/// # fn example<N: NodeProvider, P>(client: kube::Client, thing: Arc<N>, provider: Arc<P>, node: Node) -> anyhow::Result<()> {
/// let recoveries = Recoveries::default();
/// let nodes = NodeController::new(client.clone(), thing, node, [with_recoveries(recoveries.clone())])?;
/// let mut config = PodControllerConfig::new(client, "n1", provider);
/// config.recoveries = recoveries;
/// # Ok(())
/// # }
/// ```
pub fn with_recoveries(recoveries: Recoveries) -> NodeControllerOpt {
    option(move |settings| {
        settings.recoveries = recoveries;
        Ok(())
    })
}

fn or_default(duration: Duration, default: Duration) -> Duration {
    if duration.is_zero() { default } else { duration }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn zero_means_the_default_and_of_two_the_last_wins() {
        let settings = Settings::of([
            with_node_ping_interval(SECOND),
            with_node_ping_interval(Duration::ZERO),
            with_node_status_update_interval(SECOND),
        ])
        .unwrap();
        assert_eq!(settings.ping_interval, Duration::from_secs(10));
        assert_eq!(settings.status_interval, SECOND);
        assert_eq!(Settings::of([]).unwrap().status_interval, Duration::from_mins(1));
    }

    #[test]
    fn a_lease_of_forty_seconds_is_renewed_every_ten() {
        let settings = Settings::of([with_node_enable_lease_v1(Duration::ZERO)]).unwrap();
        assert_eq!(settings.lease, Some(LeaseSettings { duration: SECOND * 40, renew_interval: SECOND * 10 }));
    }

    #[test]
    fn a_short_lease_renews_at_a_quarter_of_its_duration() {
        let settings = Settings::of([with_node_enable_lease_v1(SECOND * 3)]).unwrap();
        assert_eq!(settings.lease.unwrap().renew_interval, Duration::from_millis(750));
    }

    #[test]
    fn a_lease_configured_twice_is_a_conflict() {
        let twice = || [with_node_enable_lease_v1(SECOND * 40), with_node_enable_lease_v1_with_renew_interval(SECOND * 40, SECOND)];
        assert!(matches!(Settings::of(twice()), Err(NodeControllerError::ConflictingLease(_))));
    }

    #[test]
    fn renewal_intervals_must_be_positive_and_shorter_than_the_lease() {
        for (duration, interval) in [(SECOND * 4, Duration::ZERO), (SECOND * 4, SECOND * 4), (Duration::from_millis(1500), SECOND)] {
            let settings = Settings::of([with_node_enable_lease_v1_with_renew_interval(duration, interval)]);
            assert!(matches!(settings, Err(NodeControllerError::InvalidOption(_))), "{duration:?} {interval:?}");
        }
        assert!(matches!(Settings::of([with_node_ping_timeout(Duration::ZERO)]), Err(NodeControllerError::InvalidOption(_))));
    }

    #[test]
    fn without_a_lease_the_status_is_the_heartbeat() {
        let options = || [with_node_ping_interval(SECOND), with_node_status_update_interval(SECOND * 9)];
        assert_eq!(Settings::of(options()).unwrap().heartbeat(), SECOND);
        let with_lease = options().into_iter().chain([with_node_enable_lease_v1(Duration::ZERO)]);
        assert_eq!(Settings::of(with_lease).unwrap().heartbeat(), SECOND * 9);
    }
}
