//! Reads logs of containers in the format of container runtimes: `<time> <stream> <F|P> <text>` per line.

use std::collections::VecDeque;
use std::io::{self, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::stream::unfold;
use jiff::Timestamp;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio_util::io::StreamReader;

use super::handlers::BoxRead;
use super::options::{LogOptions, LogStreams, Since};

/// How often a followed log is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How much is read at once.
const PIECE: usize = 64 << 10;
/// Longest line that is kept for its end; runtimes cut at 16 KiB.
const LONGEST_LINE: usize = 1 << 20;

/// One line of a log file.
// Public for the fuzz targets alone, as `entry` and `Selector` are: users have `read`.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// When it was written, as it stands there.
    pub time: &'a str,
    /// The same.
    pub at: Timestamp,
    /// Whether it was written to standard error.
    pub stderr: bool,
    /// Whether it is the end of a line.
    pub complete: bool,
    /// What was written.
    pub text: &'a [u8],
}

/// Reads a line without its end; nothing when it is none of the format.
#[doc(hidden)]
pub fn entry(line: &[u8]) -> Option<Entry<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let stderr = match parts.next()? {
        b"stdout" => false,
        b"stderr" => true,
        _ => return None,
    };
    // Tags may be followed by others in later versions of the format.
    let complete = match parts.next()?.split(|byte| *byte == b':').next()? {
        b"F" => true,
        b"P" => false,
        _ => return None,
    };
    Some(Entry { time, at: time.parse().ok()?, stderr, complete, text: parts.next().unwrap_or_default() })
}

/// Makes what the client sees out of the lines of a log file, in their order.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Selector {
    since: Option<Timestamp>,
    timestamps: bool,
    streams: LogStreams,
    left: Option<u64>,
    /// Whether the last entry left a line open.
    open: bool,
}

impl Selector {
    /// What `options` ask for, at the time `now`; without `tail`.
    pub fn new(options: &LogOptions, now: Timestamp) -> Self {
        let since = options.since.map(|since| match since {
            Since::Time(time) => time,
            Since::Ago(ago) => now.checked_sub(ago).unwrap_or(Timestamp::MIN),
        });
        Self { since, timestamps: options.timestamps, streams: options.streams, left: options.limit_bytes, open: false }
    }

    /// Whether nothing more will be wanted.
    pub fn is_full(&self) -> bool {
        self.left == Some(0)
    }

    /// Adds to `out` what the client sees of a line.
    pub fn take(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let Some(entry) = entry(line) else { return };
        let wanted = match self.streams {
            LogStreams::All => true,
            LogStreams::Stdout => !entry.stderr,
            LogStreams::Stderr => entry.stderr,
        };
        if !wanted || self.since.is_some_and(|since| entry.at < since) {
            return;
        }
        let mut shown = Vec::with_capacity(entry.text.len() + 40);
        if self.timestamps && !self.open {
            shown.extend_from_slice(entry.time.as_bytes());
            shown.push(b' ');
        }
        shown.extend_from_slice(entry.text);
        if entry.complete {
            shown.push(b'\n');
        }
        self.open = !entry.complete;
        if let Some(left) = &mut self.left {
            shown.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= u64::try_from(shown.len()).unwrap_or(*left).min(*left);
        }
        out.extend(shown);
    }
}

/// Where the last `tail` lines of a file begin.
async fn start_of_tail(file: &mut File, tail: u64) -> io::Result<u64> {
    let tail = usize::try_from(tail).unwrap_or(usize::MAX);
    let mut starts: VecDeque<u64> = VecDeque::new();
    let (mut at, mut begins, mut opens) = (0_u64, 0_u64, true);
    let mut line = Vec::new();
    let mut buffer = vec![0; PIECE];
    loop {
        let read = file.read(&mut buffer).await?;
        let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            at += part.len() as u64;
            // Only the head of a line tells whether it is the end of one of the client's.
            line.extend_from_slice(part.get(..part.len().min(64_usize.saturating_sub(line.len()))).unwrap_or_default());
            if part.ends_with(b"\n") {
                if opens {
                    starts.push_back(begins);
                    if starts.len() > tail {
                        starts.pop_front();
                    }
                }
                opens = entry(line.trim_ascii_end()).is_none_or(|entry| entry.complete);
                line.clear();
                begins = at;
            }
        }
    }
    Ok(starts.front().copied().unwrap_or(at))
}

struct Reading {
    path: PathBuf,
    file: File,
    selector: Selector,
    pending: Vec<u8>,
    over: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    /// The container had ended before the file was last looked at.
    last_look: bool,
}

/// The log in the file `path`, which is opened before this returns. With `over` it is followed until that says that nothing
/// will be written any more, through rotations that rename the file.
///
/// ```
/// use tokio::io::AsyncReadExt;
/// use virtual_kubelet::api::{LogOptions, logs};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let file = std::env::temp_dir().join(format!("log-{}", std::process::id()));
/// std::fs::write(&file, "2024-01-01T00:00:00Z stdout F one\n2024-01-01T00:00:01Z stderr F two\n")?;
/// let mut log = logs::read(&file, &LogOptions { tail: Some(1), ..LogOptions::default() }, None).await?;
/// let mut text = String::new();
/// log.read_to_string(&mut text).await?;
/// assert_eq!(text, "two\n");
/// # std::fs::remove_file(file)
/// # }
/// ```
pub async fn read(path: &Path, options: &LogOptions, over: Option<Box<dyn Fn() -> bool + Send + Sync>>) -> io::Result<BoxRead> {
    let mut file = File::open(path).await?;
    if let Some(tail) = options.tail {
        let start = start_of_tail(&mut file, tail).await?;
        file.seek(SeekFrom::Start(start)).await?;
    }
    let selector = Selector::new(options, Timestamp::now());
    let reading = Reading { path: path.to_owned(), file, selector, pending: Vec::new(), over, last_look: false };
    let pieces = unfold(reading, |mut reading| async move {
        match reading.next().await {
            Ok(Some(piece)) => Some((Ok(io::Cursor::new(piece)), reading)),
            Ok(None) => None,
            Err(error) => Some((Err(error), reading)),
        }
    });
    Ok(Box::new(StreamReader::new(Box::pin(pieces))))
}

impl Reading {
    /// The next piece that the client sees; nothing at the end.
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = vec![0; PIECE];
        let mut out = Vec::new();
        while !self.selector.is_full() {
            let read = self.file.read(&mut buffer).await?;
            if read == 0 {
                if self.over.is_none() {
                    return Ok(None);
                }
                if self.rotated().await? {
                    continue;
                }
                if self.last_look {
                    return Ok(None);
                }
                // What was written before the end is there after one more look.
                self.last_look = self.over.as_ref().is_none_or(|over| over());
                if !self.last_look {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                continue;
            }
            for part in buffer.get(..read).unwrap_or_default().split_inclusive(|byte| *byte == b'\n') {
                match part.strip_suffix(b"\n") {
                    Some(end) if self.pending.is_empty() => self.selector.take(end, &mut out),
                    Some(end) => {
                        self.pending.extend_from_slice(end);
                        self.selector.take(&self.pending, &mut out);
                        self.pending.clear();
                    }
                    None if self.pending.len() < LONGEST_LINE => self.pending.extend_from_slice(part),
                    None => {}
                }
            }
            if !out.is_empty() {
                return Ok(Some(out));
            }
        }
        Ok(None)
    }

    /// Goes on with the file that has taken the name of the one that was read to its end.
    async fn rotated(&mut self) -> io::Result<bool> {
        let Ok(now) = tokio::fs::metadata(&self.path).await else { return Ok(false) };
        if now.ino() == self.file.metadata().await?.ino() {
            return Ok(false);
        }
        // Something may have been written between the last look and the rotation.
        let position = self.file.stream_position().await?;
        if self.file.metadata().await?.len() > position {
            return Ok(true);
        }
        self.file = File::open(&self.path).await?;
        Ok(true)
    }
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
