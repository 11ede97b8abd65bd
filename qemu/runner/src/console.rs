//! Parser for the unikernel's COM1 output: `@` lines are results, all other lines are log text.

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

/// A step of the bring-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Name of the step.
    pub name: String,
    /// Duration in microseconds.
    pub us: u64,
}

/// Result of an operation, as measured by the unikernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// `send_recv`, `rdma_write`, `rdma_read`, `rds`, or the name of another DAT object
    /// (`rmr_bind`, `srq`, …).
    pub op: String,
    /// Number of messages.
    pub messages: u64,
    /// Payload of all messages, in bytes.
    pub bytes: u64,
    /// From the first post to the last completion, in nanoseconds.
    pub ns: u64,
    /// Median latency in nanoseconds, if measured.
    pub lat_p50_ns: Option<u64>,
    /// Latency of the 99th percentile in nanoseconds, if measured.
    pub lat_p99_ns: Option<u64>,
    /// Number of messages of which every byte was compared and correct.
    pub verified: u64,
}

impl Operation {
    /// Returns messages per second.
    pub fn messages_per_second(&self) -> f64 {
        self.messages as f64 * 1e9 / self.ns.max(1) as f64
    }

    /// Returns the payload rate in 10^6 bytes per second.
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.ns.max(1) as f64
    }
}

/// Writes the measurements and the rates that follow from them.
impl Serialize for Operation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Operation", 9)?;
        fields.serialize_field("op", &self.op)?;
        fields.serialize_field("messages", &self.messages)?;
        fields.serialize_field("bytes", &self.bytes)?;
        fields.serialize_field("ns", &self.ns)?;
        fields.serialize_field("msg_per_s", &self.messages_per_second())?;
        fields.serialize_field("mb_per_s", &self.megabytes_per_second())?;
        fields.serialize_field("lat_p50_ns", &self.lat_p50_ns)?;
        fields.serialize_field("lat_p99_ns", &self.lat_p99_ns)?;
        fields.serialize_field("verified", &self.verified)?;
        fields.end()
    }
}

/// A line of a unikernel's console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// `@step name=.. us=..`
    Step(Step),
    /// `@progress op=.. done=.. of=..`
    Progress {
        /// Name of the running operation.
        op: String,
        /// Units done so far.
        done: u64,
        /// Units to do in total.
        of: u64,
    },
    /// `@result op=.. messages=.. bytes=.. ns=.. lat_p50_ns=.. lat_p99_ns=.. verified=..`
    Result(Operation),
    /// `@done verified=..`
    Done {
        /// True if every byte was correct.
        verified: bool,
    },
    /// `error: ..`
    Error(String),
    /// Any other line, including malformed `@` lines.
    Log(String),
}

impl Line {
    /// Parses a line.
    pub fn parse(line: &str) -> Self {
        if let Some(text) = line.strip_prefix("error: ") {
            return Self::Error(text.to_owned());
        }
        line.strip_prefix('@').and_then(Self::parse_report).unwrap_or_else(|| Self::Log(line.to_owned()))
    }

    fn parse_report(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
        let field = |key: &str| {
            rest.split_whitespace()
                .find_map(|word| word.split_once('=').filter(|(name, _)| *name == key))
                .map(|(_, value)| value)
        };
        let number = |key: &str| field(key)?.parse::<u64>().ok();
        Some(match kind {
            "step" => Self::Step(Step { name: field("name")?.to_owned(), us: number("us")? }),
            "progress" => {
                Self::Progress { op: field("op")?.to_owned(), done: number("done")?, of: number("of")? }
            }
            "result" => Self::Result(Operation {
                op: field("op")?.to_owned(),
                messages: number("messages")?,
                bytes: number("bytes")?,
                ns: number("ns")?,
                lat_p50_ns: number("lat_p50_ns"),
                lat_p99_ns: number("lat_p99_ns"),
                verified: number("verified")?,
            }),
            "done" => Self::Done { verified: field("verified")?.parse().ok()? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line() {
        assert_eq!(
            Line::parse("@step name=enable_hca us=120"),
            Line::Step(Step { name: "enable_hca".into(), us: 120 })
        );
        assert_eq!(
            Line::parse("@progress op=rds done=5 of=20"),
            Line::Progress { op: "rds".into(), done: 5, of: 20 }
        );
        let result = "@result op=rdma_write messages=64 bytes=67108864 ns=2000000000 lat_p50_ns=9 lat_p99_ns=99 verified=64";
        let Line::Result(operation) = Line::parse(result) else { panic!("{result}") };
        assert_eq!((operation.lat_p50_ns, operation.lat_p99_ns, operation.verified), (Some(9), Some(99), 64));
        assert!((operation.megabytes_per_second() - 33.554_432).abs() < 1e-9);
        assert!((operation.messages_per_second() - 32.0).abs() < 1e-9);
        assert_eq!(Line::parse("@done verified=true"), Line::Done { verified: true });
        assert_eq!(Line::parse("error: no peer"), Line::Error("no peer".into()));
    }

    #[test]
    fn what_is_malformed_is_log_and_never_a_success() {
        for line in
            ["@done", "@done verified=yes", "@result op=x", "@step us=1", "@", "@@done verified=true", ""]
        {
            assert_eq!(Line::parse(line), Line::Log(line.into()), "{line}");
        }
    }
}
