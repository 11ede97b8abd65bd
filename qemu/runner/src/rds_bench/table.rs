//! Rates reported by the two sides, with their medians and ratios.

use super::pattern::{Pattern, Unit};
use rdma_lab::error::{Error, Result};
use serde::Serialize;
use std::fmt::Write;

/// Rates of a run, per second and in both directions together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Requests; each has a reply in the opposite direction.
    pub requests: f64,
    /// Message bytes.
    pub bytes: f64,
    /// RDMA bytes.
    pub rdma_bytes: f64,
}

impl Rates {
    /// Parses the rates in the line `@load` of `tests/guest/rds_load.c`.
    ///
    /// # Errors
    /// [`Error::Guest`]: the line is missing, or all rates are 0.
    pub fn of_program(lines: &[String]) -> Result<Self> {
        let line = found(lines, |line| line.strip_prefix("@load requests="))?;
        let number = |key: &str| {
            let words = &mut format!("requests={line}");
            let found = words.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            found.and_then(|value| value.parse::<f64>().ok())
        };
        let all = ["requests", "received", "bytes", "rdma_in", "rdma_out", "ns"];
        let [Some(sent), Some(received), Some(bytes), Some(rdma_in), Some(rdma_out), Some(ns)] =
            all.map(number)
        else {
            return Err(Error::Guest(format!("not understood: `@load requests={line}`")));
        };
        let per_second = |count: f64| count / (ns.max(1.0) / 1e9);
        Self {
            requests: per_second(sent + received),
            bytes: per_second(bytes),
            rdma_bytes: per_second(rdma_in + rdma_out),
        }
        .moved(line)
    }

    /// Parses the rates in the line "(average)" of rds-stress's columns.
    ///
    /// # Errors
    /// As [`of_program`](Self::of_program).
    pub fn of_columns(lines: &[String]) -> Result<Self> {
        let line = found(lines, |line| line.strip_suffix("(average)"))?;
        let columns: Vec<f64> = line.split_whitespace().filter_map(|column| column.parse().ok()).collect();
        let [_, sent, received, messages, rdma_in, rdma_out, ..] = columns[..] else {
            return Err(Error::Guest(format!("not understood: `{line}`")));
        };
        Self {
            requests: sent + received,
            bytes: messages * 1024.0,
            rdma_bytes: (rdma_in + rdma_out) * 1024.0,
        }
        .moved(line)
    }

    fn moved(self, line: &str) -> Result<Self> {
        if self.requests > 0.0 && self.bytes > 0.0 {
            return Ok(self);
        }
        Err(Error::Guest(format!("no messages moved: `{}`", line.trim())))
    }

    /// Returns the rate in `unit`.
    #[must_use]
    pub fn get(&self, unit: Unit) -> f64 {
        match unit {
            Unit::Requests => self.requests,
            Unit::Bytes => self.bytes,
            Unit::RdmaBytes => self.rdma_bytes,
        }
    }
}

fn found<'a>(lines: &'a [String], wanted: impl Fn(&'a str) -> Option<&'a str>) -> Result<&'a str> {
    lines.iter().find_map(|line| wanted(line)).ok_or_else(|| {
        let last = lines.iter().rev().find(|line| !line.trim().is_empty());
        let last = last.map_or("nothing", String::as_str);
        Error::Guest(format!("a side told no rates; it said last: {last}"))
    })
}

/// A pattern and its measurements.
#[derive(Debug, Clone, Serialize)]
struct Row {
    #[serde(flatten)]
    pattern: Pattern,
    linux: Vec<Rates>,
    unikernels: Vec<Rates>,
    /// Rates of Linux by rds-stress itself, if it was measured.
    rds_stress: Vec<Rates>,
}

impl Row {
    fn median(&self, of: &[Rates]) -> f64 {
        median(of.iter().map(|rates| rates.get(self.pattern.unit)))
    }

    fn medians(&self) -> [f64; 2] {
        [&self.linux, &self.unikernels].map(|rates| self.median(rates))
    }

    /// Returns the ratio of the unikernels' median rate to Linux's.
    fn ratio(&self) -> f64 {
        let [linux, unikernels] = self.medians();
        unikernels / linux.max(f64::MIN_POSITIVE)
    }

    fn is_met(&self) -> bool {
        self.ratio() >= self.pattern.bar
    }
}

/// Returns the median; the mean of the middle two for an even count, 0 for an empty one.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2).copied().unwrap_or_default();
    let lower = values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or_default();
    (upper + lower) / 2.0
}

/// All measurements.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    linux: String,
    rows: Vec<Row>,
}

impl Table {
    /// Returns an empty table. `linux` names the Linux version.
    #[must_use]
    pub fn new(linux: &str, patterns: &[Pattern]) -> Self {
        let row = |pattern: &Pattern| Row {
            pattern: *pattern,
            linux: Vec::new(),
            unikernels: Vec::new(),
            rds_stress: Vec::new(),
        };
        Self { linux: linux.into(), rows: patterns.iter().map(row).collect() }
    }

    /// Adds a round of pattern `number`.
    pub fn add(&mut self, number: usize, linux: Rates, unikernels: Rates) {
        if let Some(row) = self.rows.get_mut(number) {
            row.linux.push(linux);
            row.unikernels.push(unikernels);
        }
    }

    /// Adds the rates of rds-stress itself in a round of pattern `number`.
    pub fn add_rds_stress(&mut self, number: usize, rates: Rates) {
        if let Some(row) = self.rows.get_mut(number) {
            row.rds_stress.push(rates);
        }
    }

    /// Returns the patterns whose ratio is below the bar, with ratio and bar.
    #[must_use]
    pub fn missed(&self) -> Vec<String> {
        let missed = self.rows.iter().filter(|row| !row.is_met());
        missed
            .map(|row| format!("{} {:.2} of {:.1}", row.pattern.name, row.ratio(), row.pattern.bar))
            .collect()
    }

    /// Returns the table as text.
    #[must_use]
    pub fn text(&self) -> String {
        let rounds = self.rows.iter().map(|row| row.linux.len()).max().unwrap_or_default();
        let mut text = format!(
            "RDS, both ways together, {} requests under way each way; medians of {rounds} rounds\n{:<16} {:>20} {:>14} {:>6} {:>5}\n",
            super::pattern::DEPTH,
            "",
            self.linux,
            "unikernels",
            "ratio",
            "bar"
        );
        for row in &self.rows {
            let [linux, unikernels] = row.medians().map(|rate| row.pattern.unit.show(rate));
            let (name, ratio, bar) = (row.pattern.name, row.ratio(), row.pattern.bar);
            let missed = if row.is_met() { "" } else { "  missed" };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name:<16} {linux:>20} {unikernels:>14} {ratio:>6.2} {bar:>5.1}{missed}");
        }
        text + &self.beside_rds_stress()
    }

    /// Returns lines that compare the replacement program on Linux with rds-stress itself.
    fn beside_rds_stress(&self) -> String {
        let mut text = String::new();
        for row in self.rows.iter().filter(|row| !row.rds_stress.is_empty()) {
            if text.is_empty() {
                let _ = writeln!(
                    text,
                    "\n{:<16} {:>20} {:>14} {:>6}",
                    "Linux alone", "rds-stress", "rds_load", "ratio"
                );
            }
            let ([ours, _], theirs) = (row.medians(), row.median(&row.rds_stress));
            let ratio = ours / theirs.max(f64::MIN_POSITIVE);
            let [theirs, ours] = [theirs, ours].map(|rate| row.pattern.unit.show(rate));
            let _ = writeln!(text, "{:<16} {theirs:>20} {ours:>14} {ratio:>6.2}", row.pattern.name);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::pattern::PATTERNS;
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn rates_of_both_sides_are_understood() {
        let program = lines(
            "@load listening\n@load requests=3000 answers=2999 received=1000 bytes=8388608 rdma_in=4096 rdma_out=4096 rtt_ns=7 ns=2000000000",
        );
        let rates = Rates::of_program(&program).expect("rates");
        assert_eq!(rates, Rates { requests: 2000.0, bytes: 4_194_304.0, rdma_bytes: 4096.0 });
        let columns = lines(
            "tsks   tx/s   rx/s  tx+rx K/s    mbi K/s    mbo K/s tx us/c   rtt us cpu %\n   \
             1   1500    500    4096.00       3.00       1.00    1.23   123.45 -1.00  (average)\n@done verified=true",
        );
        assert_eq!(Rates::of_columns(&columns).expect("rates"), rates);
    }

    #[test]
    fn a_side_that_moved_or_told_nothing_is_named() {
        let told = |text: &str| {
            let lines = lines(text);
            [Rates::of_program(&lines), Rates::of_columns(&lines)]
                .map(|rates| rates.expect_err("refused").to_string())
        };
        for error in told("connect to 1.2.3.4: no route\n") {
            assert!(error.contains("said last: connect to 1.2.3.4"), "{error}");
        }
        let [program, _] =
            told("@load requests=0 answers=0 received=0 bytes=0 rdma_in=0 rdma_out=0 rtt_ns=0 ns=5");
        assert!(program.contains("no messages moved"), "{program}");
        let [_, columns] =
            told("   1      0      0       0.00       0.00       0.00    0.00     0.00 -1.00  (average)");
        assert!(columns.contains("no messages moved"), "{columns}");
        let [program, _] = told("@load requests=many ns=5");
        assert!(program.contains("not understood"), "{program}");
        let [_, columns] = told("1 2 3 (average)");
        assert!(columns.contains("not understood"), "{columns}");
    }

    #[test]
    fn ratios_are_of_medians_and_judged_by_their_bars() {
        let mut table = Table::new("Linux 6.1", &PATTERNS);
        let rates = |rate: f64| Rates { requests: rate, bytes: rate * 100.0, rdma_bytes: rate * 1000.0 };
        for (linux, unikernels) in [(100.0, 310.0), (1.0, 1.0), (110.0, 300.0), (90.0, 3000.0)] {
            for number in 0..PATTERNS.len() {
                table.add(number, rates(linux), rates(unikernels));
            }
        }
        // Medians 95 and 305.
        assert_eq!(table.missed(), Vec::<String>::new());
        let text = table.text();
        let row = text.lines().find(|line| line.starts_with("64 B ")).expect("a row");
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words, ["64", "B", "95/s", "305/s", "3.21", "3.0"]);
        table.add(0, rates(90.0), rates(10.0));
        table.add(0, rates(90.0), rates(200.0));
        assert_eq!(table.missed(), ["64 B 2.78 of 3.0"]);
        assert!(table.text().contains("  missed\n"));
        assert!(!table.text().contains("rds-stress"));
        table.add_rds_stress(2, rates(100.0));
        let text = table.text();
        let words: Vec<&str> = text.lines().last().expect("a row").split_whitespace().collect();
        assert_eq!(words, ["64", "KiB", "0.0", "MiB/s", "0.0", "MiB/s", "0.95"]);
        assert_eq!(median([].into_iter()), 0.0);
    }
}
