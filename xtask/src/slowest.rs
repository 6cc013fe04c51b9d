//! Lists the test programs that took longest, by their own output and cargo's.

/// The time of each test program.
#[derive(Debug, Default)]
pub(crate) struct Slowest {
    running: String,
    took: Vec<(f64, String)>,
}

impl Slowest {
    /// Reads a line of the output of `cargo test`.
    pub(crate) fn look(&mut self, line: &str) {
        let line = line.trim();
        if let Some(program) = line.strip_prefix("Running ") {
            program_name(program).clone_into(&mut self.running);
        } else if let Some(package) = line.strip_prefix("Doc-tests ") {
            self.running = format!("doc tests of {package}");
        } else if line.starts_with("test result: ")
            && let Some((_, took)) = line.rsplit_once("finished in ")
            && let Some(seconds) = took.strip_suffix('s').and_then(|text| text.parse().ok())
        {
            self.took.push((seconds, self.running.clone()));
        }
    }

    /// Prints the slowest test programs.
    pub(crate) fn show(mut self) {
        self.took.sort_by(|one, other| other.0.total_cmp(&one.0));
        println!("\ntest programs that took longest");
        for (seconds, program) in self.took.iter().take(SHOWN) {
            println!("  {program:<28} {seconds:>7.1} s");
        }
    }
}

/// The program's name in `tests/serve.rs (target/debug/deps/serve-0123456789abcdef)`.
fn program_name(line: &str) -> &str {
    let path = line.rsplit_once('(').map_or(line, |(_, path)| path.trim_end_matches(')'));
    let file = path.rsplit_once('/').map_or(path, |(_, file)| file);
    file.rsplit_once('-').map_or(file, |(name, _)| name)
}

const SHOWN: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_each_program_is_read() {
        let mut slowest = Slowest::default();
        for line in [
            "     Running unittests src/lib.rs (target/debug/deps/weir_engine-0123456789abcdef)",
            "test result: ok. 76 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.54s",
            "     Running tests/serve.rs (target/debug/deps/serve-0123456789abcdef)",
            "test a ... ok",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 12.30s",
            "   Doc-tests weir",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
        ] {
            slowest.look(line);
        }
        let named = |seconds, name: &str| (seconds, name.to_owned());
        let expected =
            [named(0.54, "weir_engine"), named(12.3, "serve"), named(1.0, "doc tests of weir")];
        assert_eq!(slowest.took, expected);
    }
}
