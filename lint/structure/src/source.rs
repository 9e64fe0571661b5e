//! The modules of a crate, the types that they define, the paths that they name, and their texts. Unit tests are left out.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The root of the repository.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The crates of the operator, the node agent and the plugin.
pub const PRODUCT: [&str; 7] =
    ["crds", "operator/rollout-windows", "operator/planner", "operator", "health-checker", "kubectl-ids", "auditor"];

/// A module by its names below the root of its crate.
pub type Id = Vec<String>;

/// A path that a module names.
#[derive(Clone, Debug)]
struct Named {
    path: Vec<String>,
    line: usize,
    /// What the module calls it, if it imports it.
    import: Option<String>,
}

#[derive(Debug, Default)]
pub struct Module {
    file: PathBuf,
    /// Structs, enums, traits and aliases, with their lines.
    pub types: Vec<(String, usize)>,
    /// Strings, and the help of flags, with their lines.
    pub texts: Vec<(String, usize)>,
    named: Vec<Named>,
    /// Its doc comments are the help of a program.
    has_flags: bool,
}

impl Module {
    /// File from the root of the repository.
    pub fn file(&self) -> String {
        self.file.strip_prefix(ROOT).unwrap_or(&self.file).display().to_string()
    }

    /// File from the root of the repository, and line.
    pub fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.file())
    }
}

/// A crate: `main.rs` counts as a module beside those of the root.
#[derive(Debug, Default)]
pub struct Source {
    pub name: String,
    pub modules: BTreeMap<Id, Module>,
}

/// Two modules of the same folder, each with all that is in it, of which one uses the other.
#[derive(Debug)]
pub struct Edge {
    pub folder: Id,
    pub from: String,
    pub to: String,
    /// File, line and path.
    pub place: String,
}

impl Source {
    /// Reads the sources in `folder`.
    pub fn read(folder: &Path) -> Self {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = ")).unwrap();
        let mut source = Self { name: name.trim_matches('"').replace('-', "_"), ..Self::default() };
        for (file, id) in [("lib.rs", vec![]), ("main.rs", vec!["main".to_owned()])] {
            let file = folder.join("src").join(file);
            if file.is_file() {
                source.read_file(file, &id);
            }
        }
        source
    }

    fn read_file(&mut self, file: PathBuf, id: &Id) {
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| unreachable!("{}: {error}", file.display()));
        let tokens = text.parse().unwrap_or_else(|error| unreachable!("{}: {error}", file.display()));
        self.modules.insert(id.clone(), Module { file, has_flags: text.contains("clap::"), ..Module::default() });
        self.walk(tokens, id, true);
    }

    fn walk(&mut self, tokens: TokenStream, id: &Id, is_top: bool) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let next = tokens.get(at + 1);
            let mut found = Vec::new();
            at += 1;
            match (token, next) {
                (TokenTree::Punct(hash), Some(TokenTree::Group(attribute))) if hash.as_char() == '#' && is_left_out(attribute) => {
                    at += 2 + tokens[at + 1..].iter().take_while(|token| !is_end(token)).count();
                }
                (TokenTree::Ident(keyword), Some(TokenTree::Ident(name))) if keyword == "mod" => {
                    self.module(&name.to_string(), tokens.get(at + 1), id);
                    at += 2;
                }
                (TokenTree::Ident(keyword), Some(TokenTree::Ident(name)))
                    if is_top && ["struct", "enum", "trait", "type"].iter().any(|kind| keyword == kind) =>
                {
                    self.here(id).types.push((name.to_string(), name.span().start().line));
                }
                (TokenTree::Ident(keyword), _) if keyword == "use" => {
                    found = paths(&tokens, &mut at);
                    for named in &mut found {
                        named.path.pop_if(|last| last == "self");
                        named.import = named.import.take().or_else(|| named.path.last().cloned());
                    }
                }
                (TokenTree::Ident(_), Some(_)) if is_colons(&tokens[at..]) => {
                    at -= 1;
                    found = paths(&tokens, &mut at).into_iter().map(|named| Named { import: None, ..named }).collect();
                }
                (TokenTree::Punct(hash), Some(TokenTree::Group(attribute))) if hash.as_char() == '#' => {
                    self.attribute(attribute, id);
                    at += 1;
                }
                // `#![…]`
                (TokenTree::Punct(hash), Some(TokenTree::Punct(mark))) if hash.as_char() == '#' && mark.as_char() == '!' => {
                    if let Some(TokenTree::Group(attribute)) = tokens.get(at + 1) {
                        self.attribute(attribute, id);
                    }
                    at += 2;
                }
                // `serde` and its like take paths in quotes.
                (TokenTree::Literal(text), _) if text.to_string().starts_with("\"crate::") => {
                    let path = text.to_string().trim_matches('"').split("::").map(str::to_owned).collect();
                    found.push(Named { path, line: text.span().start().line, import: None });
                }
                (TokenTree::Literal(text), _) => {
                    let line = text.span().start().line;
                    self.here(id).texts.extend(string(&text.to_string()).map(|text| (text, line)));
                }
                (TokenTree::Group(group), _) => self.walk(group.stream(), id, false),
                _ => {}
            }
            self.here(id).named.extend(found);
        }
    }

    /// Takes in the paths of an attribute, and of its strings only messages of errors and the help of a program.
    fn attribute(&mut self, attribute: &Group, id: &Id) {
        let before = self.here(id).texts.len();
        self.walk(attribute.stream(), id, false);
        let name = attribute.stream().into_iter().next().map_or_else(String::new, |name| name.to_string());
        let here = self.here(id);
        if name != "error" && !(here.has_flags && ["doc", "arg", "command"].contains(&name.as_str())) {
            here.texts.truncate(before);
        }
    }

    fn here(&mut self, id: &Id) -> &mut Module {
        self.modules.entry(id.clone()).or_default()
    }

    /// Takes in `mod name;` or `mod name { … }`.
    fn module(&mut self, name: &str, body: Option<&TokenTree>, parent: &Id) {
        let id = child(inside(parent), name);
        let file = self.here(parent).file.clone();
        if let Some(TokenTree::Group(body)) = body {
            let has_flags = self.here(parent).has_flags;
            self.modules.insert(id.clone(), Module { file, has_flags, ..Module::default() });
            return self.walk(body.stream(), &id, true);
        }
        let is_root = ["lib.rs", "main.rs", "mod.rs"].iter().any(|root| file.ends_with(root));
        let folder = if is_root { file.with_file_name("") } else { file.with_extension("") };
        let alone = folder.join(name).with_extension("rs");
        self.read_file(if alone.is_file() { alone } else { folder.join(name).join("mod.rs") }, &id);
    }

    /// The module that a path leads to from another one, past the imports of those on its way.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<Id> {
        let here = inside(from);
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => here.to_vec(),
            "super" => here.split_last()?.1.to_vec(),
            name if self.modules.contains_key(&child(here, name)) => child(here, name),
            name if *name == self.name => Vec::new(),
            _ => return None,
        };
        while let Some((name, further)) = rest.split_first() {
            if name == "super" {
                at.pop();
            } else if self.modules.contains_key(&child(&at, name)) {
                at.push(name.clone());
            } else {
                break;
            }
            rest = further;
        }
        let module = self.modules.get(&at).or_else(|| self.modules.get(&child(&at, "main")))?;
        let import = module.named.iter().find(|named| named.import.is_some() && named.import.as_ref() == rest.first());
        let further = import.filter(|_| depth < 8).and_then(|import| self.resolve(&at, &import.path, depth + 1));
        Some(further.unwrap_or(at))
    }

    /// Every use of one module by another that is beside it.
    pub fn edges(&self) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (from, module) in &self.modules {
            for named in &module.named {
                let Some(to) = self.resolve(from, &named.path, 0) else { continue };
                let same = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
                if let (Some(one), Some(other)) = (from.get(same), to.get(same)) {
                    let place = format!("{} uses {}", module.place(named.line), named.path.join("::"));
                    edges.push(Edge { folder: from[..same].to_vec(), from: one.clone(), to: other.clone(), place });
                }
            }
        }
        edges
    }
}

/// Where the paths of a module begin: those of `main.rs` at the root.
fn inside(id: &[String]) -> &[String] {
    if id == ["main"] { &[] } else { id }
}

fn child(id: &[String], name: &str) -> Id {
    id.iter().cloned().chain([name.to_owned()]).collect()
}

/// A test, or a file of another crate.
fn is_left_out(attribute: &Group) -> bool {
    let text: String = attribute.stream().to_string().split_whitespace().collect();
    ["cfg(test)", "cfg(all(test,", "path="].iter().any(|start| text.starts_with(start))
}

fn is_colons(tokens: &[TokenTree]) -> bool {
    let is_colon = |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(colon)) if colon.as_char() == ':');
    is_colon(0) && is_colon(1)
}

/// The text of a literal that is a string.
fn string(literal: &str) -> Option<String> {
    if let Some(raw) = literal.strip_prefix('r') {
        return raw.trim_matches('#').strip_prefix('"')?.strip_suffix('"').map(str::to_owned);
    }
    let text = literal.strip_prefix('"')?.strip_suffix('"')?;
    // A backslash joins a line with the next.
    let mut lines = text.split("\\\n");
    let first = lines.next()?.to_owned();
    Some(lines.fold(first, |text, line| text + line.trim_start()).replace("\\n", " ").replace("\\\"", "\""))
}

/// What ends an item.
fn is_end(token: &TokenTree) -> bool {
    match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        _ => false,
    }
}

/// The paths of a tree as in a `use`; `at` is moved behind it.
fn paths(tokens: &[TokenTree], at: &mut usize) -> Vec<Named> {
    let skip_colons = |at: &mut usize| {
        let found = tokens.get(*at..).is_some_and(is_colons);
        *at += if found { 2 } else { 0 };
        found
    };
    skip_colons(at);
    match tokens.get(*at) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let (tokens, mut inner, mut found) = (group.stream().into_iter().collect::<Vec<_>>(), 0, Vec::new());
            while inner < tokens.len() {
                found.extend(paths(&tokens, &mut inner));
                inner += 1;
            }
            *at += 1;
            found
        }
        Some(TokenTree::Ident(name)) => {
            *at += 1;
            let alone = Named { path: vec![name.to_string()], line: name.span().start().line, import: None };
            if skip_colons(at) {
                let further = paths(tokens, at);
                let join = |named: Named| Named { path: alone.path.iter().cloned().chain(named.path).collect(), ..named };
                return if further.is_empty() { vec![alone] } else { further.into_iter().map(join).collect() };
            }
            match (tokens.get(*at), tokens.get(*at + 1)) {
                (Some(TokenTree::Ident(word)), Some(TokenTree::Ident(alias))) if word == "as" => {
                    *at += 2;
                    vec![Named { import: Some(alias.to_string()), ..alone }]
                }
                _ => vec![alone],
            }
        }
        _ => Vec::new(),
    }
}

/// A crate of these files, for tests.
pub fn example(name: &str, files: &[(&str, &str)]) -> Source {
    let folder = std::env::temp_dir().join(format!("structure-{name}-{}", std::process::id()));
    let manifest = ("../Cargo.toml", "name = \"example-crate\"");
    for (file, text) in files.iter().chain([&manifest]) {
        let file = folder.join("src").join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    let source = Source::read(&folder);
    std::fs::remove_dir_all(folder).unwrap();
    source
}
