//! What is counted, and rds-stress's columns.

use core::fmt;

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stats {
    /// Requests sent and received, and bytes of those and of answers.
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) bytes: u64,
    /// Bytes that RDMA brought here and took away.
    pub(super) rdma_in: u64,
    pub(super) rdma_out: u64,
    /// Nanoseconds that requests took to be sent, all together; answers, and nanoseconds that they took to come.
    pub(super) send_ns: u64,
    pub(super) answers: u64,
    pub(super) answer_ns: u64,
    /// Nanoseconds that this node was at work.
    pub(super) busy_ns: u64,
}

impl Stats {
    fn since(&self, before: &Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            received: self.received - before.received,
            bytes: self.bytes - before.bytes,
            rdma_in: self.rdma_in - before.rdma_in,
            rdma_out: self.rdma_out - before.rdma_out,
            send_ns: self.send_ns - before.send_ns,
            answers: self.answers - before.answers,
            answer_ns: self.answer_ns - before.answer_ns,
            busy_ns: self.busy_ns - before.busy_ns,
        }
    }
}

/// The names of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heading;

impl fmt::Display for Heading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tsks   tx/s   rx/s  tx+rx K/s    mbi K/s    mbo K/s tx us/c   rtt us cpu %")
    }
}

/// A row: what happened in some time. Numbers with a fraction are in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Tasks of a side.
    pub tasks: u16,
    /// Requests sent and received per second.
    pub sent: u64,
    /// See above.
    pub received: u64,
    /// KiB per second: messages both ways, what RDMA brought here, what it took away.
    pub messages: u64,
    /// See above.
    pub rdma_in: u64,
    /// See above.
    pub rdma_out: u64,
    /// Microseconds that a request took to be sent, and to be answered.
    pub send_us: u64,
    /// See above.
    pub answer_us: u64,
    /// The processor's share, percent; None if nobody asked.
    pub cpu: Option<u64>,
    /// The last row is the average of all.
    pub is_average: bool,
}

impl Row {
    /// What happened between two looks, `ns` apart.
    pub(super) fn new(tasks: u16, now: &Stats, before: &Stats, ns: u64, cpu: bool) -> Self {
        let stats = now.since(before);
        let ns = u128::from(ns.max(1));
        let per_second = |count: u64, unit: u128| (u128::from(count) * 1_000_000_000 * unit / ns) as u64;
        let kib = |bytes: u64| per_second(bytes, 100) / 1024;
        let mean = |sum: u64, count: u64| sum / 10 / count.max(1);
        Self {
            tasks,
            sent: per_second(stats.sent, 1),
            received: per_second(stats.received, 1),
            messages: kib(stats.bytes),
            rdma_in: kib(stats.rdma_in),
            rdma_out: kib(stats.rdma_out),
            send_us: mean(stats.send_ns, stats.sent),
            answer_us: mean(stats.answer_ns, stats.answers),
            cpu: cpu.then(|| (u128::from(stats.busy_ns) * 10_000 / ns) as u64),
            is_average: false,
        }
    }
}

/// A number of hundredths in so many places.
struct Hundredths(u64, usize);

impl fmt::Display for Hundredths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>width$}.{:02}", self.0 / 100, self.0 % 100, width = self.1 - 3)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>4} {:>6} {:>6} {} {} {} {} {}",
            self.tasks,
            self.sent,
            self.received,
            Hundredths(self.messages, 10),
            Hundredths(self.rdma_in, 10),
            Hundredths(self.rdma_out, 10),
            Hundredths(self.send_us, 7),
            Hundredths(self.answer_us, 8)
        )?;
        match self.cpu {
            Some(share) => write!(f, " {}", Hundredths(share, 5))?,
            None => f.write_str(" -1.00")?,
        }
        if self.is_average { f.write_str("  (average)") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn rows_have_rds_stress_s_columns() {
        let stats = Stats {
            sent: 1000,
            received: 2000,
            bytes: 3 << 20,
            rdma_in: 1 << 20,
            rdma_out: 512,
            send_ns: 1_234_000,
            answers: 500,
            answer_ns: 61_728_000,
            busy_ns: 250_000_000,
        };
        let row = Row::new(2, &stats, &Stats::default(), 500_000_000, true);
        let line = "   2   2000   4000    6144.00    2048.00       1.00    1.23   123.45 50.00";
        assert_eq!(row.to_string(), line);
        assert_eq!(Heading.to_string().len(), line.len());
        let row = Row { is_average: true, cpu: None, ..row };
        assert_eq!(row.to_string(), line.replace("50.00", "-1.00  (average)"));
    }
}
