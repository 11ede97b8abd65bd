//! Copies within one HCA's memory, ordered by a send queue (PRM, "Memory to Memory Operations").

use mlx5_prm::datapath::{DS_SIZE, wqe_data_seg};
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::AccessFlags;

use super::Context;
use super::completion::vendor;
use super::state::{Failure, Sge};
use super::wqe::{Bad, bad, take, too_long};
use crate::caps::LOG_MAX_COPY;
use crate::object::qp::Qp;
use crate::run::Data;

/// What follows the control segment: metadata, of which a copy needs none, then source and destination.
pub(super) fn parse_copy(mut rest: &[u8]) -> Result<[Sge; 2], Bad> {
    let _: &[u8; DS_SIZE] = take(&mut rest)?;
    let mut end = || {
        let segment: &[u8; DS_SIZE] = take(&mut rest)?;
        // Zero stands for 2 GiB in a send WQE.
        let len = match wqe_data_seg::byte_count.get32(segment) {
            0 => 1 << 31,
            len => len,
        };
        Ok(Sge { address: wqe_data_seg::addr.get(segment), len, lkey: wqe_data_seg::lkey.get32(segment) })
    };
    let (source, destination) = (end()?, end()?);
    if !rest.is_empty() {
        return Err(bad("wqe_ctrl_seg.ds", "a copy has one source and one destination"));
    }
    if source.len != destination.len {
        let text = format!("{} bytes to {} bytes", source.len, destination.len);
        return Err(too_long("wqe_data_seg.byte_count", text));
    }
    if source.len > 1 << LOG_MAX_COPY {
        let text = format!("a copy of {} bytes, at most {}", source.len, 1 << LOG_MAX_COPY);
        return Err(too_long("wqe_data_seg.byte_count", text));
    }
    Ok([source, destination])
}

impl Context<'_, '_> {
    /// Copies. A refusal is logged and comes back as what the WQE's completion says; if a key refuses, nothing is written.
    pub(super) fn execute_copy(
        &mut self,
        qp: &mut Qp,
        index: u16,
        [from, to]: [Sge; 2],
    ) -> Result<(), Failure> {
        let mut buffer = core::mem::take(&mut self.device.buffer);
        buffer.resize(from.len as usize, 0);
        let (user, mut memory) = (qp.user(), self.memory());
        let read = memory.read_key(user, from.lkey, from.address, AccessFlags::LOCAL_READ, &mut buffer);
        let copied = read.and_then(|()| {
            let data = Data::Bytes(&buffer);
            memory.write_key(user, to.lkey, to.address, AccessFlags::LOCAL_WRITE, &data)
        });
        self.device.buffer = buffer;
        copied.map_err(|fault| {
            self.reports().refuse_data(qp, index, fault);
            Failure { syndrome: CqeSyndrome::LOCAL_PROT_ERR, vendor: vendor::LOCAL_PROTECTION }
        })
    }
}
