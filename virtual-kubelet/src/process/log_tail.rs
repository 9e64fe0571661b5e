//! The end of a log, for `terminationMessagePolicy: FallbackToLogsOnError`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::shim::LogFiles;

/// As much as a kubelet takes: 80 lines, 2048 bytes.
const LINES: usize = 80;
const BYTES: usize = 2048;

/// The end of the log of a run, without times and streams; `None` when it printed nothing.
pub fn read(directory: &Path, restart_count: i32) -> Option<String> {
    const WINDOW: u64 = 32 * 1024;
    let mut file = File::open(LogFiles::of(directory, restart_count).current).ok()?;
    let start = file.metadata().ok()?.len().saturating_sub(WINDOW);
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut bytes = Vec::new();
    file.take(WINDOW).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Some(tail(text.lines().skip(usize::from(start > 0)))).filter(|text| !text.is_empty())
}

fn tail<'a>(entries: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<&str> = entries.filter_map(|entry| entry.splitn(4, ' ').nth(3)).collect();
    let mut text = String::new();
    for line in &lines[lines.len().saturating_sub(LINES)..] {
        text.push_str(line);
        text.push('\n');
    }
    let from = (text.len().saturating_sub(BYTES)..text.len()).find(|index| text.is_char_boundary(*index));
    from.map(|from| text[from..].to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_tail_has_no_times_and_a_bounded_size() {
        assert_eq!(tail(["t stdout F one two", "t stderr F three"].into_iter()), "one two\nthree\n");
        let long = format!("t stdout F {}é", "é".repeat(3000));
        let tail = tail(std::iter::once(long.as_str()));
        assert!(tail.len() <= BYTES && tail.ends_with("é\n"));
    }
}
