//! Options of a command: one table parses them and prints their help.

use crate::error::{Error, Result};
use lexopt::Arg;
use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

/// An option or an argument of a command, whose command line is collected in a `T`.
pub struct Argument<T> {
    /// The form in the help, such as `--limit SECONDS`, `--strict` or `SCRIPT`.
    form: &'static str,
    meaning: String,
    take: Take<T>,
}

type SetFlag<T> = fn(&mut T);
type SetValue<T> = fn(&mut T, Value) -> Result<()>;

enum Take<T> {
    Flag(SetFlag<T>),
    Value(SetValue<T>),
    /// A line of the help alone: part of the value of the option above.
    Part,
}

impl<T> Argument<T> {
    /// An option without a value, such as `--strict`.
    pub fn flag(form: &'static str, meaning: &str, set: SetFlag<T>) -> Self {
        Self { form, meaning: meaning.into(), take: Take::Flag(set) }
    }

    /// An option with a value, such as `--limit SECONDS`.
    pub fn value(form: &'static str, meaning: &str, set: SetValue<T>) -> Self {
        Self { form, meaning: meaning.into(), take: Take::Value(set) }
    }

    /// A word that follows no option, such as `SCRIPT`. Each word of the command line is given to
    /// the table's only such argument.
    pub fn word(form: &'static str, meaning: &str, set: SetValue<T>) -> Self {
        Self::value(form, meaning, set)
    }

    /// A part of the value of the option above, which the help explains in a line of its own.
    pub fn part(form: &'static str, meaning: &str) -> Self {
        Self { form, meaning: meaning.into(), take: Take::Part }
    }

    /// Returns the form up to its value: `--limit` of `--limit SECONDS`.
    fn name(&self) -> &'static str {
        self.form.split([' ', '[']).next().unwrap_or(self.form)
    }

    fn is_option(&self) -> bool {
        self.form.starts_with('-')
    }
}

/// Value of an option.
#[derive(Clone, Debug)]
pub struct Value {
    /// The option's name, which errors begin with.
    name: &'static str,
    text: OsString,
}

impl Value {
    /// Returns the value as a path.
    #[must_use]
    pub fn path(self) -> PathBuf {
        self.text.into()
    }

    /// Returns the value as text.
    ///
    /// # Errors
    /// The value is not UTF-8.
    pub fn text(self) -> Result<String> {
        self.text
            .into_string()
            .map_err(|text| Error::Usage(format!("{} {}: not UTF-8", self.name, text.display())))
    }

    /// Returns the parsed value.
    ///
    /// # Errors
    /// The value is refused; the error begins with the option's name.
    pub fn parse<V: FromStr<Err: Display>>(self) -> Result<V> {
        let name = self.name;
        self.text()?.parse().map_err(|error| Error::Usage(format!("{name}: {error}")))
    }

    /// Returns the value as a number.
    ///
    /// # Errors
    /// The text is not a number of this type.
    pub fn number<V: FromStr>(self) -> Result<V> {
        let name = self.name;
        let text = self.text()?;
        text.parse().map_err(|_| Error::Usage(format!("{name} {text}: give a number")))
    }

    /// Returns an error that names the option and its value.
    #[must_use]
    pub fn refused(self, remedy: &str) -> Error {
        Error::Usage(format!("{} {}: {remedy}", self.name, self.text.display()))
    }
}

/// Result of a command line without errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The command's help.
    Help,
    /// The command itself.
    Run,
}

/// Parses the arguments of a command by its table, in their order.
///
/// # Errors
/// [`Error::Usage`]: an option is unknown or a value is refused.
pub fn parse<T>(table: &[Argument<T>], into: &mut T, arguments: &mut lexopt::Parser) -> Result<Request> {
    while let Some(argument) = arguments.next().map_err(usage)? {
        match argument {
            Arg::Short('h') | Arg::Long("help") => return Ok(Request::Help),
            Arg::Long(name) => {
                let known = |row: &&Argument<T>| row.name().strip_prefix("--") == Some(name);
                let unknown = || Error::Usage(format!("unknown option --{name}"));
                let row = table.iter().find(known).ok_or_else(unknown)?;
                match row.take {
                    Take::Flag(set) => set(into),
                    Take::Value(set) => {
                        set(into, Value { name: row.name(), text: arguments.value().map_err(usage)? })?;
                    }
                    Take::Part => {}
                }
            }
            Arg::Value(text) => {
                let word = table.iter().find_map(|row| match row.take {
                    Take::Value(set) if !row.is_option() => Some((row.name(), set)),
                    _ => None,
                });
                let Some((name, set)) = word else { return Err(usage(Arg::Value(text).unexpected())) };
                set(into, Value { name, text })?;
            }
            other => return Err(usage(other.unexpected())),
        }
    }
    Ok(Request::Run)
}

fn usage(error: lexopt::Error) -> Error {
    Error::Usage(error.to_string())
}

/// Column at which meanings begin, and the last column of a line.
const MEANING: usize = 22;
const WIDTH: usize = 118;

/// Returns the help of a table: a paragraph for each argument.
#[must_use]
pub fn help<T>(table: &[Argument<T>]) -> String {
    let mut text = String::new();
    for row in table {
        let indent = if matches!(row.take, Take::Part) { 4 } else { 2 };
        let mut line = format!("{:indent$}{}", "", row.form);
        if line.len() + 2 > MEANING {
            text.push_str(&line);
            text.push('\n');
            line.clear();
        }
        for word in row.meaning.split_whitespace() {
            let starts = line.trim().is_empty() || line.len() < MEANING;
            if !starts && line.len() + 1 + word.len() > WIDTH {
                text.push_str(&line);
                text.push('\n');
                line.clear();
            }
            match line.len() {
                len if len < MEANING => line.push_str(&" ".repeat(MEANING - len)),
                _ => line.push(' '),
            }
            line.push_str(word);
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq)]
    struct Line {
        strict: bool,
        limits: Vec<u32>,
        words: Vec<String>,
    }

    fn table() -> Vec<Argument<Line>> {
        vec![
            Argument::flag("--strict", "refuses", |line| line.strict = true),
            Argument::value("--limit SECONDS", "at most", |line, value| {
                line.limits.push(value.number()?);
                Ok(())
            }),
            Argument::part("N", "a number"),
            Argument::word("WORD", "what", |line, value| {
                line.words.push(value.text()?);
                Ok(())
            }),
        ]
    }

    fn parsed(words: &[&str]) -> Result<(Line, Request)> {
        let mut line = Line::default();
        let request = parse(&table(), &mut line, &mut lexopt::Parser::from_args(words))?;
        Ok((line, request))
    }

    #[test]
    fn arguments_are_taken_in_their_order() {
        let (line, request) = parsed(&["--limit", "5", "a", "--strict", "--limit=7", "b"]).expect("right");
        let words = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!((line, request), (Line { strict: true, limits: vec![5, 7], words }, Request::Run));
        for help in ["-h", "--help"] {
            assert_eq!(parsed(&["--strict", help, "--frob"]).expect("right").1, Request::Help);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (words, named) in [
            (&["--frob"][..], "unknown option --frob"),
            (&["-x"], "-x"),
            (&["--limit"], "--limit"),
            (&["--limit", "many"], "--limit many: give a number"),
            (&["--strict=yes"], "--strict"),
        ] {
            let error = parsed(words).expect_err("wrong").to_string();
            assert!(error.contains(named), "{words:?}: {error}");
        }
    }

    #[test]
    fn help_wraps_below_the_meaning() {
        let long = "word ".repeat(40);
        let table: [Argument<()>; 3] = [
            Argument::flag("--a", &long, |()| ()),
            Argument::part("x=N", "short"),
            Argument::flag("--a-very-long-option-name VALUE", "short", |()| ()),
        ];
        let text = help(&table);
        assert!(text.starts_with("  --a                 word word"), "{text}");
        assert!(text.lines().all(|line| line.len() <= WIDTH && line.trim_end() == line), "{text}");
        assert!(text.contains("\n                      word"), "{text}");
        assert!(text.contains("\n    x=N               short\n"), "{text}");
        assert!(text.ends_with("--a-very-long-option-name VALUE\n                      short\n"), "{text}");
    }
}
