//! Gates that come from the command line: the `ConfigMap` of istio-cni-taint, which is watched, and the built-in preset.

use crate::{
    args::{BuiltInGate, CompatFlags, ConfigMaps},
    gates_shared::{CompatGates, GateState},
    watch::WATCH_SECONDS,
    write::publish,
};
use crds::UnixSeconds;
use futures::{StreamExt as _, stream::select_all};
use k8s_controller::events::{EventRecorder, EventType};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};
use planner::node_gates::{Gate, legacy, preset};
use std::{collections::BTreeMap, sync::Arc};

/// What is known of one name.
#[derive(Clone, Debug, Default)]
enum ConfigMapState {
    /// It was not asked yet.
    #[default]
    Nothing,
    /// The API server does not say.
    Refused,
    /// There is such an object, or there is none.
    Seen(Option<Box<ConfigMap>>),
}

/// What is known of all names, and what follows from it.
#[derive(Debug, PartialEq)]
enum Found<'a> {
    /// Wait.
    Nothing,
    /// There is none, or it cannot be read.
    Missing(&'static str),
    /// This one counts.
    This(&'a ConfigMap),
}

/// The first that there is; one that was not asked yet may be there.
fn first(known: &[ConfigMapState]) -> Found<'_> {
    let mut found = Found::Missing("there is no such ConfigMap");
    for one in known {
        match one {
            ConfigMapState::Nothing => return Found::Nothing,
            ConfigMapState::Refused => found = Found::Missing("it cannot be read: install deploy/optional/legacy-configmap.yaml"),
            ConfigMapState::Seen(None) => {}
            ConfigMapState::Seen(Some(object)) => return Found::This(object),
        }
    }
    found
}

/// The gate of a preset; `since`: see [`preset::startup`].
pub fn of_preset(options: &CompatFlags, since: UnixSeconds) -> Option<Gate> {
    match options.preset? {
        BuiltInGate::Startup => Some(preset::startup(&options.preset_namespace, options.startup_backfill, since)),
    }
}

/// Gates that such a command line stands for, as far as they bear on resources: what they wait for is pods, so a `ConfigMap` need not be
/// read.
pub fn gates_of_flags(flags: &CompatFlags) -> CompatGates {
    let named = |at: &ConfigMaps| legacy::gate(&at.namespace, &at.names.join(" or "), 0, Vec::new());
    CompatGates { config_map: flags.legacy_configmap.as_ref().map(named), preset: of_preset(flags, 0), ..CompatGates::default() }
}

/// What a `ConfigMap` says.
pub fn of_config_map(object: &ConfigMap, since: UnixSeconds) -> Result<Gate, String> {
    let data: BTreeMap<_, _> = object.data.clone().unwrap_or_default();
    let requirements = legacy::requirements(&data)?;
    Ok(legacy::gate(&object.namespace().unwrap_or_default(), &object.name_any(), since, requirements))
}

/// Follows the `ConfigMap`.
pub struct ConfigMapGate {
    client: Client,
    state: Arc<GateState>,
    recorder: EventRecorder,
    at: Option<ConfigMaps>,
    /// When this process read it first.
    since: Option<UnixSeconds>,
    /// What was last said of it.
    said: Option<String>,
}

impl ConfigMapGate {
    /// Nothing is decided about any node before the `ConfigMap` was read once.
    pub fn new(
        client: Client,
        state: Arc<GateState>,
        recorder: EventRecorder,
        options: &CompatFlags,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Self {
        if options.preset.is_some() && variable("STARTUP_WEBHOOK").is_some() {
            tracing::info!(
                "STARTUP_WEBHOOK is ignored: nodes are tainted as they are created by a policy, or by the webhook of --webhook-service"
            );
        }
        let preset = of_preset(options, chrono::Utc::now().timestamp());
        let at = options.legacy_configmap.clone();
        state.change_compat(|compat| *compat = CompatGates { awaited: at.is_some(), preset, ..CompatGates::default() });
        Self { client, state, recorder, at, since: None, said: None }
    }

    /// For ever, if there is one to follow.
    pub async fn follow(mut self) {
        let Some(at) = self.at.clone() else { return };
        let watches = at.names.iter().enumerate().map(|(place, name)| {
            let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &at.namespace);
            let config = watcher::Config::default().timeout(WATCH_SECONDS).fields(&format!("metadata.name={name}"));
            watcher::watcher(api, config).default_backoff().map(move |event| (place, event)).boxed()
        });
        let mut events = select_all(watches);
        let mut known = vec![ConfigMapState::default(); at.names.len()];
        let mut listing = vec![None; at.names.len()];
        while let Some((place, event)) = events.next().await {
            let (Some(known_here), Some(listing)) = (known.get_mut(place), listing.get_mut(place)) else { continue };
            match event {
                Ok(Event::Init) => *listing = None,
                Ok(Event::InitApply(object)) => *listing = Some(Box::new(object)),
                Ok(Event::InitDone) => *known_here = ConfigMapState::Seen(listing.take()),
                Ok(Event::Apply(object)) => *known_here = ConfigMapState::Seen(Some(Box::new(object))),
                Ok(Event::Delete(_)) => *known_here = ConfigMapState::Seen(None),
                Err(error) => {
                    tracing::warn!(namespace = at.namespace, name = at.names.get(place), %error, "watch of the ConfigMap failed; trying again");
                    if matches!(known_here, ConfigMapState::Nothing) {
                        *known_here = ConfigMapState::Refused;
                    }
                }
            }
            self.settle(&at, &known).await;
        }
    }

    /// What cannot be read keeps what was read last.
    async fn settle(&mut self, at: &ConfigMaps, known: &[ConfigMapState]) {
        let named = format!("{}/{}", at.namespace, at.names.join(" or "));
        match first(known) {
            Found::Nothing => {}
            Found::Missing(why) => {
                self.state.change_compat(|compat| (compat.awaited, compat.unreadable) = (false, compat.config_map.is_none()));
                let said = format!("{named}: {why}");
                if self.said.as_ref() != Some(&said) {
                    tracing::error!(config_map = named, "{why}; nodes do not change, or the last valid ConfigMap stays in force");
                    self.said = Some(said);
                }
            }
            Found::This(object) => {
                let since = *self.since.get_or_insert_with(|| chrono::Utc::now().timestamp());
                match of_config_map(object, since) {
                    Ok(gate) => {
                        let said = format!("{} requirements", gate.spec.requirements.len());
                        tracing::info!(gate = gate.name, said, "the ConfigMap was read");
                        self.said = Some(said);
                        self.state.change_compat(|compat| {
                            let object = ConfigMap { metadata: object.metadata.clone(), ..ConfigMap::default() };
                            *compat = CompatGates {
                                awaited: false,
                                unreadable: false,
                                config_map: Some(gate),
                                config_map_object: Some(Box::new(object)),
                                preset: compat.preset.take(),
                            };
                        });
                    }
                    Err(why) => {
                        self.state.change_compat(|compat| (compat.awaited, compat.unreadable) = (false, compat.config_map.is_none()));
                        self.complain(object, why).await;
                    }
                }
            }
        }
    }

    /// Once for each text.
    async fn complain(&mut self, object: &ConfigMap, why: String) {
        let said = format!("{}: {why}", object.resource_version().unwrap_or_default());
        if self.said.as_ref() == Some(&said) {
            return;
        }
        self.said = Some(said);
        tracing::error!(config_map = object.name_any(), why, "the ConfigMap is not valid; its last valid content stays in force");
        let note = format!("{why}; what the ConfigMap said before stays in force");
        publish(&self.recorder, object, EventType::Warning, ("InvalidConfiguration", "Read"), note).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, text: &str) -> ConfigMap {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name, "namespace": "kube-system"}, "data": {"config": text}}))
            .unwrap()
    }

    #[test]
    fn the_first_existing_config_map_counts_once_earlier_are_known() {
        let (one, two) = (object("one", ""), object("two", ""));
        let seen = |object: &ConfigMap| ConfigMapState::Seen(Some(Box::new(object.clone())));
        assert_eq!(first(&[seen(&one), seen(&two)]), Found::This(&one));
        assert_eq!(first(&[ConfigMapState::Seen(None), seen(&two)]), Found::This(&two));
        assert_eq!(first(&[seen(&one), ConfigMapState::Nothing]), Found::This(&one));
        assert_eq!(first(&[ConfigMapState::Nothing, seen(&two)]), Found::Nothing);
        assert_eq!(first(&[ConfigMapState::Refused, seen(&two)]), Found::This(&two));
        assert!(matches!(first(&[ConfigMapState::Seen(None), ConfigMapState::Seen(None)]), Found::Missing(why) if why.contains("no such")));
        assert!(
            matches!(first(&[ConfigMapState::Seen(None), ConfigMapState::Refused]), Found::Missing(why) if why.contains("deploy/optional"))
        );
    }

    #[test]
    fn a_config_map_becomes_a_gate_with_its_name() {
        let gate = of_config_map(&object("node.readiness", "- {name: cni, namespace: kube-system, selector: app=istio}"), 7).unwrap();
        assert_eq!((gate.name.as_str(), gate.created, gate.spec.requirements.len()), ("configmap/kube-system/node.readiness", 7, 2));
        assert!(
            of_config_map(&object("node.readiness", "- {name: cni, selector: app=istio}"), 7).unwrap_err().contains("namespace is missing")
        );
    }
}
