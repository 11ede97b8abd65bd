//! Send queues in guest memory: doorbell records, and basic blocks of WQEs (PRM, work requests and completions).
use mlx5_prm::datapath::{DS_SIZE, SendOpcode, WQEBB_SIZE, wqe_ctrl_seg};

use super::device_state::Prefetched;
use super::parser::{Bad, bad};
use super::schedule::Schedule;
use super::state::MAX_WQE;
use crate::object::qp::{Qp, SendQueue};
use crate::seams::{DmaFault, GuestMemory};

/// A work queue that cannot be worked on: the field at fault, and what is wrong.
pub(super) struct QueueFault(pub(super) &'static str, pub(super) String);

impl Qp {
    /// Reads the send counter of the doorbell record.
    #[inline(always)]
    pub(super) fn read_posted(&mut self, memory: &dyn GuestMemory) -> Result<(), QueueFault> {
        let sq = self.rings().send().ok_or_else(|| QueueFault("qpc.no_sq", "no send queue".to_owned()))?;
        let read = self.rings().posted_sends(memory);
        let posted = read.map_err(|fault| QueueFault("qpc.dbr_addr", fault.to_string()))?;
        let queue = &mut self.transport.queue;
        let outstanding = posted.wrapping_sub(queue.retired);
        if u32::from(outstanding) > sq.blocks() {
            let text = format!("{outstanding} basic blocks outstanding in a queue of {}", sq.blocks());
            return Err(QueueFault("qp_doorbell_record.send_counter", text));
        }
        queue.posted = posted;
        queue.rung = false;
        Ok(())
    }

    /// Returns the basic blocks, 1 to `available`, and the opcode of the WQE at `index`, for flushing it unseen.
    pub(super) fn skim(
        &self,
        memory: &dyn GuestMemory,
        sq: SendQueue,
        index: u16,
        available: u16,
    ) -> (u16, SendOpcode) {
        let mut ctrl = [0; DS_SIZE];
        if self.rings().read(memory, sq.block(index), &mut ctrl).is_err() {
            return (1, SendOpcode::NOP);
        }
        let blocks = (wqe_ctrl_seg::ds.get32(&ctrl) as usize * DS_SIZE).div_ceil(WQEBB_SIZE) as u16;
        (blocks.clamp(1, available), SendOpcode(wqe_ctrl_seg::opcode.get32(&ctrl) as u8))
    }
}

impl Prefetched {
    /// Copies the first basic block of the WQE at `index` out of the ring. Returns the WQE's length.
    fn read_head(
        &mut self,
        memory: &dyn GuestMemory,
        qp: &Qp,
        sq: SendQueue,
        index: u16,
        available: u16,
        head: &mut [u8; WQEBB_SIZE],
    ) -> Result<usize, Bad> {
        if let Some(pushed) = qp.transport.pushed.as_ref().and_then(|pushed| pushed.at(index)) {
            *head = *pushed;
        } else if let Some(block) = self.get(index) {
            *head = *block;
        } else {
            let read = self.fill(memory, qp, sq, index, available);
            *head = read.map_err(|fault| bad("create_qp_in.pas", fault.to_string()))?;
        }
        let ds = wqe_ctrl_seg::ds.get32(head) as usize;
        let len = ds * DS_SIZE;
        if ds == 0 {
            return Err(bad("wqe_ctrl_seg.ds", "zero"));
        }
        if len.div_ceil(WQEBB_SIZE) > usize::from(available) {
            return Err(bad(
                "wqe_ctrl_seg.ds",
                format!("{ds}, but only {available} basic blocks are posted"),
            ));
        }
        if len > MAX_WQE {
            return Err(bad("wqe_ctrl_seg.ds", format!("{ds} exceeds max_wqe_sz_sq")));
        }
        Ok(len)
    }

    /// Reads basic blocks from `index` on out of the ring. Returns the first.
    #[inline(never)]
    fn fill(
        &mut self,
        memory: &dyn GuestMemory,
        qp: &Qp,
        sq: SendQueue,
        index: u16,
        available: u16,
    ) -> Result<[u8; WQEBB_SIZE], DmaFault> {
        let count = available.min(Self::BLOCKS).min(u16::try_from(sq.straight(index)).unwrap_or(u16::MAX));
        let Self { first, count: valid, blocks } = self;
        let mut read = |count| {
            let blocks = blocks.get_mut(..usize::from(count)).unwrap_or_default();
            qp.rings().read(memory, sq.block(index), blocks.as_flattened_mut()).map(|()| count)
        };
        // The page of later blocks may be inaccessible.
        (*first, *valid) = (index, 0);
        *valid = read(count).or_else(|_| read(1))?;
        Ok(blocks.first().copied().unwrap_or([0; WQEBB_SIZE]))
    }
}

/// View: basic blocks of send queues, and room for them.
pub(super) struct Source<'a> {
    memory: &'a dyn GuestMemory,
    prefetched: &'a mut Prefetched,
    schedule: &'a mut Schedule,
}

impl<'a> Source<'a> {
    /// Makes the view.
    #[inline(always)]
    pub(super) fn new(
        memory: &'a dyn GuestMemory,
        prefetched: &'a mut Prefetched,
        schedule: &'a mut Schedule,
    ) -> Self {
        Self { memory, prefetched, schedule }
    }

    /// Returns guest memory.
    pub(super) const fn memory(&self) -> &'a dyn GuestMemory {
        self.memory
    }

    /// Copies the first basic block of the WQE at `index` out of the ring. Returns the WQE's length.
    #[inline(always)]
    pub(super) fn read_head(
        &mut self,
        qp: &Qp,
        sq: SendQueue,
        index: u16,
        available: u16,
        head: &mut [u8; WQEBB_SIZE],
    ) -> Result<usize, Bad> {
        self.prefetched.read_head(self.memory, qp, sq, index, available, head)
    }

    /// Returns whether a QP can have a WQE of `blocks` basic blocks under way, too.
    pub(super) fn has_room(&mut self, qp: &Qp, blocks: u16) -> bool {
        self.schedule.has_room(qp, blocks)
    }
}
