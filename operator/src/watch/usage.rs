//! How much memory the large objects of one namespace may take here, whoever makes them: what one object may take is bounded, but not how
//! many somebody makes.

use super::{
    facts::KeptReplicaSet,
    held::{self, value_bytes},
};
use planner::facts::{
    ContainerFacts, DaemonSetFacts, DeploymentFacts, PodFacts, RevisionFacts, label_map::LabelMap, shared_spec::SharedSpec,
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// Bytes that large objects of one namespace may take. Those of a list are held beside those of before until it has ended, and a container
/// of the operator has 256 MiB.
const MOST: usize = 48 << 20;
/// Bytes of a container, or of a condition, beside its texts.
const EACH: usize = 256;

/// What is known of an object, as far as somebody can make it large.
pub(super) trait Weighed {
    /// Bytes that are not counted of what the object alone takes: those of a large fleet of ours never count.
    const FREE: usize;
    /// Bytes that the object alone takes, more or less.
    fn own(&self) -> usize;
    /// What it may have in common with others.
    fn shared(&self) -> Option<&SharedSpec>;
}

/// What stays of use without what is large.
pub(super) trait Lightened: Weighed {
    /// Lets go of all that is large, as if somebody had made something else of the object.
    fn lighten(&mut self);
}

/// What the objects of each namespace take.
#[derive(Debug, Default)]
pub struct Usages(BTreeMap<String, Usage>);

#[derive(Debug, Default)]
struct Usage {
    bytes: usize,
    /// Of what several may have in common: how many have it, and how many bytes it takes.
    shared: HashMap<usize, (usize, usize)>,
    /// It was said that something was let go.
    told: bool,
}

impl Usages {
    /// An object takes the place of what was known of it. What is large of one for which there is no room is let go.
    pub(super) fn exchange<L: Lightened>(&mut self, namespace: &str, former: Option<&L>, next: &mut L) {
        if let Some(former) = former {
            self.remove(namespace, former);
        }
        if !self.admit(namespace, next) {
            next.lighten();
            let usage = self.of(namespace);
            usage.add(next, usage.cost(next));
        }
    }

    /// Takes an object in, if there is room for it.
    pub(super) fn admit(&mut self, namespace: &str, object: &impl Weighed) -> bool {
        let usage = self.of(namespace);
        let cost = usage.cost(object);
        let needs = cost.own + cost.shared;
        if needs > 0 && usage.bytes + needs > MOST {
            if !std::mem::replace(&mut usage.told, true) {
                tracing::warn!(
                    namespace,
                    bytes = MOST,
                    "objects of resources take too much: further ones are taken for changed by somebody; delete the large ones"
                );
            }
            return false;
        }
        usage.add(object, cost);
        true
    }

    fn of(&mut self, namespace: &str) -> &mut Usage {
        self.0.entry(namespace.to_owned()).or_default()
    }

    /// An object is there no more.
    pub(super) fn remove<W: Weighed>(&mut self, namespace: &str, gone: &W) {
        let Some(usage) = self.0.get_mut(namespace) else { return };
        usage.take(gone);
        if usage.bytes == 0 && usage.shared.is_empty() {
            self.0.remove(namespace);
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self, namespace: &str) -> usize {
        self.0.get(namespace).map_or(0, |usage| usage.bytes)
    }
}

/// Bytes that an object adds to those of its namespace.
#[derive(Clone, Copy)]
struct Cost {
    own: usize,
    /// Of what none had before that it may have in common with others.
    shared: usize,
}

impl Usage {
    fn cost(&self, object: &impl Weighed) -> Cost {
        let news = object.shared().filter(|shared| !self.shared.contains_key(&shared.identity()));
        Cost { own: counted(object), shared: news.map_or(0, |shared| value_bytes(shared.common())) }
    }

    fn add(&mut self, object: &impl Weighed, cost: Cost) {
        self.bytes += cost.own + cost.shared;
        if let Some(shared) = object.shared() {
            let (holders, _) = self.shared.entry(shared.identity()).or_insert((0, cost.shared));
            *holders += 1;
        }
    }

    fn take(&mut self, object: &impl Weighed) {
        self.bytes = self.bytes.saturating_sub(counted(object));
        let Some(identity) = object.shared().map(SharedSpec::identity) else { return };
        let Some((holders, bytes)) = self.shared.get_mut(&identity) else { return };
        *holders -= 1;
        if *holders == 0 {
            self.bytes = self.bytes.saturating_sub(*bytes);
            self.shared.remove(&identity);
        }
    }
}

fn counted<W: Weighed>(object: &W) -> usize {
    object.own().saturating_sub(W::FREE)
}

fn text_bytes(texts: &LabelMap) -> usize {
    texts.entries().map(|(key, value)| held::text_bytes(key, value)).sum()
}

impl Weighed for (String, Arc<DeploymentFacts>) {
    const FREE: usize = 16 << 10;

    fn own(&self) -> usize {
        text_bytes(&self.1.labels) + text_bytes(&self.1.annotations) + self.1.spec.own_bytes()
    }

    fn shared(&self) -> Option<&SharedSpec> {
        Some(&self.1.spec)
    }
}

impl Lightened for (String, Arc<DeploymentFacts>) {
    fn lighten(&mut self) {
        let facts = Arc::make_mut(&mut self.1);
        let few = |texts: &LabelMap| {
            let texts = texts.entries().map(|(key, value)| (key.to_owned(), value.to_owned()));
            LabelMap::from(held::ours_first(texts, held::SMALL))
        };
        (facts.labels, facts.annotations) = (few(&facts.labels), few(&facts.annotations));
        facts.spec = held::without_large_parts(facts.spec.to_value()).into();
    }
}

impl Weighed for Arc<PodFacts> {
    const FREE: usize = 32 << 10;

    fn own(&self) -> usize {
        let gated = self.gated.as_ref().map_or(0, |gated| {
            let texts =
                |of: &ContainerFacts| [&of.name, &of.image, &of.shown, &of.image_id, &of.id].into_iter().map(String::len).sum::<usize>();
            let containers = gated.containers.iter().map(|container| EACH + texts(container)).sum::<usize>();
            let before = gated.record.iter().flat_map(|record| &record.before);
            let record: usize = before
                .map(|(name, of)| {
                    EACH + [name, &of.container, &of.image, &of.shown, &of.image_id].into_iter().map(String::len).sum::<usize>()
                })
                .sum();
            text_bytes(&gated.labels) + text_bytes(&gated.annotations) + containers + record
        });
        let unmet = self.unmet.as_ref().map_or(0, |unmet| unmet.conditions.iter().map(|type_| EACH + type_.len()).sum());
        gated + unmet
    }

    fn shared(&self) -> Option<&SharedSpec> {
        None
    }
}

impl Lightened for Arc<PodFacts> {
    fn lighten(&mut self) {
        let facts = Arc::make_mut(self);
        (facts.gated, facts.unmet) = (None, None);
    }
}

impl Weighed for KeptReplicaSet {
    const FREE: usize = 0;

    fn own(&self) -> usize {
        self.shared().map_or(0, SharedSpec::own_bytes)
    }

    fn shared(&self) -> Option<&SharedSpec> {
        self.orphan.as_ref().or(self.gated.as_ref().map(|gated| &gated.spec))
    }
}

impl Lightened for KeptReplicaSet {
    fn lighten(&mut self) {
        *self = Self::default();
    }
}

impl Weighed for DaemonSetFacts {
    const FREE: usize = 0;

    fn own(&self) -> usize {
        value_bytes(&self.spec)
    }

    fn shared(&self) -> Option<&SharedSpec> {
        None
    }
}

impl Lightened for DaemonSetFacts {
    fn lighten(&mut self) {
        self.spec = Arc::new(held::without_large_parts((*self.spec).clone()));
    }
}

impl Weighed for RevisionFacts {
    /// A hundred resources may have ten of them each.
    const FREE: usize = 64 << 10;

    fn own(&self) -> usize {
        value_bytes(&self.template)
    }

    fn shared(&self) -> Option<&SharedSpec> {
        None
    }
}
