//! What is left of RDS where everything is left out that can be: messages of 64 bytes behind RDS's header, checksum and all, on one
//! connection, from one socket to one other. No shares, no congestion, no acknowledgements, nothing kept until it is acknowledged, nothing
//! that may fail. What RDS itself takes is to be seen beside it.

use crate::dat::{BenchAdapter, Side, adapters, connect};
use crate::{HANDLES, OPERATIONS};
use dat_nostd::{CompletionFlags, EpHandle, EvdHandle, LmrTriplet};
use driver_mlx::{DmaBlocks, DmaWord};
use harness::dat::address;
use rds_nostd::Received;
use std::net::SocketAddr;

const LEN: usize = 64;
/// Quadwords of RDS's header, and of a frame.
const HEADER: usize = 6;
const WORDS: usize = HEADER + LEN / 8;
const BYTES: usize = WORDS * 8;
/// Frames: two rounds of messages.
const FRAMES: usize = 2 * HANDLES;
/// One send of so many is reported.
const REPORTED: u64 = 16;
const PORT: u16 = 4000;

/// One end: its frames, those that are free, and those that something arrived in.
struct End {
    ep: EpHandle,
    transfers: EvdHandle,
    lmr_context: u32,
    frames: DmaBlocks<WORDS>,
    free: Stack,
    arrived: Ring,
    from: SocketAddr,
    sequence: u64,
}

/// Frames that are free.
struct Stack {
    frames: [u16; FRAMES],
    count: usize,
}

impl Stack {
    fn new() -> Self {
        Self { frames: std::array::from_fn(|frame| frame as u16), count: FRAMES }
    }

    #[inline(always)]
    fn push(&mut self, frame: u16) {
        if let Some(place) = self.frames.get_mut(self.count) {
            *place = frame;
            self.count += 1;
        }
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<u16> {
        let count = self.count.checked_sub(1)?;
        let frame = *self.frames.get(count)?;
        self.count = count;
        Some(frame)
    }
}

/// Frames that nobody read yet, oldest first.
#[derive(Default)]
struct Ring {
    frames: [u16; HANDLES],
    read: usize,
    written: usize,
}

impl Ring {
    #[inline(always)]
    fn push(&mut self, frame: u16) {
        self.frames[self.written % HANDLES] = frame;
        self.written += 1;
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<u16> {
        if self.read == self.written {
            return None;
        }
        let frame = self.frames[self.read % HANDLES];
        self.read += 1;
        Some(frame)
    }
}

/// The sum of words that the header's checksum is made of (RFC 1071), modulo 2^64 - 1, which 2^16 - 1 divides.
#[inline(always)]
fn sum<const N: usize>(words: [u64; N]) -> u64 {
    let (mut total, mut carry) = (0u64, false);
    for word in words {
        (total, carry) = total.carrying_add(word, carry);
    }
    let (total, carry) = total.overflowing_add(u64::from(carry));
    total + u64::from(carry)
}

/// Whether it is right: a multiple of 2^16 - 1.
#[inline(always)]
fn is_right(sum: u64) -> bool {
    sum.wrapping_mul(0xfffe_fffe_fffe_ffff) <= u64::MAX / 0xffff
}

/// The checksum that makes it right.
#[inline(always)]
fn checksum(sum: u64) -> u16 {
    let half = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    !((half.wrapping_add(half.rotate_left(16)) >> 16) as u16)
}

impl End {
    fn new(side: Side, from: usize) -> Self {
        let Side { transfers, memory, lmr, eps, .. } = side;
        Self {
            ep: eps[0],
            transfers,
            lmr_context: lmr.lmr_context,
            frames: DmaBlocks::new(memory),
            free: Stack::new(),
            arrived: Ring::default(),
            from: SocketAddr::new(address(from), PORT),
            sequence: 0,
        }
    }

    #[inline(always)]
    fn send(&mut self, adapter: &mut BenchAdapter, port: u16, bytes: &[u8]) -> Option<()> {
        let frame = self.sequence % FRAMES as u64;
        let words = self.frames.block(frame as usize)?;
        let quads = bytes.first_chunk::<LEN>()?.as_chunks::<8>().0;
        self.sequence += 1;
        let [sequence, ack] = [self.sequence, 0].map(u64::to_be);
        let place = ((bytes.len() as u64) << 32 | u64::from(PORT) << 16 | u64::from(port)).to_be();
        words[0].store(sequence);
        words[1].store(ack);
        words[2].store(place);
        words[3].store(u64::from(checksum(sum([sequence, ack, place]))) << 48);
        words[4].store(0);
        words[5].store(0);
        for (place, word) in words[HEADER..].iter().enumerate() {
            word.store(u64::from_ne_bytes(quads[place]));
        }
        let mut flags = CompletionFlags::SOLICITED_WAIT;
        flags.set(CompletionFlags::SUPPRESS, !self.sequence.is_multiple_of(REPORTED));
        let segment = LmrTriplet::new(self.lmr_context, words.as_ptr().addr() as u64, BYTES as u64);
        adapter.ep_post_send(self.ep, std::slice::from_ref(&segment), self.sequence, flags).ok()
    }

    #[inline(always)]
    fn poll(&mut self, adapter: &mut BenchAdapter) {
        let Self { ep, transfers, lmr_context, frames, free, arrived, .. } = self;
        adapter.evd_take_receives(*transfers, HANDLES, |first, run| {
            for done in std::iter::once(first).chain(run) {
                let frame = done.user_cookie as u16;
                let Some(words) = frames.block(frame.into()) else { return 0 };
                let Some(header) = words.first_chunk::<HEADER>() else { return 0 };
                let header = header.each_ref().map(DmaWord::load);
                let len = (u64::from_be(header[2]) >> 32) as usize;
                if is_right(sum(header)) && done.length as usize == HEADER * 8 + len {
                    arrived.push(frame);
                }
            }
            0
        });
        let start = frames.block(0).map_or(0, |words| words.as_ptr().addr()) as u64;
        let receives = std::iter::from_fn(|| {
            free.pop().map(|frame| (start + u64::from(frame) * BYTES as u64, frame.into()))
        });
        let _ = adapter.ep_post_receives(*ep, *lmr_context, BYTES as u32, receives.take(HANDLES));
    }

    #[inline(always)]
    fn recvmsg(&mut self, buffer: &mut [u8]) -> Option<Received> {
        let frame = self.arrived.pop()?;
        let words = self.frames.block(frame.into())?;
        let place = u64::from_be(words[2].load());
        let message_len = (place >> 32) as usize;
        let payload = buffer.first_chunk_mut::<LEN>()?.as_chunks_mut::<8>().0;
        for (place, word) in words[HEADER..].iter().enumerate() {
            payload[place] = word.load().to_ne_bytes();
        }
        self.free.push(frame);
        let mut from = self.from;
        from.set_port((place >> 16) as u16);
        Some(Received { from, len: message_len, message_len, cookie: None })
    }
}

#[inline(never)]
fn measured_rds_least_send(end: &mut End, adapter: &mut BenchAdapter, port: u16, bytes: &[u8]) -> bool {
    end.send(adapter, port, bytes).is_some()
}

#[inline(never)]
fn measured_rds_least_poll(end: &mut End, adapter: &mut BenchAdapter) {
    end.poll(adapter);
}

#[inline(never)]
fn measured_rds_least_recvmsg(end: &mut End, buffer: &mut [u8]) -> Option<Received> {
    end.recvmsg(buffer)
}

fn payload(operation: usize) -> [u8; LEN] {
    std::array::from_fn(|i| (operation * 31 + i * 7) as u8)
}

/// Makes and checks the operations.
pub fn run() {
    let mut adapters = adapters(5);
    let sides = adapters.each_mut().map(|adapter| Side::new(adapter, 1, FRAMES as u32, FRAMES * BYTES));
    connect(&mut adapters, sides.each_ref());
    let [near, far] = sides;
    let mut near = End::new(near, 1);
    let mut far = End::new(far, 0);
    far.poll(&mut adapters[1]);

    let mut buffer = [0; 2 * LEN];
    let mut done = 0;
    while done < OPERATIONS {
        let batch = HANDLES.min(OPERATIONS - done);
        for index in 0..batch {
            assert!(measured_rds_least_send(&mut near, &mut adapters[0], PORT, &payload(done + index)));
            adapters[0].platform().ring();
        }
        adapters[0].platform().settle();
        while adapters[0].evd_take(near.transfers).is_some() {}
        measured_rds_least_poll(&mut far, &mut adapters[1]);
        for index in 0..batch {
            let whole = Received {
                from: SocketAddr::new(address(0), PORT),
                len: LEN,
                message_len: LEN,
                cookie: None,
            };
            assert_eq!(measured_rds_least_recvmsg(&mut far, &mut buffer), Some(whole));
            assert_eq!(buffer[..LEN], payload(done + index));
        }
        adapters[1].platform().settle();
        done += batch;
    }
}
