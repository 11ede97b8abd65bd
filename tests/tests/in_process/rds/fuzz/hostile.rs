//! A peer that does as it likes: connects with any private data or none, posts frames of its own making, mutated and random ones,
//! reaches for memory with keys that it guesses, and answers nothing or nonsense.

use crate::rds::raw::{Heard, Raw};
use dat_nostd::{ConnectionEvent, CrHandle, EpHandle, RmrTriplet};
use harness::dat::{ModelAdapter, address};
use harness::seeds::Random;
use rds_nostd::wire::{
    CONGESTION_MAP_LEN, ConnectData, Extension, FRAGMENT_LEN, FRAME_LEN, Flags, Header, MAX_MESSAGE_LEN,
    REJECT_DATA, VERSION, fragment_len, fragments,
};

/// Endpoints at a time, at most.
const MOST_EPS: usize = 6;

pub struct Hostile {
    pub raw: Raw,
    index: usize,
    eps: Vec<EpHandle>,
    requests: Vec<CrHandle>,
    /// The number of the next message, so that some are as they should be.
    sequence: u64,
    pub established: u64,
    pub refused: u64,
    pub frames: u64,
}

impl Hostile {
    pub fn new(index: usize, adapter: ModelAdapter) -> Self {
        Self {
            raw: Raw::new(adapter),
            index,
            eps: Vec::new(),
            requests: Vec::new(),
            sequence: 1,
            established: 0,
            refused: 0,
            frames: 0,
        }
    }

    /// Takes all events.
    pub fn drain(&mut self) {
        while let Some(heard) = self.raw.hear() {
            match heard {
                Heard::Connection(_, ConnectionEvent::Established) => self.established += 1,
                Heard::Connection(..) => self.refused += 1,
                Heard::Request(cr) => self.requests.push(cr),
                Heard::Frame(..) => {}
            }
        }
    }

    fn endpoint(&mut self, random: &mut Random) -> Option<EpHandle> {
        let ep = self.raw.endpoint()?;
        // Without a receive its peer waits; one that is too short breaks the connection.
        for slot in 0..random.pick(&[0, 1, 15]) {
            let len = if random.one_in(20) { random.below(100) as usize } else { FRAME_LEN };
            self.raw.post_receive(ep, slot, len);
        }
        self.eps.push(ep);
        Some(ep)
    }

    /// Private data: mostly as it should be, so that something follows; or with a wrong byte, cut, or any.
    fn private_data(&self, victim: usize, random: &mut Random) -> Vec<u8> {
        let source = if random.one_in(8) { random.below(5) as usize } else { self.index };
        let good = ConnectData {
            source: address(source),
            destination: address(victim),
            version: random.pick(&[VERSION, VERSION, VERSION, (4, 1), (3, 0), (2, 9), (0, 0)]),
            minor_mask: random.pick(&[3, 3, 1, 0]),
            tos: if random.one_in(4) { random.next() as u8 } else { 0 },
            expects: if random.one_in(4) { random.next() } else { 0 },
            longest: MAX_MESSAGE_LEN as u32,
        };
        let (bytes, len) = good.encode();
        let mut data = bytes[..len].to_vec();
        match random.below(10) {
            0 => {
                let at = random.below(len as u64) as usize;
                data[at] ^= 1 << random.below(8);
            }
            1 => data.truncate(random.below(len as u64 + 1) as usize),
            2 => data.iter_mut().for_each(|byte| *byte = random.next() as u8),
            // What Linux ignores: an acknowledgement and credits.
            3 => data[16..28].iter_mut().for_each(|byte| *byte = random.next() as u8),
            _ => {}
        }
        data
    }

    /// One hostile act.
    pub fn act(&mut self, victim: usize, random: &mut Random, keys: &[u32]) {
        match random.below(20) {
            0..2 if self.eps.len() < MOST_EPS => self.ask(victim, random),
            2 if random.one_in(6) => {
                // A flood.
                while self.eps.len() < MOST_EPS {
                    self.ask(victim, random);
                }
            }
            3 if !self.eps.is_empty() => {
                let ep = self.eps.swap_remove(random.below(self.eps.len() as u64) as usize);
                self.raw.adapter.ep_free(ep).expect("frees");
            }
            4 => self.answer(victim, random),
            5 => self.reach(random, keys),
            6 if random.one_in(10) => {
                self.sequence = random.pick(&[0, 1, u64::MAX - 3, random.clone().next()])
            }
            _ => {
                for _ in 0..1 + random.below(6) {
                    self.speak(random, keys);
                }
            }
        }
    }

    fn ask(&mut self, victim: usize, random: &mut Random) {
        let Some(ep) = self.endpoint(random) else { return };
        let data = self.private_data(victim, random);
        let timeout = random.pick(&[100, 10_000, 5_000_000]);
        let _ = self.raw.ask(ep, victim, timeout, &data);
    }

    /// Does something about a request of the victim, or nothing.
    fn answer(&mut self, victim: usize, random: &mut Random) {
        let Some(cr) = self.requests.pop() else { return };
        let data = self.private_data(victim, random);
        if random.one_in(3) {
            let data = if random.one_in(2) { &REJECT_DATA[..] } else { &data[..data.len().min(20)] };
            let _ = self.raw.adapter.cr_reject_with(cr, data);
        } else if let Some(ep) = self.endpoint(random) {
            let _ = self.raw.adapter.cr_accept(cr, Some(ep), &data);
        }
    }

    fn connected(&self, random: &mut Random) -> Option<EpHandle> {
        let is_up = |ep: &EpHandle| self.raw.is_connected(*ep);
        let up: Vec<EpHandle> = self.eps.iter().copied().filter(is_up).collect();
        (!up.is_empty()).then(|| random.pick(&up))
    }

    /// Reads or writes memory of the victim with a key that it knows or guesses.
    fn reach(&mut self, random: &mut Random, keys: &[u32]) {
        let Some(ep) = self.connected(random) else { return };
        let key = match keys {
            [] => random.next() as u32,
            keys => random.pick(keys) ^ random.pick(&[1, 0x100, 0x200, 0xff]),
        };
        let len = 1 + random.below(5000);
        let remote = RmrTriplet::new(key, random.below(9000), len);
        self.raw.reach(ep, &remote, random.one_in(2));
    }

    fn post(&mut self, ep: EpHandle, bytes: &[u8]) {
        self.frames += u64::from(self.raw.post(ep, bytes));
    }

    /// Sends a message, an acknowledgement, a map, or something that resembles them.
    fn speak(&mut self, random: &mut Random, keys: &[u32]) {
        let Some(ep) = self.connected(random) else { return };
        if random.one_in(12) {
            let len = random.pick(&[0, 1, 47, 48, 49, 1000, 4143, 4144, 4145, 8192]);
            let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            self.post(ep, &bytes);
            return;
        }
        let any = random.next();
        let mut header = Header {
            sequence: self.sequence,
            ack: random.pick(&[0, 0, 1, any, u64::MAX]),
            len: match random.below(6) {
                0..3 => random.below(3000) as u32,
                3 => random.pick(&[0, 4095, 4096, 4097, 8192]),
                4 => random.below(14_000) as u32,
                _ => random.pick(&[1 << 20, (1 << 20) + 1, u32::MAX]),
            },
            sport: random.pick(&[4000, 0, 1, 7]),
            dport: random.pick(&[4000, 4000, 4001, 0, 1, 9]),
            flags: Flags::from_bits_retain(random.pick(&[0, 0, 2, 4, 6, 1, 3, 0x20, any as u8])),
            credit: random.pick(&[0, any as u8]),
            extensions: [0; 16],
        };
        match random.below(8) {
            0 => {
                header = Header {
                    len: CONGESTION_MAP_LEN as u32,
                    flags: Flags::CONG_BITMAP,
                    ..Header::acknowledgement(0)
                }
            }
            1 => header = Header { flags: header.flags, ..Header::acknowledgement(header.ack) },
            2 => {
                let rkey = if keys.is_empty() { any as u32 } else { random.pick(keys) };
                let extension = random.pick(&[
                    Extension::Rdma { rkey },
                    Extension::RdmaDest { rkey, offset: any as u32 },
                    Extension::RdmaBytes { bytes: any as u32, is_write: true },
                ]);
                header.extensions = extension.encode();
            }
            3 => header.extensions = std::array::from_fn(|_| random.below(10) as u8),
            _ => {}
        }
        self.sequence = self.sequence.wrapping_add(1);
        // As many fragments as it should have, or one more or less; of these the first few.
        let count = fragments(header.len as usize) + usize::from(random.one_in(10));
        let mut changed = header;
        for index in 0..count.min(5) {
            let mut payload = fragment_len(header.len as usize, index);
            if random.one_in(15) {
                payload = random.below(FRAGMENT_LEN as u64 + 2) as usize;
            }
            if random.one_in(25) {
                match random.below(4) {
                    0 => changed.sequence ^= 1,
                    1 => changed.len ^= 1,
                    2 => changed.sport ^= 1,
                    _ => changed.dport ^= 1,
                }
            }
            let mut bytes = changed.encode().to_vec();
            match random.below(20) {
                0 => {
                    let at = random.below(48) as usize;
                    bytes[at] ^= 1 << random.below(8);
                }
                1 => bytes[30..32].fill(0),
                _ => {}
            }
            bytes.resize(48 + payload, header.sequence as u8);
            self.post(ep, &bytes);
            if random.one_in(20) {
                // An acknowledgement in between, which is legal.
                self.post(ep, &Header::acknowledgement(header.ack).encode());
            }
        }
    }

    /// Ends everything that it holds.
    pub fn leave(&mut self) {
        self.drain();
        for cr in std::mem::take(&mut self.requests) {
            let _ = self.raw.adapter.cr_reject_with(cr, &REJECT_DATA);
        }
        for ep in std::mem::take(&mut self.eps) {
            self.raw.adapter.ep_free(ep).expect("frees");
        }
    }
}
