//! The shim itself: from its order to the note about the end of its container.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, setsid};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::TaskTracker;

use super::files::{self, ExitNote, ProcessId, RunNote, ShimOrder, boot_id, order_file};
use super::frame::{CHUNK, Input, Message, MessageReader, Open, Output, TerminalSize};
use super::hub::Hub;
use super::log_writer::{LogWriter, Pending, Stream};
use super::pty::Terminal;
use super::reaper::Reaper;
use crate::process::container_init::{EXEC_COMMAND, INIT_COMMAND, START_FAILED};
use crate::process::process_table::ProcessTable;

/// How long a stream may stay open after the process that it belonged to; a process that left the
/// container's tree may hold it for ever.
const DRAIN: Duration = Duration::from_secs(1);
/// How often that is waited for again while something still comes: a client that is slow to take it holds the stream up.
const DRAINS: usize = 30;
/// Bytes of a command's output that are handed on after its end: far more than pipes and queues hold (64 KiB a pipe), and an end to
/// what a process that it left behind may write for ever.
const AFTER_END: usize = 1 << 20;
/// How often a silent client is asked whether it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long processes that were killed may take to vanish.
const VANISH: Duration = Duration::from_secs(5);

type Stdin = Arc<Mutex<Option<Box<dyn AsyncWrite + Send + Unpin>>>>;

/// The agent's ends of a process' streams.
struct Streams {
    stdin: Stdin,
    outputs: Vec<(Stream, Box<dyn AsyncRead + Send + Unpin>)>,
    terminal: Option<Terminal>,
}

/// What kind of streams a process gets.
#[derive(Clone, Copy)]
enum Kind {
    Pipes { stdin: bool },
    Terminal(Option<TerminalSize>),
}

/// What sessions share.
struct Shared {
    directory: PathBuf,
    main: ProcessId,
    stdin: Stdin,
    stdin_once: bool,
    terminal: Option<Terminal>,
    hub: Hub,
    /// Bytes of the container's output that have been handed on.
    kept: AtomicUsize,
    reaper: Reaper,
    exit: watch::Sender<Option<i32>>,
}

/// Runs the container that the orders in `directory` describe, to its end. The standard input is the
/// lock; a line on the standard output tells that the program runs.
pub fn run(directory: &Path) -> i32 {
    let outcome = attempt(directory);
    if let Err(error) = &outcome {
        let _ = writeln!(std::io::stderr(), "{error:#}");
        // Without a note the agent could only guess.
        if let Some(order) = ShimOrder::read(directory).filter(|order| ExitNote::read(directory, order.restart_count).is_none()) {
            let now = Timestamp::now();
            let note =
                ExitNote { code: START_FAILED, start_error: Some(format!("{error:#}")), unseen: false, started_at: now, finished_at: now };
            let _ = note.write(directory, order.restart_count);
        }
    }
    i32::from(outcome.is_err())
}

fn attempt(directory: &Path) -> Result<()> {
    // The agent's terminal and its signals are not the container's.
    setsid().context("leaving the agent's session")?;
    set_child_subreaper(true).context("becoming the parent of orphans")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(supervise(directory));
    runtime.shutdown_background();
    outcome
}

async fn supervise(directory: &Path) -> Result<()> {
    let order = ShimOrder::read(directory).context("reading the order")?;
    let reaper = Reaper::start()?;
    let listener = listen(directory).context("making the socket")?;
    let mut command = own_binary(INIT_COMMAND);
    command.arg(order_file(directory));
    let started_at = Timestamp::now();
    let kind = if order.tty { Kind::Terminal(None) } else { Kind::Pipes { stdin: order.stdin } };
    let (pid, streams) = spawn(command, kind).context("starting the container's process")?;
    let exited = reaper.exit_of(pid);
    let main = ProcessId::of(pid).context("the container's process is gone")?;
    let shim = ProcessId::of(nix::unistd::getpid().as_raw()).context("/proc is not mounted")?;
    RunNote { shim, main, started_at, boot_id: boot_id() }.write(directory, order.restart_count)?;
    if order.tty && !order.stdin {
        // Nobody may type into a terminal that was not asked to listen.
        streams.stdin.lock().await.take();
    }
    let shared = Arc::new(Shared {
        directory: directory.to_owned(),
        main,
        stdin: streams.stdin,
        stdin_once: order.stdin_once,
        terminal: streams.terminal,
        hub: Hub::default(),
        kept: AtomicUsize::new(0),
        reaper,
        exit: watch::Sender::new(None),
    });
    let log = Arc::new(Mutex::new(LogWriter::create(directory.to_owned(), order.restart_count, order.log)));
    let (pumps, sessions) = (TaskTracker::new(), TaskTracker::new());
    for (stream, from) in streams.outputs {
        pumps.spawn(keep(from, stream, log.clone(), shared.clone()));
    }
    pumps.close();
    tokio::spawn(announce(pid));
    let (taker, tracker) = (shared.clone(), sessions.clone());
    let accepting = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tracker.spawn(serve(taker.clone(), stream));
        }
    });
    let code = exited.await.unwrap_or(255);
    let finished_at = Timestamp::now();
    end_descendants().await;
    for _ in 0..DRAINS {
        let before = shared.kept.load(Ordering::Relaxed);
        if timeout(DRAIN, pumps.wait()).await.is_ok() || shared.kept.load(Ordering::Relaxed) == before {
            break;
        }
    }
    accepting.abort();
    let reason = std::fs::read_to_string(directory.join(START_ERROR)).ok().filter(|text| !text.is_empty() && code == START_FAILED);
    let note = ExitNote { code, start_error: reason, unseen: false, started_at, finished_at };
    note.write(directory, order.restart_count).context("noting the end")?;
    shared.exit.send_replace(Some(code));
    shared.hub.close();
    sessions.close();
    let _ = timeout(DRAIN, sessions.wait()).await;
    let _ = std::fs::remove_file(directory.join(files::SOCKET));
    Ok(())
}

/// Where the reason is left when the program cannot be started.
pub const START_ERROR: &str = "start-error";

fn own_binary(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(subcommand);
    command
}

fn listen(directory: &Path) -> std::io::Result<UnixListener> {
    let _ = std::fs::remove_file(directory.join(files::SOCKET));
    // By way of the open directory: the path itself may be longer than a socket's address can be.
    let opened = File::open(directory)?;
    let before = umask(Mode::from_bits_truncate(0o077));
    let listener = UnixListener::bind(format!("/proc/self/fd/{}/{}", opened.as_raw_fd(), files::SOCKET));
    umask(before);
    listener
}

fn spawn(mut command: Command, kind: Kind) -> std::io::Result<(i32, Streams)> {
    match kind {
        Kind::Terminal(size) => {
            let (terminal, process_end) = Terminal::open(size)?;
            command.stdin(process_end.try_clone()?).stdout(process_end.try_clone()?).stderr(process_end);
            let child = command.spawn()?;
            let stdin: Box<dyn AsyncWrite + Send + Unpin> = Box::new(terminal.clone());
            let outputs: Vec<(Stream, Box<dyn AsyncRead + Send + Unpin>)> = vec![(Stream::Out, Box::new(terminal.clone()))];
            Ok((number(child.id()), Streams { stdin: Arc::new(Mutex::new(Some(stdin))), outputs, terminal: Some(terminal) }))
        }
        Kind::Pipes { stdin } => {
            command.stdin(if stdin { Stdio::piped() } else { Stdio::null() }).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn()?;
            let mut outputs: Vec<(Stream, Box<dyn AsyncRead + Send + Unpin>)> = Vec::new();
            if let Some(out) = child.stdout.take() {
                outputs.push((Stream::Out, Box::new(tokio::process::ChildStdout::from_std(out)?)));
            }
            if let Some(err) = child.stderr.take() {
                outputs.push((Stream::Err, Box::new(tokio::process::ChildStderr::from_std(err)?)));
            }
            let stdin: Option<Box<dyn AsyncWrite + Send + Unpin>> = match child.stdin.take() {
                Some(stdin) => Some(Box::new(tokio::process::ChildStdin::from_std(stdin)?)),
                None => None,
            };
            Ok((number(child.id()), Streams { stdin: Arc::new(Mutex::new(stdin)), outputs, terminal: None }))
        }
    }
}

/// Process ids are positive and fit.
fn number(pid: u32) -> i32 {
    i32::try_from(pid).unwrap_or_default()
}

/// Whether a process with this command line has not become the program yet. While the kernel starts a program it has none for a moment,
/// in which an exec would not find the container's mounts. That of a process that is gone cannot be read.
fn is_starting(words: &[u8]) -> bool {
    words.is_empty() || words.split(|byte| *byte == 0).nth(1) == Some(INIT_COMMAND.as_bytes())
}

/// Tells the agent, if it still lives, when the program itself runs or could not be started.
async fn announce(pid: i32) {
    const LOOK_EVERY: Duration = Duration::from_millis(2);
    let path = format!("/proc/{pid}/cmdline");
    while std::fs::read(&path).is_ok_and(|words| is_starting(&words)) {
        sleep(LOOK_EVERY).await;
    }
    let mut out = std::io::stdout();
    let _ = out.write_all(b"started\n").and_then(|()| out.flush());
}

/// Copies a stream of the container into its log and to those who are attached.
async fn keep(mut from: Box<dyn AsyncRead + Send + Unpin>, stream: Stream, log: Arc<Mutex<LogWriter>>, shared: Arc<Shared>) {
    let mut buffer = vec![0; CHUNK];
    let mut pending = Pending::default();
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        log.lock().await.append(&mut pending, stream, &buffer[..read]);
        shared.hub.send(&output(stream, &buffer[..read])).await;
        shared.kept.fetch_add(read, Ordering::Relaxed);
    }
    log.lock().await.finish(&mut pending, stream);
}

fn output(stream: Stream, bytes: &[u8]) -> Output {
    match stream {
        Stream::Out => Output::Stdout(bytes.to_vec()),
        Stream::Err => Output::Stderr(bytes.to_vec()),
    }
}

/// Kills everything that the container's first process leaves, as the end of a process 1 does.
async fn end_descendants() {
    const LOOK_EVERY: Duration = Duration::from_millis(5);
    let own = nix::unistd::getpid().as_raw();
    let deadline = Instant::now() + VANISH;
    loop {
        let left: Vec<i32> = ProcessTable::read().descendants(own).iter().filter(|row| !row.zombie).map(|row| row.pid).collect();
        if left.is_empty() || Instant::now() > deadline {
            return;
        }
        signal_all(&left, Signal::SIGKILL);
        sleep(LOOK_EVERY).await;
    }
}

fn signal_all(pids: &[i32], signal: Signal) {
    for pid in pids {
        let _ = kill(Pid::from_raw(*pid), signal);
    }
}

async fn serve(shared: Arc<Shared>, stream: UnixStream) {
    let (read, mut write) = stream.into_split();
    let mut messages = MessageReader::new(read);
    let Ok(Some(Message::Open(open))) = messages.next().await else { return };
    match open {
        Open::Attach => attach(&shared, messages, write).await,
        Open::Exec { argv, stdin, tty } => {
            let kind = tty.map_or(Kind::Pipes { stdin }, |size| Kind::Terminal(Some(size)));
            exec(&shared, &argv, kind, messages, write).await;
        }
        Open::Signal { number, everything } => {
            let answer = match Signal::try_from(number) {
                Ok(signal) => {
                    shared.signal(signal, everything);
                    Output::Exit(0)
                }
                Err(_) => Output::Refused(format!("{number} is not a signal")),
            };
            let _ = Message::Output(answer).write(&mut write).await;
        }
    }
}

type Messages = MessageReader<tokio::net::unix::OwnedReadHalf>;

impl Shared {
    fn signal(&self, signal: Signal, everything: bool) {
        if everything {
            let all: Vec<i32> = ProcessTable::read().descendants(nix::unistd::getpid().as_raw()).iter().map(|row| row.pid).collect();
            signal_all(&all, signal);
        } else if self.main.lives() {
            signal_all(&[self.main.pid], signal);
        }
    }
}

/// Feeds the client's input into a process until the client leaves.
async fn feed(mut messages: Messages, stdin: &Stdin, terminal: Option<&Terminal>, may_close: bool) {
    while let Ok(Some(Message::Input(input))) = messages.next().await {
        match input {
            Input::Stdin(bytes) => {
                let mut stdin = stdin.lock().await;
                if let Some(open) = &mut *stdin
                    && (open.write_all(&bytes).await.is_err() || open.flush().await.is_err())
                {
                    // The process reads no more.
                    stdin.take();
                }
            }
            Input::CloseStdin if may_close => close(stdin, terminal).await,
            Input::CloseStdin => {}
            Input::Resize(size) => {
                if let Some(terminal) = terminal {
                    let _ = terminal.resize(size);
                }
            }
        }
    }
}

/// A terminal is told by its end-of-file character; a pipe is closed.
async fn close(stdin: &Stdin, terminal: Option<&Terminal>) {
    const END_OF_FILE: &[u8] = &[4];
    let open = stdin.lock().await.take();
    if let (Some(mut open), Some(_)) = (open, terminal) {
        let _ = open.write_all(END_OF_FILE).await;
    }
}

/// Sends one message, or an empty one to see whether the client is there when there is none for long.
async fn next_or_nothing(output: &mut mpsc::Receiver<Output>) -> Option<Output> {
    timeout(KEEP_ALIVE, output.recv()).await.unwrap_or(Some(Output::Stdout(Vec::new())))
}

async fn attach(shared: &Shared, messages: Messages, mut write: OwnedWriteHalf) {
    let mut exit = shared.exit.subscribe();
    let mut output = shared.hub.attach();
    if exit.borrow_and_update().is_some() {
        shared.hub.close();
    }
    let outgoing = async {
        while let Some(message) = next_or_nothing(&mut output).await {
            if Message::Output(message).write(&mut write).await.is_err() {
                return;
            }
        }
        // A client that was dropped for not reading gets no exit code.
        let code = *exit.borrow();
        if let Some(code) = code {
            let _ = Message::Output(Output::Exit(code)).write(&mut write).await;
        }
    };
    tokio::select! {
        () = feed(messages, &shared.stdin, shared.terminal.as_ref(), shared.stdin_once) => {}
        () = outgoing => return,
    }
    if shared.stdin_once {
        close(&shared.stdin, shared.terminal.as_ref()).await;
    }
}

async fn exec(shared: &Shared, argv: &[String], kind: Kind, messages: Messages, mut write: OwnedWriteHalf) {
    let mut command = own_binary(EXEC_COMMAND);
    command.arg(order_file(&shared.directory)).arg(shared.main.pid.to_string()).arg("--").args(argv);
    let (pid, streams) = match spawn(command, kind) {
        Ok(spawned) => spawned,
        Err(error) => {
            let _ = Message::Output(Output::Refused(error.to_string())).write(&mut write).await;
            return;
        }
    };
    let mut exited = shared.reaper.exit_of(pid);
    let (sender, mut output) = mpsc::channel(1);
    for (stream, mut from) in streams.outputs {
        let sender = sender.clone();
        tokio::spawn(async move {
            let mut buffer = vec![0; CHUNK];
            while let Ok(read @ 1..) = from.read(&mut buffer).await {
                if sender.send(self::output(stream, &buffer[..read])).await.is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let outgoing = async {
        let (mut code, mut deadline, mut left) = (None, Instant::now() + Duration::from_hours(24 * 365), AFTER_END);
        while left > 0 {
            tokio::select! {
                // Output that is there is handed on whatever the time; what it left behind may hold its streams for ever, and fill them.
                biased;
                ended = &mut exited, if code.is_none() => {
                    code = Some(ended.unwrap_or(255));
                    deadline = Instant::now() + DRAIN;
                }
                message = next_or_nothing(&mut output) => {
                    let Some(message) = message else { break };
                    let (bytes, since) = (message.bytes(), Instant::now());
                    if Message::Output(message).write(&mut write).await.is_err() {
                        return code;
                    }
                    if code.is_some() {
                        left = left.saturating_sub(bytes);
                        // Only what is waited for counts, not how long the client takes.
                        deadline += since.elapsed();
                    }
                }
                () = sleep_until(deadline) => break,
            }
        }
        let known = match code {
            Some(known) => known,
            None => (&mut exited).await.unwrap_or(255),
        };
        let _ = Message::Output(Output::Exit(known)).write(&mut write).await;
        Some(known)
    };
    let ended = tokio::select! {
        () = feed(messages, &streams.stdin, streams.terminal.as_ref(), true) => None,
        code = outgoing => code,
    };
    if ended.is_none() {
        // Nobody listens any more: what a kubelet's runtime does when the stream breaks.
        let table = ProcessTable::read();
        let rows = table.descendants(pid).into_iter().chain(table.session(pid)).chain(table.row(pid).copied());
        let left: Vec<i32> = rows.filter(|row| !row.zombie).map(|row| row.pid).collect();
        signal_all(&left, Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_command_line_has_not_started_yet() {
        for words in [&b""[..], b"/proc/self/exe\0container-init\0/order\0"] {
            assert!(is_starting(words), "{words:?}");
        }
        for words in [&b"sh\0-c\0exec sleep 1000\0"[..], b"container-init\0", b"\0"] {
            assert!(!is_starting(words), "{words:?}");
        }
    }
}
