//! The commands that README and the guides show are ones that there are.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use clap::{Parser as _, error::ErrorKind};
use crds::names::GROUP;
use kubectl_ids::arguments::Arguments;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// README and every guide, by path.
fn guides() -> Vec<(PathBuf, String)> {
    let docs = fs::read_dir(repository().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let markdown = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let all = markdown.chain(["README.md", "CONTRIBUTING.md"].map(|file| repository().join(file)));
    all.map(|path| (path.clone(), fs::read_to_string(&path).unwrap())).collect()
}

/// Commands that begin like this, in backquotes or behind a prompt; a comment, a pipe or another command ends them.
fn commands(text: &str, begin: &str) -> BTreeSet<Vec<String>> {
    let ends = ['`', '\n', '|', '#', '&', ';', '>', '<', '('];
    let starts = [format!("`{begin} "), format!("$ {begin} ")];
    let found = starts.iter().flat_map(|start| text.split(start.as_str()).skip(1));
    found.map(|after| after.split(ends).next().unwrap_or_default().split_whitespace().map(str::to_owned).collect()).collect()
}

/// A command that is only named lacks arguments; nothing else may be wrong with it.
fn is_known(words: &[String]) -> Result<(), clap::Error> {
    match Arguments::try_parse_from(["kubectl-ids".to_owned()].iter().chain(words)) {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            ErrorKind::MissingRequiredArgument | ErrorKind::DisplayVersion | ErrorKind::DisplayHelp => Ok(()),
            // `plan -f`: the flag is there, and its value is not named.
            ErrorKind::InvalidValue if words.last().is_some_and(|last| last.starts_with('-')) => Ok(()),
            _ => Err(error),
        },
    }
}

#[test]
fn guides_use_only_commands_that_the_plugin_takes() {
    let mut seen = 0;
    for (path, text) in guides() {
        for words in commands(&text, "kubectl ids") {
            seen += 1;
            let known = is_known(&words);
            assert!(known.is_ok(), "{}: `kubectl ids {}`: {}", path.display(), words.join(" "), known.unwrap_err());
        }
    }
    assert!(seen > 20, "only {seen} commands were found");
    assert!(is_known(&["no-such-command".to_owned()]).is_err());
    assert!(is_known(&["status".to_owned(), "--no-such-flag".to_owned()]).is_err());
}

#[test]
fn guides_use_only_make_targets_of_the_makefile() {
    let makefile = fs::read_to_string(repository().join("Makefile")).unwrap();
    for (path, text) in guides() {
        for words in commands(&text, "make") {
            let target = words.iter().find(|word| !word.contains('=')).unwrap();
            let known = makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
            assert!(known, "{}: `make {}`", path.display(), words.join(" "));
        }
    }
}

#[test]
fn guides_apply_only_files_that_exist_in_the_repository() {
    let mut seen = 0;
    for (path, text) in guides() {
        for words in commands(&text, "kubectl") {
            let files = words.windows(2).filter(|pair| pair[0] == "-f").map(|pair| pair[1].as_str());
            for file in files.filter(|file| file.starts_with("deploy/") || file.starts_with("crds/")) {
                seen += 1;
                assert!(repository().join(file).exists(), "{}: {file}", path.display());
            }
        }
    }
    assert!(seen > 2, "only {seen} files were found");
}

#[test]
fn the_helm_uninstall_guide_deletes_exactly_this_projects_crds() {
    let manifests = fs::read_dir(repository().join("crds/manifests")).unwrap().map(|entry| entry.unwrap().path());
    let manifests = manifests.filter(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    let ours: BTreeSet<String> = manifests.map(|path| format!("{}.{GROUP}", path.file_stem().unwrap().display())).collect();
    let guide = fs::read_to_string(repository().join("docs/operations.md")).unwrap();
    let section = guide.split("\n## ").find(|section| section.starts_with("Uninstall with Helm")).unwrap();
    let (_, command) = section.split_once("$ kubectl delete crds ").expect("a command that deletes CRDs");
    let command = command.split("```").next().unwrap();
    let deleted: BTreeSet<String> = command.split_whitespace().filter(|word| word.contains('.')).map(str::to_owned).collect();
    assert_eq!(deleted, ours);
}

#[test]
fn no_guide_needs_gnu_sed_to_edit_files() {
    // The sed of macOS takes the next word for the suffix of a backup.
    let guides = guides();
    let found: Vec<_> = guides.iter().filter(|(_, text)| text.contains("sed -i ")).map(|(path, _)| path.display().to_string()).collect();
    assert_eq!(found, Vec::<String>::new(), "use `sed -i.bak`");
}

#[test]
fn readme_and_the_tutorial_install_with_the_same_commands() {
    let install = |file: &str| {
        let text = fs::read_to_string(repository().join(file)).unwrap();
        let section = text.split("\n## ").find(|section| section.starts_with("Install\n")).unwrap().to_owned();
        // A command that goes on in the next line is one.
        let section = section.replace("\\\n", " ");
        let helm = section.lines().filter_map(|line| line.strip_prefix("$ helm "));
        helm.map(|command| command.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let readme = install("README.md");
    assert!(readme.iter().any(|command| command[0] == "install"), "{readme:?}");
    assert_eq!(install("docs/tutorial.md"), readme);
}
