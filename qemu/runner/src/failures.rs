//! Extracts the output of failed tests from the output of Rust's test harness. A long run repeats
//! it at the end.

/// Most lines of a test's output that are repeated: from its beginning and its end.
const LINES: usize = 40;

/// A failed test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    name: String,
    said: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "failed: {}", self.name)?;
        let left_out = self.said.len().saturating_sub(LINES);
        for (index, line) in self.said.iter().enumerate() {
            if index == LINES / 2 && left_out > 0 {
                write!(f, "\n    [{left_out} lines left out: they are above]")?;
            }
            if index < LINES / 2 || index >= LINES / 2 + left_out {
                write!(f, "\n    {line}")?;
            }
        }
        Ok(())
    }
}

/// Parser for the harness's output, line by line.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    found: Vec<Failure>,
    /// True while lines belong to the failure found last.
    inside: bool,
    /// True inside a backtrace. Backtraces are left out because they are longer than the panic
    /// message and add less.
    backtrace: bool,
}

impl Reader {
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.found.push(Failure { name: name.to_owned(), said: Vec::new() });
            (self.inside, self.backtrace) = (true, false);
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.inside = false;
        } else if self.inside && line == "stack backtrace:" {
            self.backtrace = true;
        } else if self.backtrace && !line.starts_with(' ') {
            // The last line of a backtrace is a note on how to get a longer one.
            self.backtrace = false;
        } else if self.inside
            && !self.backtrace
            && !line.is_empty()
            && let Some(failure) = self.found.last_mut()
        {
            failure.said.push(line.to_owned());
        }
    }

    pub(crate) fn into_failures(self) -> Vec<Failure> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> Vec<Failure> {
        let mut reader = Reader::default();
        output.lines().for_each(|line| reader.line(line));
        reader.into_failures()
    }

    #[test]
    fn what_failed_tests_say_is_repeated_without_backtraces() {
        let output = "running 2 tests\ntest a ... FAILED\ntest b::c ... FAILED\n\nfailures:\n\n---- a stdout ----\n\n\
                      thread 'a' panicked at a.rs:1:2:\nleft over: 3\nstack backtrace:\n   0: core::panicking\n             at x.rs\n\
                      note: Some details are omitted\nafterwards\n\n---- b::c stdout ----\nno such file\n\n\nfailures:\n    a\n    b::c\n\n\
                      test result: FAILED. 0 passed; 2 failed\n";
        let failures = read(output);
        let lines: Vec<String> = failures.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "failed: a\n    thread 'a' panicked at a.rs:1:2:\n    left over: 3\n    afterwards",
                "failed: b::c\n    no such file"
            ]
        );
    }

    #[test]
    fn a_long_output_is_cut_in_its_middle() {
        let said: Vec<String> = (0..100).map(|number| format!("line {number}")).collect();
        let failures = read(&format!("---- a stdout ----\n{}\n", said.join("\n")));
        let text = failures[0].to_string();
        assert_eq!(text.lines().count(), 1 + LINES + 1, "{text}");
        for line in ["line 19\n", "line 80\n", "line 99", "[60 lines left out"] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("line 20\n") && !text.contains("line 79\n"), "{text}");
    }

    #[test]
    fn an_output_without_failures_has_none() {
        assert!(read("test a ... ok\n\ntest result: ok. 1 passed; 0 failed\n").is_empty());
    }
}
