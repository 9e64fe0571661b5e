//! What a crate shows to its users, read from its source as rustdoc lists it, and whether an example uses it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use syn::{Attribute, Expr, Ident, ImplItem, Item, ItemUse, Lit, Meta, TraitItem, Type, UseTree, Visibility};

/// How an example names an item when it uses it.
#[derive(Clone, Debug)]
pub enum Use {
    /// A type, a trait, a constant: as a word.
    Word,
    /// A free function: called, or by path.
    Function,
    /// A method: called, by path, or written for a trait.
    Method,
    /// What belongs to a type and needs no value of it: with the type's name.
    Associated { of: String },
}

/// A public item, and the docs in which its example may be: its own, its type's, its module's.
#[derive(Debug)]
pub struct Public {
    pub path: String,
    name: String,
    how: Use,
    docs: String,
}

impl Public {
    pub fn is_shown(&self) -> bool {
        examples(&self.docs).iter().any(|example| uses(example, &self.name, &self.how))
    }
}

/// The code that a reader sees of each example that is compiled; without imports and comments, which use nothing.
pub fn examples(docs: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, block) in docs.split("```").enumerate() {
        let (kind, code) = block.split_once('\n').unwrap_or((block, ""));
        let is_compiled = kind.split(',').all(|word| matches!(word.trim(), "" | "rust" | "no_run"));
        if index % 2 == 0 || !is_compiled {
            continue;
        }
        let lines = code.lines().map(str::trim).filter(|line| *line != "#" && !line.starts_with("# "));
        let lines = lines.map(|line| line.split_once("//").map_or(line, |(code, _)| code));
        let mut continued = false;
        let used = lines.filter(|line| {
            let is_import = continued || line.starts_with("use ");
            continued = is_import && !line.ends_with(';');
            !is_import
        });
        found.push(used.collect::<Vec<_>>().join("\n"));
    }
    found
}

/// Whether `example` uses what has this name.
pub fn uses(example: &str, name: &str, how: &Use) -> bool {
    let of_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    example.match_indices(name).any(|(at, _)| {
        let (before, after) = (&example[..at], &example[at + name.len()..]);
        if before.bytes().last().is_some_and(of_word) || after.bytes().next().is_some_and(of_word) {
            return false;
        }
        let is_called = after.starts_with(['(', '<']) || after.starts_with("::<");
        match how {
            Use::Word => true,
            Use::Function => before.ends_with("::") || (is_called && !before.ends_with('.') && !before.ends_with("fn ")),
            Use::Method => before.ends_with("::") || (is_called && (before.ends_with('.') || before.ends_with("fn "))),
            Use::Associated { of } => {
                let owner = before.strip_suffix("::").unwrap_or_default();
                let owner = owner.rsplit_once("::<").filter(|_| owner.ends_with('>')).map_or(owner, |(owner, _)| owner);
                let owner = owner.rsplit(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next();
                owner == Some(of) || owner == Some("Self")
            }
        }
    })
}

/// A module, public or not.
struct Module {
    docs: String,
    items: Vec<Item>,
    children: BTreeMap<String, Module>,
}

impl Module {
    /// Reads a module and those below it, whose files are in `directory`.
    fn read(file: &Path, directory: &Path, outer_docs: &str) -> Self {
        let parsed = syn::parse_file(&fs::read_to_string(file).expect("a module's file")).expect("what compiles");
        let mut children = BTreeMap::new();
        for item in &parsed.items {
            if let Item::Mod(module) = item
                && module.content.is_none()
                && !has(&module.attrs, "cfg", "test")
            {
                let name = module.ident.to_string();
                let (flat, nested) = (directory.join(format!("{name}.rs")), directory.join(&name));
                let file = if flat.exists() { flat } else { nested.join("mod.rs") };
                children.insert(name, Self::read(&file, &nested, &docs(&module.attrs)));
            }
        }
        Self { docs: format!("{outer_docs}\n{}", docs(&parsed.attrs)), items: parsed.items, children }
    }

    fn child(&self, path: &[String]) -> Option<&Self> {
        path.iter().try_fold(self, |module, name| module.children.get(name))
    }
}

fn docs(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether `#[name(word)]` is there.
fn has(attributes: &[Attribute], name: &str, word: &str) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident(name) && list.tokens.to_string() == word,
        _ => false,
    })
}

/// Whether users see it.
fn is_listed(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    matches!(visibility, Visibility::Public(_)) && !has(attributes, "doc", "hidden")
}

/// Name, visibility and attributes of an item that users may have.
fn head(item: &Item) -> Option<(&Ident, &Visibility, &[Attribute])> {
    Some(match item {
        Item::Struct(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Enum(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Trait(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Type(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Const(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Static(item) => (&item.ident, &item.vis, &item.attrs),
        Item::Fn(item) => (&item.sig.ident, &item.vis, &item.attrs),
        _ => return None,
    })
}

/// As `::name`, which is documented there.
fn is_of_another_crate(item: &ItemUse) -> bool {
    item.leading_colon.is_some()
}

/// All paths of an import, each with the name that it gets.
fn imports(tree: &UseTree, before: &[String]) -> Vec<(Vec<String>, String)> {
    let path = |ident: &Ident| before.iter().cloned().chain([ident.to_string()]).collect::<Vec<_>>();
    match tree {
        UseTree::Path(tree) => imports(&tree.tree, &path(&tree.ident)),
        UseTree::Name(tree) => vec![(path(&tree.ident), tree.ident.to_string())],
        UseTree::Rename(tree) => vec![(path(&tree.ident), tree.rename.to_string())],
        UseTree::Group(tree) => tree.items.iter().flat_map(|tree| imports(tree, before)).collect(),
        // Found nowhere: a public one would be missed otherwise.
        UseTree::Glob(_) => vec![(before.iter().cloned().chain(["*".to_owned()]).collect(), "*".to_owned())],
    }
}

/// A crate's modules, and where things in them are defined.
struct Crate(Module);

/// Where an item is defined: its module, and its place there.
type Place = (Vec<String>, usize);

impl Crate {
    fn module(&self, path: &[String]) -> Option<&Module> {
        self.0.child(path)
    }

    /// Where `name`, as `module` knows it, is defined; nothing for what is another crate's.
    fn defined(&self, module: &[String], name: &str) -> Option<Place> {
        let here = self.module(module)?;
        if let Some(index) = here.items.iter().position(|item| head(item).is_some_and(|(ident, ..)| ident == name)) {
            return Some((module.to_vec(), index));
        }
        let uses = here.items.iter().filter_map(|item| if let Item::Use(item) = item { Some(item) } else { None });
        let uses = uses.filter(|item| !is_of_another_crate(item));
        let (path, _) = uses.flat_map(|item| imports(&item.tree, &[])).find(|(_, known)| known == name)?;
        self.followed(module, &path)
    }

    /// Where `path`, as it stands in `module`, leads.
    fn followed(&self, module: &[String], path: &[String]) -> Option<Place> {
        let (name, path) = path.split_last()?;
        let mut at = module.to_vec();
        for (index, step) in path.iter().enumerate() {
            match step.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()?),
                _ => at.push(step.clone()),
            }
            // A first step that is no module of ours is another crate.
            if self.module(&at).is_none() {
                assert!(index == 0, "there is no module {at:?}");
                return None;
            }
        }
        self.defined(&at, name)
    }

    /// What users see of a type's own: from all its `impl` blocks, wherever they are.
    fn members(&self, module: (&[String], &Module), place: &Place, found: &mut Vec<(Ident, String, bool)>) {
        let (path, here) = module;
        for item in &here.items {
            let Item::Impl(block) = item else { continue };
            let Type::Path(of) = &*block.self_ty else { continue };
            let Some(name) = of.path.segments.last() else { continue };
            if block.trait_.is_some() || self.defined(path, &name.ident.to_string()).as_ref() != Some(place) {
                continue;
            }
            for member in &block.items {
                match member {
                    ImplItem::Fn(item) if is_listed(&item.vis, &item.attrs) => {
                        found.push((item.sig.ident.clone(), docs(&item.attrs), item.sig.receiver().is_some()));
                    }
                    ImplItem::Const(item) if is_listed(&item.vis, &item.attrs) => {
                        found.push((item.ident.clone(), docs(&item.attrs), false));
                    }
                    _ => {}
                }
            }
        }
        for (name, child) in &here.children {
            let path: Vec<_> = path.iter().cloned().chain([name.clone()]).collect();
            self.members((&path, child), place, found);
        }
    }

    /// One item under the name that users know it by, and what belongs to it.
    fn list(&self, shown: (&str, &str), place: &Place, module_docs: &str, found: &mut Vec<Public>) {
        let (path, name) = shown;
        let Some(item) = self.module(&place.0).and_then(|module| module.items.get(place.1)) else { return };
        let Some((_, _, attributes)) = head(item) else { return };
        let own = format!("{}\n{module_docs}", docs(attributes));
        let path = format!("{path}::{name}");
        let mut add = |path: String, name: &str, how: Use, docs: String| found.push(Public { path, name: name.to_owned(), how, docs });
        add(path.clone(), name, if matches!(item, Item::Fn(_)) { Use::Function } else { Use::Word }, own.clone());
        let mut members = Vec::new();
        match item {
            Item::Trait(item) => {
                for member in &item.items {
                    match member {
                        TraitItem::Fn(member) => members.push((member.sig.ident.clone(), docs(&member.attrs), true)),
                        TraitItem::Const(member) => members.push((member.ident.clone(), docs(&member.attrs), true)),
                        TraitItem::Type(member) => members.push((member.ident.clone(), docs(&member.attrs), true)),
                        _ => {}
                    }
                }
            }
            Item::Struct(_) | Item::Enum(_) => self.members((&[], &self.0), place, &mut members),
            _ => {}
        }
        for (member, docs, is_method) in members {
            let member = member.to_string();
            let how = if is_method { Use::Method } else { Use::Associated { of: name.to_owned() } };
            add(format!("{path}::{member}"), &member, how, format!("{docs}\n{own}"));
        }
    }

    /// What users see of a module and of those below it.
    fn walk(&self, path: &[String], found: &mut Vec<Public>) {
        let here = self.module(path).expect("a public module has a file of its own");
        let shown = path.join("::");
        for (index, item) in here.items.iter().enumerate() {
            match item {
                Item::Mod(module) if is_listed(&module.vis, &module.attrs) => {
                    let path: Vec<_> = path.iter().cloned().chain([module.ident.to_string()]).collect();
                    self.walk(&path, found);
                }
                Item::Use(item) if is_of_another_crate(item) => {}
                Item::Use(item) if is_listed(&item.vis, &item.attrs) => {
                    for (import, name) in imports(&item.tree, &[]) {
                        let place = self.followed(path, &import).expect("a public import of one item of this crate");
                        let of_import = format!("{}\n{}", docs(&item.attrs), here.docs);
                        self.list((&shown, &name), &place, &of_import, found);
                    }
                }
                _ => {
                    if let Some((ident, visibility, attributes)) = head(item)
                        && is_listed(visibility, attributes)
                    {
                        self.list((&shown, &ident.to_string()), &(path.to_vec(), index), &here.docs, found);
                    }
                }
            }
        }
    }
}

/// All public items of the library whose sources are in `directory`.
pub fn public_items(directory: &Path) -> Vec<Public> {
    let mut found = Vec::new();
    Crate(Module::read(&directory.join("lib.rs"), directory, "")).walk(&[], &mut found);
    found
}
