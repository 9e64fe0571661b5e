//! A compiler that keeps both cores busy, as on the machine of somebody who works.

use std::{
    fmt::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, ensure};

use crate::images;

/// Compilers at once, one for each core of the smallest machine.
const COMPILERS: usize = 2;
/// Functions in the file that is compiled: some seconds of work, most of it in the optimizer, which has one thread.
const FUNCTIONS: usize = 3000;

/// It runs until this is dropped.
pub(super) struct Compiler {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Compiler {
    pub(super) fn start() -> Result<Self> {
        let directory = images::repository().join("target/bed/compiler");
        std::fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
        let source = directory.join("source.rs");
        std::fs::write(&source, text()).with_context(|| format!("writing {}", source.display()))?;
        ensure!(compile(&source, &directory.join("first")), "rustc does not compile {}", source.display());
        let stop = Arc::<AtomicBool>::default();
        let threads = (0..COMPILERS).map(|number| {
            let (stop, source, out) = (Arc::clone(&stop), source.clone(), directory.join(number.to_string()));
            thread::spawn(move || while !stop.load(Ordering::Relaxed) && compile(&source, &out) {})
        });
        Ok(Self { threads: threads.collect(), stop })
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

fn compile(source: &PathBuf, out: &PathBuf) -> bool {
    let mut command = Command::new("rustc");
    command.args(["--crate-type=lib", "--edition=2024", "-Copt-level=3", "-Ccodegen-units=1", "--out-dir"]).arg(out).arg(source);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn text() -> String {
    let mut text = String::new();
    for number in 0..FUNCTIONS {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "pub fn f{number}(words: &[String]) -> String {{ \
             let mut all: Vec<_> = words.iter().filter(|word| word.len() > {number}).map(|word| format!(\"{{word}}-{number}\")).collect(); \
             all.sort(); all.join(\",\") }}"
        );
    }
    text
}
