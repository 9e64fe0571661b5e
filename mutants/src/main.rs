//! Breaks production code on purpose, one fault at a time, and says which faults no test finds.

mod executables;
mod list;
mod packages;
mod rewrite;
mod state;
mod tree;

use anyhow::{Context as _, Result, bail};
use executables::{End, Executables};
use list::{Fault, List};
use packages::{Packages, digest};
use state::{Known, State};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};
use tree::Sources;

/// Tests may take so many times as long as without a fault, and this much more, before they count as endless: other programs use
/// the machine, too.
const PATIENCE: (f64, Duration) = (5.0, Duration::from_secs(30));
/// The longest that all tests of a scope may take without a fault.
const LONGEST: Duration = Duration::from_mins(15);

fn main() -> Result<ExitCode> {
    let root = root()?;
    let list = List::read(&root.join("mutants"))?;
    let prefix = std::env::var("MUTANTS").unwrap_or_default();
    let mut chosen: Vec<_> = list.faults.iter().filter(|fault| fault.name.starts_with(&prefix)).collect();
    // After each that is built alone the others are built anew.
    chosen.sort_by_key(|fault| fault.build);
    if chosen.is_empty() {
        bail!("no fault has a name that begins with {prefix}");
    }
    let mut run = Run::begin(&root, &list, &chosen)?;
    let (mut told, mut survived, mut wrong) = (Vec::new(), 0, 0);
    for fault in &chosen {
        let found = run.look_for(fault)?;
        survived += usize::from(!found);
        let word = if found { "found" } else { "survived" };
        match (found, &fault.survives) {
            (true, None) => {}
            (false, Some(reason)) => told.push(format!("survived: {}: {reason}", fault.name)),
            (_, reason) => {
                let why = reason.as_ref().map_or("NO TEST FINDS IT, AND NO REASON IS GIVEN", |_| "A TEST FINDS IT: TAKE ITS REASON AWAY");
                told.push(format!("{word}: {}: {why}\n        alone   make mutants MUTANTS={}", fault.name, fault.name));
                wrong += 1;
            }
        }
    }
    for line in told {
        println!("{line}");
    }
    println!("{} found, {survived} survived", chosen.len() - survived);
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The root of the repository that this program was built from.
fn root() -> Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).context("no folder above")
}

/// One run over the list.
struct Run<'a> {
    sources: Sources,
    list: &'a List,
    tree: PathBuf,
    build: PathBuf,
    packages: Packages,
    /// Test targets that the chosen faults ask for; the packages are all, for Cargo unites their features.
    targets: BTreeSet<&'a str>,
    state: State,
    /// Built when the first fault needs them.
    executables: Option<Executables>,
}

impl<'a> Run<'a> {
    fn begin(root: &Path, list: &'a List, chosen: &[&'a Fault]) -> Result<Self> {
        let folder = root.join("target/mutants");
        let tree = folder.join("tree");
        std::fs::create_dir_all(&tree)?;
        let state = State::read(&folder.join("state.json"));
        let targets = chosen.iter().flat_map(|fault| &fault.tests).map(|scope| list.scopes[scope].target.as_str()).collect();
        let packages = Packages::read(root)?;
        let sources = Sources::read(root)?;
        Ok(Self { sources, list, tree, build: folder.join("build"), packages, targets, state, executables: None })
    }

    /// Whether a test finds the fault.
    fn look_for(&mut self, fault: &Fault) -> Result<bool> {
        let key = self.key(fault)?;
        if let Some(known) = self.state.of(&fault.name, &key) {
            show(fault, known, " (known)");
            return Ok(known.found.is_some());
        }
        for scope in &fault.tests {
            self.check(scope)?;
        }
        if !fault.build {
            self.prepare(None)?;
        }
        let started = Instant::now();
        if fault.build {
            self.prepare(Some(fault))?;
        }
        let found = self.finder(fault)?;
        if fault.build {
            self.executables = None;
        }
        let known = Known { key, found, seconds: started.elapsed().as_secs_f64() };
        show(fault, &known, "");
        self.state.note(&fault.name, known.clone())?;
        Ok(known.found.is_some())
    }

    /// The scope and the test that find the fault.
    fn finder(&self, fault: &Fault) -> Result<Option<(String, String)>> {
        // What found it before most likely finds it again.
        let before = self.state.ever(&fault.name).and_then(|known| known.found.clone()).filter(|(scope, _)| fault.tests.contains(scope));
        let first = before.iter().map(|(scope, test)| (scope, Some(test.as_str())));
        for (scope, one) in first.chain(fault.tests.iter().map(|scope| (scope, None))) {
            let (end, _) = self.run(scope, (!fault.build).then_some(&fault.name), one)?;
            match end {
                End::Passed(_) => {}
                End::Failed(test) => return Ok(Some((scope.clone(), test))),
                End::Endless => return Ok(Some((scope.clone(), "no end in time".to_owned()))),
            }
        }
        Ok(None)
    }

    /// The tests of a scope pass without any fault; else nothing can be said.
    fn check(&mut self, scope: &str) -> Result<()> {
        let (name, key) = (format!("scope/{scope}"), self.scope_key(scope)?);
        if self.state.of(&name, &key).is_some() {
            return Ok(());
        }
        self.prepare(None)?;
        let started = Instant::now();
        let (end, output) = self.run(scope, None, None)?;
        match end {
            End::Passed(0) => bail!("{scope}: there are no such tests"),
            End::Passed(_) => {}
            End::Failed(test) => bail!("{scope}: {test} fails without any fault\n{output}"),
            End::Endless => bail!("{scope}: tests do not end within {LONGEST:?} without any fault\n{output}"),
        }
        let seconds = started.elapsed().as_secs_f64();
        println!("without faults {scope} passes in {seconds:.1} s");
        self.state.note(&name, Known { key, found: None, seconds })
    }

    fn run(&self, scope: &str, fault: Option<&String>, one: Option<&str>) -> Result<(End, String)> {
        let known = self.state.of(&format!("scope/{scope}"), &self.scope_key(scope)?);
        let limit = known.map_or(LONGEST, |known| Duration::from_secs_f64(known.seconds * PATIENCE.0) + PATIENCE.1);
        let executables = self.executables.as_ref().context("nothing is built")?;
        executables.run(&self.packages, &self.list.scopes[scope], fault.map(String::as_str), one, limit)
    }

    /// Builds the tests, unless that is done: with all faults to choose from, or with one for good.
    fn prepare(&mut self, alone: Option<&Fault>) -> Result<()> {
        if self.executables.is_some() && alone.is_none() {
            return Ok(());
        }
        self.sources.copy_to(&self.tree, &self.list.faults, alone)?;
        let targets = alone.map_or_else(|| self.targets.clone(), |fault| self.list.targets(fault));
        self.executables = Some(Executables::build(&self.tree, &self.build, &self.list.packages(), &targets)?);
        Ok(())
    }

    fn scope_key(&self, scope: &str) -> Result<String> {
        let scope = &self.list.scopes[scope];
        let text = serde_json::to_vec(scope)?;
        Ok(digest([text.as_slice(), self.packages.hash(&scope.package).as_bytes()].into_iter()))
    }

    /// The reason is no part of it.
    fn key(&self, fault: &Fault) -> Result<String> {
        let mut parts = vec![serde_json::to_vec(&Fault { survives: None, ..fault.clone() })?];
        for scope in &fault.tests {
            parts.push(self.scope_key(scope)?.into_bytes());
        }
        Ok(digest(parts.iter().map(Vec::as_slice)))
    }
}

fn show(fault: &Fault, known: &Known, note: &str) {
    match &known.found {
        Some((scope, test)) => println!("found    {:<48} {:>6.1} s  {scope}: {test}{note}", fault.name, known.seconds),
        None => println!("SURVIVED {:<48} {:>6.1} s{note}", fault.name, known.seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_where_the_list_says() {
        let root = root().unwrap();
        let list = List::read(&root.join("mutants")).unwrap();
        let wrong = list.faults.iter().filter_map(|fault| {
            let source = std::fs::read_to_string(root.join(&fault.file)).unwrap_or_default();
            rewrite::place(&source, fault).err().map(|error| error.to_string())
        });
        let mut wrong: Vec<_> = wrong.collect();
        let files: BTreeSet<_> = list.faults.iter().map(|fault| &fault.file).collect();
        // Those that are chosen at run time stand in one source.
        wrong.extend(files.into_iter().filter_map(|file| {
            let chosen: Vec<_> = list.faults.iter().filter(|fault| fault.file == *file && !fault.build).collect();
            let source = std::fs::read_to_string(root.join(file)).unwrap_or_default();
            let parsed = rewrite::with_choices(&source, &chosen).and_then(|source| Ok(syn::parse_file(&source)?));
            parsed.err().map(|error| format!("{file}: {error}"))
        }));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
