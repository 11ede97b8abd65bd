//! What both sides know of a run. The active side sends it as the first bytes on the TCP connection: numbers in network order, and
//! before them, if the run has a type of service or asynchronous sends, the version of the program in 16 bytes.

use super::error::StressError;
use super::message::HEADER_LEN;

/// Tasks that a node of ours has, and requests that all of them may have under way together.
pub const MAX_TASKS: usize = 16;
/// See [`MAX_TASKS`].
pub const MAX_SLOTS: usize = 4096;
/// Bytes of the longest message.
pub(super) const MAX_MESSAGE: usize = 1 << 20;
/// Bytes of the longest RDMA operation.
const MAX_RDMA: u64 = rds_nostd::MAX_RDMA_LEN as u64;

/// The version in front of the long form.
const VERSION: &[u8] = b"2.0.7";
pub(super) const VERSION_LEN: usize = 16;
/// Bytes of the form that all versions know.
pub(super) const SHORT_LEN: usize = 59;
/// Of what comes behind the version in the long one.
pub(super) const LONG_LEN: usize = SHORT_LEN + 2;

/// What both sides know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `-d`: requests under way from each task to each other one.
    pub depth: u32,
    /// `-q`, `-a`: bytes of a request and of its answer.
    pub request_len: u32,
    /// See above.
    pub ack_len: u32,
    /// `-D`: bytes of an RDMA operation; 0 without RDMA.
    pub rdma_len: u32,
    /// `-s`, `-r`: the addresses of the passive and of the active side.
    pub send_address: u32,
    /// See above.
    pub receive_address: u32,
    /// `-p`: the TCP port; tasks have the ports behind it.
    pub port: u16,
    /// `-t`: tasks on each side.
    pub tasks: u16,
    /// `-T`: how long it takes; 0: until it is ended.
    pub seconds: u32,
    /// `-z`: only the average is printed.
    pub summary_only: bool,
    /// `-v`: all bytes are compared.
    pub verify: bool,
    /// `--use-cong-monitor`: whoever is congested is not tried before it is told that it is free.
    pub congestion_monitor: bool,
    /// `--rdma-use-once`: memory is offered for one use.
    pub use_once: bool,
    /// `--rdma-use-get-mr`: memory is registered by a call, not with the message that offers it.
    pub use_get_mr: bool,
    /// `--rdma-use-fence`: an answer waits for the read before it.
    pub fence: bool,
    /// `--rdma-cache-mrs`: memory stays registered.
    pub cache_mrs: bool,
    /// `-o`: only the active side sends requests.
    pub simplex: bool,
    /// `-M`: 0: reads and writes in turn, 1: reads, 2: writes.
    pub direction: u8,
    /// `-I`: pieces of local memory of an RDMA operation, of `rdma_len` each.
    pub vector: u32,
    /// `--rdma-alignment`: where in a page RDMA memory begins.
    pub alignment: u32,
    /// `-Q`: the type of service.
    pub tos: u8,
    /// `--async`, which only Oracle's kernels have.
    pub asynchronous: bool,
}

impl Options {
    /// As rds-stress has them without any switch.
    pub const DEFAULT: Self = Self {
        depth: 1,
        request_len: 1024,
        ack_len: HEADER_LEN as u32,
        rdma_len: 0,
        send_address: 0,
        receive_address: 0,
        port: 4000,
        tasks: 1,
        seconds: 0,
        summary_only: false,
        verify: false,
        congestion_monitor: true,
        use_once: false,
        use_get_mr: false,
        fence: true,
        cache_mrs: false,
        simplex: false,
        direction: 0,
        vector: 1,
        alignment: 0,
        tos: 0,
        asynchronous: false,
    };

    /// As the active side sends them, and how many bytes they are.
    pub(super) fn encode(&self) -> ([u8; VERSION_LEN + LONG_LEN], usize) {
        let mut bytes = [0; VERSION_LEN + LONG_LEN];
        let long = self.tos != 0;
        let mut at = 0;
        let mut put = |part: &[u8]| {
            let room = bytes.iter_mut().skip(at).zip(part);
            room.for_each(|(to, from)| *to = *from);
            at += part.len();
        };
        if long {
            let mut version = [0; VERSION_LEN];
            version.iter_mut().zip(VERSION).for_each(|(to, from)| *to = *from);
            put(&version);
        }
        for number in [
            self.depth,
            self.request_len,
            self.ack_len,
            self.rdma_len,
            self.send_address,
            self.receive_address,
        ] {
            put(&number.to_be_bytes());
        }
        put(&self.port.to_be_bytes());
        put(&self.tasks.to_be_bytes());
        put(&self.seconds.to_be_bytes());
        // Without meaning to the other side: priority, tracing, parameters, performance data, key statistics, warnings.
        put(&[self.summary_only.into(), 0, 0, self.verify.into(), 0, 0, self.congestion_monitor.into()]);
        put(&[self.use_once, self.use_get_mr, self.fence, self.cache_mrs].map(u8::from));
        put(&[0, 0, self.simplex.into(), self.direction]);
        for number in [self.vector, self.alignment, 0] {
            put(&number.to_be_bytes());
        }
        if long {
            put(&[self.tos, 0]);
        }
        (bytes, at)
    }

    /// What the active side sent: the short form, or what is behind the version in the long one.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let number =
            |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_be_bytes(*b));
        let short =
            |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u16::from_be_bytes(*b));
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let is_set = |at: usize| byte(at) != 0;
        Self {
            depth: number(0),
            request_len: number(4),
            ack_len: number(8),
            rdma_len: number(12),
            send_address: number(16),
            receive_address: number(20),
            port: short(24),
            tasks: short(26),
            seconds: number(28),
            summary_only: is_set(32),
            verify: is_set(35),
            congestion_monitor: is_set(38),
            use_once: is_set(39),
            use_get_mr: is_set(40),
            fence: is_set(41),
            cache_mrs: is_set(42),
            simplex: is_set(45),
            direction: byte(46),
            vector: number(47),
            alignment: number(51),
            tos: byte(59),
            asynchronous: is_set(60),
        }
    }

    /// Whether a node of ours can go by them.
    ///
    /// # Errors
    /// [`StressError::Option`].
    pub fn check(&self) -> Result<(), StressError> {
        let tasks = u64::from(self.tasks);
        let slots = MAX_SLOTS as u64;
        let header = HEADER_LEN as u64;
        let within = |switch, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(StressError::Option { switch, value, range: (least, most) })
            }
        };
        within("-t", tasks, 1, MAX_TASKS as u64)?;
        within("-d", self.depth.into(), 1, slots / (tasks * tasks))?;
        within("-q", self.request_len.into(), header, MAX_MESSAGE as u64)?;
        within("-a", self.ack_len.into(), header, MAX_MESSAGE as u64)?;
        within("-I", self.vector.into(), 1, 512)?;
        within("-D", self.rdma_len.into(), 0, MAX_RDMA / u64::from(self.vector))?;
        within("-M", self.direction.into(), 0, 2)?;
        within("-p", self.port.into(), 1, u64::from(u16::MAX) - tasks)?;
        within("--rdma-alignment", self.alignment.into(), 0, 4096)?;
        within("--async", self.asynchronous.into(), 0, 0)
    }

    /// Requests under way from all tasks together.
    pub(super) const fn slots(&self) -> usize {
        self.tasks as usize * self.tasks as usize * self.depth as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_back_in_either_form() {
        let options = Options {
            depth: 8,
            request_len: 4096,
            rdma_len: 65536,
            send_address: 0x0a00_0001,
            receive_address: 0x0a00_0002,
            tasks: 3,
            seconds: 7,
            verify: true,
            simplex: true,
            direction: 2,
            vector: 4,
            alignment: 8,
            use_once: true,
            ..Options::DEFAULT
        };
        let (bytes, len) = options.encode();
        assert_eq!((len, bytes[..4] == [0, 0, 0, 8], bytes[26..28] == [0, 3]), (SHORT_LEN, true, true));
        assert_eq!(Options::decode(&bytes[..len]), options);
        let options = Options { tos: 5, ..options };
        let (bytes, len) = options.encode();
        assert_eq!((len, &bytes[..6]), (VERSION_LEN + LONG_LEN, &b"2.0.7\0"[..]));
        assert_eq!(Options::decode(&bytes[VERSION_LEN..len]), options);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = Options { tasks: 4, depth: 8, ..Options::DEFAULT };
        assert_eq!(good.check(), Ok(()));
        for (bad, switch) in [
            (Options { tasks: 0, ..good }, "-t"),
            (Options { tasks: 17, ..good }, "-t"),
            (Options { depth: 0, ..good }, "-d"),
            (Options { depth: 257, ..good }, "-d"),
            (Options { request_len: 62, ..good }, "-q"),
            (Options { ack_len: u32::MAX, ..good }, "-a"),
            (Options { vector: 0, ..good }, "-I"),
            (Options { rdma_len: 1 << 20, vector: 2, ..good }, "-D"),
            (Options { direction: 3, ..good }, "-M"),
            (Options { port: 65533, ..good }, "-p"),
            (Options { alignment: 4097, ..good }, "--rdma-alignment"),
            (Options { asynchronous: true, ..good }, "--async"),
        ] {
            let refused = bad.check().expect_err(switch);
            assert!(
                matches!(refused, StressError::Option { switch: found, .. } if found == switch),
                "{refused}"
            );
        }
    }
}
