//! Which pod behaves how: rules from a file, annotations on the pod; no I/O.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;

use super::delay::Delay;

/// Prefix of the annotations that override what the rules say, for one pod, and that let something go wrong with a node.
///
/// ```
/// let key = format!("{}fault", virtual_kubelet::simulated::ANNOTATION_PREFIX);
/// assert_eq!(key, "sim.virtual-kubelet.io/fault");
/// ```
pub const ANNOTATION_PREFIX: &str = "sim.virtual-kubelet.io/";

/// What goes wrong with a pod.
///
/// ```
/// use virtual_kubelet::simulated::PodFault;
///
/// assert_eq!("crash-loop".parse(), Ok(PodFault::CrashLoop));
/// assert!("fire".parse::<PodFault>().unwrap_err().contains("never-ready"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodFault {
    /// No image can be pulled: `ErrImagePull`, then `ImagePullBackOff`.
    ImagePullError,
    /// Its containers end with an error a moment after each start.
    CrashLoop,
    /// It never becomes ready.
    NeverReady,
    /// Its containers do not heed the signal to end and are killed after the grace period.
    SlowStop,
}

impl FromStr for PodFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "image-pull-error" => Ok(Self::ImagePullError),
            "crash-loop" => Ok(Self::CrashLoop),
            "never-ready" => Ok(Self::NeverReady),
            "slow-stop" => Ok(Self::SlowStop),
            _ => Err(format!("`{text}` is not a fault: use image-pull-error, crash-loop, never-ready or slow-stop")),
        }
    }
}

/// How the pods that a rule chooses behave.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Rule {
    namespaces: Vec<String>,
    labels: BTreeMap<String, String>,
    pull: Delay,
    start: Delay,
    init: Delay,
    ready: Delay,
    stop: Delay,
    run: Option<Delay>,
    exit_code: i32,
    fault: Option<PodFault>,
    exec: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    pods: Vec<Rule>,
}

/// How one pod behaves.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// How long an image takes to be there.
    pub pull: Delay,
    /// How long a container takes to start once its image is there.
    pub start: Delay,
    /// How long an init container runs.
    pub init: Delay,
    /// How long a container runs before it is ready.
    pub ready: Delay,
    /// How long a container takes to end once it is told to.
    pub stop: Delay,
    /// How long a main container runs before it ends by itself; for ever when absent.
    pub run: Option<Delay>,
    /// With which code it then ends.
    pub exit_code: i32,
    /// What goes wrong.
    pub fault: Option<PodFault>,
    /// What every command in its containers prints; commands are refused when absent.
    pub exec: Option<Arc<str>>,
    /// What is wrong with the pod's annotations: it gets no container.
    pub error: Option<String>,
}

impl From<&Rule> for Plan {
    fn from(rule: &Rule) -> Self {
        Self {
            pull: rule.pull,
            start: rule.start,
            init: rule.init,
            ready: rule.ready,
            stop: rule.stop,
            run: rule.run,
            exit_code: rule.exit_code,
            fault: rule.fault,
            exec: rule.exec.as_deref().map(Into::into),
            error: None,
        }
    }
}

/// A file of rules that cannot be read.
///
/// ```
/// use virtual_kubelet::simulated::{Stages, StagesError};
///
/// let error: StagesError = Stages::from_yaml("pods: 3").unwrap_err();
/// assert!(error.to_string().starts_with("cannot read the stages"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the stages: {0}")]
pub struct StagesError(String);

/// Rules that say how simulated pods behave; the first that fits a pod counts. Without a rule everything is immediate and for ever.
///
/// ```
/// use virtual_kubelet::simulated::Stages;
///
/// let stages = Stages::from_yaml("pods:\n- namespaces: [batch]\n  pull: uniform 1s 5s\n  run: exponential 30s\n- ready: 2s\n");
/// assert!(stages.is_ok());
/// let error = Stages::from_yaml("pods:\n- reddy: 2s\n").unwrap_err();
/// assert!(error.to_string().contains("reddy"));
/// ```
#[derive(Clone, Debug)]
pub struct Stages {
    rules: Vec<(Rule, Arc<Plan>)>,
    immediate: Arc<Plan>,
}

impl Default for Stages {
    fn default() -> Self {
        Self { rules: Vec::new(), immediate: Arc::new(Plan::default()) }
    }
}

impl Stages {
    /// Reads rules. The error says what is wrong, and where.
    pub fn from_yaml(text: &str) -> Result<Self, StagesError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let file: File = serde_saphyr::from_str(text).map_err(|error| StagesError(error.to_string()))?;
        let rules = file.pods.into_iter().map(|rule| {
            let plan = Arc::new(Plan::from(&rule));
            (rule, plan)
        });
        Ok(Self { rules: rules.collect(), ..Self::default() })
    }

    /// How a pod behaves. Pods of one rule and without annotations of ours share the answer.
    pub(crate) fn plan(
        &self,
        namespace: &str,
        labels: Option<&BTreeMap<String, String>>,
        annotations: Option<&BTreeMap<String, String>>,
    ) -> Arc<Plan> {
        let has = |key: &String, value: &String| labels.and_then(|labels| labels.get(key)) == Some(value);
        let fits = |rule: &Rule| {
            (rule.namespaces.is_empty() || rule.namespaces.iter().any(|own| own == namespace))
                && rule.labels.iter().all(|(key, value)| has(key, value))
        };
        let base = self.rules.iter().find(|(rule, _)| fits(rule)).map_or(&self.immediate, |(_, plan)| plan);
        let ours =
            annotations.into_iter().flatten().filter_map(|(key, value)| Some((key.strip_prefix(ANNOTATION_PREFIX)?, value.as_str())));
        let mut overridden: Option<Plan> = None;
        for (key, value) in ours {
            let plan = overridden.get_or_insert_with(|| Plan::clone(base));
            if let Err(error) = plan.override_with(key, value) {
                plan.error = Some(format!("annotation {ANNOTATION_PREFIX}{key}: {error}"));
            }
        }
        overridden.map_or_else(|| base.clone(), Arc::new)
    }
}

impl Plan {
    fn override_with(&mut self, key: &str, value: &str) -> Result<(), String> {
        let delay = || value.parse::<Delay>().map_err(|error| error.to_string());
        match key {
            "pull" => self.pull = delay()?,
            "start" => self.start = delay()?,
            "init" => self.init = delay()?,
            "ready" => self.ready = delay()?,
            "stop" => self.stop = delay()?,
            "run" => self.run = Some(delay()?),
            "exit-code" => self.exit_code = value.parse().map_err(|_| format!("`{value}` is not an exit code"))?,
            "fault" => self.fault = Some(value.parse()?),
            "exec" => self.exec = Some(value.into()),
            _ => return Err("unknown name: use pull, start, init, ready, stop, run, exit-code, fault or exec".into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_first_rule_that_fits_by_namespace_and_labels_counts() {
        let stages =
            "pods:\n- namespaces: [a, b]\n  labels: {app: web}\n  pull: 1s\n- namespaces: [b]\n  pull: 2s\n- pull: 3s\n  exitCode: 2\n";
        let stages = Stages::from_yaml(stages).unwrap();
        let pull = |namespace: &str, labels: &[(&str, &str)]| stages.plan(namespace, Some(&map(labels)), None).pull;
        assert_eq!(pull("b", &[("app", "web"), ("x", "y")]), Delay::Fixed(SECOND));
        assert_eq!(pull("b", &[("app", "db")]), Delay::Fixed(SECOND * 2));
        assert_eq!(pull("c", &[("app", "web")]), Delay::Fixed(SECOND * 3));
        assert_eq!(stages.plan("c", None, None).exit_code, 2);
    }

    #[test]
    fn annotations_override_single_stages_unless_they_are_foreign() {
        let stages = Stages::from_yaml("pods:\n- pull: 1s\n  ready: 2s\n").unwrap();
        let annotations =
            map(&[("sim.virtual-kubelet.io/ready", "uniform 1s 5s"), ("sim.virtual-kubelet.io/fault", "crash-loop"), ("x", "y")]);
        let plan = stages.plan("a", None, Some(&annotations));
        assert_eq!((plan.pull, plan.ready), (Delay::Fixed(SECOND), Delay::Uniform(SECOND, SECOND * 5)));
        assert_eq!((plan.fault, &plan.error), (Some(PodFault::CrashLoop), &None));
        assert!(Arc::ptr_eq(&stages.plan("a", None, None), &stages.plan("b", None, Some(&map(&[("x", "y")])))));
    }

    #[test]
    fn a_wrong_annotation_is_named_with_what_there_is() {
        let error = |key: &str, value: &str| {
            let annotations = map(&[(&format!("{ANNOTATION_PREFIX}{key}"), value)]);
            Stages::default().plan("a", None, Some(&annotations)).error.clone().unwrap()
        };
        assert!(error("reddy", "1s").starts_with("annotation sim.virtual-kubelet.io/reddy: unknown name"));
        assert!(error("fault", "fire").contains("never-ready"));
        assert!(error("ready", "soon").contains("uniform MIN MAX"));
        assert!(error("exit-code", "x").contains("not an exit code"));
    }

    #[test]
    fn a_malformed_stages_file_is_refused_with_the_wrong_word() {
        let error = |text: &str| Stages::from_yaml(text).unwrap_err().to_string();
        assert!(error("pods:\n- pul: 1s\n").contains("pul"));
        assert!(error("nodes: []\n").contains("nodes"));
        assert!(error("pods:\n- pull: soon\n").contains("soon"));
        assert!(error("pods:\n- fault: fire\n").contains("fire"));
        assert!(error("- pull: 1s\n").contains("cannot read the stages"));
        assert!(Stages::from_yaml("").is_ok() && Stages::from_yaml("pods: []").is_ok());
    }
}
