//! Report of the demo: a table for people, JSON for programs.

use crate::console::{Operation, Step};
use hca_serve::Summary;
use rdma_lab::error::{Error, IoContext, Result};
use rdma_lab::linux::Ready;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// Results of a unikernel or of Linux.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Node {
    /// `server` or `client`. In runs with Linux: `Linux` with its version, or `unikernel`.
    pub role: String,
    /// True once the node reported that every byte was correct.
    pub verified: bool,
    /// Time from QEMU's start to its exit, in seconds.
    pub seconds: f64,
    /// Time from power on to an Active port, in runs with Linux.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// Steps of the bring-up.
    pub steps: Vec<Step>,
    /// Measured operations.
    pub operations: Vec<Operation>,
}

/// Packet counters of the fabric.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Packets {
    /// Packets sent.
    pub sent: u64,
    /// Packets delivered.
    pub delivered: u64,
    /// Lost by an injected fault.
    pub lost: u64,
    /// Delivered twice by an injected fault.
    pub duplicated: u64,
    /// Overtaken by an injected fault.
    pub reordered: u64,
    /// Damaged by an injected fault.
    pub corrupted: u64,
    /// Packets retransmitted by the HCAs.
    pub retransmitted: u64,
}

impl Packets {
    /// Adds those of a server, on InfiniBand and Ethernet.
    pub(crate) fn add(&mut self, summary: &Summary) {
        for network in [summary.fabric, summary.ethernet.counters] {
            self.sent += network.sent;
            self.delivered += network.delivered;
            self.lost += network.dropped;
            self.duplicated += network.duplicated;
            self.reordered += network.reordered;
            self.corrupted += network.corrupted;
        }
        self.retransmitted += summary.retransmitted;
    }
}

/// Results of a complete run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// True if every byte was compared and correct on both nodes.
    pub verified: bool,
    /// Duration in seconds, without set-up and building.
    pub seconds: f64,
    /// The seed of the injected faults.
    pub seed: u64,
    /// The injected faults.
    pub faults: String,
    /// QEMU's accelerator.
    pub accelerator: String,
    /// QEMU's version.
    pub qemu: String,
    /// Both unikernels, then Linux and its unikernel if they took part.
    pub nodes: Vec<Node>,
    /// Packet counters.
    pub packets: Packets,
}

impl Report {
    /// Returns the report as text.
    pub fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_table(&mut text);
        text
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
        for node in self.nodes.iter().filter(|node| !node.steps.is_empty()) {
            writeln!(out, "\n{}: bring-up and tear-down", node.role)?;
            for step in &node.steps {
                writeln!(out, "  {:<28} {:>10.3} ms", step.name, step.us as f64 / 1e3)?;
            }
        }
        for node in &self.nodes {
            let Some(ready) = &node.ready else { continue };
            writeln!(
                out,
                "\n{}: port Active {:.2} s after power on, with {:.2} s of processor time",
                node.role, ready.seconds, ready.cpu_seconds
            )?;
        }
        let mut times = self.nodes.iter().filter_map(|node| node.ready.as_ref());
        if let (Some(linux), Some(unikernel)) = (times.next(), times.next()) {
            writeln!(out, "the unikernel takes 1/{:.0} of Linux's processor time", unikernel.times(linux))?;
        }
        if self.nodes.iter().any(|node| !node.operations.is_empty()) {
            writeln!(
                out,
                "\n{:<9} {:<11} {:>9} {:>12} {:>10} {:>9} {:>11} {:>11} {:>9}",
                "node", "operation", "messages", "bytes", "msg/s", "MB/s", "median us", "p99 us", "verified"
            )?;
        }
        for node in &self.nodes {
            // Skip operations of a passive side: they contain no results.
            for operation in
                node.operations.iter().filter(|operation| operation.messages + operation.verified > 0)
            {
                let microseconds = |ns: Option<u64>| match ns {
                    None | Some(0) => "-".into(),
                    Some(ns) => format!("{:.1}", ns as f64 / 1e3),
                };
                writeln!(
                    out,
                    "{:<9} {:<11} {:>9} {:>12} {:>10.0} {:>9.2} {:>11} {:>11} {:>9}",
                    node.role,
                    operation.op,
                    operation.messages,
                    operation.bytes,
                    operation.messages_per_second(),
                    operation.megabytes_per_second(),
                    microseconds(operation.lat_p50_ns),
                    microseconds(operation.lat_p99_ns),
                    operation.verified
                )?;
            }
        }
        let packets = &self.packets;
        writeln!(
            out,
            "\npackets: {} sent, {} delivered; injected: {} lost, {} duplicated, {} reordered, {} corrupted (seed {}, faults {}); {} sent again",
            packets.sent,
            packets.delivered,
            packets.lost,
            packets.duplicated,
            packets.reordered,
            packets.corrupted,
            self.seed,
            self.faults,
            packets.retransmitted
        )?;
        let verdict = if self.verified { "every byte verified" } else { "NOT VERIFIED" };
        writeln!(out, "{verdict} in {:.1} s", self.seconds)
    }

    /// Writes the report as JSON.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|error| Error::Format(format!("the report is not JSON: {error}")))?;
        text.push('\n');
        std::fs::write(path, text).context("cannot write the report", path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::Line;

    #[test]
    fn json_has_its_verdict_at_the_top_and_the_table_its_rates() {
        let line = "@result op=rds messages=1000 bytes=2000000 ns=500000000 lat_p50_ns=1500 verified=1000";
        let Line::Result(operation) = Line::parse(line) else { panic!("{line}") };
        let node =
            Node { role: "client".into(), verified: true, operations: vec![operation], ..Node::default() };
        let report = Report {
            verified: true,
            seconds: 1.5,
            seed: 7,
            faults: "none".into(),
            accelerator: "tcg".into(),
            qemu: String::new(),
            nodes: vec![node],
            packets: Packets { sent: 12, ..Packets::default() },
        };
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(json["verified"], true);
        assert_eq!(json["nodes"][0]["operations"][0]["lat_p50_ns"], 1500);
        let table = report.table();
        let row: Vec<&str> =
            table.lines().find(|line| line.contains("rds")).expect("row").split_whitespace().collect();
        assert_eq!(row, ["client", "rds", "1000", "2000000", "2000", "4.00", "1.5", "-", "1000"]);
        assert!(table.contains("every byte verified in 1.5 s"), "{table}");
    }
}
