//! The modules of a crate, and their uses of names of other modules.
//!
//! A path is read wherever it stands in product code: in `use` declarations with all their groups,
//! and in front of a name. It begins at `crate`, `self`, `super`, a child module or an imported
//! name. It is followed through re-exports to the module that defines the name. Paths of other
//! crates and methods are not read, since their text does not show where they are defined.

use std::collections::{BTreeMap, BTreeSet};

use super::File;
use super::source::{code, is_word, product, tokens};

/// The path of a module: its names below the crate.
pub(super) type ModulePath = Vec<String>;

/// The modules of one crate that `lib.rs` or `main.rs` reaches outside unit tests.
pub(super) struct Modules<'a>(BTreeMap<ModulePath, Module<'a>>);

/// A file.
struct Module<'a> {
    file: &'a File,
    children: Vec<String>,
    paths: Vec<Path>,
    /// The names defined at the top of the file; a macro with its `!`.
    defined: BTreeSet<String>,
}

/// A path in a file.
struct Path {
    names: Vec<String>,
    line: usize,
    kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// In front of a name in code.
    Mention,
    /// In a `use` declaration inside an item.
    LocalImport,
    /// In a `use` declaration of the module, which then knows it by this name; `None`: all names of
    /// the path, by `*`.
    Import(Option<String>),
}

/// The folders that hold a `lib.rs` or a `main.rs`.
pub(super) fn roots(files: &[File]) -> BTreeSet<&str> {
    let paths = files.iter().map(|file| file.path.as_str());
    let roots =
        paths.filter_map(|path| path.strip_suffix("lib.rs").or(path.strip_suffix("main.rs")));
    roots.filter(|root| root.ends_with("/src/")).collect()
}

/// A path that leads to another module.
pub(super) struct Use<'a> {
    pub(super) from: &'a File,
    /// The module that this file is.
    pub(super) at: &'a ModulePath,
    pub(super) line: usize,
    /// The written path, with groups resolved.
    pub(super) path: String,
    /// The modules through which it leads, below the crate; the last one defines the name.
    pub(super) way: Vec<ModulePath>,
    /// The file of the last module.
    pub(super) to: &'a File,
    /// Whether it begins at an imported name; then the import already counts for the folder.
    pub(super) is_repeated: bool,
}

impl<'a> Modules<'a> {
    /// Reads the crate whose `lib.rs` or `main.rs` is in the folder `root`, which ends in `/`.
    pub(super) fn read(files: &'a [File], root: &str) -> Modules<'a> {
        let by_path: BTreeMap<&str, &File> =
            files.iter().map(|file| (file.path.as_str(), file)).collect();
        let mut modules = BTreeMap::new();
        let mut next = vec![ModulePath::new()];
        while let Some(path) = next.pop() {
            let place = format!("{root}{}", path.join("/"));
            let places = match path.is_empty() {
                true => [format!("{place}lib.rs"), format!("{place}main.rs")],
                false => [format!("{place}.rs"), format!("{place}/mod.rs")],
            };
            let Some(file) = places.iter().find_map(|place| by_path.get(place.as_str())) else {
                continue;
            };
            let module = Module::read(file);
            next.extend(module.children.iter().map(|child| joined(&path, child)));
            modules.insert(path, module);
        }
        Modules(modules)
    }

    /// Every path that leads to another module of the crate.
    pub(super) fn uses(&self) -> Vec<Use<'_>> {
        let mut uses = Vec::new();
        for (at, module) in &self.0 {
            for path in &module.paths {
                let Some(way) = self.way(at, &path.names, HOPS_MAX) else { continue };
                let Some(to) = way.last().and_then(|last| self.0.get(last)) else { continue };
                let is_repeated =
                    path.kind == Kind::Mention && module.imports(&path.names[0]).is_some();
                uses.push(Use {
                    from: module.file,
                    at,
                    line: path.line,
                    path: path.names.join("::"),
                    to: to.file,
                    way,
                    is_repeated,
                });
            }
        }
        uses.retain(|found| found.to.path != found.from.path || found.way.len() > 1);
        uses
    }

    /// The modules that a path of the module `at` leads through; `None` if it leads out of the crate.
    fn way(&self, at: &ModulePath, names: &[String], hops: usize) -> Option<Vec<ModulePath>> {
        let mut at = at.clone();
        let mut way = Vec::new();
        for (number, name) in names.iter().enumerate() {
            match name.as_str() {
                "self" => {}
                "crate" => at.clear(),
                "super" => drop(at.pop()?),
                name => {
                    let child = joined(&at, name);
                    if !self.0.contains_key(&child) {
                        let rest = &names[number + 1..];
                        if let Some(target) = self.imported(&at, name, hops) {
                            let target: Vec<String> = target.iter().chain(rest).cloned().collect();
                            way.extend(self.way(&at, &target, hops - 1).unwrap_or_default());
                        } else if number == 0 {
                            return None;
                        }
                        return Some(way);
                    }
                    at = child;
                }
            }
            way.push(at.clone());
        }
        Some(way)
    }

    /// The module that defines a macro of the crate's root; the root has all exported macros.
    fn macro_home(&self, name: &str) -> Option<&ModulePath> {
        let name = format!("{name}!");
        self.0.iter().find(|(_, module)| module.defined.contains(&name)).map(|(path, _)| path)
    }

    /// The path from which a module imports a name.
    fn imported(&self, at: &ModulePath, name: &str, hops: usize) -> Option<Vec<String>> {
        let module = self.0.get(at)?;
        if hops == 0 || module.defined.contains(name) {
            return None;
        }
        if let Some(path) = module.imports(name) {
            return Some(path.names.clone());
        }
        if at.is_empty()
            && let Some(path) = self.macro_home(name)
        {
            return Some(path.clone());
        }
        module.paths.iter().filter(|path| path.is_glob()).find_map(|path| {
            let way = self.way(at, &path.names, hops - 1)?;
            let target = self.0.get(way.last()?)?;
            let has = target.defined.contains(name) || target.imports(name).is_some();
            has.then(|| joined(&path.names, name))
        })
    }
}

impl Use<'_> {
    /// The module that defines the name.
    pub(super) fn target(&self) -> &[String] {
        self.way.last().map_or(&[], |module| module)
    }
}

impl<'a> Module<'a> {
    fn read(file: &'a File) -> Module<'a> {
        let code = product(&code(&file.text));
        let mut reader = Reader::new(&code);
        while reader.step() {}
        let Reader { children, paths, defined, .. } = reader;
        Module { file, children, paths, defined }
    }

    fn imports(&self, name: &str) -> Option<&Path> {
        let is_it = |path: &&Path| path.kind == Kind::Import(Some(name.to_owned()));
        self.paths.iter().find(is_it)
    }
}

impl Path {
    fn is_glob(&self) -> bool {
        self.kind == Kind::Import(None)
    }
}

/// Reads the code of one file.
struct Reader<'a> {
    /// Words, `::`, and single characters, each with its line.
    tokens: Vec<(&'a str, usize)>,
    at: usize,
    /// Number of open braces.
    depth: usize,
    /// The depth at which each open module inside the file began; from there, `super` is the file
    /// itself.
    inner: Vec<usize>,
    children: Vec<String>,
    paths: Vec<Path>,
    defined: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    fn new(code: &'a str) -> Reader<'a> {
        Reader {
            tokens: tokens(code),
            at: 0,
            depth: 0,
            inner: Vec::new(),
            children: Vec::new(),
            paths: Vec::new(),
            defined: BTreeSet::new(),
        }
    }

    /// Reads the next declaration, path or character; false at the end.
    fn step(&mut self) -> bool {
        let token = self.token(0);
        match (token, self.token(1), self.token(2)) {
            ("", ..) => return false,
            ("use", next, _) if next != "<" => return self.declaration(),
            ("mod", name, ";") => self.children.push(name.to_owned()),
            ("mod", _, "{") => self.inner.push(self.depth),
            ("{", ..) => self.depth += 1,
            ("}", ..) => {
                self.depth = self.depth.saturating_sub(1);
                self.inner.retain(|depth| *depth < self.depth);
            }
            (first, "::", next) if is_name(first) && is_name(next) => return self.mention(),
            _ => {}
        }
        if self.depth == 0 && token != "mod" && DEFINING.contains(&token) {
            let name = match self.token(1) {
                "!" => format!("{}!", self.token(2)),
                name => name.to_owned(),
            };
            self.defined.insert(name);
        }
        self.at += 1;
        true
    }

    /// Reads `a::b::c`.
    fn mention(&mut self) -> bool {
        let line = self.tokens[self.at].1;
        let is_scope =
            self.at > 1 && self.tokens[self.at - 1].0 == "in" && self.tokens[self.at - 2].0 == "(";
        let is_rest = self.at > 0 && self.tokens[self.at - 1].0 == "::";
        let mut names = vec![self.token(0).to_owned()];
        self.at += 1;
        while self.token(0) == "::" && is_name(self.token(1)) {
            names.push(self.token(1).to_owned());
            self.at += 2;
        }
        if !is_scope && !is_rest {
            self.push(names, line, Kind::Mention);
        }
        true
    }

    /// Reads `use …;`.
    fn declaration(&mut self) -> bool {
        self.at += 1;
        self.tree(Vec::new());
        true
    }

    /// Reads a path of a declaration, with its groups.
    fn tree(&mut self, mut names: Vec<String>) {
        let line = self.tokens.get(self.at).map_or(0, |(_, line)| *line);
        loop {
            let token = self.token(0);
            self.at += 1;
            match token {
                "::" if !names.is_empty() => {}
                "*" => return self.import(names, line, None),
                "{" => break,
                name if is_name(name) && self.token(0) == "::" => names.push(name.to_owned()),
                name if is_name(name) => {
                    if name != "self" || names.is_empty() {
                        names.push(name.to_owned());
                    }
                    let mut known_as = names.last().cloned();
                    if self.token(0) == "as" {
                        known_as = Some(self.token(1).to_owned());
                        self.at += 2;
                    }
                    return self.import(names, line, known_as);
                }
                _ => return,
            }
        }
        while !matches!(self.token(0), "}" | "") {
            if self.token(0) == "," {
                self.at += 1;
            } else {
                self.tree(names.clone());
            }
        }
        self.at += 1;
    }

    fn import(&mut self, names: Vec<String>, line: usize, known_as: Option<String>) {
        // `pub(crate) use name;` of a macro leads nowhere else.
        if names.len() == 1 && known_as.as_ref() == names.first() {
            return;
        }
        let kind = if self.depth == 0 { Kind::Import(known_as) } else { Kind::LocalImport };
        self.push(names, line, kind);
    }

    fn push(&mut self, mut names: Vec<String>, line: usize, kind: Kind) {
        for _ in &self.inner {
            if names[0] == "super" {
                names.remove(0);
            }
        }
        if !names.is_empty() {
            self.paths.push(Path { names, line, kind });
        }
    }

    /// The token at this distance; empty after the last one.
    fn token(&self, further: usize) -> &'a str {
        self.tokens.get(self.at + further).map_or("", |(token, _)| token)
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c| is_word(c) && !c.is_ascii_digit())
}

fn joined(path: &[String], name: &str) -> Vec<String> {
    path.iter().cloned().chain([name.to_owned()]).collect()
}

/// Keywords before the name of a definition.
const DEFINING: [&str; 10] =
    ["const", "enum", "fn", "macro_rules", "mod", "static", "struct", "trait", "type", "union"];

/// Most re-exports through which a path is followed.
const HOPS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_is_looked_at() {
        let files = ["a/src/lib.rs", "b/src/main.rs", "b/src/c/lib.rs", "d/tests/main.rs"];
        let files: Vec<File> = files.iter().map(|path| File::new(path, "")).collect();
        assert_eq!(roots(&files).into_iter().collect::<Vec<_>>(), ["a/src/", "b/src/"]);
    }
}
