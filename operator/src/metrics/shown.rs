//! Gauges of things that come and go.

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    hash::Hash,
    sync::Arc,
};

/// Gauges by labels, of which those are shown that were given last. One that stays is there at every moment: to clear them all and
/// set them again would let a scrape in between find none.
#[derive(Clone, Debug)]
pub struct Shown<S> {
    family: Family<S, Gauge>,
    shown: Arc<Mutex<BTreeSet<S>>>,
}

impl<S: Clone + Debug + Eq + Hash + Ord + EncodeLabelSet + Send + Sync + 'static> Shown<S> {
    /// None yet, in this registry.
    pub fn registered(registry: &mut Registry, name: &str, help: &str) -> Self {
        let family = Family::default();
        registry.register(name, help, family.clone());
        Self { family, shown: Arc::default() }
    }

    /// Shows exactly these.
    pub fn replace(&self, now: &BTreeMap<S, i64>) {
        let mut shown = self.shown.lock();
        for gone in shown.iter().filter(|labels| !now.contains_key(labels)) {
            self.family.remove(gone);
        }
        for (labels, value) in now {
            self.family.get_or_create(labels).set(*value);
        }
        *shown = now.keys().cloned().collect();
    }

    /// What is shown with these labels.
    #[cfg(test)]
    pub fn value(&self, labels: &S) -> Option<i64> {
        let shown = self.shown.lock();
        shown.contains(labels).then(|| self.family.get_or_create(labels).get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
    struct Of {
        what: &'static str,
    }

    #[test]
    fn a_remaining_gauge_is_reused_and_a_missing_one_removed() {
        let shown = Shown::registered(&mut Registry::default(), "things", "Things");
        let [stays, goes] = ["stays", "goes"].map(|what| Of { what });
        shown.replace(&[(stays.clone(), 1), (goes.clone(), 1)].into());
        let before = shown.family.get_or_create(&stays).clone();
        shown.replace(&[(stays.clone(), 2)].into());
        assert_eq!(before.get(), 2, "a gauge that was taken away for a moment would be another one");
        assert_eq!((shown.value(&stays), shown.value(&goes)), (Some(2), None));
        assert!(shown.family.get(&goes).is_none());
    }
}
