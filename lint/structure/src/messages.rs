//! Messages of the programs, written to files that the linter of prose reads.

use crate::source::{Module, PRODUCT, ROOT, Source, example};
use std::path::Path;

/// Each source file has a file of its own in target/prose/messages. A message of line 7 stands on line 14 there: an empty line
/// parts it from the next.
#[test]
fn messages_are_written_for_the_linter_of_prose() {
    let folder = Path::new(ROOT).join("target/prose/messages");
    std::fs::create_dir_all(&folder).unwrap();
    for source in PRODUCT.iter().chain(&["virtual-kubelet"]).map(|folder| Source::read(&Path::new(ROOT).join(folder))) {
        let mut modules: Vec<_> = source.modules.values().filter(|module| !messages(module).is_empty()).collect();
        modules.sort_by_key(|module| module.file());
        assert!(source.name == "rollout_windows" || !modules.is_empty(), "{} has no messages", source.name);
        for modules in modules.chunk_by(|one, other| one.file() == other.file()) {
            let messages: Vec<_> = modules.iter().flat_map(|module| messages(module)).collect();
            let mut lines = vec![String::new(); 2 * messages.iter().map(|(_, line)| *line).max().unwrap_or(0)];
            for (message, line) in messages {
                lines[2 * line - 1] += &message;
            }
            let name = modules[0].file().trim_start_matches(['.', '/']).replace('/', "+");
            std::fs::write(folder.join(name + ".md"), lines.join("\n") + "\n").unwrap();
        }
    }
}

/// Strings of at least three words, with `x` for each value.
fn messages(module: &Module) -> Vec<(String, usize)> {
    let messages = module.texts.iter().map(|(text, line)| (with_values_quoted(text), *line));
    let is_message = |text: &str| text.split_whitespace().filter(|word| is_word(word)).count() >= 3;
    messages.filter(|(text, _)| is_message(text)).collect()
}

fn is_word(text: &str) -> bool {
    let text = text.trim_matches(|character: char| character.is_ascii_punctuation());
    !text.is_empty() && text.chars().all(char::is_alphabetic)
}

fn with_values_quoted(text: &str) -> String {
    let text = text.replace("{{", "(").replace("}}", ")").replace('`', "");
    let mut parts = text.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| part.split_once('}').map_or_else(|| format!("{text}{part}"), |(_, rest)| format!("{text}`x`{rest}")))
}

#[test]
fn messages_are_found_and_other_strings_left_out() {
    let lib = r#"//! Not a message.
        #[expect(dead_code, reason = "no message at all")]
        fn f() { bail!("node {name}: {} has \"no\" \
            pods") }
        const A: &str = r"remove it now";
        const PATH: &str = "/a/b";
        /// This tells nobody anything.
        #[error("it went all wrong")]
        struct A;
        #[cfg(test)]
        mod tests { const A: &str = "not in a test"; }
        mod flags;"#;
    let flags = "use clap::Parser;\n/// Names of the nodes.\nstruct Flags;";
    let source = example("messages", &[("lib.rs", lib), ("flags.rs", flags)]);
    let found: Vec<_> = source.modules.values().flat_map(messages).collect();
    let expected = [("node `x`: `x` has \"no\" pods", 3), ("remove it now", 5), ("it went all wrong", 8), (" Names of the nodes.", 2)];
    assert_eq!(found, expected.map(|(text, line)| (text.to_owned(), line)));
}
