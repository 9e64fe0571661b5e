//! A compiler that keeps both cores busy, as on the machine of somebody who works.

use std::{
    fmt::Write as _,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::host::images;

/// Compilers at once, one for each core of the smallest machine.
const COMPILERS: usize = 2;
/// Functions in the file that is compiled: some seconds of work, most of it in the optimizer, which has one thread.
const FUNCTIONS: usize = 3000;

/// It runs until it is stopped.
pub(super) struct Compiler {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Compiler {
    pub(super) fn start() -> Result<Self> {
        let directory = images::repository().join("target/bed/compiler");
        std::fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
        let source = directory.join("source.rs");
        std::fs::write(&source, text()).with_context(|| format!("writing {}", source.display()))?;
        compile(&source, &directory.join("first"))?;
        let stop = Arc::<AtomicBool>::default();
        let threads = (0..COMPILERS).map(|number| {
            let (stop, source, out) = (Arc::clone(&stop), source.clone(), directory.join(number.to_string()));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    compile(&source, &out)?;
                }
                Ok(())
            })
        });
        Ok(Self { threads: threads.collect(), stop })
    }

    /// Ends it. Fails when it had not run until now on each core.
    pub(super) fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a compiler's thread panicked")))
    }
}

fn compile(source: &Path, out: &Path) -> Result<()> {
    let mut command = Command::new("rustc");
    command.args(["--crate-type=lib", "--edition=2024", "-Copt-level=3", "-Ccodegen-units=1", "--out-dir"]).arg(out).arg(source);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().context("running rustc")?;
    ensure!(status.success(), "rustc does not compile {}: {status}", source.display());
    Ok(())
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
