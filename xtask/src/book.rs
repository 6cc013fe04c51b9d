//! `cargo xtask book`: makes a book of the documents, into `target/book/html`.
//!
//! mdBook wants its pages in one folder. Ours lie in `docs/` and beside it, where GitHub shows them.
//! So the pages that `docs/SUMMARY.md` lists, and the files that these link to, are copied to
//! `target/book/pages`, under the same paths. Then all relative links stay as they are.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::process::{beside_programs, cargo, program, run as run_command};
use crate::rules::links::{links, resolved};

const SUMMARY: &str = "docs/SUMMARY.md";

/// The version of mdBook that `cargo install` builds. It takes some minutes, once.
const VERSION: &str = "0.5.4";

/// Makes the book, and checks the links of its pages.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let mdbook = install(root)?;
    let place = root.join("target/book");
    lay_pages(root, &place.join("pages"))?;
    run_command(&mut program(root, mdbook, "build"))?;
    let html = place.join("html");
    let dead = dead_links(&html)?;
    dead.iter().for_each(|link| println!("{link}"));
    if !dead.is_empty() {
        bail!("{} links of the book lead nowhere", dead.len());
    }
    println!("open {}", html.join("index.html").display());
    Ok(())
}

/// Builds mdBook, unless this version is there.
fn install(root: &Path) -> anyhow::Result<PathBuf> {
    let place = beside_programs(root, "mdbook");
    let built = place.join("version");
    if fs::read_to_string(&built).is_ok_and(|built| built == VERSION) {
        return Ok(place.join("bin/mdbook"));
    }
    let mut install =
        cargo(root, "install mdbook --locked --force --no-default-features --features search");
    run_command(install.args(["--version", VERSION, "--root"]).arg(&place))?;
    // Written last, so that an interrupted build begins again.
    fs::write(&built, VERSION).with_context(|| format!("writing {}", built.display()))?;
    Ok(place.join("bin/mdbook"))
}

/// Copies the pages, and what they link to.
fn lay_pages(root: &Path, pages: &Path) -> anyhow::Result<()> {
    if pages.exists() {
        fs::remove_dir_all(pages).with_context(|| format!("removing {}", pages.display()))?;
    }
    let read =
        |path: &str| fs::read_to_string(root.join(path)).with_context(|| format!("reading {path}"));
    let summary = read(SUMMARY)?;
    let mut files = BTreeSet::new();
    for page in links(&summary) {
        let page = resolved(SUMMARY, &page.path);
        for link in links(&read(&page)?) {
            let target = resolved(&page, &link.path);
            if root.join(&target).is_file() {
                files.insert(target);
            }
        }
        files.insert(page);
    }
    for path in &files {
        let copy = pages.join(path);
        fs::create_dir_all(copy.parent().unwrap_or(pages))?;
        fs::copy(root.join(path), copy).with_context(|| format!("copying {path}"))?;
    }
    fs::write(pages.join("SUMMARY.md"), from_root(&summary)).context("writing the contents")
}

/// The contents with paths from the root.
fn from_root(summary: &str) -> String {
    let mut text = String::new();
    for (number, part) in summary.split("](").enumerate() {
        if number == 0 {
            text.push_str(part);
            continue;
        }
        let (target, rest) = part.split_once(')').unwrap_or((part, ""));
        text.push_str(&format!("]({}){rest}", resolved(SUMMARY, target)));
    }
    text
}

/// The links of the finished book that lead to no file, or to no place in it.
fn dead_links(html: &Path) -> anyhow::Result<Vec<String>> {
    let mut pages = HashMap::new();
    read_pages(html, "", &mut pages)?;
    // These hold all other pages, or are shown under any path.
    let own = |page: &str| ["print.html", "404.html", "toc.html"].contains(&page);
    let ids: HashMap<&str, HashSet<&str>> = pages
        .iter()
        .map(|(page, text)| (page.as_str(), values(text, " id=\"").collect()))
        .collect();
    let mut dead = Vec::new();
    for (page, text) in pages.iter().filter(|(page, _)| !own(page)) {
        for target in values(text, " href=\"").chain(values(text, " src=\"")) {
            if target.contains(':') {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = resolved(page, path);
            let is_there = html.join(&path).is_file();
            let has_place = || ids.get(path.as_str()).is_some_and(|ids| ids.contains(anchor));
            if !is_there || !anchor.is_empty() && !has_place() {
                dead.push(format!("{page}: {target}"));
            }
        }
    }
    dead.sort();
    Ok(dead)
}

fn read_pages(
    html: &Path,
    folder: &str,
    pages: &mut HashMap<String, String>,
) -> anyhow::Result<()> {
    let place = html.join(folder);
    for entry in place.read_dir().with_context(|| format!("cannot list {}", place.display()))? {
        let entry = entry?;
        let path = format!("{folder}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            read_pages(html, &format!("{path}/"), pages)?;
        } else if path.ends_with(".html") {
            pages.insert(path, fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}

/// What stands between `begin` and the next quotation mark.
fn values<'a>(text: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).filter_map(|rest| rest.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contents_name_paths_from_the_root() {
        let summary = "[Weir](../README.md)\n- [A](a.md)\n  - [C](b/c.md)\n";
        let expected = "[Weir](README.md)\n- [A](docs/a.md)\n  - [C](docs/b/c.md)\n";
        assert_eq!(from_root(summary), expected);
    }

    #[test]
    fn values_are_found() {
        let text = "<a href=\"x.html#y\">x</a><img src=\"z\"><a href=\"\">";
        assert_eq!(values(text, " href=\"").collect::<Vec<_>>(), ["x.html#y", ""]);
    }
}
