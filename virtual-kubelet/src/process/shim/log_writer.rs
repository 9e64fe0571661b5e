//! Output of containers in the format that container runtimes write, in files that do not grow for ever.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use jiff::Timestamp;

use super::files::{LogFiles, LogRotation};

/// Longest piece of a line in one entry, as containerd has it.
const PIECE: usize = 16 * 1024;

/// Which stream an entry came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Out => "stdout",
            Self::Err => "stderr",
        }
    }
}

/// One entry: time, stream, `F` for the end of a line or `P` for a part of one, and the text.
fn entry(at: Timestamp, stream: Stream, complete: bool, text: &[u8]) -> Vec<u8> {
    let mut line = format!("{at:.9} {} {} ", stream.name(), if complete { 'F' } else { 'P' }).into_bytes();
    line.extend_from_slice(text);
    line.push(b'\n');
    line
}

/// Lines of one stream that are not complete yet.
#[derive(Debug, Default)]
pub(super) struct Pending(Vec<u8>);

impl Pending {
    /// The entries that `bytes` complete.
    fn take(&mut self, at: Timestamp, stream: Stream, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut entries = Vec::new();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, complete) = line.strip_suffix(b"\n").map_or((line, false), |text| (text, true));
            self.0.extend_from_slice(text);
            while self.0.len() > PIECE {
                let rest = self.0.split_off(PIECE);
                entries.push(entry(at, stream, false, &self.0));
                self.0 = rest;
            }
            if complete {
                entries.push(entry(at, stream, true, &self.0));
                self.0.clear();
            }
        }
        entries
    }
}

/// Where the disk is full there is nobody to tell, and that must not end the container.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The log of one run.
#[derive(Debug)]
pub(super) struct LogWriter {
    directory: PathBuf,
    restart_count: i32,
    rotation: LogRotation,
    file: Option<File>,
    size: u64,
}

impl LogWriter {
    /// The log of a run, empty at first.
    pub fn create(directory: PathBuf, restart_count: i32, rotation: LogRotation) -> Self {
        let mut log = Self { directory, restart_count, rotation, file: None, size: 0 };
        log.open();
        log
    }

    fn open(&mut self) {
        let path = LogFiles::of(&self.directory, self.restart_count).current;
        match OpenOptions::new().create(true).append(true).open(&path) {
            Ok(file) => {
                self.size = file.metadata().map(|metadata| metadata.len()).unwrap_or_default();
                self.file = Some(file);
            }
            Err(error) => {
                complain(&format!("opening {}: {error}", path.display()));
                self.file = None;
            }
        }
    }

    /// Appends what a stream delivered. What cannot be written is lost: a full disk does not stop a container.
    pub fn append(&mut self, pending: &mut Pending, stream: Stream, bytes: &[u8]) {
        for entry in pending.take(Timestamp::now(), stream, bytes) {
            self.put(&entry);
        }
    }

    /// Appends the last line of a stream that did not end it.
    pub fn finish(&mut self, pending: &mut Pending, stream: Stream) {
        if !pending.0.is_empty() {
            let entry = entry(Timestamp::now(), stream, false, &std::mem::take(&mut pending.0));
            self.put(&entry);
        }
    }

    fn put(&mut self, entry: &[u8]) {
        let length = entry.len() as u64;
        if self.size > 0 && self.size + length > self.rotation.max_bytes {
            self.rotate();
        }
        if self.file.is_none() {
            self.open();
        }
        if let Some(file) = &mut self.file {
            match file.write_all(entry) {
                Ok(()) => self.size += length,
                Err(error) => complain(&format!("writing the log: {error}")),
            }
        }
    }

    /// Puts the file aside under the present time, as a kubelet names it, to the nanosecond.
    fn rotate(&mut self) {
        self.file = None;
        let files = LogFiles::of(&self.directory, self.restart_count);
        let mut aside = files.current.clone().into_os_string();
        aside.push(Timestamp::now().strftime(".%Y%m%d-%H%M%S.%9f").to_string());
        if let Err(error) = fs::rename(&files.current, PathBuf::from(aside)) {
            complain(&format!("putting the log aside: {error}"));
        }
        let rotated = LogFiles::of(&self.directory, self.restart_count).rotated;
        let surplus = (rotated.len() + 1).saturating_sub(self.rotation.max_files.max(1));
        for path in rotated.iter().take(surplus) {
            let _ = fs::remove_file(path);
        }
        self.open();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_time_stream_tag_and_text() {
        let line = entry(Timestamp::UNIX_EPOCH, Stream::Out, true, b"hello");
        assert_eq!(String::from_utf8(line).unwrap(), "1970-01-01T00:00:00.000000000Z stdout F hello\n");
        assert!(entry(Timestamp::UNIX_EPOCH, Stream::Err, false, b"x").ends_with(b"stderr P x\n"));
    }

    #[test]
    fn split_input_becomes_whole_lines_and_long_lines_are_cut() {
        let mut pending = Pending::default();
        let mut texts = Vec::new();
        let long = "x".repeat(PIECE + 1);
        for bytes in ["a", "b\n\nc", "\n", &long, "\n"] {
            for entry in pending.take(Timestamp::UNIX_EPOCH, Stream::Out, bytes.as_bytes()) {
                let text = String::from_utf8(entry).unwrap();
                texts.push(text.splitn(3, ' ').nth(2).unwrap().trim_end_matches('\n').to_owned());
            }
        }
        assert_eq!(texts, ["F ab", "F ", "F c", &format!("P {}", "x".repeat(PIECE)), "F x"]);
    }

    #[test]
    fn a_log_rotates_before_its_limit_and_drops_oldest_parts() {
        let directory = std::env::temp_dir().join(format!("vk-log-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let rotation = LogRotation { max_bytes: 100, max_files: 3 };
        let mut log = LogWriter::create(directory.clone(), 7, rotation);
        let mut pending = Pending::default();
        for number in 0..10 {
            log.append(&mut pending, Stream::Out, format!("line {number}\n").as_bytes());
        }
        let files = LogFiles::of(&directory, 7);
        let all: Vec<PathBuf> = files.rotated.iter().cloned().chain([files.current]).collect();
        let texts: Vec<String> = all.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(texts.len(), 3);
        assert!(texts.iter().all(|text| text.len() <= 100));
        let kept: Vec<&str> = texts.iter().flat_map(|text| text.lines()).map(|line| line.split_once("F ").unwrap().1).collect();
        assert_eq!(kept, ["line 4", "line 5", "line 6", "line 7", "line 8", "line 9"]);
    }
}
