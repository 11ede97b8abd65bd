//! Links that are cut and mended, at numbers of packets that the seed decides.

use crate::ports::PortIndex;
use crate::random::Random;

/// How often a link is cut, and for how long. Written `20/1000..5000/100ms..5s`: 20 times, each time when 1000 to 5000 more
/// packets were sent than when the cut before ended, for 100 ms to 5 s.
///
/// The link that is cut is that of the port which sends the packet in question, and that packet is the first to be lost. The
/// HCA at its end sees its port go down, as with a cable that is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuts {
    /// How many.
    pub count: u32,
    /// Packets from the end of one cut to the next, least and most.
    pub packets: (u64, u64),
    /// How long each lasts in nanoseconds, shortest and longest.
    pub time: (u64, u64),
}

/// The state of [`Cuts`].
#[derive(Debug)]
pub(crate) struct Cutter {
    plan: Option<Cuts>,
    random: Random,
    /// Cuts still to come.
    left: u32,
    /// The next one comes with this packet.
    at: u64,
    /// The port that is cut off, and until when.
    now: Option<(PortIndex, u64)>,
}

impl Cutter {
    /// With `sent` packets sent so far. Has randomness of its own: how often a link is cut changes nothing else.
    pub(crate) fn new(plan: Option<Cuts>, seed: u64, sent: u64) -> Self {
        let random = Random::new(seed ^ 0x6375_7473);
        let mut cutter = Self { plan, random, left: plan.map_or(0, |plan| plan.count), at: 0, now: None };
        cutter.place(sent);
        cutter
    }

    fn between(&mut self, (least, most): (u64, u64)) -> u64 {
        least.saturating_add(self.random.below(most.saturating_sub(least).saturating_add(1)))
    }

    fn place(&mut self, sent: u64) {
        self.at = match self.plan {
            Some(plan) if self.left > 0 => sent.saturating_add(self.between(plan.packets)),
            _ => u64::MAX,
        };
    }

    /// Takes note of packet number `sent` from `port`; whether its link is cut now.
    pub(crate) fn sent(&mut self, port: PortIndex, sent: u64, now: u64) -> bool {
        let Some(plan) = self.plan.filter(|_| sent >= self.at && self.now.is_none()) else { return false };
        self.left = self.left.saturating_sub(1);
        self.at = u64::MAX;
        let time = self.between(plan.time);
        self.now = Some((port, now.saturating_add(time)));
        true
    }

    /// Returns the port that is cut off, if one is.
    pub(crate) fn port(&self) -> Option<PortIndex> {
        self.now.map(|(cut, _)| cut)
    }

    /// Whether the port is cut off.
    pub(crate) fn cuts(&self, port: PortIndex) -> bool {
        self.port() == Some(port)
    }

    /// Ends a cut whose time is over.
    pub(crate) fn poll(&mut self, sent: u64, now: u64) {
        if self.now.is_some_and(|(_, until)| now >= until) {
            self.now = None;
            self.place(sent);
        }
    }

    /// When [`poll`](Self::poll) has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.now.map(|(_, until)| until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_come_in_their_ranges_and_replay_from_the_seed() {
        let plan = Cuts { count: 20, packets: (10, 30), time: (5, 9) };
        let run = |seed| {
            let mut cutter = Cutter::new(Some(plan), seed, 100);
            let (mut last, mut seen) = (100, Vec::new());
            for sent in 101..10_000 {
                if cutter.sent(PortIndex(1), sent, sent) {
                    let until = cutter.deadline().expect("it ends");
                    assert!((10..=31).contains(&(sent - last)), "{sent} after {last}");
                    assert!((5..=9).contains(&(until - sent)), "{until}");
                    assert!(cutter.cuts(PortIndex(1)) && !cutter.cuts(PortIndex(0)));
                    cutter.poll(sent, until - 1);
                    assert!(cutter.cuts(PortIndex(1)));
                    cutter.poll(sent, until);
                    assert!(!cutter.cuts(PortIndex(1)));
                    last = sent;
                    seen.push((sent, until));
                }
            }
            assert_eq!(seen.len(), 20);
            seen
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert!(!Cutter::new(None, 1, 0).sent(PortIndex(0), u64::MAX, 0));
    }
}
