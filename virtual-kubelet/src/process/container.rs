//! One run of one container: from its spec to a process, and to that process' end.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::attempt::Target;
use super::container_init::{Mount, START_FAILED, StartOrder};
use super::credentials::credentials;
use super::images::{Image, argv};
use super::process_note::ProcessNote;
use super::site::{Site, order_file};
use super::{logs, volumes};
use crate::pod::{PodId, environment, references, service_variables};

/// Where a program writes the reason of its end unless its container says otherwise.
const DEFAULT_TERMINATION_MESSAGE: &str = "/dev/termination-log";
/// Subcommand that becomes a container.
const INIT_COMMAND: &str = "container-init";

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
    /// Why the program could not even be started.
    pub start_error: Option<String>,
    /// What the program left as the reason of its end.
    pub message: Option<String>,
}

/// A run that has begun.
pub struct Run {
    /// Its process.
    pub pid: i32,
    /// Signal that asks it to end.
    pub stop_signal: Signal,
    child: Child,
    dir: PathBuf,
    log: PathBuf,
}

/// Starts a container.
pub async fn start(site: &Site, pod: &Pod, container: &Container, restart_count: i32) -> Result<Run, StartError> {
    let id = PodId::of(pod);
    let image = site.images.find(container.image.as_deref().unwrap_or_default()).map_err(|error| StartError::Image(error.to_string()))?;
    let dir = site.container_dir(&id, &container.name);
    let order = order(site, pod, container, &image, &dir).await?;
    let failed = |error: std::io::Error| StartError::Create(error.to_string());
    let _ = fs::remove_file(&order.error_file);
    let file = order_file(&dir);
    fs::write(&file, serde_json::to_vec(&order).map_err(|error| StartError::Create(error.to_string()))?).map_err(failed)?;
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).map_err(failed)?;
    let mut command = Command::new(&site.init_program);
    command.arg(INIT_COMMAND).arg(&file).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(failed)?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
    ProcessNote::write(&dir, pid, restart_count).map_err(failed)?;
    let stop_signal = image.stop_signal.as_deref().and_then(|name| name.parse().ok()).unwrap_or(Signal::SIGTERM);
    Ok(Run { pid, stop_signal, child, log: dir.join(format!("{restart_count}.log")), dir })
}

async fn order(site: &Site, pod: &Pod, container: &Container, image: &Image, dir: &Path) -> Result<StartOrder, StartError> {
    let id = PodId::of(pod);
    let credentials = credentials(pod, container, image, site.powers).map_err(StartError::Config)?;
    let config = |error: String| StartError::Config(error);
    let references = references::fetch(&site.client, &id.namespace, &environment::wanted(container)).await;
    let references = references.map_err(|error| config(error.to_string()))?;
    let services = references::services(&site.client, &id.namespace).await.map_err(|error| config(error.to_string()))?;
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
        error_file: dir.join("start-error"),
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

impl Run {
    /// Waits until the program itself runs, its mounts being in place, or could not be started.
    pub async fn begun(&self) {
        const LOOK_EVERY: Duration = Duration::from_millis(2);
        let path = format!("/proc/{}/cmdline", self.pid);
        // A process that is gone has no words.
        while fs::read(&path).is_ok_and(|words| words.split(|byte| *byte == 0).nth(1) == Some(INIT_COMMAND.as_bytes())) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits for the end of the process, and ends what it leaves of its group, as the end of a
    /// container's first process does.
    pub async fn wait(mut self) -> Exit {
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        let log = self.log.clone();
        let copying = tokio::spawn(async move {
            let log = match logs::open(&log).await {
                Ok(log) => log,
                Err(error) => return tracing::warn!(path = %log.display(), %error, "cannot open a container's log"),
            };
            let out = async {
                if let Some(stdout) = stdout {
                    logs::copy(stdout, "stdout", &log).await;
                }
            };
            let err = async {
                if let Some(stderr) = stderr {
                    logs::copy(stderr, "stderr", &log).await;
                }
            };
            tokio::join!(out, err);
        });
        let status = self.child.wait().await;
        let _ = killpg(Pid::from_raw(self.pid), Signal::SIGKILL);
        // A process that left the group may hold the stream open for ever.
        let _ = timeout(Duration::from_secs(1), copying).await;
        let code = status.map_or(255, exit_code);
        let reason = fs::read_to_string(self.dir.join("start-error")).ok().filter(|text| !text.is_empty());
        Exit { code, start_error: reason.filter(|_| code == START_FAILED), message: left_message(&self.dir) }
    }
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255)
}

/// Asks a run to end: the hook, then the signal, and after the grace the whole group is killed.
/// `ended` is cancelled when the process is gone; its number is not used after that.
pub async fn stop(target: Target, signal: Signal, grace: Duration, hook: Option<LifecycleHandler>, ended: CancellationToken) {
    /// What a hook that used up the grace leaves the process.
    const LEAST: Duration = Duration::from_secs(2);
    let began = Instant::now();
    let deadline = began + grace;
    let work = async {
        if let Some(hook) = hook
            && !matches!(timeout_at(deadline, target.hook(&hook)).await, Ok(Ok(())))
        {
            tracing::warn!(container = target.container.name, "the preStop hook failed or took longer than the grace period");
        }
        let pid = Pid::from_raw(target.pid);
        let _ = kill(pid, signal);
        let least = if grace.is_zero() { Duration::ZERO } else { LEAST };
        tokio::time::sleep_until(deadline.max(Instant::now() + least)).await;
        let _ = killpg(pid, Signal::SIGKILL);
    };
    tokio::select! {
        () = ended.cancelled() => {}
        () = work => {}
    }
}
