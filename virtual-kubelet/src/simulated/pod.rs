//! A simulated pod: a state machine over time that is passed in; no I/O and no clock.
//!
//! What it does follows from its seed, its plan, its template and when it was told what, and from nothing else. Each stage's
//! delay has a random number generator of its own, and begins when the one before ended, however late that is noticed.

mod adopt;
mod changes;
mod log;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::container::{Container, End, Phase, Step, Wait};
use super::delay::Delay;
use super::history::{Event, Why};
use super::stages::{Plan, PodFault};
use super::template::Template;
use crate::process::status::{Role, restarts};

/// When an agent looks at a container again after it has noticed that something of it ended or failed.
const SYNC: Duration = Duration::from_secs(1);
/// How long a container of a crash loop runs, unless it is said.
const CRASHES_AFTER: Delay = Delay::Fixed(Duration::from_secs(1));

/// Stages, told apart for their random numbers.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Pull = 1,
    Start,
    Init,
    Ready,
    Stop,
    Run,
}

/// The seed of a pod: that of the fleet, and which pod, so that it does not depend on UIDs or on the order of pods.
pub(crate) fn pod_seed(seed: u64, namespace: &str, name: &str, occurrence: u32) -> u64 {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(namespace);
    hash.update("/");
    hash.update(name);
    hash.update(occurrence.to_le_bytes());
    let digest = hash.finalize();
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

pub(super) fn later(at: Timestamp, delay: Duration) -> Timestamp {
    at.saturating_add(delay).unwrap_or(Timestamp::MAX)
}

/// A pod's state.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedPod {
    pub(super) seed: u64,
    pub(super) plan: Arc<Plan>,
    pub(super) template: Arc<Template>,
    pub(super) generation: Option<i64>,
    pub(super) start_time: Timestamp,
    pub(super) containers: Box<[Container]>,
    /// Told to end: nothing runs any more from then on.
    pub(super) deadline: Option<Timestamp>,
    /// How often the node's agent forgot what was ready.
    restarts_of_agent: u32,
}

impl SimulatedPod {
    /// A pod that its node took up at `now`.
    pub fn new(seed: u64, plan: Arc<Plan>, template: Arc<Template>, generation: Option<i64>, now: Timestamp) -> Self {
        let containers = template.containers.iter().map(Container::new).collect();
        let mut pod = Self { seed, plan, template, generation, start_time: now, containers, deadline: None, restarts_of_agent: 0 };
        pod.go_on(now);
        pod
    }

    fn role(&self, index: usize) -> Role {
        self.template.containers[index].role
    }

    fn runs_again(&self, index: usize, code: i32) -> bool {
        let template = &self.template.containers[index];
        restarts(template.role, &self.template.restart_policy, template.restart_policy.as_deref(), code)
    }

    /// A number generator for one stage of one run, whatever was drawn before.
    fn random(&self, index: usize, stage: Stage) -> Rng {
        let run = u64::from(self.containers[index].runs) | u64::from(self.restarts_of_agent) << 32;
        let place = (index as u64) << 8 | stage as u64;
        // Odd constants spread neighbours; the generator mixes the rest.
        Rng::with_seed(self.seed ^ place.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ run.wrapping_mul(0xD1B5_4A32_D192_ED03))
    }

    fn delay(&self, index: usize, stage: Stage, delay: Delay) -> Duration {
        delay.sample(&mut self.random(index, stage))
    }

    /// When it changes by itself next.
    pub fn due(&self) -> Option<Timestamp> {
        self.containers.iter().flat_map(|container| [container.next.map(|next| next.0), container.end.map(|end| end.0)]).flatten().min()
    }

    /// Lets everything happen that is due at `now`, each at its own time; whether anything did.
    pub fn advance(&mut self, now: Timestamp) -> bool {
        let mut changed = false;
        while let Some(at) = self.due().filter(|due| *due <= now) {
            changed = true;
            if let Some(index) = self.containers.iter().position(|container| container.end.is_some_and(|end| end.0 == at)) {
                if let Some((at, code, why)) = self.containers[index].end.take() {
                    self.ended(index, at, code, why);
                }
            } else if let Some(index) = self.containers.iter().position(|container| container.next.is_some_and(|next| next.0 == at))
                && let Some((at, step)) = self.containers[index].next.take()
            {
                self.step(index, at, step);
            }
        }
        changed
    }

    fn step(&mut self, index: usize, at: Timestamp, step: Step) {
        match step {
            Step::Pulled if self.plan.fault == Some(PodFault::ImagePullError) => {
                let container = &mut self.containers[index];
                container.wait(Wait::PullFailed);
                container.history.note(at, Event::PullFailed);
                container.pull_backoff.get_or_insert_default().repeat(at, at);
                container.next = Some((later(at, SYNC), Step::PullBackOff));
            }
            Step::Pulled => {
                let container = &mut self.containers[index];
                (container.pulled, container.pull_backoff) = (true, None);
                container.history.note(at, Event::Pulled);
                self.make(index, at);
            }
            Step::PullBackOff => {
                let container = &mut self.containers[index];
                container.wait(Wait::PullBackOff);
                let failed_at = at.saturating_sub(SYNC).unwrap_or(at);
                let until = container.pull_backoff.as_ref().and_then(|backoff| Some(backoff.wait(failed_at)?.0));
                container.next = Some((until.map_or(at, |until| until.max(at)), Step::Pull));
            }
            Step::Pull => self.make(index, at),
            Step::Started => self.started(index, at),
            Step::Ready => {
                self.containers[index].ready = true;
                self.containers[index].history.note(at, Event::Ready);
            }
            Step::AfterEnd => self.after_end(index, at),
            Step::Again => {
                let container = &mut self.containers[index];
                let failed_at = container.latest_end().map_or(at, |end| end.finished_at);
                container.backoff.repeat(failed_at, at);
                self.make(index, at);
            }
        }
    }

    /// Pulls or starts.
    fn make(&mut self, index: usize, at: Timestamp) {
        if let Some(error) = &self.plan.error {
            self.containers[index].wait(Wait::Misconfigured);
            self.containers[index].history.note(at, Event::Refused(error.as_str().into()));
            return;
        }
        if self.containers[index].phase == Phase::Waiting(Wait::Misconfigured) {
            self.containers[index].wait(Wait::Turn);
        }
        let next = if self.containers[index].pulled {
            (later(at, self.delay(index, Stage::Start, self.plan.start)), Step::Started)
        } else {
            let image = self.template.containers[index].image.clone();
            self.containers[index].history.note(at, Event::Pulling(image));
            (later(at, self.delay(index, Stage::Pull, self.plan.pull)), Step::Pulled)
        };
        self.containers[index].next = Some(next);
    }

    fn started(&mut self, index: usize, at: Timestamp) {
        let id = self.container_id(index);
        let image = self.template.containers[index].image.clone();
        let container = &mut self.containers[index];
        container.wait(Wait::Turn);
        container.runs = container.runs.saturating_add(1);
        container.phase = Phase::Running { since: at };
        container.replaced = false;
        container.history.note(at, Event::Started(container.runs));
        (container.id, container.image, container.ready) = (Some(id.into()), image, false);
        self.arm_end(index, at);
        self.arm_ready(index, at);
        self.go_on(at);
    }

    fn container_id(&self, index: usize) -> String {
        let mut random = self.random(index, Stage::Start);
        format!("simulated://{:032x}{:032x}", random.u128(..), random.u128(..))
    }

    /// When a run that began at `from` ends by itself.
    fn arm_end(&mut self, index: usize, from: Timestamp) {
        let crashes = self.plan.fault == Some(PodFault::CrashLoop);
        let life = match self.role(index) {
            Role::Init => Some((self.delay(index, Stage::Init, self.plan.init), 0)),
            Role::Sidecar => None,
            Role::Main if crashes => {
                let life = self.delay(index, Stage::Run, self.plan.run.unwrap_or(CRASHES_AFTER));
                Some((life, if self.plan.exit_code == 0 { 1 } else { self.plan.exit_code }))
            }
            Role::Main => self.plan.run.map(|run| (self.delay(index, Stage::Run, run), self.plan.exit_code)),
        };
        self.containers[index].end = life.map(|(life, code)| (later(from, life), code, Why::Own));
    }

    fn arm_ready(&mut self, index: usize, from: Timestamp) {
        if self.role(index) == Role::Init || self.plan.fault == Some(PodFault::NeverReady) {
            return;
        }
        let ready = later(from, self.delay(index, Stage::Ready, self.plan.ready));
        self.containers[index].next = Some((ready, Step::Ready));
    }

    fn ended(&mut self, index: usize, at: Timestamp, code: i32, why: Why) {
        let initialized = self.role(index) == Role::Init && code == 0;
        let container = &mut self.containers[index];
        let started_at = match &container.phase {
            Phase::Running { since } => Some(*since),
            _ => None,
        };
        container.phase = Phase::Ended(Box::new(End { code, started_at, finished_at: at, id: container.id.clone() }));
        (container.ready, container.next) = (initialized, None);
        container.history.note(at, Event::Ended(code, why));
        match why {
            Why::Replaced => {
                container.replaced = true;
                (container.backoff, container.pull_backoff, container.pulled) = Default::default();
                if !self.runs_again(index, code) {
                    // Where a container is not restarted, an end that was shown cannot be taken back.
                    self.containers[index].wait(Wait::Turn);
                }
                self.make(index, at);
            }
            Why::Own if self.deadline.is_none() && self.runs_again(index, code) => {
                self.containers[index].next = Some((later(at, SYNC), Step::AfterEnd));
            }
            Why::Own | Why::Stopped => {}
        }
        self.go_on(at);
    }

    fn after_end(&mut self, index: usize, at: Timestamp) {
        let container = &mut self.containers[index];
        let failed_at = container.latest_end().map_or(at, |end| end.finished_at);
        match container.backoff.wait(failed_at) {
            Some((until, pause)) if until > at => {
                container.wait(Wait::CrashLoop(pause));
                container.history.note(at, Event::BackOff(pause));
                container.next = Some((until, Step::Again));
            }
            _ => {
                container.backoff.repeat(failed_at, at);
                self.make(index, at);
            }
        }
    }

    /// Begins what may begin now: init containers one after the other, sidecars in between, then all the rest; and ends
    /// sidecars when nobody is left whom they serve.
    fn go_on(&mut self, at: Timestamp) {
        if self.deadline.is_some() {
            return;
        }
        for index in 0..self.containers.len() {
            let container = &self.containers[index];
            match self.role(index) {
                Role::Init if !matches!(&container.phase, Phase::Ended(end) if end.code == 0) => {
                    if container.is_untouched() {
                        self.make(index, at);
                    }
                    return;
                }
                Role::Sidecar if container.runs == 0 => {
                    if container.is_untouched() {
                        self.make(index, at);
                    }
                    return;
                }
                Role::Main if container.is_untouched() => self.make(index, at),
                _ => {}
            }
        }
        if self.mains_are_over() {
            for index in 0..self.containers.len() {
                if self.role(index) == Role::Sidecar && self.containers[index].is_running() && self.containers[index].end.is_none() {
                    let stop = self.delay(index, Stage::Stop, self.plan.stop);
                    self.containers[index].end = Some((later(at, stop), 0, Why::Stopped));
                }
            }
        }
    }

    fn is_over(&self, index: usize) -> bool {
        let container = &self.containers[index];
        !container.replaced && container.latest_end().is_some_and(|end| !self.runs_again(index, end.code))
    }

    fn mains_are_over(&self) -> bool {
        (0..self.containers.len()).all(|index| self.role(index) != Role::Main || self.is_over(index))
    }

    /// Whether nothing of it runs, and nothing will.
    pub fn is_over_for_good(&self) -> bool {
        if self.containers.iter().any(Container::is_running) {
            return false;
        }
        let failed_init =
            |index: usize| self.role(index) == Role::Init && self.containers[index].latest_end().is_some_and(|end| end.code != 0);
        self.deadline.is_some()
            || (0..self.containers.len()).any(|index| failed_init(index) && self.is_over(index))
            || (self.mains_are_over() && self.containers.iter().all(|container| container.next.is_none()))
    }
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
