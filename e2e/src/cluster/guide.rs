//! The commands of the guides in `docs/`, run as they are written there.

use std::{fmt::Write as _, os::unix::fs::symlink, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::{
    bed::Bed,
    host::{images, namespaces::find_program},
};

/// Helm's place in the checkout. It is built before a scenario that calls it begins.
pub const HELM_PROGRAM: &str = "target/bed/helm";
/// How long a command may take; some wait for up to five minutes themselves.
const COMMAND: Duration = Duration::from_mins(6);

/// A section of the guide, and a directory in which its commands work.
pub struct Guide {
    all: String,
    text: String,
    programs: PathBuf,
    directory: PathBuf,
    kubeconfig: PathBuf,
}

impl Guide {
    /// The section of a file below this heading, or what comes before the first one, on a bed with these nodes.
    pub fn in_file(bed: &Bed, file: &str, heading: Option<&str>, nodes: &[&str]) -> Result<Self> {
        let path = images::repository().join(file);
        let all = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let after = match heading {
            Some(heading) => {
                let below = |level: &str| all.split_once(&format!("\n{level} {heading}\n"));
                let (before, after) = below("##").or_else(|| below("###")).with_context(|| format!("no section {heading} in {file}"))?;
                // Its subsections belong to it, and its neighbours do not.
                let section = after.split("\n## ").next().unwrap_or_default();
                let is_subsection = all[before.len()..].starts_with("\n###");
                section.split("\n### ").next().filter(|_| is_subsection).unwrap_or(section)
            }
            None => all.split("\n## ").next().unwrap_or_default(),
        };
        let text = after.to_owned();
        let (programs, directory) = (bed.state().join("programs"), bed.state().join("checkout"));
        for made in [&programs, &directory] {
            std::fs::create_dir_all(made).with_context(|| format!("creating {}", made.display()))?;
        }
        for shown in ["crds", "deploy"] {
            let link = directory.join(shown);
            if !link.exists() {
                symlink(images::repository().join(shown), &link).with_context(|| format!("making {}", link.display()))?;
            }
        }
        for (name, program) in
            [("helm", images::repository().join(HELM_PROGRAM)), ("kubectl-ids", images::workspace_binary("kubectl-ids")?)]
        {
            let link = programs.join(name);
            // Helm is built for the scenarios alone that call it: elsewhere the link leads nowhere.
            if std::fs::symlink_metadata(&link).is_err() {
                symlink(&program, &link).with_context(|| format!("making {}", link.display()))?;
            }
        }
        for (name, script) in [("kubectl", kubectl(bed)), ("curl", curl(bed, nodes)?)] {
            let path = programs.join(name);
            std::fs::write(&path, format!("#!/bin/bash\n{script}\n")).with_context(|| format!("writing {}", path.display()))?;
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).context("making it executable")?;
        }
        Ok(Self { all, text, programs, directory, kubeconfig: bed.control_plane.admin_kubeconfig().to_owned() })
    }

    /// The text of a step: from the bold words with which it begins to the next that begin a line.
    fn step(&self, begins: &str) -> Result<&str> {
        let (_, after) = self.text.split_once(&format!("\n**{begins}")).with_context(|| format!("no step `{begins}` in the guide"))?;
        Ok(after.split("\n**").next().unwrap_or_default())
    }

    /// The resource that is to be made.
    pub fn example(&self) -> Result<Value> {
        serde_saphyr::from_str(self.block("yaml")?).context("reading the example")
    }

    /// Writes the resource that is to be made to a file beside the commands, as `changed`.
    pub fn write_example(&self, file: &str, changed: impl Fn(&str) -> String) -> Result<()> {
        self.write(file, &changed(self.block("yaml")?))
    }

    /// Writes a file beside the commands, and the directories that it is in.
    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.directory.join(file);
        std::fs::create_dir_all(path.parent().unwrap_or(&self.directory)).context("making its directory")?;
        std::fs::write(&path, text).with_context(|| format!("writing {file}"))
    }

    /// Where a file lies that was written beside the commands.
    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// The first block of this language in the section.
    pub fn block(&self, language: &str) -> Result<&str> {
        let (_, after) = self.text.split_once(&format!("```{language}\n")).with_context(|| format!("no block of {language}"))?;
        Ok(after.split("```").next().unwrap_or_default())
    }

    /// A command that stands in a sentence of the section.
    pub fn says<'c>(&self, command: &'c str) -> Result<&'c str> {
        ensure!(self.text.contains(command), "the section does not say `{command}`");
        Ok(command)
    }

    /// All objects that the file shows.
    pub fn objects(&self) -> Result<Vec<Value>> {
        let blocks = self.all.split("```yaml\n").skip(1);
        blocks.map(|block| serde_saphyr::from_str(block.split("```").next().unwrap_or_default()).context("reading an example")).collect()
    }

    /// The object of this kind and name, wherever the file shows it.
    pub fn named(&self, kind: &str, name: &str) -> Result<Value> {
        let found = self.objects()?.into_iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        found.with_context(|| format!("no {kind} {name} in the guide"))
    }

    /// The commands of the section.
    pub fn commands(&self) -> Vec<String> {
        commands(&self.text)
    }

    /// Runs all commands of the section; returns what they print.
    pub async fn run_all(&self) -> Result<String> {
        self.run_all_as(|command| command).await
    }

    /// Runs all commands of the section, each as `changed`; returns what they print.
    pub async fn run_all_as(&self, changed: impl Fn(String) -> String) -> Result<String> {
        self.run_each(&self.text, changed).await
    }

    /// Runs the commands of a step, each as `changed`; returns what they print.
    pub async fn run(&self, step: &str, changed: impl Fn(String) -> String) -> Result<String> {
        self.run_each(self.step(step)?, changed).await.with_context(|| format!("step `{step}`"))
    }

    async fn run_each(&self, text: &str, changed: impl Fn(String) -> String) -> Result<String> {
        let mut printed = String::new();
        let commands = commands(text);
        ensure!(!commands.is_empty(), "there are no commands");
        for command in commands {
            printed += &self.shell(&changed(command)).await?;
        }
        Ok(printed)
    }

    /// Runs a command in a shell.
    pub async fn shell(&self, command: &str) -> Result<String> {
        let path = format!("{}:{}", self.programs.display(), std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("/bin/bash");
        shell
            .args(["-c", command])
            .current_dir(&self.directory)
            .env("PATH", path)
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(COMMAND, shell.output()).await.with_context(|| format!("it does not end: {command}"))?;
        let output = output.with_context(|| format!("running {command}"))?;
        let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{command}: {}: {told}", output.status);
        Ok(told)
    }
}

fn kubectl(bed: &Bed) -> String {
    format!("exec {} kubectl \"$@\"", bed.control_plane.program().display())
}

/// No DNS knows the bed's nodes.
fn curl(bed: &Bed, nodes: &[&str]) -> Result<String> {
    let program = find_program("curl").context("curl is not installed; `make deps` installs it")?;
    let mut script = format!("exec {}", program.display());
    for name in nodes {
        let address = bed.address(name)?;
        // Writing to a String cannot fail.
        let _ = write!(script, " --connect-to {name}::{address}:");
    }
    Ok(format!("{script} \"$@\""))
}

/// Whether the next line belongs to this command, too; otherwise it is what the command prints.
fn goes_on(command: &str) -> bool {
    let mut quote = None;
    for letter in command.chars().filter(|letter| matches!(letter, '\'' | '"')) {
        quote = match quote {
            None => Some(letter),
            Some(open) if open == letter => None,
            open => open,
        };
    }
    quote.is_some() || command.ends_with(['\\', '|'])
}

/// The commands of a text, each with the lines in which it goes on.
fn commands(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| inside) {
            found.push(command.to_owned());
        } else if let Some(last) = found.last_mut().filter(|last| inside && goes_on(last)) {
            *last = format!("{last}\n{line}");
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_continues_after_backslash_pipe_or_open_quote() {
        let text = "Do\n```console\n$ one \\\n  two\nNAME\n\n$ three # n1\n$ a '\"\nb'\nc\n$ d |\n  e\n```\nand\n```yaml\n$ no\n```\n";
        assert_eq!(commands(text), ["one \\\n  two", "three # n1", "a '\"\nb'", "d |\n  e"]);
    }
}
