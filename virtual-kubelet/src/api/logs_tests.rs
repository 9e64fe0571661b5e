use tokio::io::AsyncReadExt as _;

use super::*;
use crate::api::options::{log_options, query};

const LOG: &str = "2026-01-01T00:00:00.000000001Z stdout F one\n\
                   2026-01-01T00:00:01.000000000Z stderr F two\n\
                   2026-01-01T00:00:02.000000000Z stdout P thr\n\
                   2026-01-01T00:00:02.500000000Z stdout F ee\n\
                   2026-01-01T00:00:03.000000000Z stdout F \n\
                   no line of the format\n\
                   2026-01-01T00:00:04.000000000Z stdout P end";

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("logs-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn log(&self) -> PathBuf {
        self.0.join("0.log")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn shown(options: &str) -> String {
    let dir = Dir::new(&options.replace(['/', ':'], "-"));
    std::fs::write(dir.log(), format!("{LOG}\n")).unwrap();
    let mut text = String::new();
    let options = log_options(&query(options)).unwrap();
    read(&dir.log(), &options, None).await.unwrap().read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn lines_are_shown_as_the_container_wrote_them() {
    assert_eq!(shown("").await, "one\ntwo\nthree\n\nend");
    assert_eq!(shown("stream=Stderr").await, "two\n");
    assert_eq!(shown("stream=Stdout").await, "one\nthree\n\nend");
    assert_eq!(shown("sinceTime=2026-01-01T00:00:02.5Z").await, "ee\n\nend");
    assert_eq!(shown("sinceSeconds=1").await, "");
    assert_eq!(shown("limitBytes=5").await, "one\nt");
    let with_times = shown("timestamps=true&tailLines=3").await;
    let first = "2026-01-01T00:00:03.000000000Z \n2026-01-01T00:00:04.000000000Z end";
    assert_eq!(with_times, first);
}

#[tokio::test]
async fn the_last_lines_are_counted_as_the_client_sees_them() {
    assert_eq!(shown("tailLines=0").await, "");
    assert_eq!(shown("tailLines=1").await, "end");
    assert_eq!(shown("tailLines=4").await, "three\n\nend");
    assert_eq!(shown("tailLines=100").await, "one\ntwo\nthree\n\nend");
}

#[tokio::test(start_paused = true)]
async fn a_log_is_followed_through_rotation_until_the_container_ends() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    let dir = Dir::new("follow");
    let line = |text: &str| format!("2026-01-01T00:00:00.000000000Z stdout F {text}\n");
    std::fs::write(dir.log(), line("before")).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let ended = over.clone();
    let options = LogOptions { follow: true, ..LogOptions::default() };
    let mut log = read(&dir.log(), &options, Some(Box::new(move || ended.load(SeqCst)))).await.unwrap();
    let mut buffer = [0; 7];
    log.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"before\n");
    let mut old = std::fs::OpenOptions::new().append(true).open(dir.log()).unwrap();
    std::fs::rename(dir.log(), dir.0.join("0.log.1")).unwrap();
    std::io::Write::write_all(&mut old, line("late").as_bytes()).unwrap();
    std::fs::write(dir.log(), line("after")).unwrap();
    over.store(true, SeqCst);
    let mut rest = String::new();
    log.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "late\nafter\n");
}
