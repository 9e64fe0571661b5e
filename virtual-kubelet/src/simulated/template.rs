//! What pods of one kind have in common, kept once; no I/O.

use std::collections::HashSet;
use std::sync::Arc;

use crate::process::status::Role;

/// One container of a pod's spec.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ContainerTemplate {
    pub name: Box<str>,
    pub image: Arc<str>,
    pub role: Role,
    /// Its own restart policy, where it has one.
    pub restart_policy: Option<Box<str>>,
}

/// What of a pod's spec its simulation depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Template {
    /// Init containers first, in the order of the spec.
    pub containers: Box<[ContainerTemplate]>,
    pub restart_policy: Box<str>,
    pub readiness_gates: Box<[Box<str>]>,
    pub grace_seconds: u32,
    pub host_network: bool,
}

impl Template {
    pub(super) fn has_init_containers(&self) -> bool {
        self.containers.iter().any(|container| container.role != Role::Main)
    }
}

/// Equal templates are one.
#[derive(Debug, Default)]
pub(crate) struct Templates {
    known: HashSet<Arc<Template>>,
    /// At so many the unused ones are looked for.
    prune_at: usize,
}

impl Templates {
    /// Fewer are not worth a search.
    const SMALL: usize = 64;

    /// The one template that equals `template`.
    pub fn intern(&mut self, template: Template) -> Arc<Template> {
        if let Some(known) = self.known.get(&template) {
            return known.clone();
        }
        if self.known.len() >= self.prune_at.max(Self::SMALL) {
            self.known.retain(|template| Arc::strong_count(template) > 1);
            self.prune_at = self.known.len() * 2;
        }
        let template = Arc::new(template);
        self.known.insert(template.clone());
        template
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(image: &str) -> Template {
        let main = ContainerTemplate { name: "main".into(), image: image.into(), role: Role::Main, restart_policy: None };
        Template {
            containers: [main].into(),
            restart_policy: "Always".into(),
            readiness_gates: [].into(),
            grace_seconds: 30,
            host_network: false,
        }
    }

    #[test]
    fn equal_templates_are_one_and_unused_ones_are_dropped() {
        let mut templates = Templates::default();
        let first = templates.intern(template("a"));
        assert!(Arc::ptr_eq(&first, &templates.intern(template("a"))));
        for image in 0..10_000 {
            templates.intern(template(&image.to_string()));
        }
        assert!(templates.known.len() <= 2 * Templates::SMALL, "{}", templates.known.len());
        assert!(Arc::ptr_eq(&first, &templates.intern(template("a"))));
    }
}
