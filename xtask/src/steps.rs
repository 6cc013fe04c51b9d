//! A command as a list of steps: each step is timed, the first failure ends the run, and a summary
//! comes last.

use std::time::{Duration, Instant};

use anyhow::bail;

/// The steps that have run so far.
pub(crate) struct Steps {
    started: Instant,
    done: Vec<Done>,
}

struct Done {
    name: &'static str,
    took: Duration,
    failed: bool,
}

impl Steps {
    pub(crate) fn new() -> Self {
        Self { started: now(), done: Vec::new() }
    }

    /// Runs a step. It shows an error itself; [`Steps::finish`] then ends the command.
    pub(crate) fn run(
        &mut self,
        name: &'static str,
        step: impl FnOnce() -> anyhow::Result<()>,
    ) -> Result<(), Failed> {
        println!("\n== {name}");
        let started = now();
        let result = step();
        let took = started.elapsed();
        self.done.push(Done { name, took, failed: result.is_err() });
        match result {
            Ok(()) => {
                println!("== {name}: ok, {}", seconds(took));
                Ok(())
            }
            Err(error) => {
                eprintln!("{error:#}");
                println!("== {name}: FAILED, {}", seconds(took));
                Err(Failed)
            }
        }
    }

    /// Prints the summary; fails if a step did.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        println!("\nsummary");
        for step in &self.done {
            let result = if step.failed { "FAILED" } else { "ok" };
            println!("  {:<28} {:>9}  {result}", step.name, seconds(step.took));
        }
        println!("  {:<28} {:>9}", "all", seconds(self.started.elapsed()));
        match self.done.iter().find(|step| step.failed) {
            Some(step) => bail!("step failed: {}; the steps after it were not run", step.name),
            None => Ok(()),
        }
    }
}

/// A step failed and its error has been shown.
pub(crate) struct Failed;

#[expect(clippy::disallowed_methods, reason = "steps are timed for people")]
fn now() -> Instant {
    Instant::now()
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_decides() {
        let mut steps = Steps::new();
        assert!(steps.run("good", || Ok(())).is_ok());
        assert!(steps.run("bad", || bail!("no")).is_err());
        let error = steps.finish().expect_err("one step failed");
        assert!(error.to_string().contains("bad"), "{error}");
    }

    #[test]
    fn all_good_is_good() {
        let mut steps = Steps::new();
        assert!(steps.run("good", || Ok(())).is_ok());
        assert!(steps.finish().is_ok());
    }
}
