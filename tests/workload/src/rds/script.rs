//! The steps of a client, as data.

use rds_nostd::MAX_RDMA_LEN;

use super::cases::{Case, ROUND};
use super::exchange::{FIRST_OFFSET, Kind, PORT};

/// Ports of the server that it does not read: one is filled, and one stays open next to it.
pub(super) const FULL: u16 = PORT + 10;
/// See [`FULL`].
pub(super) const OPEN: u16 = FULL + 1;
/// Receive buffer of the port that is filled, in bytes.
pub(super) const FULL_BUFFER: u64 = 20_000;
/// Receive buffer of the other, in bytes.
const OPEN_BUFFER: u64 = 100_000;
/// A cookie that no server gave out.
const NO_COOKIE: u64 = 0x0000_0100_ffff_fe00;

/// EINVAL and EMSGSIZE, as servers report them.
pub(super) const INVALID: u64 = 22;
const TOO_LONG: u64 = 90;

/// A step. A request is complete with its reply, an operation with its status and the reply to the
/// message after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Request a region for the case.
    Offer,
    /// Request the same region by its cookie.
    Again,
    /// Do the operation of the case.
    Operate,
    /// Do it again, after its region was freed.
    Stale,
    /// Request a check of the server's memory.
    Check,
    /// Compare the local memory.
    Compare,
    /// Request that the region is freed.
    Free,
    /// Request a socket with this port and receive buffer that is not read.
    Hold(u16, u64),
    /// Send to the full port until it closes.
    Fill,
    /// Find the full port closed, from both sockets.
    Refused,
    /// Send messages from a socket to a port.
    Send { socket: usize, port: u16, count: u64 },
    /// Request that all messages to a port are read, and if it `opens` wait for the update.
    Read { port: u16, opens: bool },
    /// Request that the socket of a port is closed.
    Close { port: u16, opens: bool },
    /// A request with fixed values. The reply has this errno.
    Ask(Kind, [u64; 4], u64),
}

/// A program of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Operations on offered memory: every length with every flag, and failures.
    Rdma,
    /// A port that is not read: it is filled until it closes, and opens again.
    Congestion,
}

impl Script {
    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rds_rdma",
            Self::Congestion => "rds_congestion",
        }
    }

    /// Parts of a round: cases of RDMA.
    pub(super) const fn parts(self) -> usize {
        match self {
            Self::Rdma => ROUND,
            Self::Congestion => 1,
        }
    }

    /// Returns step `at` of a part, if there is one. `exact` is true if the server's regions end
    /// where they should.
    pub(super) fn step(self, case: &Case, exact: bool, at: usize) -> Option<Step> {
        match self {
            Self::Rdma => of_case(case, exact).nth(at),
            Self::Congestion => CONGESTION.get(at).copied(),
        }
    }
}

/// A round of [`Script::Congestion`].
const CONGESTION: [Step; 14] = [
    Step::Hold(FULL, FULL_BUFFER),
    Step::Hold(OPEN, OPEN_BUFFER),
    Step::Fill,
    Step::Refused,
    Step::Send { socket: 0, port: OPEN, count: 20 },
    Step::Read { port: OPEN, opens: false },
    Step::Refused,
    Step::Read { port: FULL, opens: true },
    Step::Send { socket: 0, port: FULL, count: 5 },
    Step::Read { port: FULL, opens: false },
    // Closing the socket opens the port, too.
    Step::Fill,
    Step::Close { port: FULL, opens: true },
    Step::Send { socket: 1, port: FULL, count: 1 },
    Step::Close { port: OPEN, opens: false },
];

/// The end of every script: requests that must fail, then the last one.
pub(super) const END: [Step; 4] = [
    Step::Ask(Kind::Offer, [FIRST_OFFSET as u64, 0, 0, 0], INVALID),
    Step::Ask(Kind::Offer, [FIRST_OFFSET as u64, MAX_RDMA_LEN as u64 + 8192, 0, 0], TOO_LONG),
    Step::Ask(Kind::Free, [NO_COOKIE, 0, 0, 0], INVALID),
    Step::Ask(Kind::Done, [0; 4], 0),
];

/// A case of [`Script::Rdma`].
fn of_case(case: &Case, exact: bool) -> impl Iterator<Item = Step> {
    let fails = case.fails(exact);
    let steps = [
        (true, Step::Offer),
        (case.is_offered_twice, Step::Again),
        (true, Step::Operate),
        // No message checked the memory.
        (fails || case.is_silent(), Step::Check),
        (!fails, Step::Compare),
        (true, Step::Free),
        (case.is_stale(), Step::Stale),
        (case.is_stale(), Step::Check),
    ];
    steps.into_iter().filter(|(is_in, _)| *is_in).map(|(_, step)| step)
}
