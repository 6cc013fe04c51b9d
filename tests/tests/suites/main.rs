//! Conformance suites, run against a real server, each with a table of the cases that do not pass and why.
//!
//! A case that fails without standing in its table fails the test, and so does one of the table that passes: the tables
//! stay true.

mod h2spec;
mod tls;
mod websocket;

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

/// A case that does not pass, and the reason.
type Exception = (&'static str, &'static str);

/// The results of a suite: what is wrong with each case, `None` for one that has passed.
#[derive(Debug, Default)]
struct Results(BTreeMap<String, Option<String>>);

impl Results {
    fn add(&mut self, case: String, failure: Option<String>) -> Result<()> {
        ensure!(self.0.insert(case.clone(), failure).is_none(), "{case} has two results");
        Ok(())
    }

    /// Compares them with the exceptions, and the number of cases with what the suite has.
    fn check(&self, suite: &str, cases: usize, exceptions: &[Exception]) -> Result<()> {
        let mut wrong = Vec::new();
        for (case, failure) in &self.0 {
            let is_excepted = exceptions.iter().any(|(excepted, _)| excepted == case);
            match failure {
                Some(failure) if !is_excepted => wrong.push(format!("{case} fails: {failure}")),
                None if is_excepted => wrong.push(format!("{case} passes, but is an exception")),
                Some(_) | None => {}
            }
        }
        for (case, _) in exceptions {
            if !self.0.contains_key(*case) {
                wrong.push(format!("{case} is an exception, but no case"));
            }
        }
        ensure!(wrong.is_empty(), "{suite}:\n{}", wrong.join("\n"));
        ensure!(self.0.len() == cases, "{suite} has {} cases, expected {cases}", self.0.len());
        Ok(())
    }
}

#[test]
fn tables_stay_true() {
    let results = |failure: Option<&str>| {
        Results(BTreeMap::from([("one".to_owned(), failure.map(str::to_owned))]))
    };
    assert!(results(None).check("good", 1, &[]).is_ok());
    assert!(results(Some("bad")).check("excepted", 1, &[("one", "since")]).is_ok());
    assert!(results(Some("bad")).check("bad", 1, &[]).is_err());
    assert!(results(None).check("mended", 1, &[("one", "since")]).is_err());
    assert!(results(None).check("no case", 1, &[("two", "since")]).is_err());
    assert!(results(None).check("too few", 2, &[]).is_err());
}
