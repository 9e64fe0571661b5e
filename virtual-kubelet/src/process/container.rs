//! One run of one container: from its spec to a process, and to that process' end.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::attempt::Target;
use super::container_init::{Mount, SHIM_COMMAND, StartOrder};
use super::credentials::credentials;
use super::images::{Image, argv};
use super::process_table::ProcessTable;
use super::shim::{self, ExitNote, Open, RunNote, START_ERROR, Session, ShimOrder, order_file, write_json};
use super::site::Site;
use super::volumes;
use crate::pod::{PodId, environment, references, service_variables};

/// Where a program writes the reason of its end unless its container says otherwise.
const DEFAULT_TERMINATION_MESSAGE: &str = "/dev/termination-log";
/// Exit code of a container whose end nobody saw, as a kubelet has it.
const UNSEEN: i32 = 137;
/// Reason of such an end.
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// Why a container does not run yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The image cannot be had: `ErrImagePull`.
    #[error("{0}")]
    Image(String),
    /// Its configuration cannot be made: `CreateContainerConfigError`.
    #[error("{0}")]
    Config(String),
    /// Its directory or process cannot be made: `CreateContainerError`.
    #[error("{0}")]
    Create(String),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code, 128 + signal when killed.
    pub code: i32,
    /// Why, where that is known to be something else than `Completed` and `Error`.
    pub reason: Option<&'static str>,
    /// What the program left as the reason of its end, or what is known about it.
    pub message: Option<String>,
    /// When it had been started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Timestamp,
}

/// A run that has begun.
#[derive(Debug)]
pub struct Run {
    /// Its restart count.
    pub restart_count: i32,
    /// Its image.
    pub image: String,
    /// Signal that asks it to end.
    pub stop_signal: Signal,
    /// When it was started.
    pub started_at: Timestamp,
    shim: AsyncFd<std::os::fd::OwnedFd>,
    /// Present for the agent that started it, which has to reap it.
    child: Option<Child>,
    dir: PathBuf,
    fallback_to_log: bool,
}

/// What is found of a container that an earlier agent ran.
#[derive(Debug)]
pub enum Found {
    /// It was never started.
    Nothing,
    /// It runs.
    Running(Box<Run>),
    /// Its last run has ended.
    Ended {
        /// The restart count of that run.
        restart_count: i32,
        /// Its image.
        image: String,
        /// How it ended.
        exit: Exit,
    },
}

/// A run whose shim was started.
#[derive(Debug)]
pub struct Starting {
    child: Child,
    dir: PathBuf,
    order: ShimOrder,
    fallback_to_log: bool,
}

/// Starts a container. May be cancelled: either a shim was started and is returned, or there is none.
pub async fn start(site: &Site, pod: &Pod, container: &Container, restart_count: i32) -> Result<Starting, StartError> {
    let id = PodId::of(pod);
    let image = site.images.find(container.image.as_deref().unwrap_or_default()).map_err(|error| StartError::Image(error.to_string()))?;
    let dir = site.container_dir(&id, &container.name);
    let order = order(site, pod, container, &image, &dir).await?;
    let failed = |error: std::io::Error| StartError::Create(error.to_string());
    let lock = shim::lock(&dir).map_err(failed)?.ok_or_else(|| StartError::Create("the previous run has not ended".into()))?;
    shim::prune(&dir, restart_count - 1);
    let _ = fs::remove_file(dir.join(START_ERROR));
    write_json(&order_file(&dir), &order).map_err(failed)?;
    let of_spec = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let shim_order = ShimOrder {
        restart_count,
        image: container.image.clone().unwrap_or_default(),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        stop_signal: image.stop_signal.as_deref().and_then(|name| name.parse().ok()).unwrap_or(Signal::SIGTERM) as i32,
        grace_seconds: of_spec.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(30),
        log: site.log_rotation,
    };
    shim_order.write(&dir).map_err(failed)?;
    let complaints = fs::File::create(dir.join("shim.log")).map_err(failed)?;
    let mut command = Command::new(&site.init_program);
    // Not the agent's error stream: a shim that held it would keep its reader waiting after the agent's end.
    command.arg(SHIM_COMMAND).arg(&dir).stdin(lock).stdout(Stdio::piped()).stderr(complaints).current_dir("/");
    let child = command.spawn().map_err(failed)?;
    Ok(Starting { child, dir, order: shim_order, fallback_to_log: falls_back(container) })
}

impl Starting {
    /// Waits until the program itself runs, its mounts being in place, or could not be started. To be
    /// awaited to its end: the shim is there and would go on by itself.
    pub async fn begun(mut self) -> Result<Run, StartError> {
        if let Some(mut stdout) = self.child.stdout.take() {
            // Its one line comes when the program runs; without one it ends with the shim.
            let _ = stdout.read(&mut [0; 64]).await;
        }
        Run::of(&self.dir, &self.order, Some(self.child), self.fallback_to_log).map_err(|error| {
            let noted = ExitNote::read(&self.dir, self.order.restart_count).and_then(|note| note.start_error);
            StartError::Create(noted.unwrap_or_else(|| format!("the container's supervisor ended at once: {error}")))
        })
    }
}

/// Looks for a run of an earlier agent.
pub async fn find(dir: &Path, container: &Container) -> Found {
    const LOOK_EVERY: Duration = Duration::from_millis(5);
    let Some(order) = ShimOrder::read(dir) else { return Found::Nothing };
    loop {
        // A held lock means a shim, from its first moment on; that it has started the container is noted
        // a moment later.
        let free = shim::lock(dir).is_ok_and(|lock| lock.is_some());
        if free {
            break;
        }
        if let Ok(run) = Run::of(dir, &order, None, falls_back(container)) {
            return Found::Running(Box::new(run));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let Some(restart_count) = shim::last_begun(dir) else { return Found::Nothing };
    let exit = Exit::of(dir, restart_count, falls_back(container));
    if exit.reason == Some(STATUS_UNKNOWN) {
        exit.keep(dir, restart_count);
        let leftovers_of = dir.to_owned();
        let _ = tokio::task::spawn_blocking(move || end_session(&leftovers_of, restart_count)).await;
    }
    Found::Ended { restart_count, image: order.image, exit }
}

fn falls_back(container: &Container) -> bool {
    container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError")
}

async fn order(site: &Site, pod: &Pod, container: &Container, image: &Image, dir: &Path) -> Result<StartOrder, StartError> {
    let id = PodId::of(pod);
    let credentials = credentials(pod, container, image, site.powers).map_err(StartError::Config)?;
    let config = |error: String| StartError::Config(error);
    let references = references::fetch(&site.client, &id.namespace, &environment::wanted(container)).await;
    let references = references.map_err(|error| config(error.to_string()))?;
    let source = references::ApiReferences::new(site.client.clone());
    let services = references::services_for(&source, pod).await.map_err(|error| config(error.to_string()))?;
    let services = service_variables::of(pod, &services);
    let own = environment::resolve(container, pod, &site.node, &references, &services).map_err(|error| config(error.to_string()))?;
    let hostname = pod.spec.as_ref().and_then(|spec| spec.hostname.clone()).unwrap_or_else(|| id.name.clone());
    let mut env = image.env.clone();
    env.insert("HOSTNAME".into(), hostname);
    env.extend(own);
    let mut mounts = own_files(image, dir).map_err(|error| StartError::Create(error.to_string()))?;
    let wanted = volumes::mounts(pod, container, &site.volumes_dir(&id), &env).map_err(|error| config(format!("{error:#}")))?;
    // A volume at the same path as something of the image hides that.
    mounts.retain(|mount| !wanted.iter().any(|volume| volume.target == mount.target));
    mounts.extend(wanted);
    mounts.extend(termination_message(container, dir).map_err(|error| StartError::Create(error.to_string()))?);
    mounts.sort_by_key(|mount| mount.target.components().count());
    let working_dir = container.working_dir.clone().filter(|dir| !dir.is_empty()).map(PathBuf::from);
    Ok(StartOrder {
        argv: argv(image, container, &env),
        env,
        working_dir: working_dir.or_else(|| image.working_dir.clone()).unwrap_or_else(|| PathBuf::from("/")),
        credentials,
        mounts,
        staging: site.staging(),
        error_file: dir.join(START_ERROR),
    })
}

/// The image's private empty directories and the files that it has elsewhere.
fn own_files(image: &Image, dir: &Path) -> std::io::Result<Vec<Mount>> {
    let scratch = dir.join("scratch");
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch)?;
    let mut mounts = Vec::new();
    for (index, target) in image.scratch.iter().enumerate() {
        let source = scratch.join(index.to_string());
        fs::create_dir(&source)?;
        // In an image the directory belongs to the user that it runs as, whoever that is.
        fs::set_permissions(&source, fs::Permissions::from_mode(0o1777))?;
        mounts.push(Mount { source, target: target.clone(), read_only: false });
    }
    let files = image.files.iter().map(|(target, source)| Mount { source: source.clone(), target: target.clone(), read_only: true });
    mounts.extend(files);
    Ok(mounts)
}

/// The file that the program may write the reason of its end to. Only where the container names one: covering `/dev` for
/// the default is not worth it.
fn termination_message(container: &Container, dir: &Path) -> std::io::Result<Option<Mount>> {
    let Some(target) = container.termination_message_path.as_deref().filter(|path| *path != DEFAULT_TERMINATION_MESSAGE) else {
        return Ok(None);
    };
    let source = message_file(dir);
    fs::write(&source, "")?;
    // As a kubelet does it: the program may run as any user.
    fs::set_permissions(&source, fs::Permissions::from_mode(0o666))?;
    Ok(Some(Mount { source, target: target.into(), read_only: false }))
}

fn message_file(dir: &Path) -> PathBuf {
    dir.join("termination-message")
}

/// Reads at most as much as a kubelet does.
fn left_message(dir: &Path) -> Option<String> {
    let mut message = Vec::new();
    fs::File::open(message_file(dir)).ok()?.take(4096).read_to_end(&mut message).ok()?;
    Some(String::from_utf8_lossy(&message).into_owned()).filter(|message| !message.is_empty())
}

impl Exit {
    /// What the files in `dir` say about the end of a run.
    pub fn of(dir: &Path, restart_count: i32, fall_back_to_log: bool) -> Self {
        let note = ExitNote::read(dir, restart_count);
        let unseen = note.as_ref().is_none_or(|note| note.unseen);
        let started_at = note.as_ref().map(|note| note.started_at);
        let finished_at = note.as_ref().map_or_else(Timestamp::now, |note| note.finished_at);
        let Some(note) = note.filter(|_| !unseen) else {
            return Self {
                code: UNSEEN,
                reason: Some(STATUS_UNKNOWN),
                message: Some("The container could not be located when its supervisor had ended".into()),
                started_at: started_at.or_else(|| RunNote::read(dir, restart_count).map(|note| note.started_at)),
                finished_at,
            };
        };
        let from_log = || (fall_back_to_log && note.code != 0).then(|| super::log_tail::read(dir, restart_count)).flatten();
        Self {
            code: note.code,
            reason: note.start_error.is_some().then_some("StartError"),
            message: note.start_error.or_else(|| left_message(dir)).or_else(from_log),
            started_at,
            finished_at,
        }
    }
}

impl Exit {
    /// Notes an end that nobody saw, so that the next agent tells the same.
    fn keep(&self, dir: &Path, restart_count: i32) {
        let started_at = self.started_at.unwrap_or(self.finished_at);
        let note = ExitNote { code: self.code, start_error: None, unseen: true, started_at, finished_at: self.finished_at };
        if let Err(error) = note.write(dir, restart_count) {
            tracing::warn!(container = %dir.display(), %error, "cannot record the end of a container");
        }
    }
}

impl Run {
    fn of(dir: &Path, order: &ShimOrder, child: Option<Child>, fallback_to_log: bool) -> std::io::Result<Self> {
        let gone = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let note = RunNote::read(dir, order.restart_count).ok_or_else(gone)?;
        let shim = rustix::process::Pid::from_raw(note.shim.pid).ok_or_else(gone)?;
        let handle = pidfd_open(shim, PidfdFlags::NONBLOCK)?;
        #[expect(deprecated, reason = "its successor is unsafe, which is forbidden here; the descriptor is owned and never exchanged")]
        let handle = AsyncFd::with_interest(handle, Interest::READABLE)?;
        // Only now is it certain that the handle is that process'.
        if child.is_none() && !note.shim.lives() {
            return Err(gone());
        }
        Ok(Self {
            restart_count: order.restart_count,
            image: order.image.clone(),
            stop_signal: Signal::try_from(order.stop_signal).unwrap_or(Signal::SIGTERM),
            started_at: note.started_at,
            shim: handle,
            child,
            dir: dir.to_owned(),
            fallback_to_log,
        })
    }

    /// Waits for the end of the run and of everything it started.
    pub async fn wait(mut self) -> Exit {
        match &mut self.child {
            Some(child) => drop(child.wait().await),
            None => drop(self.shim.readable().await),
        }
        if ExitNote::read(&self.dir, self.restart_count).is_none() {
            // The shim was killed, and its container with it; what that had started lives on.
            let (dir, count) = (self.dir.clone(), self.restart_count);
            let _ = tokio::task::spawn_blocking(move || end_session(&dir, count)).await;
        }
        let exit = Exit::of(&self.dir, self.restart_count, self.fallback_to_log);
        if exit.reason == Some(STATUS_UNKNOWN) {
            exit.keep(&self.dir, self.restart_count);
        }
        exit
    }
}

/// Sends a signal to a container's first process, or to all of its processes.
pub async fn signal(dir: &Path, signal: Signal, everything: bool) {
    let sent = match Session::open(dir, Open::Signal { number: signal as i32, everything }).await {
        Ok(session) => session.collect(0).await.map(drop),
        Err(error) => Err(error),
    };
    if let Err(error) = sent {
        tracing::debug!(container = %dir.display(), %signal, %error, "not sent: the container has ended");
    }
}

/// A time that can be added to the present: what a pod asks for may be any number of seconds.
pub fn bounded(time: Duration) -> Duration {
    /// Ten years.
    const LONGEST: Duration = Duration::from_hours(87_600);
    time.min(LONGEST)
}

/// Kills what is left of the session of a run whose shim was killed.
fn end_session(directory: &Path, restart_count: i32) {
    let Some(note) = RunNote::read(directory, restart_count).filter(|note| note.boot_id == shim::boot_id()) else { return };
    let table = ProcessTable::read();
    // The number of a session is not given to another process while the session has members. Its leader
    // tells whether it is still that session.
    if table.row(note.main.pid).is_some_and(|leader| leader.start_ticks != note.main.start_ticks) {
        return;
    }
    for row in table.session(note.main.pid).iter().filter(|row| row.start_ticks >= note.main.start_ticks) {
        let _ = kill(Pid::from_raw(row.pid), Signal::SIGKILL);
    }
}

/// Asks a run to end: the hook, then the signal, and after the grace the whole group is killed.
/// `ended` is cancelled when that is done.
pub async fn stop(target: Target, signal: Signal, grace: Duration, hook: Option<LifecycleHandler>, ended: CancellationToken) {
    /// What a hook that used up the grace leaves the process.
    const LEAST: Duration = Duration::from_secs(2);
    let deadline = Instant::now() + bounded(grace);
    let work = async {
        if let Some(hook) = hook
            && !matches!(timeout_at(deadline, target.hook(&hook)).await, Ok(Ok(())))
        {
            tracing::warn!(container = target.container.name, "the preStop hook failed or took longer than the grace period");
        }
        self::signal(&target.dir, signal, false).await;
        let least = if grace.is_zero() { Duration::ZERO } else { LEAST };
        tokio::time::sleep_until(deadline.max(Instant::now() + least)).await;
        self::signal(&target.dir, Signal::SIGKILL, true).await;
    };
    tokio::select! {
        () = ended.cancelled() => {}
        () = work => {}
    }
}
