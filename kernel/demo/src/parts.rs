//! The DAT parts of the run: messages both ways, RDMA writes, RDMA reads. Each is driven by completions.

use dat_nostd::{Adapter, DmaSlice, Platform};

use crate::error::DemoError;
use crate::link::{Control, Done, Link, MAX_RDMA, SLOTS, WINDOW};
use crate::pattern::Stream;
use crate::report::{Operation, Tally};
use crate::sizes::Sizes;

/// Payloads are made and checked through a copy of this many bytes.
const CHUNK: usize = 4096;

/// Puts a message's bytes into memory.
pub(crate) fn fill(memory: DmaSlice<'_>, stream: Stream, sequence: u64, len: usize) {
    let mut chunk = [0; CHUNK];
    for position in (0..len).step_by(CHUNK) {
        let bytes = chunk.get_mut(..CHUNK.min(len - position)).unwrap_or_default();
        stream.payload(sequence).fill(position, bytes);
        // Lengths stay below the buffer's: the sizes are limited by it.
        let _ = memory.write(position, bytes);
    }
}

/// Position of the first byte that is not the message's.
pub(crate) fn check(memory: DmaSlice<'_>, stream: Stream, sequence: u64, len: usize) -> Option<usize> {
    let mut chunk = [0; CHUNK];
    (0..len).step_by(CHUNK).find_map(|position| {
        let bytes = chunk.get_mut(..CHUNK.min(len - position)).unwrap_or_default();
        if memory.read(position, bytes).is_err() {
            return Some(position);
        }
        stream.payload(sequence).mismatch(position, bytes)
    })
}

/// Parameters of a part, equal on both sides.
pub(crate) struct Plan {
    pub(crate) operation: Operation,
    pub(crate) own: Stream,
    pub(crate) theirs: Stream,
    pub(crate) sizes: Sizes,
    /// Messages of this side (of each of its connections, if there are many), or transfers.
    pub(crate) count: u64,
}

impl Plan {
    fn len(&self, number: u64) -> usize {
        self.sizes.of(number) as usize
    }

    fn mismatch(&self, sequence: u64, position: usize) -> DemoError {
        DemoError::Mismatch { operation: self.operation, sequence, position }
    }

    fn protocol(&self) -> DemoError {
        DemoError::Protocol { during: self.operation }
    }
}

/// One side of a part. Numbers count messages or transfers; each stays behind the one before it.
pub(crate) enum Part {
    /// Messages to the peer and from it.
    Messages { sent: u64, completed: u64, received: u64, posted_at: [u64; WINDOW] },
    /// The client's side of RDMA writes.
    Writer { posted: u64, completed: u64, checked: u64, posted_at: [u64; SLOTS] },
    /// The server's side of RDMA writes.
    Written { checked: u64 },
    /// The client's side of RDMA reads.
    Reader { ready: u64, posted: u64, taken: u64, posted_at: [u64; SLOTS] },
    /// The server's side of RDMA reads.
    Read { ready: u64, taken: u64 },
}

impl Part {
    pub(crate) const MESSAGES: Self =
        Self::Messages { sent: 0, completed: 0, received: 0, posted_at: [0; WINDOW] };
    pub(crate) const WRITER: Self =
        Self::Writer { posted: 0, completed: 0, checked: 0, posted_at: [0; SLOTS] };
    pub(crate) const WRITTEN: Self = Self::Written { checked: 0 };
    pub(crate) const READER: Self = Self::Reader { ready: 0, posted: 0, taken: 0, posted_at: [0; SLOTS] };
    pub(crate) const READ: Self = Self::Read { ready: 0, taken: 0 };

    /// Steps made: for progress, and for noticing that nothing moves.
    pub(crate) fn moved(&self) -> u64 {
        match *self {
            Self::Messages { completed, received, .. } => completed + received,
            Self::Writer { completed, checked, .. } => completed + checked,
            Self::Written { checked } => checked,
            Self::Reader { ready, taken, .. } => ready + taken,
            Self::Read { ready, taken } => ready + taken,
        }
    }

    /// Items of this side that are finished, out of the plan's count.
    pub(crate) fn done(&self) -> u64 {
        match *self {
            Self::Messages { completed, received, .. } => completed.min(received),
            // The peer can have checked what this side's HCA has not yet reported.
            Self::Writer { completed, checked, .. } => completed.min(checked),
            Self::Written { checked } => checked,
            Self::Reader { taken, .. } | Self::Read { taken, .. } => taken,
        }
    }

    /// Begins whatever may begin now.
    pub(crate) fn advance<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        link: &mut Link,
        plan: &Plan,
        tally: &mut Tally,
    ) -> Result<(), DemoError> {
        match self {
            Self::Messages { sent, completed, received, posted_at } => {
                let window = WINDOW as u64;
                while *sent < plan.count && *sent < *received + window && *sent < *completed + window {
                    let len = plan.len(*sent);
                    let Some(buffer) = link.send_buffer(*sent) else { break };
                    fill(buffer, plan.own, *sent, len);
                    stamp(posted_at, *sent, adapter.now().as_nanos());
                    link.send(adapter, *sent, len)?;
                    tally.messages += 1;
                    tally.bytes += len as u64;
                    *sent += 1;
                }
            }
            Self::Writer { posted, completed, checked, posted_at } => {
                let slots = SLOTS as u64;
                while *posted < plan.count
                    && *posted < *checked + slots
                    && *posted < *completed + slots
                    && link.may_control()
                {
                    let len = plan.len(*posted);
                    let Some(slot) = link.slot(*posted) else { break };
                    fill(slot, plan.own, *posted, len);
                    stamp(posted_at, *posted, adapter.now().as_nanos());
                    link.rdma_write(adapter, *posted, len)?;
                    // Behind the write on the same connection, so the write is there when this arrives.
                    link.send_control(adapter, Control::Written(*posted))?;
                    tally.messages += 1;
                    tally.bytes += len as u64;
                    *posted += 1;
                }
            }
            Self::Written { .. } => {}
            Self::Reader { ready, posted, taken, posted_at } => {
                // A read that completes is answered by a control message: leave room for it.
                while *posted < *ready && *posted < *taken + SLOTS as u64 {
                    let len = plan.len(*posted);
                    stamp(posted_at, *posted, adapter.now().as_nanos());
                    link.rdma_read(adapter, *posted, len)?;
                    tally.messages += 1;
                    tally.bytes += len as u64;
                    *posted += 1;
                }
            }
            Self::Read { ready, taken } => {
                while *ready < plan.count && *ready < *taken + SLOTS as u64 && link.may_control() {
                    let Some(slot) = link.slot(*ready) else { break };
                    fill(slot, plan.own, *ready, plan.len(*ready));
                    link.send_control(adapter, Control::Ready(*ready))?;
                    *ready += 1;
                }
            }
        }
        Ok(())
    }

    /// Takes a completion. A control message that is not for this part is handed back.
    pub(crate) fn completed<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        link: &mut Link,
        plan: &Plan,
        tally: &mut Tally,
        done: Done,
    ) -> Result<Option<Control>, DemoError> {
        match (self, done) {
            (_, Done::Control) => {}
            (Self::Messages { completed, posted_at, .. }, Done::Sent(number)) if number == *completed => {
                *completed += 1;
                tally.latency.record(adapter.now().as_nanos().saturating_sub(stamped(posted_at, number)));
            }
            (Self::Messages { received, .. }, Done::Arrived { buffer, len }) if *received < plan.count => {
                let expected = plan.len(*received);
                if len != expected {
                    return Err(plan.mismatch(*received, len.min(expected)));
                }
                let memory = link.received(buffer).ok_or(plan.protocol())?;
                if let Some(position) = check(memory, plan.theirs, *received, len) {
                    return Err(plan.mismatch(*received, position));
                }
                link.repost(adapter, buffer)?;
                *received += 1;
                tally.verified += 1;
            }
            (Self::Writer { completed, posted_at, .. }, Done::Transferred(number))
                if number == *completed =>
            {
                *completed += 1;
                tally.latency.record(adapter.now().as_nanos().saturating_sub(stamped(posted_at, number)));
            }
            (Self::Reader { posted, taken, posted_at, .. }, Done::Transferred(number))
                if number < *posted =>
            {
                tally.latency.record(adapter.now().as_nanos().saturating_sub(stamped(posted_at, number)));
                let slot = link.slot(number).ok_or(plan.protocol())?;
                if let Some(position) = check(slot, plan.theirs, number, plan.len(number)) {
                    return Err(plan.mismatch(number, position));
                }
                *taken += 1;
                tally.verified += 1;
                link.send_control(adapter, Control::Taken(number))?;
            }
            (part, Done::Arrived { buffer, len }) => {
                let control = link.control(buffer, len).ok_or(plan.protocol())?;
                link.repost(adapter, buffer)?;
                return part.control(adapter, link, plan, tally, control);
            }
            _ => return Err(plan.protocol()),
        }
        Ok(None)
    }

    fn control<P: Platform>(
        &mut self,
        adapter: &mut Adapter<'_, P>,
        link: &mut Link,
        plan: &Plan,
        tally: &mut Tally,
        control: Control,
    ) -> Result<Option<Control>, DemoError> {
        match (self, control) {
            (_, Control::Finished(_)) => return Ok(Some(control)),
            (Self::Writer { checked, .. }, Control::Checked(number)) if number == *checked => *checked += 1,
            (Self::Written { checked }, Control::Written(number))
                if number == *checked && number < plan.count =>
            {
                let slot = link.slot(number).ok_or(plan.protocol())?;
                if let Some(position) = check(slot, plan.theirs, number, plan.len(number)) {
                    return Err(plan.mismatch(number, position));
                }
                *checked += 1;
                tally.verified += 1;
                link.send_control(adapter, Control::Checked(number))?;
            }
            (Self::Reader { ready, .. }, Control::Ready(number))
                if number == *ready && number < plan.count =>
            {
                *ready += 1
            }
            (Self::Read { taken, .. }, Control::Taken(number)) if number == *taken => *taken += 1,
            _ => return Err(plan.protocol()),
        }
        Ok(None)
    }
}

fn stamp(posted_at: &mut [u64], number: u64, now: u64) {
    let len = posted_at.len();
    if let Some(at) = posted_at.get_mut(number as usize % len) {
        *at = now;
    }
}

fn stamped(posted_at: &[u64], number: u64) -> u64 {
    posted_at.get(number as usize % posted_at.len()).copied().unwrap_or(0)
}

/// Number of transfers whose sizes add up to at least `bytes`.
pub(crate) fn transfers(sizes: &Sizes, bytes: u64) -> u64 {
    debug_assert!(sizes.max as usize <= MAX_RDMA, "a transfer fits a slot");
    let mut total = 0;
    let mut count = 0;
    while total < bytes {
        total += u64::from(sizes.of(count));
        count += 1;
    }
    count
}
