//! Rule: deny.toml permits the licences of all dependencies. This does the work of cargo-deny
//! without its 200 packages.

use anyhow::{Context, bail};
use serde_json::Value;
use toml::Table;

use super::{File, Finding};

/// Applies the rule to the output of `cargo metadata`.
pub(super) fn check(files: &[File], metadata: &Value) -> anyhow::Result<Vec<Finding>> {
    let deny = files.iter().find(|file| file.path == "deny.toml").context("no deny.toml")?;
    let allowed = Allowed::read(&deny.text)?;
    let packages = metadata["packages"].as_array().context("cargo metadata: no packages")?;
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().context("cargo metadata: a package without a name")?;
        let text = match package["license"].as_str() {
            None => "names no licence".to_owned(),
            Some(licence) => match allowed.permits(name, licence) {
                Ok(true) => continue,
                Ok(false) => format!("{licence} is not among the licences of deny.toml"),
                Err(error) => format!("{licence} is not a licence expression: {error}"),
            },
        };
        findings.push(Finding { place: format!("package {name}"), line: None, text });
    }
    Ok(findings)
}

/// The licences that deny.toml permits.
struct Allowed {
    everywhere: Vec<String>,
    /// A package and its additional licences.
    exceptions: Vec<(String, Vec<String>)>,
}

impl Allowed {
    fn read(deny: &str) -> anyhow::Result<Allowed> {
        let deny: Table = deny.parse().context("deny.toml")?;
        let licenses = deny.get("licenses").context("deny.toml: no [licenses]")?;
        let everywhere = strings(licenses.get("allow")).context("deny.toml: no licenses.allow")?;
        let mut exceptions = Vec::new();
        let entries = licenses.get("exceptions").and_then(toml::Value::as_array);
        for entry in entries.into_iter().flatten() {
            let package = entry.get("crate").or_else(|| entry.get("name"));
            let package = package.and_then(toml::Value::as_str);
            let package = package.context("deny.toml: an exception without a crate")?;
            let besides = strings(entry.get("allow"));
            let besides = besides.context("deny.toml: an exception that allows nothing")?;
            exceptions.push((package.to_owned(), besides));
        }
        Ok(Allowed { everywhere, exceptions })
    }

    fn permits(&self, package: &str, licence: &str) -> anyhow::Result<bool> {
        let exceptions = self.exceptions.iter().filter(|(name, _)| name == package);
        let besides: Vec<&String> = exceptions.flat_map(|(_, besides)| besides).collect();
        let permits = |name: &str| {
            self.everywhere.iter().any(|allowed| allowed == name)
                || besides.iter().any(|allowed| *allowed == name)
        };
        satisfied(licence, &permits)
    }
}

fn strings(value: Option<&toml::Value>) -> Option<Vec<String>> {
    let list = value?.as_array()?;
    list.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// Whether the licences that `permits` accepts satisfy an SPDX expression. `/` between two names is
/// an old form of OR.
fn satisfied(expression: &str, permits: &dyn Fn(&str) -> bool) -> anyhow::Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words, permits };
    let result = reader.any()?;
    match reader.words {
        [] => Ok(result),
        [word, ..] => bail!("{word} stands where the expression should end"),
    }
}

/// Reads an expression from left to right; AND binds tighter than OR, WITH tighter than both.
struct Reader<'a> {
    words: &'a [&'a str],
    permits: &'a dyn Fn(&str) -> bool,
}

impl<'a> Reader<'a> {
    fn any(&mut self) -> anyhow::Result<bool> {
        let mut result = self.all()?;
        while self.take("OR") {
            result |= self.all()?;
        }
        Ok(result)
    }

    fn all(&mut self) -> anyhow::Result<bool> {
        let mut result = self.one()?;
        while self.take("AND") {
            result &= self.one()?;
        }
        Ok(result)
    }

    fn one(&mut self) -> anyhow::Result<bool> {
        if self.take("(") {
            let result = self.any()?;
            if !self.take(")") {
                bail!("a parenthesis is not closed");
            }
            return Ok(result);
        }
        let name = self.name()?;
        if self.take("WITH") {
            let exception = self.name()?;
            // An exception adds permissions, so a permitted licence is permitted with it too.
            return Ok((self.permits)(&format!("{name} WITH {exception}")) || (self.permits)(name));
        }
        Ok((self.permits)(name))
    }

    fn name(&mut self) -> anyhow::Result<&'a str> {
        match self.words {
            [name, rest @ ..] if !["(", ")", "AND", "OR", "WITH"].contains(name) => {
                self.words = rest;
                Ok(name)
            }
            _ => bail!("a name is missing"),
        }
    }

    fn take(&mut self, word: &str) -> bool {
        match self.words {
            [first, rest @ ..] if *first == word => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read() {
        let permits =
            |name: &str| ["MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"].contains(&name);
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("MIT/GPL-3.0", true),
            ("GPL-3.0 / MIT", true),
            ("MIT AND GPL-3.0", false),
            ("MIT AND Zlib", true),
            ("GPL-3.0 AND MIT OR Zlib", true),
            ("GPL-3.0 AND (MIT OR Zlib)", false),
            ("(MIT OR GPL-3.0) AND Zlib", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
            ("MIT WITH LLVM-exception", true),
        ] {
            assert_eq!(satisfied(expression, &permits).ok(), Some(expected), "{expression}");
        }
    }

    #[test]
    fn nonsense_is_an_error() {
        for expression in ["", "MIT OR", "(MIT", "MIT)", "MIT Zlib", "AND"] {
            assert!(satisfied(expression, &|_| true).is_err(), "{expression}");
        }
    }

    #[test]
    fn an_exception_is_for_one_package() {
        let deny =
            "[licenses]\nallow = [\"MIT\"]\nexceptions = [{ crate = \"a\", allow = [\"X\"] }]";
        let allowed = Allowed::read(deny).expect("well-formed");
        assert!(allowed.permits("a", "X").expect("an expression"));
        assert!(!allowed.permits("b", "X").expect("an expression"));
    }

    #[test]
    fn every_package_is_asked() {
        let deny = File::new("deny.toml", "[licenses]\nallow = [\"MIT\"]");
        let metadata = serde_json::json!({"packages": [
            {"name": "a", "license": "MIT"},
            {"name": "b", "license": "X"},
            {"name": "c", "license": null},
        ]});
        let findings = check(&[deny], &metadata).expect("well-formed");
        let places: Vec<&str> = findings.iter().map(|finding| finding.place.as_str()).collect();
        assert_eq!(places, ["package b", "package c"]);
    }
}
