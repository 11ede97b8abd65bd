//! Peers that keep to no share of theirs.

use crate::rds::fairness::{FORGED, VICTIM};
use crate::rds::raw::{DEPTH, Heard, Raw};
use dat_nostd::{CloseFlags, ConnectionEvent, CrHandle, EpHandle};
use harness::dat::{ModelAdapter, address};
use rds_nostd::wire::{
    ConnectData, FRAGMENT_LEN, FRAME_LEN, Flags, Header, MAX_MESSAGE_LEN, REJECT_DATA, VERSION, fragment_len,
};
use std::collections::BTreeMap;

/// What a bad peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misdeed {
    /// Nothing.
    None,
    /// Begins messages and does not end them: one but for its last fragment, others with their first alone.
    Stall,
    /// Takes what is sent to it, and never acknowledges.
    Silence,
    /// Is connected, and then without power.
    PowerOff,
    /// Asks for connections in many names, its own among them.
    Forge,
    /// Begins long messages, and goes on with each by one fragment from time to time.
    Drip,
    /// Takes and makes connections, pings, and hangs up at once.
    HangUp,
    /// Sends as much as its connections take: to a socket that nobody reads, to ports that nobody is bound to, pings.
    Flood,
}

/// Connections that it wants at a time, each of another type of service.
const CONNECTIONS: u8 = 4;
/// Endpoints that it has asking at a time when it forges.
const ASKING: usize = 8;

/// How long from one fragment to the next when it drips.
const DROP_APART: u64 = 5_000_000;

/// What it is at on a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Speech {
    tos: u8,
    sequence: u64,
    /// Fragments sent of the present message, and of how many.
    sent: usize,
    of: usize,
}

pub struct Bad {
    pub raw: Raw,
    misdeed: Misdeed,
    index: usize,
    /// Payload bytes of the message that it does not end.
    longest: usize,
    /// Connections that stand, and the types of service of those asked for.
    up: BTreeMap<EpHandle, Speech>,
    asked: BTreeMap<EpHandle, u8>,
    requests: Vec<CrHandle>,
    asks: u64,
    /// When it goes on dripping.
    next_drop: u64,
    pub established: u64,
    pub frames: u64,
}

impl Bad {
    /// At node `index`; the victim takes messages of up to `longest` bytes.
    pub fn new(index: usize, adapter: ModelAdapter, misdeed: Misdeed, longest: usize) -> Self {
        Self {
            raw: Raw::new(adapter),
            misdeed,
            index,
            longest,
            up: BTreeMap::new(),
            asked: BTreeMap::new(),
            requests: Vec::new(),
            asks: 0,
            next_drop: 0,
            established: 0,
            frames: 0,
        }
    }

    /// It has done nothing so far.
    pub fn take_up(&mut self, misdeed: Misdeed) {
        self.misdeed = misdeed;
    }

    pub fn is_connected(&self) -> bool {
        !self.up.is_empty()
    }

    /// Takes what happened, and takes frames again where some came.
    fn listen(&mut self) {
        while let Some(heard) = self.raw.hear() {
            match heard {
                Heard::Connection(ep, ConnectionEvent::Established) => {
                    let tos = self.asked.remove(&ep).unwrap_or(0);
                    self.up.insert(ep, Speech { tos, ..Speech::default() });
                    self.established += 1;
                }
                Heard::Connection(ep, _) => self.free(ep),
                Heard::Request(cr) if self.misdeed == Misdeed::HangUp => self.take(cr),
                Heard::Request(cr) => self.requests.push(cr),
                Heard::Frame(ep, slot) => self.raw.post_receive(ep, slot, FRAME_LEN),
            }
        }
        // It takes nobody's connection but makes its own.
        for cr in std::mem::take(&mut self.requests) {
            let _ = self.raw.adapter.cr_reject_with(cr, &REJECT_DATA);
        }
    }

    /// Takes a connection, as RDS does.
    fn take(&mut self, cr: CrHandle) {
        let Some(ep) = self.raw.endpoint() else { return };
        let data = ConnectData {
            source: address(self.index),
            destination: address(VICTIM),
            version: VERSION,
            minor_mask: 3,
            tos: 0,
            expects: 0,
            longest: MAX_MESSAGE_LEN as u32,
        };
        let (data, len) = data.encode();
        self.asked.insert(ep, 0);
        if self.raw.adapter.cr_accept(cr, Some(ep), &data[..len]).is_err() {
            self.free(ep);
        }
    }

    fn free(&mut self, ep: EpHandle) {
        self.asked.remove(&ep);
        self.up.remove(&ep);
        self.raw.adapter.ep_free(ep).expect("frees");
    }

    /// Asks the victim for a connection as `source`.
    fn ask(&mut self, victim: usize, source: usize, tos: u8) {
        let Some(ep) = self.raw.endpoint() else { return };
        for slot in 0..DEPTH - 1 {
            self.raw.post_receive(ep, slot, FRAME_LEN);
        }
        let data = ConnectData {
            source: address(source),
            destination: address(victim),
            version: VERSION,
            minor_mask: 3,
            tos,
            expects: 0,
            longest: MAX_MESSAGE_LEN as u32,
        };
        let (data, len) = data.encode();
        self.asked.insert(ep, tos);
        if !self.raw.ask(ep, victim, 100_000, &data[..len]) {
            self.free(ep);
        }
    }

    /// As much as it can do now.
    pub fn act(&mut self, victim: usize) {
        self.listen();
        match self.misdeed {
            Misdeed::None => {}
            Misdeed::PowerOff if self.established > 0 => {}
            Misdeed::Forge => {
                while self.asked.len() < ASKING {
                    self.asks += 1;
                    // In the name of an honest node, as its own packets have it, too; in others', and with types of service.
                    let source = if self.asks.is_multiple_of(2) { FORGED } else { self.asks as usize % 100 };
                    self.ask(victim, source, (self.asks / 2 % 4) as u8);
                }
            }
            _ => {
                for tos in 0..CONNECTIONS {
                    let stands = self.up.values().any(|speech| speech.tos == tos);
                    if !stands && !self.asked.values().any(|asked| *asked == tos) {
                        self.ask(victim, self.index, tos);
                    }
                }
            }
        }
        match self.misdeed {
            Misdeed::Stall => self.begin(false),
            Misdeed::Drip => {
                let now = self.raw.adapter.now().as_nanos();
                if now >= self.next_drop {
                    self.next_drop = now + DROP_APART;
                    self.begin(true);
                }
            }
            Misdeed::HangUp => {
                for ep in self.up.keys().copied().collect::<Vec<_>>() {
                    self.say(ep, &Header { sequence: 1, sport: 7, ..Header::acknowledgement(0) }, 0);
                    let _ = self.raw.adapter.ep_disconnect(ep, CloseFlags::Abrupt);
                }
            }
            Misdeed::Flood => self.flood(),
            Misdeed::None | Misdeed::Silence | Misdeed::PowerOff | Misdeed::Forge => {}
        }
    }

    /// Goes on with the message that it does not end: all but the last fragment on the first connection, one on the others. Or by one
    /// fragment on each, after as many as the common frames are.
    fn begin(&mut self, drips: bool) {
        let eps: Vec<EpHandle> = self.up.keys().copied().collect();
        for (number, ep) in eps.into_iter().enumerate() {
            let mut speech = self.up[&ep];
            let all = match (drips, number) {
                (true, _) => (speech.sent + 1).clamp(24, self.longest / FRAGMENT_LEN - 1),
                (false, 0) => self.longest / FRAGMENT_LEN - 1,
                (false, _) => 1,
            };
            let header = Header {
                sequence: 1,
                len: self.longest as u32,
                sport: 7,
                dport: 4000,
                ..Header::acknowledgement(0)
            };
            while speech.sent < all && self.say(ep, &header, FRAGMENT_LEN) {
                speech.sent += 1;
            }
            self.up.insert(ep, speech);
        }
    }

    /// As many frames as fit.
    fn flood(&mut self) {
        let eps: Vec<EpHandle> = self.up.keys().copied().collect();
        for ep in eps {
            let mut speech = self.up[&ep];
            loop {
                if speech.sent == speech.of {
                    speech.sequence += 1;
                    (speech.sent, speech.of) = (0, 1 + (speech.sequence % 3) as usize);
                }
                let len = [64, 5000, 10_000][speech.of - 1];
                // To the socket that nobody reads, to a port that nobody is bound to, and to port 0, which answers: each on a connection of
                // its own, as the first holds up what is behind it, and all of them on another.
                let dport = match speech.tos {
                    0 => [4001, 4001, 9, 0][(speech.sequence % 4) as usize],
                    tos => [4001, 9, 0][usize::from(tos) - 1],
                };
                let len = if dport == 0 { 0 } else { len };
                speech.of = if len == 0 { 1 } else { speech.of };
                let header = Header {
                    sequence: speech.sequence,
                    len: len as u32,
                    sport: 7,
                    dport,
                    flags: Flags::ACK_REQUIRED,
                    ..Header::acknowledgement(0)
                };
                if !self.say(ep, &header, fragment_len(len, speech.sent)) {
                    break;
                }
                speech.sent += 1;
            }
            self.up.insert(ep, speech);
        }
    }

    fn say(&mut self, ep: EpHandle, header: &Header, payload: usize) -> bool {
        let mut bytes = header.encode().to_vec();
        bytes.resize(bytes.len() + payload, 0xbb);
        let said = self.raw.post(ep, &bytes);
        self.frames += u64::from(said);
        said
    }

    /// Ends everything that it holds, and does nothing more.
    pub fn leave(&mut self) {
        self.misdeed = Misdeed::None;
        self.listen();
        let eps = std::mem::take(&mut self.asked).into_keys().chain(std::mem::take(&mut self.up).into_keys());
        eps.for_each(|ep| self.raw.adapter.ep_free(ep).expect("frees"));
    }
}
