//! Output of containers in the format that container runtimes write.

use std::path::Path;

use jiff::Timestamp;
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::Mutex;

/// Longest piece of a line in one entry.
const PIECE: usize = 16 * 1024;

/// One entry: time, stream, `F` for the end of a line or `P` for a part of one, and the text.
pub fn entry(at: Timestamp, stream: &str, complete: bool, text: &[u8]) -> Vec<u8> {
    let mut line = format!("{at:.9} {stream} {} ", if complete { 'F' } else { 'P' }).into_bytes();
    line.extend_from_slice(text);
    line.push(b'\n');
    line
}

/// Opens the log of a run for appending.
pub async fn open(path: &Path) -> std::io::Result<Mutex<File>> {
    Ok(Mutex::new(OpenOptions::new().create(true).append(true).open(path).await?))
}

/// Copies a stream into the log until it ends.
pub async fn copy(mut from: impl AsyncRead + Unpin, stream: &str, log: &Mutex<File>) {
    let mut buffer = vec![0; PIECE];
    let mut pending: Vec<u8> = Vec::new();
    loop {
        let read = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(read) => read,
        };
        let now = Timestamp::now();
        let mut out = Vec::with_capacity(read + 64);
        for piece in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
            pending.extend_from_slice(piece);
            if pending.last() == Some(&b'\n') {
                pending.pop();
                out.extend(entry(now, stream, true, &pending));
                pending.clear();
            } else if pending.len() >= PIECE {
                out.extend(entry(now, stream, false, &pending));
                pending.clear();
            }
        }
        let mut file = log.lock().await;
        if file.write_all(&out).await.is_err() || file.flush().await.is_err() {
            tracing::warn!("writing a container's log failed, dropping output");
        }
    }
    if !pending.is_empty() {
        let mut file = log.lock().await;
        let _ = file.write_all(&entry(Timestamp::now(), stream, false, &pending)).await;
        let _ = file.flush().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_time_stream_tag_and_text() {
        let line = entry(Timestamp::UNIX_EPOCH, "stdout", true, b"hello");
        assert_eq!(String::from_utf8(line).unwrap(), "1970-01-01T00:00:00.000000000Z stdout F hello\n");
        assert!(entry(Timestamp::UNIX_EPOCH, "stderr", false, b"x").ends_with(b"stderr P x\n"));
    }
}
